/* SPDX-License-Identifier: Apache-2.0
 *
 * Each file tells its version by its metadata, and its contents follow from that. What the client was
 * told goes into shared memory as a history of each name, so that a look after the kill knows what may
 * be there.
 */
#include "tests/lib/kills.h"

#include "tests/lib/manager.h"
#include "tests/lib/stage.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NAMES 4
#define HISTORY 256
#define ABSENT 0 /* as a version */
#define STORE 96
#define PINNED "pinned"

/* The versions a name may have: those from `from` on. */
struct history {
        uint64_t versions[HISTORY];
        unsigned n;
};

struct shared {
        struct history names[NAMES];
        struct stalls stalls;
        uint64_t next_version;
};

struct kills {
        struct manager m;
        struct shared *shared;
        char root[PATH_SIZE];
        uint64_t chance, seed;
        unsigned round;
        struct model *pinned;
        streamer_client *client;
        streamer_lease *held;
        struct kills_counts *counts;
};

static struct kills *running;
static void (*outer_hook)(const char *text);

static void say_seed(const char *text)
{
        char all[4096];

        snprintf(all, sizeof(all), "seed %llu, round %u: %s; the log ends:\n%.2500s", (unsigned long long)running->seed,
                 running->round, text, file_read(running->m.d.log, NULL));
        outer_hook(all);
        abort();
}

static uint64_t below(struct kills *k, uint64_t n)
{
        return draw_below(&k->chance, n);
}

/* ---- versions ---- */

static struct model *model_of(uint64_t version)
{
        struct model *m = model_mixed(version, (32 + version * 89 % 1024) << 10);
        char *json = format_text("{\"version\":\"%llu\"}", (unsigned long long)version);

        model_set_metadata(m, json);
        free(json);
        return m;
}

static char *path_of(const struct kills *k, unsigned i)
{
        return format_text("%s/n%u.safetensors", k->root, i);
}

static uint64_t rewrite(struct kills *k, unsigned i)
{
        uint64_t version = ++k->shared->next_version;
        struct model *m = model_of(version);
        char *path = path_of(k, i), *aside = format_text("%s/aside", k->root);

        model_write(m, aside);
        must(rename(aside, path));
        model_free(m);
        free(path);
        free(aside);
        return version;
}

static void may_be(struct history *h, uint64_t version)
{
        if (h->n == HISTORY)
                die("a history is full");
        h->versions[h->n++] = version;
}

static void is_only(struct history *h, uint64_t version)
{
        h->versions[0] = version;
        h->n = 1;
}

/* ---- the client that changes things; ends when the daemon does ---- */

static void check_gone(int r)
{
        if (r == STREAMER_EUNREACHABLE || r == STREAMER_ELOST)
                _exit(0);
}

static void do_load(struct kills *k, streamer_client *c, unsigned i)
{
        char name[8], *path = path_of(k, i);
        streamer_load_opts opts = {.struct_size = sizeof(opts), .source = path, .name = name};
        streamer_op *op = NULL;

        snprintf(name, sizeof(name), "n%u", i);
        may_be(&k->shared->names[i], rewrite(k, i)); /* from now on */
        int r = streamer_load(c, &opts, &op);
        if (r == 0)
                r = streamer_op_wait(op, 20000, NULL);
        check_gone(r);
        if (r)
                die("load: %s (%s)", streamer_strerror(r), streamer_last_error(c));
        streamer_op_free(op);
        free(path);
}

static void do_unload(struct kills *k, streamer_client *c, unsigned i)
{
        char name[8];

        snprintf(name, sizeof(name), "n%u", i);
        may_be(&k->shared->names[i], ABSENT);
        int r = streamer_unload(c, name, 0);
        check_gone(r);
        if (r != 0 && r != STREAMER_ENOENT)
                die("unload: %s (%s)", streamer_strerror(r), streamer_last_error(c));
        is_only(&k->shared->names[i], ABSENT);
}

static void do_attach(streamer_client *c, unsigned i)
{
        char name[8];
        streamer_lease *lease = NULL;

        snprintf(name, sizeof(name), "n%u", i);
        int r = streamer_attach(c, name, NULL, &lease);
        check_gone(r);
        if (r == 0)
                streamer_detach(lease);
}

/* The daemon is killed soon, and how long its loop has stood is known to nobody else. */
static void do_status(struct kills *k, streamer_client *c)
{
        char *reply = NULL;
        int r = streamer_call(c, "status", NULL, &reply);

        check_gone(r);
        if (r)
                die("status: %s (%s)", streamer_strerror(r), streamer_last_error(c));
        json_t *status = json_loads(reply, 0, NULL);
        stalls_note(&k->shared->stalls, status);
        json_decref(status);
        free(reply);
}

static _Noreturn void change(struct kills *k)
{
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = k->m.d.socket};
        streamer_client *c = NULL;
        int r = streamer_connect(&opts, &c);
        check_gone(r);
        if (r)
                die("connect: %s", streamer_strerror(r));
        for (;;) {
                unsigned i = (unsigned)below(k, NAMES);
                uint64_t dice = below(k, 10);
                if (dice < 6)
                        do_load(k, c, i);
                else if (dice < 8)
                        do_unload(k, c, i);
                else if (dice < 9)
                        do_attach(c, i);
                else
                        do_status(k, c);
        }
}

/* ---- looking ---- */

static uint64_t version_of(struct kills *k, const char *name)
{
        streamer_lease *lease = NULL;
        int r = streamer_attach(k->client, name, NULL, &lease);

        if (r == STREAMER_ENOENT)
                return ABSENT;
        client_ok(k->client, r, name);
        const char *text = streamer_metadata(lease, "version");
        uint64_t version = text != NULL ? strtoull(text, NULL, 10) : 0;
        struct model *m = model_of(version);
        lease_equals(lease, m);
        streamer_detach(lease);
        client_equals(k->client, name, m);
        model_free(m);
        return version;
}

