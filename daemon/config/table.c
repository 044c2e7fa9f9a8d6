/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of settings, and the checks of texts. config/streamerd.yaml describes each key at length.
 */
#include "daemon/config/setting.h"

#include "daemon/base/sys/listen.h"
#include "daemon/base/util.h"

#include <sys/un.h>

#define HOUR (3600 * SECOND)
#define DAYS366 (8784 * HOUR)
#define TiB (GiB << 10)
#define RUNAI "RUNAI_STREAMER_"

static int check_path(const char *text, char why[SETTING_WHY])
{
        return text[0] == '\0' ? 0 : setting_check_absolute(text, why);
}

static int check_socket(const char *text, char why[SETTING_WHY])
{
        if (text[0] == '\0')
                return setting_wrong(why, "has no value");
        if (text[0] == '/' && strlen(text) >= sizeof(((struct sockaddr_un *)0)->sun_path))
                return setting_wrong(why, LISTEN_TOO_LONG);
        return setting_check_absolute(text, why);
}

static int check_listen(const char *text, char why[SETTING_WHY])
{
        struct listen_address address;
        struct error error;
        bool valid = text[0] == '\0' || listen_parse(text, &address, &error) == 0;
        return valid ? 0 : setting_wrong(why, "%.150s", error.text);
}

/* "10%" or a size. */
static int set_share(void *field, const char *text, char why[SETTING_WHY])
{
        struct config_share *share = field;
        char *end;
        unsigned long percent = strtoul(text, &end, 10);
        uint64_t bytes;
        if (text[0] >= '0' && text[0] <= '9' && strcmp(end, "%") == 0) {
                if (percent > 99)
                        return setting_wrong(why, "%.40s is not within 0%% to 99%%", text);
                *share = (struct config_share){.percent = (unsigned)percent};
                return 0;
        }
        if (config_parse_size(text, &bytes) < 0)
                return setting_wrong(why, "'%.40s' is neither a size nor a percentage", text);
        *share = (struct config_share){.bytes = bytes};
        return 0;
}

static void share_text(const void *field, char *out, size_t size)
{
        const struct config_share *share = field;
        char number[SETTING_NUMBER_TEXT];
        if (share->bytes > 0)
                snprintf(out, size, "%s", config_size_text(share->bytes, number));
        else
                snprintf(out, size, "%u%%", share->percent);
}

static const char *const refuse_words[] = {[false] = "refuse", [true] = "allow", NULL};
static const char *const device_examples[] = {"host", "cuda:0", "cuda:all", "cuda:all?", NULL};

#define F(name) SETTING_FIELD(struct config, name)
#define LIST(array, list_) SETTING_LIST, .offset = offsetof(struct config, array), .list = &(list_)
#define ACTION(name) SETTING_ACTION, .offset = offsetof(struct actions, name)
#define BOOL(name) SETTING_WORD, F(name), .words = setting_bool_words
#define ENV(name, note) .env = (name), .env_note = (note)

/* In the order of --help. A lower limit of 128 descriptors: one attach carries up to 66. Of 1 MiB of output: one
 * reply. */
