/* SPDX-License-Identifier: Apache-2.0
 *
 * The bench: measures every documented figure of speed and memory, beside the machine's own rates at that time.
 * Ceilings and loads are interleaved, so that a slow moment of the machine falls on both; a row's value is made of
 * medians.
 *
 *   BENCH_DIR     where the files go: about 14 GiB (/var/tmp)
 *   BENCH_ROUNDS  rounds of each measurement (5)
 *   BENCH_SHRINK divides all sizes, to test the bench itself (1)
 *   BENCH_POOL    0: sets no huge pages aside, so that each comes from the system's free memory and goes
 *                 back there (1: a pool of them, as machines that serve have)
 */
#pragma once

#include "tests/lib/base.h"
#include "tests/lib/daemon.h"
#include "tests/lib/model.h"

#include "streamer/client.h"

#define GIB (UINT64_C(1) << 30)
#define MIB (UINT64_C(1) << 20)
#define BLOCK ((size_t)8 << 20)
#define ROUNDS_MAX 15

#define HUGE_BYTES (18 * GIB) /* that may be taken beyond the pool; without a pool, all of them */

struct bench {
        char folder[PATH_SIZE];
        unsigned rounds;
        uint64_t shrink;
        bool hugetlb; /* the system hands out huge pages */
        bool wants_pool;
        bool pool; /* as many as a group needs, reserved and touched */
        const char *self;
};

/* ---- the table ---- */

enum better { HIGHER, LOWER };

// clang-format off
/* Target 0: reported without a target.
 *        name                            unit          better  target */
#define ROWS(X) \
        X(cold_no_settings_vs_fio,      "of ceiling", HIGHER, 0.95) \
        X(warm_no_settings_vs_2preads,  "of ceiling", HIGHER, 0.85) \
        X(spot_check_of_warm_load,         "of the time", LOWER, 0.02) \
        X(cpu_s_per_gib_no_settings,    "CPU-s/GiB",  LOWER,  0.25) \
        X(http_no_settings_vs_curl,     "of ceiling", HIGHER, 0.7) \
        X(cold_hugetlb_vs_fio,          "of ceiling", HIGHER, 0.95) \
        X(cpu_s_per_gib,                "CPU-s/GiB",  LOWER,  0.13) \
        X(warm_hugetlb_vs_2preads,      "of ceiling", HIGHER, 0.6) \
        X(cold_4k,                      "GiB/s",      HIGHER, 0) \
        X(warm_4k,                      "GiB/s",      HIGHER, 0) \
        X(storage_bytes_per_model_byte, "bytes",      LOWER,  1.01) \
        X(many_tensors_rate,            "of ceiling", HIGHER, 0.9) \
        X(memory_1gib,                  "MiB",        LOWER,  32) \
        X(memory_8gib,                  "MiB",        LOWER,  32) \
        X(memory_100k_tensors,          "MiB",        LOWER,  64) \
        X(http_vs_curl,                 "of ceiling", HIGHER, 0.8) \
        X(https_vs_curl,                "of ceiling", HIGHER, 0.85) \
        X(swift_vs_curl,                "of ceiling", HIGHER, 0.9) \
        X(radosgw_vs_curl,              "of ceiling", HIGHER, 0.9) \
        X(s3_vs_curl,                   "of ceiling", HIGHER, 0) \
        X(gcs_vs_curl,                  "of ceiling", HIGHER, 0.9) \
        X(azure_vs_curl,                "of ceiling", HIGHER, 0.9) \
        X(gcs_cpu_vs_s3,                "times",      LOWER,  1.1) \
        X(azure_cpu_vs_s3,              "times",      LOWER,  1.1) \
        X(latency_200ms,                "of ceiling", HIGHER, 0.8) \
        X(http_memory,                  "MiB",        LOWER,  32) \
        X(one_range_in_50_fails,        "times",      LOWER,  1.3) \
        X(one_range_in_100_late,        "s",          LOWER,  0.8) \
        X(http_cpu_beyond_curl,         "CPU-s/GiB",  LOWER,  0.3) \
        X(fairness_small_load,          "times",      LOWER,  2.5) \
        X(attach_vs_floor,              "of floor",   LOWER,  2.0) \
        X(attach_messages_vs_floor,     "of floor",   LOWER,  1.5) \
        X(growth_attach_tensors,        "times",      LOWER,  1.2) \
        X(growth_attach_models,         "times",      LOWER,  1.5) \
        X(growth_attach_leases,         "times",      LOWER,  1.5) \
        X(growth_pin,                   "times",      LOWER,  2.0) \
        X(growth_show,                  "times",      LOWER,  1.5) \
        X(growth_status,                "times",      LOWER,  1.5) \
        X(growth_metrics,               "times",      LOWER,  0) \
        X(growth_load,                  "times",      LOWER,  2.0) \
        X(growth_list,                  "ms",         LOWER,  15) \
        X(growth_list_page,             "us",         LOWER,  200) \
        X(growth_ps_lease,              "us",         LOWER,  1) \
        X(growth_pin_state,             "times",      LOWER,  2) \
        X(growth_pin_stored,            "times",      LOWER,  2) \
        X(growth_attach_stored,         "times",      LOWER,  2) \
        X(growth_queued_pin,            "us",         LOWER,  100) \
        X(growth_queued_idle_loop,      "ms/s",       LOWER,  0.05) \
        X(growth_pin_waiting,           "times",      LOWER,  1.5) \
        X(growth_holders,               "%",          LOWER,  3) \
        X(growth_idle_loop,             "ms/s",       LOWER,  0.2) \
        X(small_load_cpu,               "us",         LOWER,  250) \
        X(small_model_memory,           "KiB",        LOWER,  1.5) \
        X(small_model_descriptors,      "each",       LOWER,  2) \
        X(idle_wake_ups,                "each s",     LOWER,  0.1) \
        X(idle_memory,                  "MiB",        LOWER,  16) \
        X(publish_vs_copy,              "times",      LOWER,  1.3) \
        X(publish_duration_vs_copy,     "times",      LOWER,  1.3) \
        X(restore_53_files,             "ms",         LOWER,  50) \
        X(restore_5000_files_vs_copy,   "times",      LOWER,  1.2) \
        X(update_vs_copies,             "times",      LOWER,  1.4) \
        X(updates_memory,               "MiB",        LOWER,  4) \
        X(encrypted_warm_vs_cipher,     "of ceiling", HIGHER, 0.85) \
        X(encrypted_cold_vs_plain,      "of ceiling", HIGHER, 0.95) \
        X(encrypted_memory,             "MiB",        LOWER,  4) \
        X(disk_cache_load_vs_without,   "of ceiling", HIGHER, 0.95) \
        X(disk_cache_slow_vs_without,   "of ceiling", HIGHER, 0.95) \
        X(disk_cache_reload_vs_fio,     "of ceiling", HIGHER, 0.95) \
        X(disk_cache_reload_from_store, "bytes",      LOWER,  8) \
        X(disk_cache_write_cpu,         "CPU-s/GiB",  LOWER,  0.15) \
        X(disk_cache_memory,            "MiB",        LOWER,  16) \
        X(disk_cache_start_10k,         "ms",         LOWER,  200) \
        X(spare_fill_cpu_s_per_gib,     "CPU-s/GiB",  LOWER,  0)
