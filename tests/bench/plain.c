/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of a machine without any setting: no huge pages set aside, none granted on top, a daemon of an ordinary user.
 * And a sweep of block size and concurrency, from which the defaults are (`bench sweep`).
 */
#include "tests/bench/bench.h"
#include "tests/lib/nginx.h"
#include "tests/lib/kernel_counters.h"

static struct model *large_model(const struct bench *b)
{
        struct model *m = model_new(1);
        model_add_many(m, "model.layers.weight", 300, 4 * GIB / b->shrink / 300);
        return m;
}

/* ---- rates ---- */

struct rounds {
        double fio[ROUNDS_MAX], preads[ROUNDS_MAX], cold[ROUNDS_MAX], cold_cpu[ROUNDS_MAX], warm[ROUNDS_MAX];
        double samples[ROUNDS_MAX];
};

/* Ceiling and load alternate, so that a slow moment of the machine affects both. */
static void round_of(const struct bench *b, struct bench_daemon *bd, const char *path, const struct model *m,
                     struct rounds *r, unsigned i)
{
        struct load_figures cold, warm;
        struct held_file held;
        r->fio[i] = ceiling_fio(b, path);
        file_uncache(path);
        bench_touch(bd, m->bytes);
        bench_load(bd, path, m, false, &cold);
        file_map_cached(&held, path);
        bench_touch(bd, m->bytes);
        r->preads[i] = ceiling_preads_fresh(path);
        bench_touch(bd, m->bytes);
        bench_load(bd, path, m, false, &warm);
        file_release(&held);
        r->cold[i] = cold.gib_per_s;
        r->cold_cpu[i] = cold.cpu_s_per_gib;
        r->warm[i] = warm.gib_per_s;
        r->samples[i] = warm.samples;
        report_note(
                "round %u, no settings: fio %.2f, cold %.2f GiB/s, %.3f CPU-s/GiB; two preads into fresh pages %.2f, "
                "warm %.2f GiB/s, %.3f CPU-s/GiB",
                i + 1, r->fio[i], r->cold[i], r->cold_cpu[i], r->preads[i], r->warm[i], warm.cpu_s_per_gib);
        report_note("  cold: %s", cold.stages);
        report_note("  warm: %s", warm.stages);
}

static void rates(const struct bench *b)
{
        struct bench_daemon bd;
        struct rounds r;
        struct model *m = large_model(b);
        const char *path = bench_file(b, m, "plain");
        report_note("disk ceiling: %s", ceiling_fio_command(b, path));
        bench_daemon_start_ordinary(&bd, b, "");
        for (unsigned i = 0; i < b->rounds; i++)
                round_of(b, &bd, path, m, &r, i);
        double fio = median(r.fio, b->rounds), preads = median(r.preads, b->rounds);
        report_row(ROW_cold_no_settings_vs_fio, median(r.cold, b->rounds) / fio, fio);
        report_row(ROW_warm_no_settings_vs_2preads, median(r.warm, b->rounds) / preads, preads);
        report_row(ROW_spot_check_of_warm_load, median(r.samples, b->rounds), 0);
        report_row(ROW_cpu_s_per_gib_no_settings, median(r.cold_cpu, b->rounds), 0);
        bench_daemon_stop(&bd);
        unlink(path);
        model_free(m);
}

static void http(const struct bench *b)
{
        struct bench_daemon bd;
        struct nginx web;
        struct held_file held;
        struct model *m = model_new(9);
        double loads[ROUNDS_MAX];
        unsigned rounds = curls_rounds(b);
        model_add_many(m, "model.layers.weight", 300, 2 * GIB / b->shrink / 300);
        const char *path = bench_file(b, m, "plain-network");
        file_map_cached(&held, path);
        nginx_start(&web, format_text("%s/nginx", b->folder), b->folder);
        const char *url = format_text("http://127.0.0.1:%u/plain-network.safetensors", web.http);
        struct curls c = {.url = url, .size = file_size(path)};
        bench_daemon_start_ordinary(&bd, b, "");
        for (unsigned i = 0; i < rounds; i++) {
                struct load_figures f;
                curls_round(&c);
                bench_touch(&bd, m->bytes);
                bench_load(&bd, url, m, false, &f);
                loads[i] = f.gib_per_s;
                report_note("round %u, no settings: curls %s GiB/s; load %.2f GiB/s, %.3f CPU-s/GiB: %s", i + 1,
                            curls_reported(&c), f.gib_per_s, f.cpu_s_per_gib, f.stages);
        }
        struct curl_ceiling best = curls_best(&c);
        report_row(ROW_http_no_settings_vs_curl, median(loads, rounds) / best.gib_per_s, best.gib_per_s);
        bench_daemon_stop(&bd);
        nginx_stop(&web);
        file_release(&held);
        unlink(path);
        model_free(m);
}

void rows_plain(const struct bench *b)
{
        rates(b);
        if (nginx_unavailable() != NULL)
                die("%s", nginx_unavailable());
        http(b);
}

/* ---- the sweep ---- */

static void sweep_at(const struct bench *b, const char *path, const struct model *m, unsigned mib, unsigned concurrency)
{
        double cold[ROUNDS_MAX], warm[ROUNDS_MAX], cpu[ROUNDS_MAX];
        struct bench_daemon bd;
        struct held_file held;
        struct load_figures f;
        bench_daemon_start_ordinary(&bd, b,
                                    format_text("io: {block_size: %uMiB, concurrency: %u}\n", mib, concurrency));
        for (unsigned i = 0; i < b->rounds; i++) {
                file_uncache(path);
                bench_touch(&bd, m->bytes);
                bench_load(&bd, path, m, false, &f);
                cold[i] = f.gib_per_s;
                file_map_cached(&held, path);
                bench_touch(&bd, m->bytes);
                bench_load(&bd, path, m, false, &f);
                warm[i] = f.gib_per_s;
                cpu[i] = f.cpu_s_per_gib;
                file_release(&held);
        }
        report_note("sweep: blocks of %2u MiB, concurrency %2u: cold %.2f, warm %.2f GiB/s, %.3f CPU-s/GiB", mib,
                    concurrency, median(cold, b->rounds), median(warm, b->rounds), median(cpu, b->rounds));
        bench_daemon_stop(&bd);
}

void sweep(const struct bench *b)
{
        static const unsigned blocks[] = {1, 2, 4, 8, 16}, concurrencies[] = {4, 8, 16};
        struct model *m = large_model(b);
        const char *path = bench_file(b, m, "sweep");
        for (size_t i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++)
                for (size_t k = 0; k < sizeof(concurrencies) / sizeof(concurrencies[0]); k++)
                        sweep_at(b, path, m, blocks[i], concurrencies[k]);
        unlink(path);
        model_free(m);
}
