/* SPDX-License-Identifier: Apache-2.0
 *
 * Each CUDA call of the daemon and of a client fails once, at each step of a model's life: load, attach, read back by
 * a second process, verify, unload. The daemon survives, the caller receives the result or an error that names the
 * call, the next life succeeds, and no GPU memory leaks: the fake GPU has capacity for one model.
 */
#include "daemon/device/cuda/api.h"
#include "tests/lib/gpu_fixture.h"
#include "tests/lib/suite.h"

#define MEMORY_MIB 6   /* a model takes 4 */
#define PLACES_MAX 200 /* of one call in one life */
#define MEMORY_ERROR 2
#define OTHER_ERROR 801

static const char *const handles[] = {"cuda-ipc", "cuda-vmm-fd"};

#define X(name, result, arguments) #name,
static const char *const calls[] = {CUDA_RUNTIME_CALLS(X) CUDA_DRIVER_CALLS(X) "cudaMemcpyBatchAsync"};
static const char *const client_calls[] = {CUDA_CLIENT_CALLS(X)};
#undef X

static struct model *model;
static char *path, *report;

static void start(const char *kind)
{
        char *device = format_text("'cuda:0', budget: 64MiB, handles: %s", kind);
        report = suite_path("%s.report", kind);
        setenv("FAKECUDA_REPORT", report, 1);
        model = model_mixed(21, 3 << 20);
        path = write_model(model, format_text("%s.safetensors", kind));
        gpu_begin(&(struct gpu_daemon){.n = 1, .mib = MEMORY_MIB, .devices = {device}});
}

/* ---- one daemon ---- */

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

static enum outcome read_all(streamer_client *c, streamer_lease *lease, const char *call)
{
        for (size_t i = 0; i < model->n; i++) {
                streamer_tensor t = STREAMER_TENSOR_INIT;
                client_ok(c, streamer_tensor_find(lease, model->tensors[i].name, &t), model->tensors[i].name);
                unsigned char *data = must_alloc(t.bytes + 1);
                if (streamer_tensor_read(lease, &t, 0, data, t.bytes) != 0)
                        return error_names(streamer_last_error(c), call) ? TOLD : SILENT;
                if (!model_check(model, i, data))
                        die("tensor %s: wrong contents", t.name);
        }
        return WHOLE;
}

static enum outcome consume(const char *call)
{
        streamer_client *c = client_open(&test_daemon);
        streamer_lease *lease;
        if (streamer_attach(c, "m", NULL, &lease) != 0)
                return error_names(streamer_last_error(c), call) ? TOLD : SILENT;
        enum outcome outcome = read_all(c, lease, call);
        streamer_detach(lease);
        streamer_close(c);
        return outcome;
}

static enum outcome second_process(const char *call)
{
        int status;
        pid_t pid = must(fork());
        if (pid == 0)
                _exit((int)consume(call));
        must(waitpid(pid, &status, 0));
        ck_assert_msg(WIFEXITED(status), "%s: the consumer ended by signal %d", call, WTERMSIG(status));
        return (enum outcome)WEXITSTATUS(status);
}

/* False: a step failed, and its error is printed. */
static bool live(const char *call)
{
        char text[1024];
        int r = client_load_result(client, path, "m", text);
        if (r != 0) {
                ck_assert_msg(error_names(text, call), "%s: load: %s", call, text);
                client_unload(client, "m");
                return false;
        }
        enum outcome outcome = second_process(call);
        ck_assert_msg(outcome != SILENT, "%s: the consumer got no error", call);
        r = client_call_code(client, "verify", "{\"model\":\"m\"}");
        ck_assert_msg(r == 0 || error_names(streamer_last_error(client), call), "%s: verify: %s", call,
                      streamer_last_error(client));
        client_wait_leases(client, 0);
        client_unload(client, "m");
        return outcome == WHOLE && r == 0;
}

/* ---- every place ---- */

/* How often the call was made to fail. */
static unsigned fail_everywhere(const char *call, uint32_t error)
{
        for (unsigned n = 1; n <= PLACES_MAX; n++) {
                fake_arm(gpus, call, n, error);
                live(call);
                if (!fake_disarm(gpus))
                        return n - 1;
                client_wait_used(client, 0);
                ck_assert_msg(live("nothing"), "%s: no whole life after its failure number %u", call, n);
                client_wait_used(client, 0);
        }
        return PLACES_MAX; /* it is called repeatedly until an event has fired */
}

/* A daemon that gave up has written no report: the next one does. */
static void stop(const char *kind)
{
        for (;;) {
                pid_t pid = test_daemon.pid;
                fixture_stop();
                if (!daemon_gave_up(&test_daemon)) {
                        gpu_check_freed(report, pid);
                        return;
                }
                start(kind);
                live("nothing");
        }
}

static void fail_all(const char *kind, uint32_t error)
{
        unsigned made = 0;
        start(kind);
        for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
                made += fail_everywhere(calls[i], error) > 0;
        for (size_t i = 0; i < sizeof(client_calls) / sizeof(client_calls[0]); i++)
                made += fail_everywhere(client_calls[i], error) > 0;
        ck_assert_uint_gt(made, 20); /* otherwise the names are not those of the calls */
        stop(kind);
}

FIXTURE(.timeout = 240);

/* Loop: the kind of handle. */
TEST(out_of_memory_in_every_call, .to = 2)
{
        fail_all(handles[_i], MEMORY_ERROR);
}

TEST(a_failure_other_than_out_of_memory_in_every_call, .to = 2, .slow = true)
{
        fail_all(handles[_i], OTHER_ERROR);
}
