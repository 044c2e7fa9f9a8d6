/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon with a witness model, and client calls that must succeed: see fixture.h.
 */
#include "tests/lib/fixture.h"
#include "client/channel.h"
#include "tests/lib/account.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/suite.h"

#define FLAGS_MAX 48

struct daemon test_daemon;
struct model *fixture_witness;
static char root[PATH_SIZE];
static unsigned stages;
static char *account; /* of the daemon at its start */

/* ---- the shared daemon ---- */

streamer_client *client;

const char *fixture_device(void)
{
        return daemon_on_gpu() ? "cuda:0" : "host";
}

const char *fixture_root(void)
{
        return root;
}

char *fixture_path(const char *format, ...)
{
        char name[PATH_SIZE];
        FORMAT_ARGS(name, format);
        return format_text("%s/%s", root, name);
}

char *fixture_write(const struct model *m, const char *file)
{
        char *path = fixture_path("%s", file);
        model_write(m, path);
        return path;
}

void fixture_begin(const char *const *flags)
{
        const char *all[FLAGS_MAX] = {"--root", root};
        size_t n = 2;
        snprintf(root, sizeof(root), "%s", suite_path("root-%u", stages));
        mkdir(root, 0755);
        for (; flags && *flags; flags++)
                all[n++] = *flags;
        if (n == 2) {
                all[n++] = "--device";
                all[n++] = "host=256MiB";
        }
        daemon_init(&test_daemon, suite_path("d-%u", stages++));
        daemon_start(&test_daemon, all);
        fixture_witness = model_mixed(4711, 1 << 20);
        streamer_client *c = client_open(&test_daemon);
        char *path = fixture_write(fixture_witness, "witness.safetensors");
        const char *device = fixture_device();
        streamer_load_opts opts = {.source = path, .name = "witness", .devices = &device, .n_devices = 1};
        client_ok(c, client_load_with(c, opts), path);
        streamer_close(c);
        fixture_account();
}

void fixture_begin_default(void)
{
        fixture_begin(NULL);
}

void fixture_pin_witness(void)
{
        streamer_client *c = client_open(&test_daemon);
        client_ok(c, streamer_pin(c, "witness", 1), "pin");
        streamer_close(c);
}

void fixture_account(void)
{
        account = account_of(&test_daemon);
}

void fixture_serves(void)
{
        streamer_client *c = client_open(&test_daemon);
        client_equals(c, "witness", fixture_witness);
        streamer_close(c);
}

void fixture_still_serves(void)
{
        fixture_serves();
        account_await(&test_daemon, account);
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

uint64_t fixture_memory(void)
{
#ifdef SANITIZED
        static bool said;
        if (!said)
                skip("memory", "a sanitizer's own hides it");
        said = true;
        return 0;
#endif
        streamer_client *c = client_open(&test_daemon);
        json_auto_t *reply = client_call(c, "status", NULL);
        streamer_close(c);
        return process_own_memory(test_daemon.pid, json_number(reply, "ring.bytes"));
}

/* All models but the witness; groups of tests share models. */
void fixture_unload_others(void)
{
        streamer_client *c = client_open(&test_daemon);
        streamer_model_list *list = NULL;
        streamer_model m = STREAMER_MODEL_INIT;
        client_ok(c, streamer_list(c, &list), "list");
        for (size_t i = 0; streamer_model_list_get(list, i, &m) == 0; i++)
                if (strcmp(m.name, "witness") != 0)
                        streamer_unload(c, m.name, STREAMER_UNLOAD_DRAIN);
        streamer_model_list_free(list);
        streamer_close(c);
}

/* In a child process, because this one forks tests later, and CUDA does not survive a fork. */
static void check_at_exit(void)
{
        pid_t pid = must(fork());
        if (pid == 0) {
                die_hook = NULL;
                fixture_unload_others();
                fixture_still_serves();
                _exit(0);
        }
        if (child_wait(pid) != 0)
                die("the daemon does not serve as it did");
}

static void stop_daemon(void)
{
        int status = daemon_stop(&test_daemon);
        if (status)
                daemon_die(&test_daemon, "ended with %d", status);
}

void fixture_end(void)
{
        check_at_exit();
        stop_daemon();
        fixture_witness = model_free(fixture_witness);
}

void fixture_connect(void)
{
        client = client_open(&test_daemon);
}

void fixture_disconnect(void)
{
        streamer_close(client);
        client = NULL;
        fixture_still_serves();
}

void fixture_stop(void)
{
        streamer_close(client);
        stop_daemon();
}

/* ---- clients ---- */

int client_socket(const streamer_client *c)
{
        return c->fd;
}

streamer_client *client_open(const struct daemon *d)
{
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = d->socket, .timeout_ms = PATIENCE_MS};
        streamer_client *c = NULL;
        int r = streamer_connect(&opts, &c);
        if (r)
                die("connect: %s: %s", streamer_strerror(r), streamer_last_error(NULL));
        return c;
}

