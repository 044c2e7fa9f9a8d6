/* SPDX-License-Identifier: Apache-2.0
 *
 * A small load during a large one, relative to its time alone. Both read from cold storage, which they share.
 */
#include "tests/bench/bench.h"
#include "tests/lib/kernel_counters.h"

#define SMALL_SHARE 16 /* of the large one: over long before it */

static void must_do(const struct bench_daemon *bd, int r, const char *what)
{
        if (r)
                die("%s: %s: %s", what, streamer_strerror(r), streamer_last_error(bd->client));
}

static streamer_op *begin_load(struct bench_daemon *bd, const char *path, const char *name)
{
        streamer_load_opts opts = {.struct_size = sizeof(opts), .source = path, .name = name};
        streamer_op *op;
        must_do(bd, streamer_load(bd->client, &opts, &op), name);
        return op;
}

static void await_bytes(struct bench_daemon *bd, streamer_op *op)
{
        streamer_progress p = {.struct_size = sizeof(p)};
        int r;
        do {
                r = streamer_op_wait(op, 1, &p);
        } while (r == STREAMER_ETIMEOUT && p.bytes == 0);
        if (r != STREAMER_ETIMEOUT)
                must_do(bd, r, "the large load");
}

/* Seconds of the small load beside the large one; 0 if the large one ended first. */
static double beside(struct bench_daemon *bd, const char *large, const char *small)
{
        streamer_progress p = {.struct_size = sizeof(p)};
        bench_await_ready(bd);
        file_uncache(small);
        file_uncache(large);
        ceiling_touch(file_size(small) + file_size(large));
        streamer_op *op = begin_load(bd, large, "large");
        await_bytes(bd, op);
        uint64_t from = clock_ns();
        bench_load_resident(bd, small, "small");
        double seconds = (double)(clock_ns() - from) / 1e9;
        if (streamer_op_wait(op, 0, &p) != STREAMER_ETIMEOUT)
                seconds = 0;
        else
                must_do(bd, streamer_op_wait(op, -1, NULL), "the large load");
        streamer_op_free(op);
        must_do(bd, streamer_unload(bd->client, "small", 0), "unload");
        bench_unload(bd, "large");
        return seconds;
}

void rows_fairness(const struct bench *b)
{
        struct model *large = model_new(21), *small = model_new(22);
        uint64_t bytes = 4 * GIB / b->shrink;
        model_add_many(large, "model.layers.weight", 300, bytes / 300);
        model_add_many(small, "model.layers.weight", 30, bytes / SMALL_SHARE / 30);
        const char *large_path = bench_file(b, large, "fair-large"), *small_path = bench_file(b, small, "fair-small");
        double times[ROUNDS_MAX];
        unsigned n = 0;
        struct bench_daemon bd;
        struct load_figures alone;

        bench_daemon_start(&bd, b, b->hugetlb ? "hugetlb" : "auto", "");
        bd.largest = large->bytes;
        for (unsigned i = 0; i < b->rounds; i++) {
                file_uncache(small_path);
                ceiling_touch(large->bytes + small->bytes);
                bench_load(&bd, small_path, small, false, &alone);
                double seconds = beside(&bd, large_path, small_path);
                report_note("round %u: the small load alone %.3f s, beside the large one %.3f s%s", i + 1,
                            alone.seconds, seconds, seconds > 0 ? "" : " (the large one was over first)");
                if (seconds > 0)
                        times[n++] = seconds / alone.seconds;
        }
        if (n > 0)
                report_row(ROW_fairness_small_load, median(times, n), 0);
        bench_daemon_stop(&bd);
        unlink(large_path);
        unlink(small_path);
        model_free(large);
        model_free(small);
}
