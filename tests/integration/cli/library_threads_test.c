/* SPDX-License-Identifier: Apache-2.0
 *
 * All calls of the library on one client, by eight threads at once: objects end while other threads read the socket,
 * models load while leases on them end, the daemon is killed and started anew, and the process forks. What a call
 * returns depends on the others; the tests require that it is an outcome that the calls document, that no byte is
 * wrong, and that nothing is left at the end.
 *
 * Every thread makes a fixed number of random steps, so that the tests end after a bounded amount of work.
 */
#include "tests/lib/dlpack.h"
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

#define THREADS 8
#define SOURCES 4
#define STEPS (suite_short() ? 60u : 300u) /* of each thread */
#define RESTARTS (suite_short() ? 1u : 3u)

static struct model *models[SOURCES];
static char *paths[SOURCES];
static const char *const names[SOURCES] = {"m0", "m1", "m2", "m3"};
static streamer_lease *shared; /* read by all threads */

static _Atomic unsigned steps; /* that were made */
static _Atomic unsigned ready, arrivals, revoked, refused, published;

struct worker {
        pthread_t thread;
        unsigned number;
        uint64_t state; /* of its random numbers */
};

static unsigned draw(struct worker *w, unsigned n)
{
        return (unsigned)draw_below(&w->state, n);
}

/* What other threads and restarts can lead to; anything else is a defect. */
static int may(int code)
{
        switch (code) {
        case STREAMER_EPROTO:
        case STREAMER_ECORRUPT:
        case STREAMER_EOS:
        case STREAMER_EFORK:
        case STREAMER_EDIGEST:
        case STREAMER_EPERM:
        case STREAMER_EINVAL:
        case STREAMER_EUNSUPPORTED:
        case STREAMER_ELIMIT:
                die("%s: %s", streamer_error_name(code), streamer_last_error(client));
        default:
                revoked += code == STREAMER_EREVOKED;
                return code;
        }
}

/* ---- a lease ---- */

static unsigned model_number(const streamer_lease *lease)
{
        const char *name = streamer_lease_model(lease);
        if (name == NULL || name[0] != 'm')
                die("a lease is of the model '%s'", name ? name : "(null)");
        return (unsigned)(name[1] - '0') % SOURCES;
}

static void check_tensor(const streamer_lease *lease, const streamer_tensor *t)
{
        const struct model *m = models[model_number(lease)];
        size_t i = model_index(m, t->name);
        if (i == m->n || !model_check(m, i, t->data))
                die("%s: wrong bytes", t->name);
}

static void look_at(struct worker *w, streamer_lease *lease)
{
        streamer_tensor t = STREAMER_TENSOR_INIT;
        streamer_segment segment = STREAMER_SEGMENT_INIT;
        const char *key, *value;
        unsigned char bytes[16];
        size_t n = 0;
        const struct model *m = models[model_number(lease)];
        if (streamer_tensor_count(lease, &n) != 0 || n != m->n)
                die("%zu tensors", n);
        if (may(streamer_tensor_get(lease, draw(w, (unsigned)n), &t)) == 0)
                check_tensor(lease, &t);
        if (may(streamer_tensor_find(lease, m->tensors[draw(w, (unsigned)n)].name, &t)) == 0 &&
            t.bytes >= sizeof(bytes))
                may(streamer_tensor_read(lease, &t, 0, bytes, sizeof(bytes)));
        may(streamer_segment_get(lease, 0, &segment));
        may(streamer_metadata_get(lease, 0, &key, &value));
        (void)streamer_metadata(lease, "format");
        (void)(streamer_segment_count(lease) + streamer_metadata_count(lease) + streamer_generation(lease));
        (void)streamer_lease_writable(lease);
        const char *digest = streamer_digest(lease);
        if (strlen(digest) != 0 && strlen(digest) != 32)
                die("the digest is '%s'", digest);
        if (draw(w, 4) == 0)
                may(streamer_lease_check(lease));
}