void client_ok(const streamer_client *c, int r, const char *what)
{
        if (r)
                die("%s: %s: %s", what, streamer_strerror(r), streamer_last_error(c));
}

void client_fails(const streamer_client *c, int r, int code, const char *part)
{
        if (r != code || strstr(streamer_last_error(c), part) == NULL)
                die("\"%s\" (%s) instead of \"%s\", '%s'", streamer_strerror(r), streamer_last_error(c),
                    streamer_strerror(code), part);
}

streamer_op *client_load_begin(streamer_client *c, const char *source, const char *name)
{
        return client_load_begin_with(c, (streamer_load_opts){.source = source, .name = name});
}

streamer_op *client_load_begin_with(streamer_client *c, streamer_load_opts opts)
{
        streamer_op *op = NULL;
        opts.struct_size = sizeof(opts);
        client_ok(c, streamer_load(c, &opts, &op), opts.source);
        return op;
}

int client_load_end(streamer_op *op)
{
        int r = streamer_op_wait(op, PATIENCE_MS, NULL);
        streamer_op_free(op);
        return r;
}

int client_load_with(streamer_client *c, streamer_load_opts opts)
{
        streamer_op *op = NULL;
        opts.struct_size = sizeof(opts);
        int r = streamer_load(c, &opts, &op);
        return r != 0 ? r : client_load_end(op);
}

static int load_verified(streamer_client *c, const char *source, const char *name, const char *verify, char text[1024])
{
        int r = client_load_with(c, (streamer_load_opts){.source = source, .name = name, .verify = verify});
        snprintf(text, 1024, "%s", streamer_last_error(c));
        return r;
}

int client_load_result(streamer_client *c, const char *source, const char *name, char text[1024])
{
        return load_verified(c, source, name, NULL, text);
}

int client_load_sha256(streamer_client *c, const char *source, const char *name, char text[1024])
{
        return load_verified(c, source, name, "sha256", text);
}

void client_load(streamer_client *c, const char *source, const char *name)
{
        char text[1024];
        int r = client_load_result(c, source, name, text);
        if (r)
                die("load %s: %s: %s", source, streamer_strerror(r), text);
}

void client_load_fails(streamer_client *c, const char *source, const char *name, int code, const char *part)
{
        char text[1024];
        int r = client_load_result(c, source, name, text);
        if (r != code)
                die("load %s: \"%s\" (%s) instead of \"%s\"", source, streamer_strerror(r), text,
                    streamer_strerror(code));
        if (part && !strstr(text, part))
                die("load %s: \"%s\" does not say \"%s\"", source, text, part);
}

void client_unload(streamer_client *c, const char *name)
{
        client_ok(c, streamer_unload(c, name, 0), name);
}

streamer_lease *client_attach(streamer_client *c, const char *name)
{
        return client_attach_on(c, name, NULL);
}

streamer_lease *client_attach_on(streamer_client *c, const char *name, const char *device)
{
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .device = device};
        streamer_lease *lease = NULL;
        client_ok(c, streamer_attach(c, name, &opts, &lease), name);
        return lease;
}

/* ---- comparing ---- */

static void tensor_equals(const streamer_tensor *t, const struct model *m, size_t i)
{
        const struct model_tensor *want = &m->tensors[i];
        unsigned char digest[16];
        model_tensor_digest(m, i, digest);
        if (strcmp(t->name, want->name) != 0 || strcmp(t->dtype_name, want->dtype) != 0 || t->rank != want->rank)
                die("tensor %s: a wrong name, dtype or rank", want->name);
        for (uint32_t d = 0; d < t->rank; d++)
                if (t->shape[d] != want->shape[d])
                        die("tensor %s: a wrong shape", want->name);
        if (t->bytes != want->bytes || !t->data != !t->bytes)
                die("tensor %s: a wrong size", want->name);
        if (t->bytes && !model_check(m, i, t->data))
                die("tensor %s: wrong contents", want->name);
        if (memcmp(t->digest, digest, 16) != 0)
                die("tensor %s: a wrong digest", want->name);
}

void lease_equals(streamer_lease *lease, const struct model *m)
{
        size_t n = 0;
        if (streamer_tensor_count(lease, &n) || n != m->n)
                die("%zu tensors instead of %zu", n, m->n);
        for (size_t i = 0; i < m->n; i++) {
                streamer_tensor t = STREAMER_TENSOR_INIT;
                int r = streamer_tensor_find(lease, m->tensors[i].name, &t);
                if (r)
                        die("tensor %s: %s", m->tensors[i].name, streamer_strerror(r));
                tensor_equals(&t, m, i);
        }
}

