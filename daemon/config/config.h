/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon's settings. config/streamerd.yaml describes each key. A wrong one is refused with file, line and key.
 */
#pragma once

#include "daemon/base/error.h"
#include "daemon/base/log/log.h"
#include "daemon/crypt/keyring.h"
#include "daemon/device/cuda/cuda.h"
#include "daemon/io/disk/disk_cache.h"
#include "daemon/serve/access/role.h"
#include "daemon/serve/desired/desired.h"
#include "daemon/serve/limits.h"
#include "daemon/source/azure/azure.h"
#include "daemon/source/gcs/gcs.h"
#include "daemon/source/s3/endpoint.h"
#include "daemon/source/web/http_auth.h"

#define CONFIG_DEFAULT_PATH "/etc/streamerd/streamerd.yaml"
#define CONFIG_DEFAULT_SOCKET "/run/streamerd/streamerd.sock"
#define PRELOAD_MAX 1024 /* entries of `preload` */

struct config_device {
        char *name;                /* "host", "cuda:0", "cuda:GPU-<uuid>", "cuda:all" */
        bool optional;             /* "cuda:0?", "cuda:all?": the daemon starts without it */
        uint64_t budget;           /* bytes; 0 where it is a percentage */
        unsigned budget_percent;   /* of the device's memory, 90 where no budget is given; else 0 */
        enum host_pages pages;     /* host */
        uint64_t prefault;         /* host: bytes; PREFAULT_AUTO; 0: none */
        enum cuda_handles handles; /* cuda */
};

/* Where a value was given; a later one overrides an earlier one. */
enum config_origin { CONFIG_DEFAULT, CONFIG_FILE, CONFIG_ENVIRONMENT, CONFIG_FLAG };

#define CONFIG_SETTINGS_MAX 128

/* Each list is a pointer, and after it the length. */
struct config {
        unsigned char origins[CONFIG_SETTINGS_MAX]; /* enum config_origin, by index in `settings` (setting.h) */
        const char *path;                           /* of the file that was read, borrowed from argv; NULL if none */
        char **warnings;                            /* variables of other programs that are not taken as they are */
        size_t n_warnings;
        char *socket;
        char *state;           /* a folder; NULL: no state file */
        uint64_t exit_idle_ns; /* 0: the daemon does not exit by itself */
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
        struct limits limits;
        struct {
                char *path; /* a folder; NULL or "": there is no disk cache */
                uint64_t budget;
                struct config_share {
                        uint64_t bytes;
                        unsigned percent; /* where bytes is 0 */
                } min_free;               /* of its file system */
                bool offline;             /* false: a store that cannot be asked fails the load */
                char **also;              /* folders of slow file systems, whose files are stored, too */
                size_t n_also;
        } disk_cache;
        uint64_t host_cache; /* bytes of pinned memory for models that GPUs evict; 0: none */
        struct roles access;
        struct model_record *preload; /* entries: as for desired_configure() */
        size_t n_preload;
        struct {
                uint64_t keep_alive_ns;    /* 0: models stay until they are unloaded or evicted */
                uint64_t drain_timeout_ns; /* 0: what was replaced stays as long as it is leased */
        } residency;
        struct {
                char *library;         /* of the CUDA runtime; NULL: libcudart.so.13, .12 */
                bool across_uids;      /* false: cuda-ipc handles of a model go to one user's processes */
                bool trust_detach;     /* true: a detach proves that the client has unmapped */
                uint64_t segment_size; /* 4 GiB: where a new segment is begun; a multiple of 2 MiB */
                bool readback;         /* true: a load compares samples of what it has copied */
                bool context_at_start; /* false: the first load creates it */
                struct cuda_settings settings;
        } cuda;
        struct {
                bool across_uids; /* false: the publisher's user and root attach to what it has published */
                bool cuda_ipc;    /* false: nothing is published in memory that stays writable for clients */
                uint64_t keep;    /* 2: generations of one name that clients have made of tensors */
        } publish;
        struct {
                char **keys; /* files of them: "file:PATH", "credential:NAME" */
                size_t n_keys;
                bool plaintext_tensors; /* true: beside encrypted tensors there may be others */
                bool require;           /* true: no other file is loaded */
                bool across_uids;       /* false: the loader's user and root attach to what was decrypted */
        } encryption;
        struct s3_endpoint_opts s3;
        struct s3_endpoint_opts *s3_sources;
        size_t n_s3_sources;
        struct gcs_opts gcs;
        struct gcs_opts *gcs_sources;
        size_t n_gcs_sources;
        char **gcs_token_hosts;
        size_t n_gcs_token_hosts;
        struct azure_opts azure;
        struct azure_opts *azure_sources;
        size_t n_azure_sources;
        struct {
                char *endpoint; /* of the Hub; NULL or "": https://huggingface.co */
                char *token;    /* as keys of S3 */
        } hf;
        struct {
                struct http_opts opts; /* but for ca and allow_plain; threads 0: one for each processor, 4 at most */
                char *ca;              /* NULL or "": the system's certificates */
                char **allow_plain;
                size_t n_allow_plain;
                struct web_host *hosts;
                size_t n_hosts;
        } http;
        struct {
                char *listen;                                     /* NULL or "": none, as the next */
                char *certificate, *key, *client_ca, *token_file; /* paths: page_guard.h */
        } metrics;
        struct {
                char *listen;
        } health;
        struct {
                enum log_level level;
                enum log_format format;
                bool to_stderr; /* $RUNAI_STREAMER_LOG_TO_STDERR: not to the journal's own socket */
        } log;
};

#define CONFIG_PRINTED 1 /* for --help, --version, --check-config or completion: there is nothing else to do */

/* Reads the files of encryption.keys: may block. */
int config_keyring(const struct config *config, struct keyring **out, struct error *error);
/* From argv, environ and the file. 0, CONFIG_PRINTED, STREAMER_EINVAL (usage, exit 2) or another STREAMER_E* with the
 * text to print. */
int config_load(struct config *config, int argc, char **argv, struct error *error);
/* The variable that the value of this key is from; NULL: it is from elsewhere. */
const char *config_variable(const struct config *config, const char *key);
static inline struct disk_limits config_disk_limits(const struct config *config)
{
        return (struct disk_limits){.budget = config->disk_cache.budget,
                                    .min_free = config->disk_cache.min_free.bytes,
                                    .min_free_percent = config->disk_cache.min_free.percent,
                                    .offline = config->disk_cache.offline};
}
/* Bytes of the staging ring: the limit, else this many blocks. Where a variable of another program makes it large for
 * this memory, blocks become smaller, or the ring, with a warning. STREAMER_ENOMEM. */
int config_fit_ring(struct config *config, uint64_t blocks, uint64_t memory, uint64_t *bytes, struct error *error);
void config_init(struct config *config);   /* the defaults */
void config_deinit(struct config *config); /* accepts a zeroed one */

/* YAML text of this length, as a file of this name, into a config that has its defaults and borrows the name.
 * STREAMER_EINVAL: "file:line: key: what". */
int config_parse_yaml(struct config *config, const char *name, const char *text, size_t len, struct error *error);