/* Up to `n` tensors in order of arrival; one of them outlives the lease. */
static void take_arrivals(struct worker *w, streamer_lease *lease, unsigned n, void **kept)
{
        streamer_tensor t = STREAMER_TENSOR_INIT;
        while (n-- > 0 && may(streamer_tensor_next(lease, 1000, &t)) == 0) {
                arrivals++;
                if (t.bytes <= 4096)
                        check_tensor(lease, &t);
                if (*kept == NULL && t.bytes > 0 && draw(w, 8) == 0)
                        may(streamer_tensor_dlpack(lease, &t, STREAMER_DLPACK_UNVERSIONED, kept));
        }
}

static void end_lease(struct worker *w, streamer_lease *lease)
{
        void *kept = NULL, *segment = NULL;
        if (lease == NULL)
                return;
        if (draw(w, 3) > 0)
                take_arrivals(w, lease, draw(w, 20), &kept);
        if (draw(w, 3) == 0)
                look_at(w, lease);
        if (streamer_segment_count(lease) > 0 && draw(w, 4) == 0)
                may(streamer_segment_dlpack(lease, 0, STREAMER_DLPACK_UNVERSIONED, &segment));
        streamer_detach(lease);
        for (struct dl *dl = kept; dl != NULL; dl = dl == kept ? segment : NULL)
                (void)*(volatile unsigned char *)dl->data;
        if (kept != NULL)
                ((struct dl *)kept)->deleter(kept);
        if (segment != NULL)
                ((struct dl *)segment)->deleter(segment);
}

/* ---- the steps ---- */

static void step_open(struct worker *w)
{
        streamer_attach_opts attach = STREAMER_ATTACH_OPTS_INIT;
        streamer_open_opts opts = STREAMER_OPEN_OPTS_INIT;
        streamer_lease *lease = NULL;
        attach.flags = draw(w, 3) == 0 ? STREAMER_ATTACH_READY : draw(w, 2) * STREAMER_ATTACH_PRIVATE;
        opts.attach = &attach;
        opts.timeout_ms = draw(w, 3) == 0 ? 1 + (int)draw(w, 5) : 10000;
        ready += may(streamer_open(client, paths[draw(w, SOURCES)], &opts, &lease)) == 0;
        end_lease(w, lease);
}

/* The operation may end before its reply, after it, or with its lease. */
static void step_open_start(struct worker *w)
{
        streamer_open_opts opts = STREAMER_OPEN_OPTS_INIT;
        streamer_lease *lease = NULL;
        streamer_op *op = NULL;
        unsigned n = draw(w, SOURCES);
        if (may(streamer_open_start(client, draw(w, 2) ? paths[n] : names[n], &opts, &op)) != 0)
                return;
        (void)streamer_op_model(op);
        if (draw(w, 2) == 0)
                may(streamer_op_lease(op, (int)draw(w, 20), &lease));
        if (draw(w, 2) == 0)
                may(streamer_op_wait(op, 0, NULL));
        streamer_op_free(op);
        end_lease(w, lease);
}

static void step_load(struct worker *w)
{
        streamer_load_opts opts = STREAMER_LOAD_OPTS_INIT;
        streamer_progress progress = STREAMER_PROGRESS_INIT;
        streamer_device_failure failure = STREAMER_DEVICE_FAILURE_INIT;
        streamer_op *op = NULL;
        opts.source = paths[draw(w, SOURCES)];
        if (may(streamer_load(client, &opts, &op)) != 0)
                return;
        may(streamer_op_wait(op, (int)draw(w, 30), &progress));
        if (streamer_op_failure_count(op) > 0)
                may(streamer_op_failure_get(op, 0, &failure));
        (void)streamer_op_model(op);
        streamer_op_free(op);
}

/* Models load again and again, as others unload them by force, also while they load. */
static void step_unload(struct worker *w)
{
        static const unsigned flags[] = {0, STREAMER_UNLOAD_DRAIN, STREAMER_UNLOAD_FORCE, STREAMER_UNLOAD_FORCE};
        may(streamer_unload(client, names[draw(w, SOURCES)], flags[draw(w, 4)]));
}

static void step_attach(struct worker *w)
{
        streamer_attach_opts opts = STREAMER_ATTACH_OPTS_INIT;
        streamer_lease *lease = NULL;
        opts.flags = draw(w, 2) * STREAMER_ATTACH_READY;
        opts.timeout_ms = 1 + (int)draw(w, 50);
        may(streamer_attach(client, names[draw(w, SOURCES)], &opts, &lease));
        end_lease(w, lease);
}

