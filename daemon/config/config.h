/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon's settings: flags over environment over file. Each key is described in
 * config/streamerd.yaml. A wrong one is refused with file, line and key.
 */
#ifndef DAEMON_CONFIG_CONFIG_H
#define DAEMON_CONFIG_CONFIG_H

#include "daemon/base/error.h"
#include "daemon/base/log.h"
#include "daemon/serve/preload.h"
#include "daemon/serve/role.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PRELOAD_MAX 1024 /* entries of `preload` */
#define CONFIG_DEFAULT_PATH "/etc/streamerd/streamerd.yaml"
#define CONFIG_DEFAULT_SOCKET "/run/streamerd/streamerd.sock"

enum config_pages { CONFIG_PAGES_AUTO, CONFIG_PAGES_HUGETLB, CONFIG_PAGES_THP, CONFIG_PAGES_4K };

#define CONFIG_SPARE_AUTO UINT64_MAX

enum config_handles { CONFIG_HANDLES_IPC, CONFIG_HANDLES_VMM_FD };

struct config_device {
        char *name;                  /* "host", "cuda:0", "cuda:GPU-<uuid>", "cuda:all" */
        uint64_t budget;             /* bytes; 0 where it is a percentage of a device that is not the host */
        unsigned budget_percent;     /* of the device's memory, 90 where no budget is given; else 0 */
        enum config_pages pages;     /* host */
        uint64_t spare;              /* host: bytes that are made ready ahead of need; CONFIG_SPARE_AUTO; 0: none */
        enum config_handles handles; /* cuda */
};

/* Who asks at a host; NULL where it is not given. */
struct config_http_host {
        char *host, *token, *token_file, *user, *password, *password_file;
};

struct config_limits {
        uint64_t connections;         /* 8192 */
        uint64_t connections_per_uid; /* 4096 */
        uint64_t leases_per_uid;      /* 16384; root and the daemon's own uid are exempt from all of these */
        uint64_t loads_per_uid;       /* 32 running or waiting */
        uint64_t models_per_uid;      /* 1024 on each device, and further names of them */
        uint64_t bytes_per_uid;       /* 0 (any amount): of models that are resident or loading for it */
        uint64_t leases_per_client;   /* 4096: one connection's */
        uint64_t loads;               /* 64 running or waiting */
        uint64_t queued;              /* 16 that wait for memory */
        uint64_t requests_per_client; /* 64 unanswered */
        uint64_t output_per_client;   /* 4 MiB of unsent replies; then its requests wait */
        uint64_t fds_in_flight;       /* 4096 in all */
        uint64_t fds_per_client;      /* 256 in flight */
        uint64_t frame_timeout_ns;    /* 10 s: half a frame for longer ends the connection */
        uint64_t preload_loads;       /* 2 of `preload` at once */
        uint64_t preload_retry_ns;    /* 1 s after the first failure, then twice as long each time */
        uint64_t failed_kept;         /* 64 failed loads stay visible */
};

enum config_addressing { CONFIG_ADDRESSING_AUTO, CONFIG_ADDRESSING_PATH, CONFIG_ADDRESSING_VIRTUAL };

/* Of a store. NULL or "": not set. The keys are values, "file:PATH" or "credential:NAME". */
struct config_s3 {
        char *source; /* "s3://bucket/prefix" that it is for; NULL in the section itself: for all else */
        char *endpoint, *region, *ca, *profile;
        char *access_key, *secret_key, *session_token;
        enum config_addressing addressing;
        bool is_unsigned;
        bool is_signed; /* of a source: it says that it is not unsigned, whatever all others are */
};

