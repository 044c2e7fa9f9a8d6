/* SPDX-License-Identifier: Apache-2.0
 *
 * `make soak`: one daemon under random load of several processes for SOAK_SECONDS. They load, attach, compare every
 * byte, unload, cancel and replace files, and some die while they hold leases. Each reply must be permitted in its
 * situation, and each tensor must be complete and of its lease's generation. When all have exited, the daemon must have
 * the same resources in use as before.
 *
 * SOAK_SEED repeats the choices, but not their timing.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/suite.h"

#define WORKERS 6
#define MODELS 8
#define HELD 4
#define WAIT_MS 30000
#define MEMORY_GROWTH (8u << 20)

#define COUNTS(X)                                                                                                      \
        X(loads)                                                                                                       \
        X(ready)                                                                                                       \
        X(refused) X(changed) X(cancelled) X(unloads) X(busy) X(attaches) X(tensors) X(lost) X(rewrites) X(deaths)

struct counts {
#define X(name) _Atomic uint64_t name;
        COUNTS(X)
#undef X
        _Atomic uint64_t versions; /* the next seed of a model's contents */
        _Atomic bool stop;
};

static struct counts *counts; /* shared by all processes */
static uint64_t seed;

/* ---- random numbers ---- */

static uint64_t chance;

static uint64_t random_below(uint64_t n)
{
        return draw_below(&chance, n);
}

/* ---- models: each file has its seed ---- */

static struct model *model_of(uint64_t version)
{
        struct model *m = model_mixed(version, (64 + version * 97 % 4096) << 10);
        char *json = format_text("{\"seed\":\"%ju\"}", (uintmax_t)version);
        model_set_metadata(m, json);
        free(json);
        return m;
}

static void write_version(unsigned i)
{
        struct model *m = model_of(atomic_fetch_add(&counts->versions, 1));
        char *path = fixture_path("m%u.safetensors", i), *aside = fixture_path("m%u.new-%d", i, (int)getpid());
        model_write(m, aside);
        must(rename(aside, path));
        counts->rewrites++;
        model_free(m);
        free(aside);
        free(path);
}

/* ---- a worker ---- */

struct worker {
        streamer_client *client;
        streamer_lease *held[HELD];
};

static _Noreturn void worker_fail(const char *text)
{
        fprintf(stderr, "soak: seed %ju: %s\n", (uintmax_t)seed, text);
        _exit(1);
}

static _Noreturn void unexpected(struct worker *w, const char *call, int r)
{
        die("%s: %s (%s)", call, streamer_strerror(r), streamer_last_error(w->client));
}

static void random_name(char name[16])
{
        snprintf(name, 16, "m%u", (unsigned)random_below(MODELS));
}

/* The source may be replaced, the budget may be full, and other processes may cancel. */
static void count_outcome(struct worker *w, int r)
{
        if (r == 0)
                counts->ready++;
        else if (r == STREAMER_ENOMEM || r == STREAMER_ELIMIT)
                counts->refused++;
        else if (r == STREAMER_ECANCELED)
                counts->cancelled++;
        else if (r == STREAMER_EFAILED && strstr(streamer_last_error(w->client), "changed while it was read"))
                counts->changed++;
        else
                unexpected(w, "load", r);
}

static void do_load(struct worker *w)
{
        char name[16], *source;
        streamer_op *op = NULL;
        random_name(name);
        source = fixture_path("%s.safetensors", name);
        streamer_load_opts opts = {.struct_size = sizeof(opts), .source = source};
        int r = streamer_load(w->client, &opts, &op);
        counts->loads++;
        /* Sometimes the client does not wait. */
        if (r == 0 && random_below(4) != 0)
                r = streamer_op_wait(op, WAIT_MS, NULL);
        count_outcome(w, r);
        streamer_op_free(op);
        free(source);
}