/* Neither a model nor a file. */
static void step_refused(struct worker *w)
{
        streamer_attach_opts other = STREAMER_ATTACH_OPTS_INIT;
        streamer_open_opts opts = STREAMER_OPEN_OPTS_INIT;
        streamer_lease *lease = NULL;
        char text[300], *typo = suite_path("m%u.safetensor", draw(w, SOURCES));
        int code =
                draw(w, 2) ? streamer_open(client, typo, &opts, &lease) : streamer_attach(client, "m9", &other, &lease);
        refused += may(code) == STREAMER_ENOENT;
        if (code == 0)
                die("%s was opened", typo);
        streamer_error_copy(client, text, sizeof(text));
        other.digest = "00112233445566778899aabbccddeeff";
        other.timeout_ms = 10;
        code = streamer_attach(client, names[draw(w, SOURCES)], &other, &lease);
        if (code == 0)
                die("a model of another digest was attached");
        if (code != STREAMER_EDIGEST)
                may(code);
}

static void step_process(struct worker *w)
{
        for (unsigned i = 0; i < 20; i++)
                may(streamer_process(client));
        (void)streamer_fd(client);
}

static void step_shared(struct worker *w)
{
        streamer_tensor t = STREAMER_TENSOR_INIT;
        look_at(w, shared);
        may(streamer_tensor_next(shared, 0, &t));
}

static void step_events(struct worker *w)
{
        char *event = NULL;
        may(streamer_subscribe(client, draw(w, 2) ? NULL : names[0]));
        for (unsigned i = 0; i < 4; i++)
                if (may(streamer_event_next(client, (int)draw(w, 3), &event)) == 0)
                        streamer_free(event);
}

static void step_list(struct worker *w)
{
        streamer_model_list *list = NULL;
        streamer_model model = STREAMER_MODEL_INIT;
        streamer_model_device device = STREAMER_MODEL_DEVICE_INIT;
        streamer_socket_info info = STREAMER_SOCKET_INFO_INIT;
        char *reply = NULL;
        if (may(streamer_list(client, &list)) == 0) {
                for (size_t i = 0; i < streamer_model_list_count(list); i++) {
                        may(streamer_model_list_get(list, i, &model));
                        may(streamer_model_list_device_get(list, i, 0, &device));
                }
                streamer_model_list_free(list);
        }
        if (may(streamer_call(client, draw(w, 2) ? "ps" : "status", NULL, &reply)) == 0)
                streamer_free(reply);
        may(streamer_socket(client, &info));
}

static void step_control(struct worker *w)
{
        const char *name = names[draw(w, SOURCES)];
        may(streamer_keep_alive(client, name, 3600000));
        may(streamer_pin(client, name, 1));
        may(streamer_pin(client, name, 0));
        may(streamer_cancel(client, name));
        may(streamer_wait(client, name, (int)draw(w, 20)));
}

static void step_fetch(struct worker *w)
{
        void *data = NULL;
        char *list = NULL;
        uint64_t size = 0;
        if (may(streamer_fetch(client, suite_folder(), "config.json", &data, &size)) == 0)
                streamer_free(data);
        if (may(streamer_fetch_list(client, suite_folder(), &list)) == 0)
                streamer_free(list);
}

static int fill_publication(struct worker *w, streamer_publication *p)
{
        const uint64_t bytes = 4096, shape = 1024, strides = 1;
        const streamer_published_tensor tensor = {.struct_size = sizeof(tensor),
                                                  .name = "weight",
                                                  .dtype = "float32",
                                                  .item = 4,
                                                  .kind = STREAMER_PUBLISHED_PARAMETER,
                                                  .rank = 1,
                                                  .shape = &shape,
                                                  .strides = &strides};
        void *data = NULL;
        int rc = may(streamer_publish_begin(p, &bytes, 1)) ?: may(streamer_publish_storage(p, 0, &data));
        if (rc == 0)
                memset(data, (int)w->number, bytes);
        return rc ?: may(streamer_publish_tensor(p, &tensor)) ?: may(streamer_publish_attribute(p, "class", "Linear"));
}