struct config {
        char *path; /* of the file that was read; NULL if none */
        char *socket;
        char *state; /* a folder; NULL: nothing is remembered over a restart */
        char **roots;
        size_t n_roots;
        struct config_device *devices;
        size_t n_devices;
        struct {
                unsigned concurrency;  /* 16: blocks read at once for one load */
                uint64_t block_size;   /* 8 MiB; a multiple of 1 MiB */
                uint64_t memory_limit; /* of the staging ring; 0 = default: concurrency x block_size */
                uint64_t stall_ns;     /* 30 s without a byte: the load is quarantined */
        } io;
        struct config_limits limits;
        uint64_t host_cache; /* bytes of pinned memory for what GPUs have no room for; 0: none */
        struct roles access;
        struct preload_list preload;
        struct {
                uint64_t keep_alive_ns;    /* 0: models stay until they are unloaded or evicted */
                uint64_t drain_timeout_ns; /* 0: what was replaced stays as long as it is leased */
        } residency;
        struct {
                char *library;         /* of the CUDA runtime; NULL: libcudart.so.13, .12 */
                bool across_uids;      /* false: cuda-ipc handles of a model go to one user's processes */
                bool trust_detach;     /* true: a client that says it has unmapped is believed */
                uint64_t segment_size; /* 4 GiB: where a new segment is begun; a multiple of 2 MiB */
        } cuda;
        struct config_s3 s3;
        struct config_s3 *s3_sources;
        size_t n_s3_sources;
        struct {
                char *endpoint; /* of the Hub; NULL or "": https://huggingface.co */
                char *token;    /* as keys of S3 */
        } hf;
        struct {
                uint64_t connect_timeout_ns; /* 10 s */
                uint64_t stall_ns;           /* 20 s without a byte: the range is asked for again */
                uint64_t backoff_ns;         /* 200 ms: the first pause, at most */
                uint64_t retry_after_ns;     /* 30 s: the longest pause */
                unsigned tries;              /* 6, of one range */
                uint64_t patience_ns;        /* 60 s: beyond these, with a server that will be there again */
                unsigned redirects;          /* 5 */
                unsigned threads;            /* of the network; 0: one for each processor, 4 at most */
                uint64_t request_max;        /* 128 MiB: what one request of a load asks for */
                char *ca;                    /* NULL or "": the system's certificates */
                char **allow_plain;
                size_t n_allow_plain;
                struct config_http_host *hosts;
                size_t n_hosts;
        } http;
        struct {
                bool realtime; /* true: the thread that answers clients, where the daemon may */
        } loop;
        struct {
                char *listen; /* NULL or "": nowhere */
        } metrics;
        struct {
                enum log_level level;
                enum log_format format;
                bool to_stderr; /* $RUNAI_STREAMER_LOG_TO_STDERR: not to the journal's own socket */
        } log;
};

enum config_action { CONFIG_RUN, CONFIG_EXIT }; /* --help, --version, --check-config, completion: print and exit */

/* From argv, environ and the file. 0 with *action, else STREAMER_EINVAL (usage, exit 2) or another
 * STREAMER_E* with the text to print. Notes for the log (e.g. RUNAI_STREAMER_MEMORY_LIMIT=-1 means
 * the default ring) are collected in notes, one a line. */
int config_load(struct config *config, int argc, char **argv, enum config_action *action, char *notes,
                size_t notes_size, struct error *error);
void config_deinit(struct config *config); /* accepts a zeroed one */

/* A text that may be empty where it is not set. */
static inline const char *config_text(const char *text)
{
        return text != NULL && text[0] != '\0' ? text : NULL;
}

/* What --help prints: the caller's to free; NULL on ENOMEM. */
char *config_usage(void);

/* ---- parts, for config_load and the tests ---- */

void config_init(struct config *config); /* the defaults */

/* "8GiB", "512MiB", "4096": 0 or -1 (syntax, overflow). */
int config_parse_size(const char *text, uint64_t *bytes);
int config_parse_duration(const char *text, uint64_t *ns); /* "30s", "5m", "250ms" */

/* YAML text of this length, as a file of this name, into a config that has its defaults. */
int config_parse_yaml(struct config *config, const char *name, const char *text, size_t len, struct error *error);

#endif
