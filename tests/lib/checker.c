/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/base.h"
#include "tests/lib/checker_model.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Entries of a folder of /proc: descriptors, threads. */
static unsigned count_entries(const struct checker *c, const char *folder)
{
        char *path = format_text("/proc/%d/%s", (int)c->daemon.pid, folder);
        DIR *dir = opendir(path);
        unsigned n = 0;
        if (dir == NULL)
                die_errno("%s", path);
        while (readdir(dir) != NULL)
                n++;
        closedir(dir);
        free(path);
        return n;
}

static void start(struct checker *c, const char *folder)
{
        char *budget = format_text("host=%u", BUDGET);
        snprintf(c->root, sizeof(c->root), "%s", folder);
        for (unsigned i = 0; i < SOURCES; i++)
                rewrite_source(c, i);
        daemon_init(&c->daemon, folder);
        daemon_start(&c->daemon, (const char *const[]){"--device", budget, "--root", c->root, "--memory-limit", "16MiB",
                                                       "--concurrency", "4", NULL});
        free(budget);
        streamer_connect_opts opts = {
                .struct_size = sizeof(opts), .socket = c->daemon.socket, .timeout_ms = CHECKER_WAIT_MS};
        if (streamer_connect(&opts, &c->client) < 0)
                die("connect: %s", streamer_last_error(NULL));
        for (unsigned i = 0; i < PUPPETS; i++)
                puppet_start(&c->puppets[i], c->daemon.socket);
}

static bool is_empty(void *arg)
{
        struct checker *c = arg;
        return device_bytes(c, "used") == 0;
}

static void finish(struct checker *c, unsigned fds)
{
        for (unsigned p = 0; p < PUPPETS; p++)
                let_go(c, p);
        for (unsigned i = 0; i < NAMES; i++) {
                streamer_unload(c->client, name_of(i), STREAMER_UNLOAD_DRAIN);
                take_name(c, i, NULL);
        }
        compare(c, false);
        if (!eventually(is_empty, c, CHECKER_WAIT_MS))
                differ(c, "%" PRIu64 " bytes are left", device_bytes(c, "used"));
        if (count_entries(c, "fd") > fds)
                differ(c, "%u descriptors, %u at the beginning", count_entries(c, "fd"), fds);
        json_t *status = ask(c, "status", NULL);
        stalls_note(&c->counts->stalls, status);
        json_decref(status);
        streamer_close(c->client);
        if (daemon_stop(&c->daemon) != 0)
                daemon_die(&c->daemon, "did not end well");
}

void checker_run(const char *folder, uint64_t seed, uint64_t n_steps, struct checker_counts *counts)
{
        struct checker *c = must_alloc(sizeof(*c));
        c->seed = c->chance = seed;
        c->counts = counts;
        start(c, folder);
        json_decref(ask(c, "list", NULL));
        unsigned fds = count_entries(c, "fd"), threads;
        for (uint64_t i = 0; i < n_steps / 2; i++)
                step(c);
        threads = count_entries(c, "task"); /* pools have grown to what they need */
        for (uint64_t i = n_steps / 2; i < n_steps; i++)
                step(c);
        if (count_entries(c, "task") > threads + 20) /* a pool's cap */
                differ(c, "%u threads, %u half way", count_entries(c, "task"), threads);
        finish(c, fds);
        free(c);
}

void checker_print(const struct checker_counts *counts)
{
        printf("checker:");
#define X(name) printf(" " #name " %" PRIu64, counts->name);
        CHECKER_COUNTS(X)
#undef X
        printf("\n");
        stalls_print(&counts->stalls, "checker");
}