static void read_publication(struct worker *w, streamer_lease *lease)
{
        streamer_published_tensor tensor = STREAMER_PUBLISHED_TENSOR_INIT;
        streamer_tensor storage = STREAMER_TENSOR_INIT;
        const char *name, *value;
        size_t n = 0;
        may(streamer_published_count(lease, &n, NULL, NULL));
        may(streamer_published_get(lease, 0, &tensor));
        may(streamer_published_storage(lease, 0, &storage));
        may(streamer_published_attribute(lease, 0, &name, &value));
        if (may(streamer_published_find(lease, "weight", &tensor)) == 0 &&
            *(const unsigned char *)tensor.data != w->number)
                die("the published weight is %u", *(const unsigned char *)tensor.data);
        published++;
}

static void step_publish(struct worker *w)
{
        char name[16];
        streamer_publish_opts opts = STREAMER_PUBLISH_OPTS_INIT;
        streamer_found found = STREAMER_FOUND_INIT;
        streamer_publication *p = NULL;
        streamer_lease *lease = NULL;
        snprintf(name, sizeof(name), "pub%u", w->number);
        opts.name = name;
        opts.flags = STREAMER_PUBLISH_REPLACE | STREAMER_PUBLISH_NO_WAIT;
        opts.timeout_ms = 5000;
        if (may(streamer_publish_find(client, &opts, &found, &p)) != 0)
                return;
        streamer_free(found.differs);
        if (p == NULL)
                return;
        if (draw(w, 4) == 0 || fill_publication(w, p) != 0 || may(streamer_publish_commit(p, &lease)) != 0) {
                streamer_publish_abort(p);
                return;
        }
        read_publication(w, lease);
        streamer_detach(lease);
}

/* In the child every call is refused and sends nothing, and what the thread held is released. */
static _Noreturn void use_in_child(streamer_lease *lease, streamer_op *op)
{
        streamer_tensor t = STREAMER_TENSOR_INIT;
        streamer_lease *other = NULL;
        bool right = streamer_process(client) == STREAMER_EFORK && streamer_fd(client) == STREAMER_EFORK &&
                     streamer_attach(client, "m0", NULL, &other) == STREAMER_EFORK &&
                     streamer_op_wait(op, 0, NULL) == STREAMER_EFORK && streamer_op_model(op) == NULL &&
                     streamer_tensor_next(lease, 0, &t) == STREAMER_EFORK && streamer_digest(lease)[0] == '\0';
        streamer_op_free(op);
        streamer_detach(lease);
        streamer_detach(shared);
        streamer_close(client);
        _exit(right ? 0 : 1);
}

static void step_fork(struct worker *w)
{
        streamer_open_opts opts = STREAMER_OPEN_OPTS_INIT;
        streamer_lease *lease = NULL;
        streamer_op *op = NULL;
        int status = 0;
        if (w->number != 0 || draw(w, 4) != 0)
                return;
        if (may(streamer_open(client, paths[0], &opts, &lease)) == 0 &&
            may(streamer_open_start(client, paths[1], &opts, &op)) == 0) {
                pid_t pid = must(fork());
                if (pid == 0)
                        use_in_child(lease, op);
                must(waitpid(pid, &status, 0));
                if (status != 0)
                        die("the child ended with %x", (unsigned)status);
        }
        streamer_op_free(op);
        streamer_detach(lease);
}

static void (*const some_steps[])(struct worker *w) = {
        step_open,   step_open,   step_open,   step_open_start, step_open_start, step_open_start, step_load,
        step_unload, step_unload, step_attach, step_attach,     step_refused,    step_process,    step_process,
        step_shared, step_events, step_list,   step_control,    step_fetch,      step_publish,    step_fork,
};

static void *work(void *arg)
{
        struct worker *w = arg;
        for (unsigned i = 0; i < STEPS; i++) {
                some_steps[draw(w, sizeof(some_steps) / sizeof(some_steps[0]))](w);
                steps++;
        }
        return NULL;
}

/* ---- fixture ---- */

static const char *config;

