/* SPDX-License-Identifier: Apache-2.0
 *
 * streamerctl: one verb, its results on standard output, one exit code. Verbs are rows of a table
 * (verbs.c), from which parsing, help and completion follow, and with which a test compares the
 * manual. Files group them: load.c, model_verbs.c (unload, pin, ...), wait.c, run.c, list.c (list, show,
 * explain), status.c (status, ps, metrics), config_verbs.c (whoami, config, reload), stream_verbs.c (cat, events),
 * export.c, fetch.c, cache.c, top.c, doctor.c.
 */
#pragma once

#include "streamer/client.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define EXIT_USAGE 2
#define JSON_SCHEMA 1 /* docs/json.md */
#define EXIT_INTERRUPTED 130
#define EXIT_SIGPIPE 141
#define DEVICES_MAX 64

enum format { FORMAT_TABLE, FORMAT_WIDE, FORMAT_JSON };

struct ctl {
        const struct verb *verb;
        const char **args; /* after the verb */
        size_t n_args;

        const char *socket;
        enum format format;
        bool quiet; /* names only, no progress */
        bool no_progress, help, version;
        int timeout_ms;       /* -1: not given */
        uint64_t deadline_ns; /* of load and wait, CLOCK_MONOTONIC; 0: none */

        const char *layout, *pattern;
        const char *name, *verify;
        uint64_t priority; /* 0: not given */
        uint64_t keep_alive_ms, drain_timeout_ms;
        char *devices[DEVICES_MAX + 1]; /* by the daemon's names; the first is NULL where none is given */
        size_t n_devices;
        uint64_t interval_ms; /* of top; 0: not given */
        bool once;
        const char *directory; /* that fetch writes into */
        uint64_t idle_ms;      /* of unload */
        bool all, any, watch;
        const char *until; /* of wait: NULL, "ready" or "unloaded" */
        bool list, detach, dry_run, tensors, drain, force, queue, no_evict, pin;

        streamer_client *client;
};

enum flag_type {
        FLAG_BOOL,
        FLAG_STR,
        FLAG_DEVICE,
        FLAG_FORMAT,
        FLAG_JSON,
        FLAG_TIMEOUT,
        FLAG_INTERVAL,
        FLAG_DURATION,
        FLAG_PRIORITY
};

struct flag {
        const char *name;  /* with its dashes */
        const char *value; /* NULL: takes none */
        const char *help;
        enum flag_type type;
        size_t offset; /* in struct ctl */
        const char *alias;
        bool hidden; /* a synonym: parsed, and neither helped nor completed */
};

struct verb {
        const char *name, *args, *summary;
        const char *alias;        /* NULL, or another name */
        const char *about;        /* NULL, or lines that say more than the summary */
        const char *examples;     /* lines, each a command */
        const struct flag *flags; /* up to a row without a name; NULL: none */
        size_t min_args, max_args;
        /* One of these; an exit code. */
        int (*run)(struct ctl *ctl);
        int (*each)(struct ctl *ctl, const char *arg);             /* with each argument: ctl_each() */
        void (*print)(const struct ctl *ctl, const json_t *reply); /* the reply to the request of this name */

        bool offline; /* needs no daemon */
        bool own;     /* never about the system's daemon, unless its socket is named */
        bool hidden;  /* for programs: neither helped nor completed */
        bool raw;     /* writes bytes: has no format */
        bool waits;   /* --timeout bounds the wait for models, not for one reply */
};

extern const char build_commit[]; /* that the program was built from; the Makefile defines it at link time */

extern const struct verb verbs[]; /* up to a row without a name */
extern const struct flag global_flags[];

int verb_load(struct ctl *ctl);
int verb_set_priority(struct ctl *ctl);
int verb_run(struct ctl *ctl);
int verb_unload(struct ctl *ctl);
int verb_keep_alive(struct ctl *ctl);
int verb_shutdown(struct ctl *ctl);
int verb_wait(struct ctl *ctl);
int verb_list(struct ctl *ctl);
int verb_diff(struct ctl *ctl);
int verb_ps(struct ctl *ctl);
int verb_cat(struct ctl *ctl);
int verb_export(struct ctl *ctl);
int verb_events(struct ctl *ctl);
int verb_fetch(struct ctl *ctl);
int verb_cache(struct ctl *ctl);
int verb_version(struct ctl *ctl);
int verb_doctor(struct ctl *ctl);
int verb_complete(struct ctl *ctl);
int verb_top(struct ctl *ctl);
int verb_help(struct ctl *ctl);
int each_cancel(struct ctl *ctl, const char *model);
int each_pin(struct ctl *ctl, const char *model);
int each_unpin(struct ctl *ctl, const char *model);
int each_verify(struct ctl *ctl, const char *model);
int each_show(struct ctl *ctl, const char *model);
/* Of a model as `show` describes it: what its load left out, and what its index lists in vain. `model`: as warnings;
 * NULL: as lines of `show`. */