static void look_at(struct kills *k, unsigned i)
{
        char name[8];
        struct history *h = &k->shared->names[i];

        snprintf(name, sizeof(name), "n%u", i);
        uint64_t version = version_of(k, name);
        unsigned at = h->n;
        for (unsigned j = 0; j < h->n; j++)
                if (h->versions[j] == version)
                        at = j;
        if (at == h->n)
                die("%s has version %llu, of %u that it may have, the last of them %llu", name,
                    (unsigned long long)version, h->n, (unsigned long long)h->versions[h->n - 1]);
        k->counts->there += at + 1 == h->n;
        k->counts->older += at + 1 < h->n;
        k->counts->gone += version == ABSENT;
        is_only(h, version);
}

static bool pinned_is_ready(void *arg)
{
        struct kills *k = arg;

        return strcmp(client_state(k->client, PINNED), "ready") == 0;
}

static void look_at_pinned(struct kills *k)
{
        if (!eventually(pinned_is_ready, k, 20000))
                die("what was pinned did not come back");
        client_equals(k->client, PINNED, k->pinned);
}

static void look_at_lease(struct kills *k)
{
        int r = streamer_lease_check(k->held);

        if (r != 0 && r != STREAMER_ELOST)
                die("the lease: %s (%s)", streamer_strerror(r), streamer_last_error(k->client));
        lease_equals(k->held, k->pinned);
        k->counts->held += r == 0;
        k->counts->lost += r != 0;
        if (r == 0)
                return;
        streamer_detach(k->held);
        k->held = client_attach(k->client, PINNED);
}

static void look(struct kills *k)
{
        client_ok(k->client, streamer_call(k->client, "ping", NULL, NULL), "ping");
        stalls_ask(&k->shared->stalls, k->client);
        look_at_pinned(k);
        look_at_lease(k);
        for (unsigned i = 0; i < NAMES; i++)
                look_at(k, i);
}

/* ---- rounds ---- */

static void pause_us(uint64_t us)
{
        struct timespec ts = {.tv_nsec = (long)us * 1000};

        nanosleep(&ts, NULL);
}

/* The moment of the kill is the one thing here that only time can choose. */
static void round_of(struct kills *k)
{
        int status;
        pid_t pid = must(fork());

        if (pid == 0)
                change(k);
        pause_us(below(k, 60000));
        manager_kill(&k->m);
        must(kill(pid, SIGKILL));
        must(waitpid(pid, &status, 0));
        if (status && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
                die("the client failed: status %#x", (unsigned)status);
        k->counts->kills++;
        while (below(k, 4) == 0) {
                manager_spawn(&k->m);
                pause_us(below(k, 20000));
                manager_kill(&k->m);
                k->counts->kills++;
                k->counts->early++;
        }
        manager_start(&k->m);
        look(k);
}

static void set_stage(struct kills *k, const char *folder)
{
        snprintf(k->root, sizeof(k->root), "%s/root", folder);
        char *state = format_text("%s/state", folder), *pinned = format_text("%s/pinned.safetensors", k->root);
        const char *flags[] = {"--device", "host=256MiB", "--root", k->root, "--state", state, NULL};
        streamer_load_opts opts = {
                .struct_size = sizeof(opts), .source = pinned, .name = PINNED, .flags = STREAMER_LOAD_PIN};
        streamer_op *op;

        must(mkdir(k->root, 0755));
        must(mkdir(state, 0755));
        model_write(k->pinned, pinned);
        manager_init(&k->m, format_text("%s/d", folder), STORE, flags);
        manager_start(&k->m);
        k->client = client_open(&k->m.d);
        client_ok(k->client, streamer_load(k->client, &opts, &op), "load");
        client_ok(k->client, streamer_op_wait(op, 20000, NULL), "load");
        streamer_op_free(op);
        k->held = client_attach(k->client, PINNED);
        manager_wait(&k->m, "streamerd-model-", 2);
        for (unsigned i = 0; i < NAMES; i++)
                is_only(&k->shared->names[i], ABSENT);
}

static void unload_all(struct kills *k)
{
        streamer_detach(k->held);
        for (unsigned i = 0; i < NAMES; i++) {
                char name[8];
                snprintf(name, sizeof(name), "n%u", i);
                int r = streamer_unload(k->client, name, 0);
                if (r != STREAMER_ENOENT)
                        client_ok(k->client, r, name);
        }
        client_unload(k->client, PINNED);
        client_wait_leases(k->client, 0);
        client_wait_used(k->client, 0);
        manager_wait(&k->m, "streamerd-model-", 0);
        manager_wait(&k->m, "streamerd-process-", 0);
        manager_wait(&k->m, "", 1); /* the book */
        if (k->m.dropped)
                die("%zu descriptors did not fit the store", k->m.dropped);
}

void kills_run(const char *folder, uint64_t seed, unsigned kills, struct kills_counts *counts)
{
        static struct kills k;

        k = (struct kills){.seed = seed, .chance = seed, .counts = counts, .pinned = model_mixed(4242, 512 << 10)};
        running = &k;
        outer_hook = die_hook;
        k.shared = mmap(NULL, sizeof(*k.shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        set_stage(&k, folder);
        if (outer_hook)
                die_hook = say_seed;
        while (counts->kills < kills) {
                k.round++;
                round_of(&k);
        }
        unload_all(&k);
        counts->stalls = k.shared->stalls;
        die_hook = outer_hook;
        streamer_close(k.client);
        manager_deinit(&k.m);
}
