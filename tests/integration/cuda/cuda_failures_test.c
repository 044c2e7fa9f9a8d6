/* SPDX-License-Identifier: Apache-2.0
 *
 * Each CUDA call of the daemon and of a client fails once, at each step of a model's life: load, attach, read back by
 * a second process, verify, unload; on one GPU of each kind of handle, as replicas on two and as ranks on two. The
 * daemon survives, the caller receives the result or an error that names the call, the next life succeeds, and no GPU
 * memory leaks: the fake GPUs have capacity for one model. Replicas lose at most one device, and the other serves;
 * ranks are ready together or fail together.
 */
#include "daemon/device/cuda/api.h"
#include "tests/lib/gpu_fixture.h"
#include "tests/lib/suite.h"

#define TWO 2
#define PLACES_MAX (suite_short() ? 5u : 100u) /* of one call in one life; events are queried repeatedly */
#define MEMORY_ERROR 2
#define OTHER_ERROR 801

#define X(name, result, arguments) #name,
static const char *const calls[] = {CUDA_RUNTIME_CALLS(X) CUDA_DRIVER_CALLS(X) "cudaMemcpyBatchAsync",
                                    CUDA_CLIENT_CALLS(X)};
#undef X
#define CALLS (sizeof(calls) / sizeof(calls[0]))

static bool live_on_one(const char *call);
static bool live_on_two(const char *call);

/* Without a layout only the first file of a source is loaded. */
static const struct kind {
        const char *layout;
        bool (*live)(const char *call); /* false: a step failed, and its error named the call */
        struct gpu_daemon gpus;
        unsigned least; /* calls that can be made to fail */
} kinds[] = {
        {NULL, live_on_one, {.n = 1, .mib = 6, .devices = {"'cuda:0', budget: 64MiB, handles: cuda-ipc"}}, 20},
        {NULL, live_on_one, {.n = 1, .mib = 6, .devices = {"'cuda:0', budget: 64MiB, handles: cuda-vmm-fd"}}, 20},
#define ON_TWO                                                                                                         \
        {                                                                                                              \
                .n = TWO, .mib = 8, .cuda = "segment_size: 2MiB, context_retention: 0s", .devices = {                  \
                        "'cuda:0', budget: 64MiB",                                                                     \
                        "'cuda:1', budget: 64MiB, handles: cuda-vmm-fd"                                                \
                }                                                                                                      \
        }
        {NULL, live_on_two, ON_TWO, 12},
        {"rank", live_on_two, ON_TWO, 12},
};

static const struct kind *kind;
static struct model *models[TWO]; /* by rank */
static char *source, *report;

static void write_source(void)
{
        char *folder = suite_path("source-%d", (int)getpid());
        mkdir(folder, 0755);
        for (size_t i = 0; i < TWO; i++) {
                models[i] = kind->gpus.n == 1 ? model_mixed(21, 17 << 17) : model_new(40 + i);
                if (kind->gpus.n > 1) {
                        model_add_many(models[i], "layer", 5, 3 << 18); /* two fill a segment */
                        model_add_many(models[i], "small", 20, 100);
                }
                model_write(models[i], format_text("%s/model-rank-%zu-part-0.safetensors", folder, i));
        }
        source = kind->layout != NULL ? folder : format_text("%s/model-rank-0-part-0.safetensors", folder);
}

static void start(void)
{
        report = suite_path("report-%d", (int)getpid());
        setenv("FAKECUDA_REPORT", report, 1);
        gpu_begin(&kind->gpus);
}

/* ---- one GPU ---- */

/* The outcome of a process that attaches. */
enum outcome { WHOLE, TOLD, SILENT };

static bool error_names(const char *text, const char *call)
{
        char name[64]; /* without its version */
        snprintf(name, sizeof(name), "%.*s", (int)(strstr(call, "_v2") ? strlen(call) - 3 : strlen(call)), call);
        /* Out of memory is reported with figures; a driver that does not start has its own message. */
        return strstr(text, name) || strstr(text, "free on the device") || strstr(text, "does not fit") ||
               strstr(text, "cannot use CUDA") || strstr(text, "is not among the");
}

