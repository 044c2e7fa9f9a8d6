/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of publishing: two threads copy a model into the memory that the daemon lends, and it is committed. It is
 * compared with one copy of the same bytes by two threads into fresh pages, and hashing them: in processor time, the
 * daemon's included, and in duration.
 */
#include "tests/bench/bench.h"

#define STORAGES 64u

static void check(const struct bench_daemon *bd, int r)
{
        if (r != 0)
                die("publish: %s", streamer_last_error(bd->client));
}

static struct cost publish_round(const struct bench_daemon *bd, const unsigned char *from, uint64_t size)
{
        uint64_t bytes[STORAGES];
        streamer_publish_opts opts = STREAMER_PUBLISH_OPTS_INIT;
        streamer_found found = STREAMER_FOUND_INIT;
        streamer_publication *p = NULL;
        streamer_lease *lease;
        opts.name = "published";
        for (size_t i = 0; i < STORAGES; i++)
                bytes[i] = size / STORAGES;
        uint64_t begin = clock_ns(), cpu = cpu_with_ns(bd->d.pid);
        check(bd, streamer_publish_find(bd->client, &opts, &found, &p));
        check(bd, streamer_publish_begin(p, bytes, STORAGES));
        for (size_t i = 0; i < STORAGES; i++) {
                void *data;
                check(bd, streamer_publish_storage(p, i, &data));
                copy_by_two(data, from + i * bytes[0], bytes[0]);
        }
        check(bd, streamer_publish_commit(p, &lease));
        struct cost cost = {(double)(clock_ns() - begin) / 1e9, (double)(cpu_with_ns(bd->d.pid) - cpu) / 1e9};
        streamer_detach(lease);
        check(bd, streamer_unload(bd->client, opts.name, 0));
        return cost;
}

void rows_publish(const struct bench *b)
{
        struct bench_daemon bd;
        double ratios[ROUNDS_MAX], durations[ROUNDS_MAX];
        uint64_t size = 2 * GIB / b->shrink / (STORAGES * 2 * MIB) * (STORAGES * 2 * MIB);
        unsigned char *from = copies_source(size);
        bench_daemon_start(&bd, b, "auto", "");
        for (unsigned i = 0; i < b->rounds; i++) {
                bench_await_ready(&bd);
                ceiling_touch(size);
                struct cost copied = ceiling_copies(from, size, 0);
                ceiling_touch(size);
                struct cost published = publish_round(&bd, from, size);
                ratios[i] = published.cpu_s / copied.cpu_s;
                durations[i] = published.seconds / copied.seconds;
                report_note("publish, round %u: %.3f s, %.3f CPU-s; copy by two threads and hashing %.3f s, %.3f CPU-s",
                            i + 1, published.seconds, published.cpu_s, copied.seconds, copied.cpu_s);
        }
        report_row(ROW_publish_vs_copy, median(ratios, b->rounds), 0);
        report_row(ROW_publish_duration_vs_copy, median(durations, b->rounds), 0);
        bench_daemon_stop(&bd);
        munmap(from, size);
}