static void do_unload(struct worker *w)
{
        char name[16];
        random_name(name);
        int r = streamer_unload(w->client, name, random_below(3) == 0 ? STREAMER_UNLOAD_DRAIN : 0);
        if (r != 0 && r != STREAMER_EBUSY && r != STREAMER_ENOENT)
                unexpected(w, "unload", r);
        counts->unloads += r == 0;
        counts->busy += r == STREAMER_EBUSY;
}

static void do_cancel(struct worker *w)
{
        char *args = format_text("{\"model\":\"m%u\"}", (unsigned)random_below(MODELS)), *reply = NULL;
        int r = streamer_call(w->client, "cancel", args, &reply);
        if (r != 0 && r != STREAMER_ENOENT && strstr(streamer_last_error(w->client), "is not loading") == NULL)
                unexpected(w, "cancel", r);
        free(reply);
        free(args);
}

static void do_recheck(struct worker *w)
{
        static const char *const verbs[] = {"list", "status", "ps"};
        const char *verb = verbs[random_below(3)];
        char *reply = NULL;
        int r = streamer_call(w->client, verb, NULL, &reply);
        if (r != 0)
                unexpected(w, verb, r);
        free(reply);
}

/* Compares each tensor as it arrives with the version in the lease's metadata. */
static void check_lease(struct worker *w, streamer_lease *lease)
{
        const char *version = streamer_metadata(lease, "seed");
        if (version == NULL)
                die("a lease without the file's metadata");
        struct model *m = model_of(strtoull(version, NULL, 10));
        streamer_tensor t = STREAMER_TENSOR_INIT;
        size_t n = 0;
        int r;
        while ((r = streamer_tensor_next(lease, WAIT_MS, &t)) == 0) {
                size_t i = model_index(m, t.name);
                if (i == m->n || t.bytes != m->tensors[i].bytes || !model_check(m, i, t.data))
                        die("version %s: tensor %s differs from the written one", version, t.name);
                n++;
        }
        /* A load that ends early reports it; the tensors returned until then were complete. */
        if (r == STREAMER_EEND && n != m->n)
                die("version %s: %zu of %zu tensors", version, n, m->n);
        if (r == STREAMER_EFAILED || r == STREAMER_ECANCELED)
                counts->lost++;
        else if (r != STREAMER_EEND)
                unexpected(w, "tensor_next", r);
        counts->tensors += n;
        model_free(m);
}

static void do_attach(struct worker *w)
{
        char name[16];
        streamer_lease *lease = NULL;
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .timeout_ms = WAIT_MS};
        random_name(name);
        opts.flags = random_below(2) == 0 ? STREAMER_ATTACH_READY : 0;
        int r = streamer_attach(w->client, name, &opts, &lease);
        if (r == STREAMER_ENOENT || r == STREAMER_EFAILED || r == STREAMER_ECANCELED || r == STREAMER_ENOMEM)
                return;
        if (r != 0)
                unexpected(w, "attach", r);
        counts->attaches++;
        check_lease(w, lease);
        size_t slot = random_below(HELD);
        streamer_detach(w->held[slot]);
        w->held[slot] = lease;
}

static void do_detach(struct worker *w)
{
        size_t slot = random_below(HELD);
        streamer_detach(w->held[slot]);
        w->held[slot] = NULL;
}

static void do_step(struct worker *w)
{
        uint64_t dice = random_below(100);
        if (dice < 30)
                do_load(w);
        else if (dice < 65)
                do_attach(w);
        else if (dice < 78)
                do_unload(w);
        else if (dice < 86)
                do_detach(w);
        else if (dice < 92)
                do_recheck(w);
        else if (dice < 96)
                do_cancel(w);
        else
                write_version((unsigned)random_below(MODELS));
}

/* Several dozen steps; then it detaches, or exits without detaching. */
static _Noreturn void run_worker(uint64_t number)
{
        struct worker w = {0};
        die_hook = worker_fail;
        chance = seed * 1000003 + number;
        w.client = client_open(&test_daemon);
        for (uint64_t steps = 20 + random_below(200); steps > 0 && !counts->stop; steps--)
                do_step(&w);
        if (random_below(2) == 0) {
                counts->deaths++;
                _exit(0);
        }
        for (size_t i = 0; i < HELD; i++)
                streamer_detach(w.held[i]);
        streamer_close(w.client);
        _exit(0);
}