void print_notes(FILE *f, const json_t *m, const char *model);
/* A line of the cipher, keys and signer of what was encrypted, after its title; NULL: it was not. */
void print_encryption(const char *title, const json_t *encryption);
int each_explain(struct ctl *ctl, const char *model);
void print_reload(const struct ctl *ctl, const json_t *reply);
void print_config(const struct ctl *ctl, const json_t *reply);
void print_whoami(const struct ctl *ctl, const json_t *reply);
void print_status(const struct ctl *ctl, const json_t *reply);
void print_metrics(const struct ctl *ctl, const json_t *reply);
void print_ping(const struct ctl *ctl, const json_t *reply);

/* ---- flags.c ---- */

/* 0, or EXIT_USAGE after an error. */
int flags_parse(struct ctl *ctl, int argc, char **argv);
const struct verb *verb_by_name(const char *name); /* or by its alias; NULL */
/* A global flag, or one of the verb (NULL: none yet); *value: what is part of the word, or NULL. NULL: there is none.
 */
const struct flag *flag_find(const struct verb *verb, const char *word, const char **value);
/* A duration of a keep-alive: "250ms", "30s", "5m", "2h", or "30", which are seconds. 0, or EXIT_USAGE after an error.
 */
int parse_duration(const struct ctl *ctl, const char *value, uint64_t *ms);
int parse_priority(const struct ctl *ctl, const char *value, uint64_t *priority); /* likewise, 1 to 10000 */

/* ---- model_verbs.c ---- */

/* Calls a verb with args, an object or NULL on failure to build one, and the model; takes over args. */
int call_model(struct ctl *ctl, const char *verb, const char *model, json_t *args, json_t **reply);
/* The reply with --json, the name alone with -q, else "NAME  what became of it". */
void print_done(const struct ctl *ctl, const char *model, const json_t *reply, const char *format, ...)
        __attribute__((format(printf, 4, 5)));

/* ---- help.c ---- */

void help_print(FILE *to, const struct verb *verb); /* NULL: the overview */

/* ---- devices.c ---- */

/* A value of --device. 0, or EXIT_USAGE after an error. */
int devices_add(struct ctl *ctl, const char *given);

/* For verbs about one model, and one device at most. */
int model_args(const struct ctl *ctl, const char *model, json_t **args);         /* {"model", "device"} */
int model_attach(const struct ctl *ctl, int timeout_ms, streamer_lease **lease); /* the first argument, once ready */

/* ---- error.c: each prints one error to standard error ---- */

/* A line "streamerctl: SUBJECT: TEXT", or with --json the object that docs/json.md describes. `err` is STREAMER_E*;
 * the exit code of it. `subject`: a model or a source, or NULL. */
int ctl_error(const struct ctl *ctl, int err, const char *subject, const char *format, ...)
        __attribute__((format(printf, 4, 5)));
/* The same with the text of the library's last failure. */
int ctl_fail(const struct ctl *ctl, int err, const char *subject);
/* Wrong usage: EXIT_USAGE, with a hint at help. */
int usage_error(const struct ctl *ctl, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* JSON cannot hold one of the arguments: names it. EXIT_USAGE. */
int usage_not_utf8(const struct ctl *ctl);
/* The disk is full: 1. The reader has closed the pipe: nothing is printed, and the exit code is that of a program which
 * SIGPIPE ends. Uses errno. */
int output_error(const struct ctl *ctl);

/* ---- connect.c ---- */

/* Connects ctl->client by the library's rule; the library's code. 0: its default for replies, and `reply_ms` for the
 * connection. */
int ctl_connect(struct ctl *ctl, int connect_ms, int reply_ms);

/* ---- call.c ---- */

/* Calls the daemon. Takes over args, an object; NULL: one with text that is not UTF-8. 0 with *reply, or the library's
 * code. */
int ask(streamer_client *client, const char *verb, json_t *args, json_t **reply);
/* The same; a failure has been printed, and its exit code is the result. */
int ctl_call(struct ctl *ctl, const char *verb, json_t *args, const char *subject, json_t **reply);
/* The same; prints the reply if the format is JSON: then *reply stays NULL. */
int ctl_query(struct ctl *ctl, const char *verb, json_t *args, const char *subject, json_t **reply);
/* Calls `act` with each of the verb's arguments; the exit code of the first failure. */
int ctl_each(struct ctl *ctl, int (*act)(struct ctl *ctl, const char *model));
/* One line: `json`, an object, with "schema" before its members. */
void ctl_print_json(const json_t *json);
/* A name on a line of its own (-q). */
void ctl_print_name(const char *name);
void ctl_print_names(const json_t *rows);

uint64_t clock_now_ns(void); /* CLOCK_MONOTONIC */
/* Milliseconds until the deadline, at most `most` (-1: no limit); 0: it has passed. */
int ctl_left_ms(const struct ctl *ctl, int most);

const char *json_str(const json_t *o, const char *key); /* "" if missing */
bool json_bool(const json_t *o, const char *key);       /* false if missing */
uint64_t json_u64(const json_t *o, const char *key);    /* 0 if missing; reads strings of digits too */