// clang-format on

enum row {
#define X(name, unit, better, target) ROW_##name,
        ROWS(X)
#undef X
                ROW_COUNT
};
const char *row_name(enum row row);

/* A row that no one fills in is written as not reached. `ceiling` 0: the target is absolute. */
void report_row(enum row row, double value, double ceiling);
void report_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
void report_print(void);
void report_write(const char *path);

double median(const double *values, size_t n);

/* ---- ceilings of the machine: GiB/s ---- */

double ceiling_fio(const struct bench *b, const char *path);
const char *ceiling_fio_command(const struct bench *b, const char *path);
/* Two threads pread the whole cached file in blocks into a populated mapping. */
double ceiling_preads(const struct bench *b, const char *path);
/* The same into fresh pages of the kind that a daemon without settings gets. */
double ceiling_preads_fresh(const char *path);
/* 1, 2, 4, 8 and 16 curls that fetch a range each, in rounds. The ceiling is what the best number of them reached:
 * the best of all single runs would be the luckiest. Which number is the best is said for each round by the others
 * alone, since of five that are as good the one whose median is the highest owes it to luck. */
#define CURL_STEPS 5u
struct curls {
        const char *url, *ca; /* ca may be NULL */
        uint64_t size;
        unsigned rounds;
        double gib_per_s[CURL_STEPS][ROUNDS_MAX], cpu_s_per_gib[CURL_STEPS][ROUNDS_MAX];
};
void curls_round(struct curls *c);
struct curl_ceiling {
        double gib_per_s, cpu_s_per_gib;
};
/* Twice those of other rows: the measured program shares two processors with two others, so it varies more. */
unsigned curls_rounds(const struct bench *b);
struct curl_ceiling curls_best(const struct curls *c); /* adds a note */
/* "1.00 1.51 ...": the last round's rates. malloc'd. */
char *curls_reported(const struct curls *c);
/* Two threads copy the bytes. */
struct cost {
        double seconds, cpu_s;
};
/* One copy into fresh pages, hashing them, and `more` copies into the same pages. */
struct cost ceiling_copies(const unsigned char *from, uint64_t size, unsigned more);
void copy_by_two(unsigned char *to, const unsigned char *from, uint64_t size);
unsigned char *copies_source(uint64_t size); /* mapped; munmap() frees it */
/* Processor time of this process and of another one (0: none). */
uint64_t cpu_with_ns(pid_t other);
/* Makes the machine's host give us the memory that the next run needs, then frees it. */
void ceiling_touch(uint64_t bytes);
/* Once, for pages that are set aside: the host does not take them back. */
void ceiling_touch_pool(uint64_t bytes);