static void start_worker(void)
{
        static uint64_t number;
        number++;
        if (must(fork()) == 0)
                run_worker(number);
}

/* ---- the whole ---- */

/* Workers end by themselves and are replaced, until the time is over; the last ones are waited for. */
static void run_workers(uint64_t until)
{
        int status;
        for (int i = 0; i < WORKERS; i++)
                start_worker();
        for (int running = WORKERS; running > 0;) {
                must(wait(&status));
                if (status != 0) {
                        counts->stop = true;
                        die("a worker failed: status %#x", (unsigned)status);
                }
                if (clock_ns() < until)
                        start_worker();
                else
                        running--;
        }
}

static bool no_load_runs(streamer_client *c)
{
        json_auto_t *status = client_call(c, "status", NULL);
        return json_array_size(json_object_get(status, "loads")) == 0;
}

static void unload_all(streamer_client *c)
{
        /* Loads that no client waited for. */
        ck_assert_msg(WITHIN(WAIT_MS, no_load_runs(c)), "a load does not end");
        for (unsigned i = 0; i < MODELS; i++) {
                char name[16];
                snprintf(name, sizeof(name), "m%u", i);
                int r = streamer_unload(c, name, 0);
                if (r != STREAMER_ENOENT)
                        client_ok(c, r, "unload");
        }
}

static void print_counts(uint64_t seconds, uint64_t half_way, uint64_t end)
{
        printf("soak: seed %ju, %ju s, memory %.1f MiB half way, %.1f MiB at the end\n", (uintmax_t)seed,
               (uintmax_t)seconds, (double)half_way / (1 << 20), (double)end / (1 << 20));
        printf("soak:");
#define X(name) printf(" %ju " #name, (uintmax_t)counts->name);
        COUNTS(X)
#undef X
        printf("\n");
        fflush(stdout);
}

BEFORE_ALL()
{
        seed = env_number("SOAK_SEED", clock_ns() % 1000000007);
}

static void begin(void)
{
        counts = must_share(sizeof(*counts));
        counts->versions = 1;
        /* Less than all models together, so some loads run out of memory. */
        fixture_begin(
                (const char *const[]){"--device", "host=24MiB", "--concurrency", "4", "--block-size", "1MiB", NULL});
        streamer_client *c = client_open(&test_daemon);
        client_ok(c, streamer_pin(c, "witness", 1), "pin"); /* others are evicted */
        streamer_close(c);
        for (unsigned i = 0; i < MODELS; i++)
                write_version(i);
}

FIXTURE(.all = {begin, fixture_end}, .timeout = (int)env_number("SOAK_SECONDS", 60) + 120);

TEST(a_daemon_releases_everything_after_random_load)
{
        uint64_t seconds = env_number("SOAK_SECONDS", 60);
        streamer_client *c = client_open(&test_daemon);
        uint64_t used = client_used(c);
        unsigned fds = process_fds(test_daemon.pid);
        /* Two equal halves: the second is compared with the warm state after the first. */
        uint64_t memory = 0;
        for (int half = 0; half < 2; half++) {
                run_workers(clock_ns() + seconds * 500000000);
                client_wait_leases(c, 0);
                unload_all(c);
                client_wait_used(c, used);
                ck_assert_msg(process_wait_fds(test_daemon.pid, fds), "%u descriptors, of %u before",
                              process_fds(test_daemon.pid), fds);
                if (half == 0)
                        memory = process_memory(test_daemon.pid);
        }
        print_counts(seconds, memory, process_memory(test_daemon.pid));
        /* A sanitizer delays the release of freed memory. */
        if (!suite_short())
                ck_assert_uint_le(process_memory(test_daemon.pid), memory + MEMORY_GROWTH);
        streamer_close(c);
        fixture_serves();
}
