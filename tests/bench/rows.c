/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of rates and memory.
 */
#include "tests/bench/bench.h"
#include "tests/lib/kernel_counters.h"

/* n tensors of U8, `bytes` in all. */
static struct model *even_model(uint64_t seed, size_t n, uint64_t bytes)
{
        struct model *m = model_new(seed);
        model_add_many(m, "model.layers.weight", n, bytes / n);
        return m;
}

/* ---- rates of the large file ---- */

/* Of one daemon. */
struct rates {
        double cold[ROUNDS_MAX], warm[ROUNDS_MAX], cpu[ROUNDS_MAX], storage[ROUNDS_MAX];
};

struct round_rates {
        double fio[ROUNDS_MAX], preads[ROUNDS_MAX];
        struct rates huge, small; /* the default; 4 KiB pages */
};

static void cold_load(struct bench_daemon *bd, const char *path, const struct model *m, struct load_figures *f)
{
        bench_await_ready(bd);
        file_uncache(path);
        bench_touch(bd, m->bytes);
        bench_load(bd, path, m, false, f);
}

static void cold_round(struct bench_daemon *bd, const char *path, const struct model *m, struct rates *r, unsigned i)
{
        struct load_figures f;
        cold_load(bd, path, m, &f);
        r->cold[i] = f.gib_per_s;
        r->cpu[i] = f.cpu_s_per_gib;
        r->storage[i] = f.storage_ratio;
}

/* Of a file that is held in memory. */
static void warm_round(struct bench_daemon *bd, const char *path, const struct model *m, struct rates *r, unsigned i)
{
        struct load_figures f;
        bench_touch(bd, m->bytes);
        bench_load(bd, path, m, false, &f);
        r->warm[i] = f.gib_per_s;
        report_note("round %u, %s pages: cold %.2f GiB/s, %.3f CPU-s/GiB; warm %.2f GiB/s, %.3f CPU-s/GiB, %.1f %% "
                    "of it from the disk",
                    i + 1, bd->pages, r->cold[i], r->cpu[i], r->warm[i], f.cpu_s_per_gib, f.storage_ratio * 100);
}

static void round_of_rates(const struct bench *b, struct bench_daemon *huge, struct bench_daemon *small,
                           const char *path, const struct model *m, struct round_rates *r, unsigned i)
{
        struct held_file held;
        if (b->hugetlb)
                hugepages_allow(HUGE_BYTES); /* another program may have restored the old value */
        r->fio[i] = ceiling_fio(b, path);
        if (b->hugetlb) {
                cold_round(huge, path, m, &r->huge, i);
        }
        cold_round(small, path, m, &r->small, i);
        file_map_cached(&held, path);
        r->preads[i] = ceiling_preads(b, path);
        report_note("round %u: fio %.2f, two preads %.2f GiB/s", i + 1, r->fio[i], r->preads[i]);
        if (b->hugetlb) {
                warm_round(huge, path, m, &r->huge, i);
        }
        warm_round(small, path, m, &r->small, i);
        file_release(&held);
}

static void report_ratio(enum row row, const double *values, double ceiling, unsigned n)
{
        report_row(row, median(values, n) / ceiling, ceiling);
}

static void report_rates(const struct bench *b, const struct round_rates *r)
{
        unsigned n = b->rounds;
        double fio = median(r->fio, n), preads = median(r->preads, n);
        const struct rates *best = b->hugetlb ? &r->huge : &r->small;
        if (b->hugetlb) {
                report_ratio(ROW_cold_hugetlb_vs_fio, r->huge.cold, fio, n);
                report_ratio(ROW_warm_hugetlb_vs_2preads, r->huge.warm, preads, n);
        }
        report_row(ROW_cpu_s_per_gib, median(best->cpu, n), 0);
        report_row(ROW_storage_bytes_per_model_byte, median(best->storage, n), 0);
        report_row(ROW_cold_4k, median(r->small.cold, n), fio);
        report_row(ROW_warm_4k, median(r->small.warm, n), preads);
}

void rows_rates(const struct bench *b)
{
        struct bench_daemon huge, small;
        struct round_rates r = {0};
        struct model *m = even_model(1, 300, 4 * GIB / b->shrink);
        const char *path = bench_file(b, m, "large");
        report_note("disk ceiling: %s", ceiling_fio_command(b, path));
        report_note("page cache ceiling: two threads, preads of 8 MiB into %s pages that are there already",
                    b->hugetlb ? "huge (hugetlb)" : "transparent huge");
        bench_daemon_start(&small, b, "4k", "");
        if (b->hugetlb) {
                bench_daemon_start(&huge, b, "hugetlb", "");
        }
        for (unsigned i = 0; i < b->rounds; i++)
                round_of_rates(b, &huge, &small, path, m, &r, i);
        report_rates(b, &r);
        if (b->hugetlb) {
                report_row(ROW_spare_fill_cpu_s_per_gib, bench_fill_cpu(&huge), 0);
                bench_daemon_stop(&huge);
        }
        bench_daemon_stop(&small);
        unlink(path);
        model_free(m);
}

/* ---- many tensors ---- */

void rows_tensors(const struct bench *b)
{
        struct model *many = even_model(2, 50000, GIB / b->shrink), *one = even_model(3, 1, GIB / b->shrink);
        const char *many_path = bench_file(b, many, "many"), *one_path = bench_file(b, one, "one");
        double many_rate[ROUNDS_MAX], one_rate[ROUNDS_MAX];
        struct bench_daemon bd;
        struct load_figures f;
        bench_daemon_start(&bd, b, b->hugetlb ? "hugetlb" : "auto", "");
        for (unsigned i = 0; i < b->rounds; i++) {
                cold_load(&bd, one_path, one, &f);
                one_rate[i] = f.gib_per_s;
                cold_load(&bd, many_path, many, &f);
                many_rate[i] = f.gib_per_s;
                report_note("round %u: one tensor %.2f, 50,000 tensors %.2f GiB/s", i + 1, one_rate[i], many_rate[i]);
        }
        report_ratio(ROW_many_tensors_rate, many_rate, median(one_rate, b->rounds), b->rounds);
        bench_daemon_stop(&bd);
        unlink(many_path);
        unlink(one_path);
        model_free(many);
        model_free(one);
}

/* ---- memory ---- */

/* A new daemon each, so that no row depends on another. */
static void row_memory(const struct bench *b, enum row row, size_t n, uint64_t bytes)
{
        struct model *m = even_model(4, n, bytes);
        const char *path = bench_file(b, m, row_name(row));
        struct bench_daemon bd;
        struct load_figures f;
        bench_daemon_start(&bd, b, b->hugetlb ? "hugetlb" : "auto", "");
        bench_load(&bd, path, m, true, &f);
        report_row(row, (double)f.memory / (double)MIB, 0);
        bench_daemon_stop(&bd);
        unlink(path);
        model_free(m);
}

void rows_memory(const struct bench *b)
{
        row_memory(b, ROW_memory_1gib, 300, GIB / b->shrink);
        row_memory(b, ROW_memory_8gib, 300, 8 * GIB / b->shrink);
        row_memory(b, ROW_memory_100k_tensors, 100000, GIB / b->shrink);
}