void client_load_equals(streamer_client *c, const char *source, const char *name, const struct model *m)
{
        client_load(c, source, name);
        client_equals(c, name, m);
        client_unload(c, name);
}

void client_equals(streamer_client *c, const char *name, const struct model *m)
{
        client_equals_on(c, name, NULL, m);
}

void client_equals_on(streamer_client *c, const char *name, const char *device, const struct model *m)
{
        streamer_lease *lease = client_attach_on(c, name, device);
        char digest[33];
        lease_equals(lease, m);
        model_digest(m, digest);
        if (strcmp(streamer_digest(lease), digest) != 0)
                die("%s: digest %s instead of %s", name, streamer_digest(lease), digest);
        streamer_detach(lease);
}

/* ---- requests ---- */

json_t *client_call(streamer_client *c, const char *verb, const char *args)
{
        cleanup_free char *text = NULL;
        json_error_t error;

        client_ok(c, streamer_call(c, verb, args, &text), verb);
        json_t *reply = json_loads(text, JSON_REJECT_DUPLICATES, &error);
        if (!reply)
                die("%s: the reply is no JSON: %s", verb, error.text);
        return reply;
}

const json_t *client_show(streamer_client *c, const char *name)
{
        return json_at(client_call(c, "show", format_text("{\"model\":\"%s\"}", name)), "models.0");
}

int client_call_code(streamer_client *c, const char *verb, const char *args)
{
        return streamer_call(c, verb, args, NULL);
}

json_t *json_at(const json_t *value, const char *path)
{
        char key[64];
        size_t len = strcspn(path, ".");
        snprintf(key, sizeof(key), "%.*s", (int)len, path);
        json_t *found =
                json_is_array(value) ? json_array_get(value, strtoul(key, NULL, 10)) : json_object_get(value, key);
        return path[len] == '.' ? json_at(found, path + len + 1) : found;
}

const char *json_text(const json_t *value, const char *path)
{
        const char *text = json_string_value(json_at(value, path));
        return text ? text : "";
}

uint64_t json_number(const json_t *value, const char *path)
{
        return (uint64_t)json_integer_value(json_at(value, path));
}

json_t *json_find(const json_t *array, const char *key, const char *text)
{
        json_t *object;
        for (size_t i = 0; (object = json_array_get(array, i)) != NULL; i++)
                if (strcmp(json_text(object, key), text) == 0)
                        return object;
        return NULL;
}

uint64_t client_leases(streamer_client *c)
{
        json_auto_t *reply = client_call(c, "ps", NULL);
        return json_array_size(json_at(reply, "leases"));
}

uint64_t client_device_number(streamer_client *c, const char *key)
{
        json_auto_t *reply = client_call(c, "status", NULL);
        return json_number(json_at(reply, "devices.0"), key);
}

uint64_t client_used(streamer_client *c)
{
        return client_device_number(c, "used");
}

double client_metric(streamer_client *c, const char *series)
{
        json_auto_t *reply = client_call(c, "metrics", NULL);
        const char *text = json_text(reply, "text");
        cleanup_free char *line = format_text("\n%s ", series);
        const char *at = strstr(text, line);
        if (at == NULL)
                die("no series %s", series);
        return strtod(at + strlen(line), NULL);
}

const char *client_state(streamer_client *c, const char *name)
{
        static char state[32];
        streamer_model_list *list = NULL;
        streamer_model m = STREAMER_MODEL_INIT;
        client_ok(c, streamer_list(c, &list), "list");
        state[0] = '\0';
        for (size_t i = 0; streamer_model_list_get(list, i, &m) == 0; i++)
                if (strcmp(m.name, name) == 0)
                        snprintf(state, sizeof(state), "%s", m.state);
        streamer_model_list_free(list);
        return state;
}

uint64_t client_host_cache(streamer_client *c)
{
        json_auto_t *reply = client_call(c, "status", NULL);
        return json_number(reply, "host_cache.used");
}

static void wait_for(streamer_client *c, uint64_t (*get)(streamer_client *c), uint64_t want, const char *what)
{
        uint64_t have;
        if (!WITHIN(PATIENCE_MS, (have = get(c)) == want))
                die("%s: %ju instead of %ju", what, (uintmax_t)have, (uintmax_t)want);
}

void client_wait_leases(streamer_client *c, uint64_t leases)
{
        wait_for(c, client_leases, leases, "leases");
}

void client_wait_used(streamer_client *c, uint64_t used)
{
        wait_for(c, client_used, used, "bytes used");
}

void client_wait_host_cache(streamer_client *c, uint64_t bytes)
{
        wait_for(c, client_host_cache, bytes, "bytes in the host cache");
}