// clang-format off
const struct setting settings[] = {
        {"devices", LIST(devices, list_devices), .words = device_examples, .flag = "device", .argument = "D",
         .help = "a device that holds weights, and its budget; repeatable\n"
                 "host, host=8GiB, host=90% (of its memory; the default),\n"
                 "cuda:0, cuda:GPU-<uuid>, cuda:all; cuda:all?: if they work"},
        {"roots", LIST(roots, list_roots), .flag = "root", .argument = "DIR",
         .help = "a directory that models may be loaded from; repeatable"},
        {"socket", SETTING_TEXT, F(socket), CONFIG_DEFAULT_SOCKET, .check = check_socket, .flag = "socket", .argument = "PATH",
         .help = "the socket to listen on", ENV("STREAMERD_SOCKET", "")},
        {"state", SETTING_TEXT, F(state), .check = check_path, .flag = "state", .argument = "DIR",
         .help = "the directory of the state file ($STATE_DIRECTORY; none)",
         ENV("STATE_DIRECTORY", "; systemd sets it (StateDirectory=)")},
        {"exit_idle", SETTING_DURATION, F(exit_idle_ns), "0s", 0, DAYS366, .flag = "exit-idle", .argument = "D",
         .help = "exit after this time without a connection, a lease or a load; 0s: never"},
        {"residency.keep_alive", SETTING_DURATION, F(residency.keep_alive_ns), "0s", 0, DAYS366, .flag = "keep-alive",
         .argument = "D", .help = "unload a model that had no lease for this time; 0s: never"},
        {"residency.drain_timeout", SETTING_DURATION, F(residency.drain_timeout_ns), "0s", 0, DAYS366},
        {NULL, ACTION(config), .flag = "config", .argument = "FILE",
         .help = "the configuration file (" CONFIG_DEFAULT_PATH " if it exists)"},
        {"io.concurrency", SETTING_NUMBER, F(io.concurrency), "16", 1, 1024, .flag = "concurrency", .argument = "N",
         .help = "blocks in flight for one load", ENV(RUNAI "CONCURRENCY", "")},
        {"io.block_size", SETTING_SIZE, F(io.block_size), "8MiB", MiB, GiB, MiB, .flag = "block-size", .argument = "S",
         .help = "bytes of one read, a multiple of 1MiB", .env_old = RUNAI "BLOCK_BYTESIZE",
         ENV(RUNAI "CHUNK_BYTESIZE", "; " RUNAI "BLOCK_BYTESIZE is its older name")},
        {"io.memory_limit", SETTING_SIZE, F(io.memory_limit), "0", 0, TiB, .flag = "memory-limit", .argument = "S",
         .help = "bytes of the staging ring; 0: concurrency x block size",
         ENV(RUNAI "MEMORY_LIMIT", "; -1 and 0 mean the default")},
        {"io.stall", SETTING_DURATION, F(io.stall_ns), "30s", SECOND, HOUR},
        {"http.ca", SETTING_TEXT, F(http.ca)},
        {"http.allow_plain", LIST(http.allow_plain, list_plain_hosts)},
        {"http.hosts", LIST(http.hosts, list_hosts)},
        {"http.connect_timeout", SETTING_DURATION, F(http.opts.connect_timeout_ns), "10s", 100 * MS, HOUR},
        {"http.stall", SETTING_DURATION, F(http.opts.stall_ns), "20s", 100 * MS, HOUR,
         ENV(RUNAI "S3_REQUEST_TIMEOUT_MS", ", in milliseconds")},
        {"http.tries", SETTING_NUMBER, F(http.opts.tries), "6", 1, 100},
        {"http.backoff", SETTING_DURATION, F(http.opts.backoff_ns), "200ms", MS, HOUR},
        {"http.patience", SETTING_DURATION, F(http.opts.patience_ns), "60s", 0, HOUR},
        {"http.retry_after", SETTING_DURATION, F(http.opts.retry_after_ns), "30s", MS, HOUR},
        {"http.redirects", SETTING_NUMBER, F(http.opts.redirects), "5", 0, 50},
        {"http.threads", SETTING_NUMBER, F(http.opts.threads), "0", 0, 64},
        {"http.request_max", SETTING_SIZE, F(http.opts.request_max), "128MiB", MiB, TiB},
        {"s3.endpoint", SETTING_TEXT, F(s3.endpoint), ENV(RUNAI "S3_ENDPOINT", "")},
        {"s3.region", SETTING_TEXT, F(s3.region)},
        {"s3.addressing", SETTING_WORD, F(s3.addressing), "auto", .words = setting_addressing_words,
         ENV(RUNAI "S3_USE_VIRTUAL_ADDRESSING", ": 0 path, 1 virtual")},
        {"s3.unsigned", BOOL(s3.is_unsigned), ENV(RUNAI "S3_UNSIGNED", ": 0 or 1")},
        {"s3.ca", SETTING_TEXT, F(s3.ca)},
        {"s3.profile", SETTING_TEXT, F(s3.profile)},
        {"s3.access_key", SETTING_TEXT, F(s3.access_key), .secret = true},
        {"s3.secret_key", SETTING_TEXT, F(s3.secret_key), .secret = true},
        {"s3.session_token", SETTING_TEXT, F(s3.session_token), .secret = true},
        {"s3.sources", LIST(s3_sources, list_s3_sources)},
        {"gcs.endpoint", SETTING_TEXT, F(gcs.endpoint)},
        {"gcs.credentials", SETTING_TEXT, F(gcs.credentials), .secret = true},
        {"gcs.anonymous", BOOL(gcs.is_anonymous), ENV(RUNAI "GCS_USE_ANONYMOUS_CREDENTIALS", ": 0 or 1")},
        {"gcs.quota_project", SETTING_TEXT, F(gcs.quota_project)},
        {"gcs.token_hosts", LIST(gcs_token_hosts, list_plain_hosts)},
        {"gcs.sources", LIST(gcs_sources, list_gcs_sources)},
        {"azure.account", SETTING_TEXT, F(azure.account)},
        {"azure.endpoint", SETTING_TEXT, F(azure.endpoint)},
        {"azure.connection_string", SETTING_TEXT, F(azure.connection_string), .secret = true},
        {"azure.sas_token", SETTING_TEXT, F(azure.sas_token), .secret = true},
        {"azure.account_key", SETTING_TEXT, F(azure.account_key), .secret = true},
        {"azure.tenant_id", SETTING_TEXT, F(azure.tenant_id)},
        {"azure.client_id", SETTING_TEXT, F(azure.client_id)},
        {"azure.client_secret", SETTING_TEXT, F(azure.client_secret), .secret = true},
        {"azure.federated_token_file", SETTING_TEXT, F(azure.federated_token_file)},
        {"azure.authority_host", SETTING_TEXT, F(azure.authority_host)},
        {"azure.token", SETTING_TEXT, F(azure.token), .secret = true},
        {"azure.anonymous", BOOL(azure.is_anonymous)},
        {"azure.sources", LIST(azure_sources, list_azure_sources)},
        {"hf.endpoint", SETTING_TEXT, F(hf.endpoint), ENV("HF_ENDPOINT", "")},
        {"hf.token", SETTING_TEXT, F(hf.token), .secret = true, ENV("HF_TOKEN", "")},
        {"cuda.library", SETTING_TEXT, F(cuda.library)},
        {"cuda.across_uids", BOOL(cuda.across_uids)},
        {"cuda.trust_detach", BOOL(cuda.trust_detach), .initial = "true"},
        {"cuda.readback", BOOL(cuda.readback), .initial = "true"},
        {"cuda.segment_size", SETTING_SIZE, F(cuda.segment_size), "4GiB", 2 * MiB, TiB, 2 * MiB},
        {"cuda.context_retention", SETTING_DURATION, F(cuda.settings.context_retention_ns), "60s", 0, DAYS366},
        {"cuda.context_at_start", BOOL(cuda.context_at_start)},
        {"cuda.poll_copies", BOOL(cuda.settings.poll_copies)},
        {"cuda.batch_single_copies", BOOL(cuda.settings.batch_single_copies)},
        {"host_cache", SETTING_SIZE, F(host_cache), "0", 0, TiB},
        {NULL, SETTING_OWN, .flag = SETTING_DISK_CACHE_FLAG, .argument = "PATH=SIZE",
         .help = "a folder that keeps what was loaded from stores, and its budget (none)"},
        {"disk_cache.path", SETTING_TEXT, F(disk_cache.path), .check = check_path},
        {"disk_cache.budget", SETTING_SIZE, F(disk_cache.budget), "0", 0, TiB << 10},
        {"disk_cache.min_free", SETTING_OWN, F(disk_cache.min_free), "10%", .set = set_share, .text = share_text},
        {"disk_cache.offline", SETTING_WORD, F(disk_cache.offline), "refuse", .words = refuse_words},
        {"disk_cache.also", LIST(disk_cache.also, list_also)},
        {"publish.across_uids", BOOL(publish.across_uids)},
        {"publish.cuda_ipc", BOOL(publish.cuda_ipc)},
        {"publish.keep", SETTING_NUMBER, F(publish.keep), "2", 2, 1000000},
        {"encryption.keys", LIST(encryption.keys, list_keys)},
        {"encryption.plaintext_tensors", SETTING_WORD, F(encryption.plaintext_tensors), "refuse", .words = refuse_words},
        {"encryption.require", BOOL(encryption.require)},
        {"encryption.across_uids", BOOL(encryption.across_uids)},
        {"access.roles", LIST(access.rules, list_rules)},
        {"preload", LIST(preload, list_preload)},
        {"limits.connections", SETTING_NUMBER, F(limits.connections), "8192", 1, 1000000},
        {"limits.connections_per_uid", SETTING_NUMBER, F(limits.per_uid[QUOTA_CONNECTIONS]), "4096", 1, 1000000},
        {"limits.leases_per_uid", SETTING_NUMBER, F(limits.per_uid[QUOTA_LEASES]), "16384", 1, 10000000},
        {"limits.loads_per_uid", SETTING_NUMBER, F(limits.per_uid[QUOTA_LOADS]), "32", 1, 4096},
        {"limits.models_per_uid", SETTING_NUMBER, F(limits.per_uid[QUOTA_MODELS]), "1024", 1, 65536},
        {"limits.bytes_per_uid", SETTING_SIZE, F(limits.per_uid[QUOTA_BYTES]), "0", 0, TiB << 10},
        {"limits.leases_per_client", SETTING_NUMBER, F(limits.leases_per_client), "4096", 1, 1000000},
        {"limits.loads", SETTING_NUMBER, F(limits.loads), "64", 1, 4096},
        {"limits.queued", SETTING_NUMBER, F(limits.queued), "16", 0, 4096},
        {"limits.requests_per_client", SETTING_NUMBER, F(limits.requests_per_client), "64", 1, 4096},
        {"limits.output_per_client", SETTING_SIZE, F(limits.conn.output), "4MiB", MiB, GiB},
        {"limits.fds_in_flight", SETTING_NUMBER, F(limits.fds_in_flight), "4096", 128, 1000000},
        {"limits.fds_per_client", SETTING_NUMBER, F(limits.fds_per_client), "256", 128, 1000000},
        {"limits.frame_timeout", SETTING_DURATION, F(limits.conn.frame_timeout_ns), "10s", 100 * MS, HOUR},
        {"limits.preload_loads", SETTING_NUMBER, F(limits.preload_loads), "2", 1, 64},
        {"limits.preload_retry", SETTING_DURATION, F(limits.preload_retry_ns), "1s", 10 * MS, HOUR / 12},
        {"limits.failed_kept", SETTING_NUMBER, F(limits.failed_kept), "64", 0, 65536},
        {"log.level", SETTING_WORD, F(log.level), "info", .words = log_levels, .flag = "log-level", .argument = "L",
         .help = "error, warn, info or debug", ENV(RUNAI "LOG_LEVEL", "")},
        {"log.format", SETTING_WORD, F(log.format), "auto", .words = log_formats, .flag = "log-format", .argument = "F",
         .help = "auto, plain, prefix, journal or json"},
        {NULL, BOOL(log.to_stderr), ENV(RUNAI "LOG_TO_STDERR",
         "1: log to standard error even if the journal is available; 0: the default")},
        {"metrics.listen", SETTING_TEXT, F(metrics.listen), .check = check_listen, .flag = "metrics-listen", .argument = "A",
         .help = "serve metrics over HTTP at 127.0.0.1:PORT or unix:/path (off)"},
        {"metrics.certificate", SETTING_TEXT, F(metrics.certificate), .check = check_path},
        {"metrics.key", SETTING_TEXT, F(metrics.key), .check = check_path},
        {"metrics.client_ca", SETTING_TEXT, F(metrics.client_ca), .check = check_path},
        {"metrics.token_file", SETTING_TEXT, F(metrics.token_file), .check = check_path},
        {"health.listen", SETTING_TEXT, F(health.listen), .check = check_listen, .flag = "health-listen", .argument = "A",
         .help = "serve /livez, /readyz and /startupz alone at ADDRESS:PORT (off)"},
        {NULL, ACTION(check), .flag = "check-config", .help = "check the configuration and exit"},
        {NULL, ACTION(version), .flag = "version", .help = "print the version and exit"},
        {NULL, ACTION(help), .flag = "help", .help = "print this and exit"},
};
// clang-format on
const size_t n_settings = ARRAY_SIZE(settings);
_Static_assert(ARRAY_SIZE(settings) <= CONFIG_SETTINGS_MAX, "each has an origin");