static enum outcome consume(const char *call)
{
        streamer_client *c = client_open(&test_daemon);
        streamer_lease *lease;
        if (streamer_attach(c, "m", NULL, &lease) != 0)
                return error_names(streamer_last_error(c), call) ? TOLD : SILENT;
        for (size_t i = 0; i < models[0]->n; i++) {
                streamer_tensor t = STREAMER_TENSOR_INIT;
                client_ok(c, streamer_tensor_find(lease, models[0]->tensors[i].name, &t), "find");
                unsigned char *data = must_alloc(t.bytes + 1);
                if (streamer_tensor_read(lease, &t, 0, data, t.bytes) != 0)
                        return error_names(streamer_last_error(c), call) ? TOLD : SILENT;
                if (!model_check(models[0], i, data))
                        die("tensor %s: wrong contents", t.name);
        }
        streamer_detach(lease);
        streamer_close(c);
        return WHOLE;
}

static bool live_on_one(const char *call)
{
        char text[1024];
        int r = client_load_result(client, source, "m", text);
        if (r != 0) {
                ck_assert_msg(error_names(text, call), "%s: load: %s", call, text);
                client_unload(client, "m");
                return false;
        }
        pid_t pid = must(fork());
        if (pid == 0)
                _exit((int)consume(call));
        int outcome = child_wait(pid);
        ck_assert_msg(outcome != SILENT, "%s: the consumer got no error", call);
        ck_assert_msg(outcome < SILENT, "%s: the consumer ended with %d", call, outcome);
        r = client_call_code(client, "verify", "{\"model\":\"m\"}");
        ck_assert_msg(r == 0 || error_names(streamer_last_error(client), call), "%s: verify: %s", call,
                      streamer_last_error(client));
        client_wait_leases(client, 0);
        client_unload(client, "m");
        return outcome == WHOLE && r == 0;
}

/* ---- two GPUs ---- */

static bool serves(size_t device)
{
        if (attach_code(cuda_devices[device]) != 0)
                return false;
        client_equals_on(client, "m", cuda_devices[device], models[kind->layout != NULL ? device : 0]);
        return true;
}

static bool live_on_two(const char *call)
{
        int r = load_on(source, "m", cuda_devices, TWO, kind->layout);
        fake_disarm(gpus); /* this process is a client */
        char *told = format_text("%s", r != 0 ? streamer_last_error(client) : "");
        unsigned n = serves(0) + serves(1);
        ck_assert_msg(n == (r == 0                 ? TWO
                            : kind->layout != NULL ? 0
                                                   : TWO - 1),
                      "%s: %u devices serve after: %s", call, n, told);
        ck_assert_msg(r == 0 || strstr(told, "cuda:") != NULL, "%s: %s", call, told);
        streamer_unload(client, "m", 0);
        return r == 0;
}

/* ---- every place ---- */

/* How often the call was made to fail. */
static unsigned fail_everywhere(const char *call, uint32_t error)
{
        for (unsigned n = 1; n <= PLACES_MAX; n++) {
                fake_arm(gpus, call, n, error);
                bool whole = kind->live(call);
                fake_disarm(gpus);
                bool hit = gpus->fail_seen >= n;
                ck_assert_msg(hit || whole, "%s: a life fails without its failure number %u", call, n);
                if (!hit)
                        return n - 1;
                for (size_t i = 0; i < kind->gpus.n; i++)
                        wait_until_freed(cuda_devices[i]);
                ck_assert_msg(kind->live("nothing"), "%s: no whole life after its failure number %u", call, n);
        }
        return PLACES_MAX; /* it is called repeatedly until an event has fired */
}

static void fail_all(const struct kind *of, uint32_t error)
{
        unsigned made = 0;
        kind = of;
        write_source();
        start();
        for (size_t i = 0; i < CALLS; i++)
                made += fail_everywhere(calls[i], error) > 0;
        ck_assert_uint_gt(made, kind->least); /* otherwise the names are not those of the calls */
        pid_t pid = test_daemon.pid;
        fixture_stop();
        /* A daemon that gave up has written no report: the next one does. */
        while (daemon_gave_up(&test_daemon)) {
                start();
                kind->live("nothing");
                pid = test_daemon.pid;
                fixture_stop();
        }
        gpu_check_freed(report, pid);
}

FIXTURE(.timeout = 240);

TEST(out_of_memory_in_every_call, EACH(kinds))
{
        fail_all(&kinds[_i], MEMORY_ERROR);
}

TEST(a_failure_other_than_out_of_memory_in_every_call, EACH(kinds), .slow = true)
{
        fail_all(&kinds[_i], OTHER_ERROR);
}