/* ---- one load ---- */

struct load_figures {
        double seconds, gib_per_s, cpu_s_per_gib, storage_ratio;
        double samples;   /* of the load's time: reading samples of the resident bytes back */
        uint64_t memory;  /* the maximum; only if sampled */
        char stages[256]; /* "begin 1.2 ms, ...": the load's stage counters */
};

struct bench_daemon {
        struct daemon d;
        const struct bench *bench;
        streamer_client *client;
        const char *pages;
        uint64_t began_ns;
        uint64_t ring;               /* bytes */
        uint64_t largest;            /* load so far: the next may be as large */
        uint64_t least_ready;        /* bytes that were ready when a load began */
        double fill_cpu_s, fill_gib; /* time and bytes of prefaulting in all */
};
/* Starts the daemon with more settings, lines of YAML. Automatic prefaulting is complete when this returns, and after
 * each bench_load(). */
void bench_daemon_start(struct bench_daemon *bd, const struct bench *b, const char *pages, const char *more);
/* Whose models may take so much, instead of 16 GiB. */
void bench_daemon_start_budget(struct bench_daemon *bd, const struct bench *b, const char *budget, const char *pages,
                               const char *more);
/* One that makes nothing ready. */
/* Of an ordinary user, without any setting of pages. */
void bench_daemon_start_ordinary(struct bench_daemon *bd, const struct bench *b, const char *more);
/* Waits until it has prefaulted as much as the largest load took, or its maximum. */
void bench_await_ready(struct bench_daemon *bd);
/* Processor time of making a GiB ready. */
double bench_fill_cpu(const struct bench_daemon *bd);
void bench_daemon_stop(struct bench_daemon *bd);

/* After a group that failed. */
void bench_daemons_kill(void);

/* Before a load: touches the machine's free memory that the load will take. */
void bench_touch(const struct bench_daemon *bd, uint64_t bytes);
/* Loads `path` as model "m" and unloads it; `sample` measures the daemon's memory continuously. */
void bench_load(struct bench_daemon *bd, const char *path, const struct model *m, bool sample, struct load_figures *f);
void bench_load_resident(struct bench_daemon *bd, const char *path, const char *name);
void bench_unload(struct bench_daemon *bd, const char *name);

/* Writes a model below the bench's folder, cold; the path is never freed. */
const char *bench_file(const struct bench *b, const struct model *m, const char *name);

/* ---- groups of rows ---- */

void rows_plain(const struct bench *b);   /* a machine without any setting */
void sweep(const struct bench *b);        /* block size and concurrency; only by name */
void rows_rates(const struct bench *b);   /* the large file: cold, warm, processor, storage */
void rows_tensors(const struct bench *b); /* many tensors against one */
void rows_memory(const struct bench *b);
void rows_network(const struct bench *b);  /* http, https, latency, failures */
void rows_fairness(const struct bench *b); /* a small load beside a large one */
void rows_stores(const struct bench *b);   /* Swift, radosgw */
void rows_clouds(const struct bench *b);   /* the stores of Google and Azure, beside S3 */
void rows_attach(const struct bench *b);
void rows_growth(const struct bench *b);
void rows_publish(const struct bench *b);
void rows_disk(const struct bench *b);      /* the disk cache: behind loads from S3, and in place of S3 */
void rows_engines(const struct bench *b);   /* of the Python package: compiled files, weights that change */
void rows_encrypted(const struct bench *b); /* against the cipher, and against a plain file */
/* The process that is measured; `way`: by the library, by messages of its own, or the floor. */
int attach_child(const char *way, const char *socket, const char *model);
/* An HTTP proxy on loopback that delays each answer of `upstream` by `ms`; prints its port, ends with standard input.
 */
int delay_proxy(unsigned upstream, unsigned ms);