static void begin(void)
{
        char *text = format_text("devices:\n  - {device: host, budget: 1GiB}\nroots: [%s]\nio: {block_size: 1MiB}\n",
                                 suite_folder());
        config = suite_file("threads.yaml", text);
        DAEMON_START(&test_daemon, suite_path("d"), "--config", config);
        for (unsigned i = 0; i < SOURCES; i++) {
                models[i] = model_mixed(i + 1, (uint64_t)(i + 1) << 20);
                model_add_many(models[i], "small", 40, 4096);
                model_set_metadata(models[i], "{\"format\": \"pt\"}");
                for (size_t j = 0; j < models[i]->n; j++) {
                        unsigned char digest[16];
                        model_tensor_digest(models[i], j, digest);
                }
                paths[i] = suite_path("%s.safetensors", names[i]);
                model_write(models[i], paths[i]);
        }
        suite_file("config.json", "{}");
        client = client_open(&test_daemon);
        client_ok(client, streamer_open(client, paths[0], NULL, &shared), "open");
}

static void start_workers(struct worker *workers)
{
        for (unsigned i = 0; i < THREADS; i++) {
                workers[i] = (struct worker){.number = i, .state = env_number("THREADS_SEED", 1) * 1000 + i};
                must(-pthread_create(&workers[i].thread, NULL, work, &workers[i]));
        }
}

static void join_workers(const struct worker *workers)
{
        for (unsigned i = 0; i < THREADS; i++)
                must(-pthread_join(workers[i].thread, NULL));
}

/* Reads what has arrived: a late reply may have a lease, which is given back. */
static bool all_is_reported(void)
{
        char *event;
        while (streamer_event_next(client, 0, &event) == 0)
                streamer_free(event);
        return streamer_process(client) == 0;
}

FIXTURE(.each = {begin, NULL}, .timeout = 300);

TEST(eight_threads_use_all_calls_of_a_client_over_restarts)
{
        struct worker workers[THREADS];
        start_workers(workers);
        for (unsigned i = 1; i <= RESTARTS; i++) {
                if (!WITHIN(200000, steps >= i * THREADS * STEPS / (RESTARTS + 1)))
                        die("%u steps were made", steps);
                daemon_kill(&test_daemon);
                daemon_start(&test_daemon, (const char *const[]){"--config", config, NULL});
        }
        join_workers(workers);
        ck_assert_uint_gt(ready, 0);
        ck_assert_uint_gt(arrivals, 0);
        ck_assert_uint_gt(refused, 0);
        ck_assert_uint_gt(published, 0);

        /* Nothing is left: no lease of this process but the shared one, and nothing to report for ever. */
        streamer_detach(shared);
        client_ok(client, streamer_subscribe(client, "m0"), "subscribe");
        streamer_client *other = client_open(&test_daemon);
        AWAIT(all_is_reported() && client_leases(other) == 0);
        streamer_close(client);
        streamer_close(other);
        ck_assert_int_eq(daemon_stop(&test_daemon), 0);
}

#define OBJECTS 8 /* of each thread */
static streamer_lease *leases[THREADS][OBJECTS];
static streamer_op *ops[THREADS][OBJECTS];

static void *end_objects(void *arg)
{
        const unsigned *number = arg;
        for (unsigned i = 0; i < OBJECTS; i++) {
                streamer_op_free(ops[*number][i]);
                streamer_detach(leases[*number][i]);
        }
        return NULL;
}

/* Leases and operations outlive their client. */
TEST(a_client_is_closed_while_threads_end_its_objects)
{
        streamer_open_opts opts = STREAMER_OPEN_OPTS_INIT;
        pthread_t threads[THREADS];
        unsigned numbers[THREADS];
        for (unsigned i = 0; i < THREADS * OBJECTS; i++) {
                const char *source = paths[i % SOURCES];
                client_ok(client, streamer_open(client, source, &opts, &leases[i / OBJECTS][i % OBJECTS]), "open");
                client_ok(client, streamer_open_start(client, source, &opts, &ops[i / OBJECTS][i % OBJECTS]), "start");
        }
        for (unsigned i = 0; i < THREADS; i++) {
                numbers[i] = i;
                must(-pthread_create(&threads[i], NULL, end_objects, &numbers[i]));
        }
        streamer_close(client);
        streamer_detach(shared);
        for (unsigned i = 0; i < THREADS; i++)
                must(-pthread_join(threads[i], NULL));
        ck_assert_int_eq(daemon_stop(&test_daemon), 0);
}
