/* SPDX-License-Identifier: Apache-2.0
 *
 * streamerctl: one verb, one result on standard output, one exit code. Verbs are rows of a table
 * (verbs.c), from which parsing, help and completion follow, and with which a test compares the
 * manual. They are grouped by file: what changes models, what asks, what reads data.
 */
#ifndef STREAMERCTL_CTL_H
#define STREAMERCTL_CTL_H

#include "streamer/client.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXIT_USAGE 2
#define EXIT_INTERRUPTED 130
#define DEVICES_MAX 64

enum format { FORMAT_TABLE, FORMAT_WIDE, FORMAT_JSON };

struct ctl {
        const struct verb *verb;
        const char **args; /* after the verb */
        size_t n_args;

        const char *socket;
        enum format format;
        bool quiet, no_progress, help, version;
        int timeout_ms; /* -1: not given */

        const char *layout, *pattern;
        const char *name, *verify, *priority;
        uint64_t keep_alive_ms, drain_timeout_ms;
        const char *devices[DEVICES_MAX];
        size_t n_devices;
        const char *interval; /* seconds, of top */
        bool once;
        bool detach, dry_run, tensors, drain, force, wait, no_evict, pin;

        streamer_client *client;
};

enum flag_type { FLAG_BOOL, FLAG_STR, FLAG_DEVICE, FLAG_FORMAT, FLAG_JSON, FLAG_SECONDS, FLAG_DURATION };

struct flag {
        const char *name; /* with its dashes */
        const char *alias;
        const char *value; /* NULL: takes none */
        const char *help;
        enum flag_type type;
        size_t offset; /* in struct ctl */
};

struct verb {
        const char *name, *args, *summary;
        const char *about;        /* NULL, or lines that say more than the summary */
        const char *examples;     /* lines, each a command */
        const struct flag *flags; /* up to a row without a name; NULL: none */
        size_t min_args, max_args;
        int (*run)(struct ctl *ctl); /* an exit code */
        bool offline;                /* needs no daemon */
        bool hidden;                 /* not for people */
        bool raw;                    /* writes bytes: has no format */
};

extern const struct verb verbs[]; /* up to a row without a name */
extern const struct flag global_flags[];

int verb_load(struct ctl *ctl);
int verb_cancel(struct ctl *ctl);
int verb_set_priority(struct ctl *ctl);
int verb_unload(struct ctl *ctl);
int verb_pin(struct ctl *ctl);
int verb_unpin(struct ctl *ctl);
int verb_reload(struct ctl *ctl);
int verb_whoami(struct ctl *ctl);
int verb_wait(struct ctl *ctl);
int verb_verify(struct ctl *ctl);
int verb_list(struct ctl *ctl);
int verb_show(struct ctl *ctl);
int verb_status(struct ctl *ctl);
int verb_ps(struct ctl *ctl);
int verb_cat(struct ctl *ctl);
int verb_events(struct ctl *ctl);
int verb_metrics(struct ctl *ctl);
int verb_ping(struct ctl *ctl);
int verb_version(struct ctl *ctl);
int verb_doctor(struct ctl *ctl);
int verb_complete(struct ctl *ctl);
int verb_top(struct ctl *ctl);
int verb_help(struct ctl *ctl);

/* ---- flags.c ---- */

/* 0, or EXIT_USAGE after a line on standard error. */
int flags_parse(struct ctl *ctl, int argc, char **argv);
int usage_error(const struct ctl *ctl, const char *format, ...) __attribute__((format(printf, 2, 3)));
const struct verb *verb_by_name(const char *name);

/* ---- help.c ---- */

void help_print(const struct verb *verb); /* NULL: the overview */

/* ---- devices.c ---- */

/* What --device named, by the daemon's names. */
struct devices {
        char *names[DEVICES_MAX + 1]; /* the first is NULL where there is none */
        size_t n;
};

/* 0, or EXIT_USAGE after a line on standard error; deinit in either case. */
int devices_init(const struct ctl *ctl, struct devices *devices);
int devices_init_one(const struct ctl *ctl, struct devices *devices); /* one at most */
void devices_deinit(struct devices *devices);
#define cleanup_devices __attribute__((cleanup(devices_deinit)))

/* ---- call.c ---- */

/* One line on standard error: "streamerctl: SUBJECT: the client's last error"; the exit code. */
int ctl_fail(const struct ctl *ctl, int err, const char *subject);

/* Calls the daemon. Takes over args (may be NULL). 0 with *reply, or the exit code of the failure,
 * which has been told. */
int ctl_call(struct ctl *ctl, const char *verb, json_t *args, const char *subject, json_t **reply);
void ctl_print_json(const json_t *json);

static inline void json_decref_p(json_t **json)
{
        json_decref(*json);
}
#define cleanup_json __attribute__((cleanup(json_decref_p)))

const char *json_str(const json_t *o, const char *key); /* "" if missing */
uint64_t json_u64(const json_t *o, const char *key);    /* 0 if missing; reads strings of digits too */

#endif
