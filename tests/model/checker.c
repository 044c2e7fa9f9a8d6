/* SPDX-License-Identifier: Apache-2.0
 *
 * A run of the model checker: start, steps, end, and the check for leaks.
 */
#include "tests/lib/kernel_counters.h"
#include "tests/model/checker_model.h"

static void start(struct checker *c, enum checker_kind kind, const char *folder)
{
        start_daemon(c, kind, folder);
        c->last_number = 0;
        c->subscriber_disconnected = false;
        for (unsigned i = 0; i < SOURCES && c->versions[i] == 0; i++)
                write_source(c, i);
        streamer_connect_opts opts = {
                .struct_size = sizeof(opts), .socket = c->daemon.socket, .timeout_ms = CHECKER_WAIT_MS};
        if (streamer_connect(&opts, &c->client) < 0)
                die("connect: %s", streamer_last_error(NULL));
        subscriber_start(c, &opts);
        users_start(c, &opts);
        for (unsigned i = 0; i < CLIENTS; i++)
                client_process_start(&c->processes[i], c->daemon.socket);
}

static void release_everything(struct checker *c)
{
        for (unsigned p = 0; p < CLIENTS; p++)
                kill_client(c, p);
        for (unsigned i = 0; i < NAMES; i++) {
                streamer_unload(c->client, name_of(i), STREAMER_UNLOAD_DRAIN);
                for (unsigned d = 0; d < c->n_devices; d++)
                        move_name(c, i, d, NULL, 0);
        }
        compare(c, false); /* also checks the bytes of each device and of the cache */
        for (unsigned d = 0; d < c->n_devices; d++)
                if (device_bytes(c, d, "used") > 0)
                        checker_fail(c, "%" PRIu64 " bytes of %s are leaked", device_bytes(c, d, "used"),
                                     c->devices[d].name);
        if (!WITHIN(CHECKER_WAIT_MS, charges_ended(c)))
                checker_fail(c, "%s", c->text);
}

static void finish(struct checker *c, unsigned fds)
{
        release_everything(c);
        /* The disk cache closes what is not stored soon. */
        if (!WITHIN(CHECKER_WAIT_MS, process_fds(c->daemon.pid) <= fds))
                checker_fail(c, "%u descriptors, %u at the start", process_fds(c->daemon.pid), fds);
        stop_daemon(c);
}

/* As many of the thread pools' threads as have grown under load. */
static void check_threads(const struct checker *c, unsigned threads)
{
        if (process_threads(c->daemon.pid) > threads + 20) /* a pool's cap */
                checker_fail(c, "%u threads, %u after half of the steps", process_threads(c->daemon.pid), threads);
}

static void take_steps(struct checker *c, uint64_t from, uint64_t to)
{
        for (uint64_t i = from; i < to; i++)
                step(c);
}

void checker_run(enum checker_kind kind, const char *folder, uint64_t seed, uint64_t n_steps,
                 struct checker_counts *counts)
{
        struct checker *c = must_alloc(sizeof(*c));
        c->seed = c->random_state = seed;
        c->counts = counts;
        c->first_step = counts->steps;
        for (unsigned half = 0; half < 2; half++) {
                start(c, kind, folder);
                json_decref(call_json(c, "list", NULL));
                unsigned fds = process_fds(c->daemon.pid);
                take_steps(c, 0, n_steps / 4);
                unsigned threads = process_threads(c->daemon.pid);
                take_steps(c, n_steps / 4, n_steps / 20 * 9);
                if (half == 1)
                        lose_device(c); /* near the end, because a lost device accepts no loads */
                take_steps(c, n_steps / 20 * 9, n_steps / 2);
                check_threads(c, threads);
                finish(c, fds);
        }
        free(c);
}

void checker_print(const struct checker_counts *counts)
{
        printf("checker:");
#define X(name) printf(" " #name " %" PRIu64, counts->name);
        CHECKER_COUNTS(X)
#undef X
        printf("\n");
}
