/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of rates and memory.
 */
#include "tests/bench/bench.h"
#include "tests/lib/storage.h"

#include <stdlib.h>
#include <unistd.h>

/* n tensors of U8, `bytes` in all. */
static struct model *even_model(uint64_t seed, size_t n, uint64_t bytes)
{
        struct model *m = model_new(seed);

        model_add_many(m, "model.layers.weight", n, bytes / n);
        return m;
}

/* ---- rates of the large file ---- */

struct rates {
        double fio[ROUNDS_MAX], preads[ROUNDS_MAX];
        double cold_hugetlb[ROUNDS_MAX], cold_4k[ROUNDS_MAX], warm_hugetlb[ROUNDS_MAX], warm_4k[ROUNDS_MAX];
        double cpu[ROUNDS_MAX], storage[ROUNDS_MAX];
        double cold_spare[ROUNDS_MAX], warm_spare[ROUNDS_MAX], cpu_spare[ROUNDS_MAX];
};

static void one_load(struct bench_daemon *bd, const char *path, const struct model *m, bool warm,
                     struct load_figures *f)
{
        if (warm)
                file_cache(path);
        else
                file_uncache(path);
        bench_touch(bd, m->bytes); /* last: what the cache takes is touched, too */
        bench_load(bd, path, m, false, f);
}

/* The same on a daemon that has made its memory ready. */
static void round_with_spare(struct bench_daemon *bd, const char *path, const struct model *m, struct rates *r,
                             unsigned i)
{
        struct load_figures f;

        one_load(bd, path, m, true, &f);
        r->warm_spare[i] = f.gib_per_s;
        double warm_cpu = f.cpu_s_per_gib;
        one_load(bd, path, m, false, &f);
        r->cold_spare[i] = f.gib_per_s;
        r->cpu_spare[i] = f.cpu_s_per_gib;
        report_note("with a spare: cold %.2f, warm %.2f GiB/s; %.3f CPU-s/GiB, warm %.3f", r->cold_spare[i],
                    r->warm_spare[i], r->cpu_spare[i], warm_cpu);
}

static void round_of_rates(const struct bench *b, struct bench_daemon *huge, struct bench_daemon *small,
                           const char *path, const struct model *m, struct rates *r, unsigned i)
{
        struct load_figures f;

        r->fio[i] = ceiling_fio(b, path);
        if (huge) {
                one_load(huge, path, m, false, &f);
                r->cold_hugetlb[i] = f.gib_per_s;
                r->cpu[i] = f.cpu_s_per_gib;
                r->storage[i] = f.storage_ratio;
        }
        one_load(small, path, m, false, &f);
        r->cold_4k[i] = f.gib_per_s;
        if (!huge) {
                r->cpu[i] = f.cpu_s_per_gib;
                r->storage[i] = f.storage_ratio;
        }
        file_cache(path);
        r->preads[i] = ceiling_preads(b, path);
        if (huge) {
                one_load(huge, path, m, true, &f);
                r->warm_hugetlb[i] = f.gib_per_s;
        }
        one_load(small, path, m, true, &f);
        r->warm_4k[i] = f.gib_per_s;
        report_note("round %u: fio %.2f, cold %.2f (4 KiB pages %.2f), two preads %.2f, warm %.2f (%.2f) GiB/s; %.3f "
                    "CPU-s/GiB",
                    i + 1, r->fio[i], r->cold_hugetlb[i], r->cold_4k[i], r->preads[i], r->warm_hugetlb[i],
                    r->warm_4k[i], r->cpu[i]);
}

static void report_ratio(enum row row, const double *values, double ceiling, unsigned n)
{
        report_row(row, median(values, n) / ceiling, ceiling);
}

static void report_spare(const struct bench_daemon *bd, const struct rates *r, unsigned n)
{
        double fio = median(r->fio, n), preads = median(r->preads, n);

        report_ratio(ROW_cold_hugetlb_vs_fio_spare, r->cold_spare, fio, n);
        report_ratio(ROW_warm_hugetlb_vs_2preads_spare, r->warm_spare, preads, n);
        report_row(ROW_cpu_s_per_gib_spare, median(r->cpu_spare, n), 0);
        report_row(ROW_spare_fill_cpu_s_per_gib, bench_fill_cpu(bd), 0);
}

static void report_rates(const struct bench *b, const struct rates *r)
{
        unsigned n = b->rounds;
        double fio = median(r->fio, n), preads = median(r->preads, n);

        if (b->hugetlb) {
                report_ratio(ROW_cold_hugetlb_vs_fio, r->cold_hugetlb, fio, n);
                report_ratio(ROW_warm_hugetlb_vs_2preads, r->warm_hugetlb, preads, n);
        }
        report_row(ROW_cpu_s_per_gib, median(r->cpu, n), 0);
        report_row(ROW_cold_4k, median(r->cold_4k, n), fio);
        report_row(ROW_warm_4k, median(r->warm_4k, n), preads);
        report_row(ROW_storage_bytes_per_model_byte, median(r->storage, n), 0);
}

void rows_rates(const struct bench *b)
{
        struct bench_daemon huge, small, spare;
        struct rates r = {0};
        struct model *m = even_model(1, 300, 4 * GIB / b->shrink);
        const char *path = bench_file(b, m, "large");

        report_note("disk ceiling: %s", ceiling_fio_command(b, path));
        report_note("page cache ceiling: two threads, preads of 8 MiB into %s pages that are there already",
                    b->hugetlb ? "huge (hugetlb)" : "transparent huge");
        if (b->hugetlb)
                bench_daemon_start(&huge, b, "hugetlb");
        bench_daemon_start(&small, b, "4k");
        if (b->hugetlb)
                bench_daemon_start_spare(&spare, b, "hugetlb", SPARE_FOR(m), "");
        for (unsigned i = 0; i < b->rounds; i++) {
                round_of_rates(b, b->hugetlb ? &huge : NULL, &small, path, m, &r, i);
                if (b->hugetlb)
                        round_with_spare(&spare, path, m, &r, i);
        }
        report_rates(b, &r);
        if (b->hugetlb) {
                report_spare(&spare, &r, b->rounds);
                bench_daemon_stop(&spare);
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

        bench_daemon_start(&bd, b, b->hugetlb ? "hugetlb" : "auto");
        for (unsigned i = 0; i < b->rounds; i++) {
                one_load(&bd, one_path, one, false, &f);
                one_rate[i] = f.gib_per_s;
                one_load(&bd, many_path, many, false, &f);
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

/* A fresh daemon each, so that no row sees what another left behind. */
static void row_memory(const struct bench *b, enum row row, size_t n, uint64_t bytes)
{
        struct model *m = even_model(4, n, bytes);
        const char *path = bench_file(b, m, row_name(row));
        struct bench_daemon bd;
        struct load_figures f;

        bench_daemon_start(&bd, b, b->hugetlb ? "hugetlb" : "auto");
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
