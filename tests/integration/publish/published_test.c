/* SPDX-License-Identifier: Apache-2.0
 *
 * A client's model becomes resident: it is found by its key, read by others, sealed, and a model like any other.
 */
#include "tests/integration/published_fixture.h"

#include "tests/lib/streamerctl.h"
#include "tests/lib/wire.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static struct daemon d;
static streamer_publish_opts opts;

/* A GPU's memory by descriptor, or (ipc) as the daemon's default is. */
static void start_device(const char *settings)
{
        const char *device = daemon_on_gpu() ? "device: \"cuda:0\", budget: 160MiB" : "device: host, budget: 160MiB";
        char *text = format_text("devices:\n  - {%s%s}\nroots: [%s]\n%s", device,
                                 daemon_on_gpu() && settings == NULL ? ", handles: cuda-vmm-fd" : "", suite_folder(),
                                 settings != NULL ? settings : "");
        daemon_init(&d, suite_path("d"));
        daemon_start(&d, (const char *const[]){"--config", suite_file("published.yaml", text), NULL});
        free(text);
}

static void start(void)
{
        start_device(NULL);
}

static void start_default(void)
{
        start_device("log: {level: info}\n");
}

static void start_ipc(void)
{
        start_device("publish: {cuda_ipc: true}\n");
}

static void stop(void)
{
        ck_assert_int_eq(daemon_stop(&d), 0);
}

static void setup(void)
{
        client = client_open(&d);
        opts = options("tiny");
}

/* Nothing of a test is left: no lease, no claim, no memory. */
static void teardown(void)
{
        client_wait_leases(client, 0);
        unload_everything(client);
        client_wait_used(client, 0);
        streamer_close(client);
}

static json_t *shown(const char *name)
{
        char *args = format_text("{\"model\":\"%s\"}", name);
        json_t *reply = client_call(client, "show", args), *model = json_array_get(json_object_get(reply, "models"), 0);
        free(args);
        return json_incref(model);
}

/* ---- a model ---- */

FIXTURE(.all = {start, stop}, .each = {setup, teardown});

TEST(a_published_model_is_found_and_read)
{
        streamer_lease *lease = publish_model(client, &opts, 1);
        streamer_client *reader = client_open(&d);
        check_model(client, lease, 1);
        streamer_lease *other = attach_model(reader, &opts, 1);
        streamer_detach(lease);
        check_model(reader, other, 1);
        streamer_detach(other);
        streamer_close(reader);
}

TEST(show_prints_publisher_base_and_key)
{
        streamer_detach(publish_model(client, &opts, 1));
        json_t *model = shown("tiny"), *published = json_object_get(model, "published");
        ck_assert_uint_eq(json_number(published, "uid"), getuid());
        ck_assert(json_is_null(json_object_get(published, "base")));
        ck_assert_str_eq(json_text(json_object_get(published, "key"), "torch"), "2.6.0");
        ck_assert_str_eq(json_text(json_object_get(published, "key"), "arch"), "Llama");
        ck_assert_uint_eq(json_number(model, "tensors"), 4); /* three storages and the table */
        ck_assert_str_eq(json_text(model, "state"), "ready");
        json_decref(model);
}

TEST(streamerctl_prints_them)
{
        struct ctl result;
        char *expected = format_text("published   by uid %u\nkey         arch=Llama\nkey         torch=2.6.0\n",
                                     (unsigned)getuid());
        streamer_detach(publish_model(client, &opts, 1));
        ctl(&result, d.socket, "show", "tiny", NULL);
        ck_assert_int_eq(result.code, 0);
        ck_assert_msg(strstr(result.out, expected) != NULL, "%s", result.out);
        ctl_free(&result);
        ctl(&result, d.socket, "unload", "tiny", NULL);
        ck_assert_int_eq(result.code, 0);
        ctl_free(&result);
        free(expected);
}

TEST(publications_are_counted)
{
        streamer_publication *p = claim_of(client, &opts, "absent");
        double ready = client_metric(client, "streamerd_publications_total{result=\"ready\"}"),
               cancelled = client_metric(client, "streamerd_publications_total{result=\"cancelled\"}");
        char *bytes = format_text("streamerd_published_bytes{device=\"%s\"}", daemon_on_gpu() ? "cuda:0" : "host");
        fill_storages(client, p, 1);
        ck_assert(client_metric(client, bytes) == CHARGED);
        streamer_publish_abort(p);
        streamer_detach(publish_model(client, &opts, 1));
        ck_assert(client_metric(client, "streamerd_publications_total{result=\"ready\"}") == ready + 1);
        ck_assert(client_metric(client, "streamerd_publications_total{result=\"cancelled\"}") == cancelled + 1);
        free(bytes);
}

TEST(subscribers_are_notified)
{
        static const char *const states[] = {"loading", "ready"};
        char *event = NULL;
        streamer_client *subscriber = client_open(&d);
        size_t seen = 0;
        ok(subscriber, streamer_subscribe(subscriber, "tiny"));
        streamer_detach(publish_model(client, &opts, 1));
        while (seen < 2) {
                ok(subscriber, streamer_event_next(subscriber, 10000, &event));
                json_t *it = json_loads(event, 0, NULL);
                if (strcmp(json_text(it, "state"), states[seen]) == 0)
                        seen++;
                else
                        ck_assert_str_eq(json_text(it, "state"), "loading");
                json_decref(it);
                streamer_free(event);
        }
        streamer_close(subscriber);
}

TEST(its_key_is_in_its_metadata)
{
        streamer_lease *lease = publish_model(client, &opts, 1);
        ck_assert_str_eq(streamer_metadata(lease, "streamerd.key.torch"), "2.6.0");
        ck_assert_ptr_null(streamer_metadata(lease, "streamerd.base"));
        streamer_detach(lease);
}

TEST(it_is_verified_pinned_listed_and_unloaded)
{
        streamer_lease *lease = publish_model(client, &opts, 1);
        ck_assert_uint_eq(client_used(client), CHARGED);
        json_decref(client_call(client, "verify", "{\"model\":\"tiny\"}"));
        ok(client, streamer_pin(client, "tiny", 1));
        ck_assert_int_eq(streamer_unload(client, "tiny", 0), STREAMER_EBUSY);
        streamer_detach(lease);
        ok(client, streamer_unload(client, "tiny", 0));
        client_wait_used(client, 0);
        json_decref(find(client, &opts, "absent", NULL));
}

/* The same bytes have the same digest; another table, or another byte, has another one. */
TEST(the_digest_covers_storages_and_table)
{
        char first[33];
        streamer_lease *lease = publish_model(client, &opts, 1), *again;
        snprintf(first, sizeof(first), "%s", streamer_digest(lease));
        opts.name = "again";
        again = publish_model(client, &opts, 1);
        ck_assert_str_eq(streamer_digest(again), first);
        streamer_detach(again);
        opts.name = "other bytes";
        again = publish_model(client, &opts, 2);
        ck_assert_str_ne(streamer_digest(again), first);
        streamer_detach(again);
        opts.name = "other table";
        streamer_publication *p = claim_of(client, &opts, "absent");
        fill_storages(client, p, 1);
        describe_tensors(client, p);
        ok(client, streamer_publish_attribute(p, "one", "more"));
        ok(client, streamer_publish_commit(p, &again));
        ck_assert_str_ne(streamer_digest(again), first);
        streamer_detach(again);
        streamer_detach(lease);
}

TEST(a_model_without_storages_is_published)
{
        streamer_lease *lease;
        size_t tensors, storages;
        streamer_publication *p = claim_of(client, &opts, "absent");
        ok(client, streamer_publish_begin(p, NULL, 0));
        ok(client, streamer_publish_commit(p, &lease));
        ok(client, streamer_published_count(lease, &tensors, &storages, NULL));
        ck_assert_uint_eq(tensors + storages, 0);
        streamer_detach(lease);
}

/* 40 storages of 1 MB and one that is larger than a segment would be. */
TEST(many_storages_take_several_segments)
{
        uint64_t bytes[41];
        streamer_lease *lease;
        streamer_tensor storage = STREAMER_TENSOR_INIT;
        streamer_publication *p = claim_of(client, &opts, "absent");
        for (size_t i = 0; i < 41; i++)
                bytes[i] = i == 7 ? 70 << 20 : 1000 * 1000 + i;
        ok(client, streamer_publish_begin(p, bytes, 41));
        for (size_t i = 41; i-- > 0;)
                if (!daemon_on_gpu())
                        memset(storage_of(client, p, i), (int)i + 1, bytes[i]);
                else
                        storage_of(client, p, i);
        ok(client, streamer_publish_commit(p, &lease));
        ck_assert_uint_ge(streamer_segment_count(lease), 2);
        for (size_t i = 0; i < 41; i++) {
                ok(client, streamer_published_storage(lease, i, &storage));
                ck_assert_uint_eq(storage.bytes, bytes[i]);
                ck_assert_uint_eq((uintptr_t)storage.data % 256, 0);
                if (!daemon_on_gpu())
                        ck_assert_int_eq(((const unsigned char *)storage.data)[bytes[i] - 1], (int)i + 1);
        }
        json_decref(client_call(client, "verify", "{\"model\":\"tiny\"}"));
        streamer_detach(lease);
}

TEST(a_model_that_was_loaded_has_no_table)
{
        struct model *m = model_mixed(3, 1 << 16);
        size_t n;
        char *path = suite_path("loaded.safetensors");
        model_write(m, path);
        client_load(client, path, "loaded");
        streamer_lease *lease = client_attach(client, "loaded");
        fails(client, STREAMER_ENOENT, "is not a published model", streamer_published_count(lease, &n, NULL, NULL));
        streamer_detach(lease);
}

/* ---- the key ---- */

struct other_key {
        const char *fields[3];
        size_t n;
        const char *field, *have, *want; /* the first difference */
};

static const struct other_key other_keys[] = {
        {{"torch=2.6.1", "arch=Llama"}, 2, "torch", "2.6.0", "2.6.1"},
        {{"torch=2.6.0", "arch=Qwen"}, 2, "arch", "Llama", "Qwen"},
        {{"torch=2.6.0"}, 1, "arch", "Llama", NULL},
        {{"arch=Llama"}, 1, "torch", "2.6.0", NULL},
        {{"torch=2.6.0", "arch=Llama", "tp=2"}, 3, "tp", NULL, "2"},
        {{"torch=", "arch=Llama"}, 2, "torch", "2.6.0", ""},
        {{"arch=Llama", "torch2=6.0"}, 2, "torch", "2.6.0", NULL},
        {{NULL}, 0, "arch", "Llama", NULL},
};

static bool same(const json_t *value, const char *text)
{
        return text == NULL ? json_is_null(value)
                            : json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

FIXTURE(.all = {start, stop}, .each = {setup, teardown});

TEST(each_field_that_differs_is_reported, EACH(other_keys))
{
        const struct other_key *row = &other_keys[_i];
        streamer_detach(publish_model(client, &opts, 1));
        opts.key = (const char *const *)row->fields;
        opts.n_key = row->n;
        json_t *differs = find(client, &opts, "mismatch", NULL), *first = json_array_get(differs, 0);
        ck_assert_str_eq(json_text(first, "field"), row->field);
        ck_assert(same(json_object_get(first, "have"), row->have));
        ck_assert(same(json_object_get(first, "want"), row->want));
        json_decref(differs);
}

TEST(the_order_of_fields_does_not_matter)
{
        const char *reversed[] = {key[1], key[0]};
        streamer_detach(publish_model(client, &opts, 1));
        opts.key = reversed;
        json_decref(find(client, &opts, "hit", NULL));
}

static const char *const wrong_keys[][2] = {{"torch", "NAME=VALUE"}, {"=2", "NAME=VALUE"}, {"torch=3", "occurs twice"}};

TEST(an_invalid_key_is_refused, EACH(wrong_keys))
{
        const char *fields[] = {"torch=2", wrong_keys[_i][0]};
        streamer_found found = STREAMER_FOUND_INIT;
        opts.key = fields;
        fails(client, STREAMER_EINVAL, wrong_keys[_i][1], streamer_publish_find(client, &opts, &found, NULL));
}

/* The new model serves the name; the old one stays with its leases. */
TEST(another_key_replaces_the_model)
{
        const char *newer[] = {"torch=2.7.0"};
        streamer_lease *old = publish_model(client, &opts, 1);
        opts.key = newer;
        opts.n_key = 1;
        streamer_lease *lease = commit_model(client, claim_of(client, &opts, "mismatch"), 2);
        check_model(client, lease, 2);
        check_model(client, old, 1);
        ck_assert_uint_gt(streamer_generation(lease), streamer_generation(old));
        streamer_detach(attach_model(client, &opts, 2));
        opts = options("tiny");
        json_decref(find(client, &opts, "mismatch", NULL));
        streamer_detach(old);
        streamer_detach(lease);
        client_wait_used(client, CHARGED);
}

TEST(a_hit_is_replaced_on_request)
{
        streamer_detach(publish_model(client, &opts, 1));
        opts.flags = STREAMER_PUBLISH_REPLACE;
        streamer_lease *lease = commit_model(client, claim_of(client, &opts, "hit"), 2);
        streamer_detach(lease);
        opts.flags = 0;
        streamer_detach(attach_model(client, &opts, 2));
}

TEST(the_name_of_a_loaded_model_is_refused)
{
        struct model *m = model_mixed(3, 1 << 16);
        streamer_found found = STREAMER_FOUND_INIT;
        streamer_publication *claim;
        char *path = suite_path("tiny.safetensors");
        model_write(m, path);
        client_load(client, path, "tiny");
        json_decref(find(client, &opts, "absent", NULL));
        fails(client, STREAMER_EBUSY, "was loaded", streamer_publish_find(client, &opts, &found, &claim));
        client_equals(client, "tiny", m);
}

/* ---- sealing ---- */

FIXTURE(.all = {start, stop}, .each = {setup, teardown});

TEST(the_memory_keeps_its_address)
{
        ABOUT_HOST_MEMORY();
        streamer_lease *lease;
        streamer_tensor storage = STREAMER_TENSOR_INIT;
        streamer_publication *p = claim_of(client, &opts, "absent");
        fill_storages(client, p, 1);
        describe_tensors(client, p);
        const void *before = storage_of(client, p, 0);
        ok(client, streamer_publish_commit(p, &lease));
        ok(client, streamer_published_storage(lease, 0, &storage));
        ck_assert_ptr_eq(storage.data, before);
        check_model(client, lease, 1);
        streamer_detach(lease);
}

TEST(writes_after_the_commit_reach_no_other_process)
{
        ABOUT_HOST_MEMORY();
        streamer_lease *lease = publish_model(client, &opts, 1);
        streamer_tensor storage = STREAMER_TENSOR_INIT;
        streamer_client *reader = client_open(&d);
        streamer_lease *other = attach_model(reader, &opts, 1);
        ok(client, streamer_published_storage(lease, 0, &storage));
        ck_assert_int_eq(streamer_lease_writable(lease), 1);
        ck_assert_int_eq(streamer_lease_writable(other), 0);
        memset((void *)(uintptr_t)storage.data, 0xff, storage.bytes);
        ck_assert_int_eq(((const unsigned char *)storage.data)[WEIGHT - 1], 0xff);
        check_model(reader, other, 1);
        json_decref(client_call(client, "verify", "{\"model\":\"tiny\"}"));
        streamer_detach(other);
        streamer_detach(lease);
        streamer_close(reader);
}

/* A child has inherited the writable mapping. */
TEST(a_writable_mapping_that_remains_refuses_the_commit)
{
        ABOUT_HOST_MEMORY();
        streamer_lease *lease;
        streamer_publication *p = claim_of(client, &opts, "absent");
        fill_storages(client, p, 1);
        describe_tensors(client, p);
        pid_t child = must(fork());
        if (child == 0) {
                pause();
                _exit(0);
        }
        const unsigned char *weight = storage_of(client, p, 0);
        fails(client, STREAMER_EBUSY, "writable mapping", streamer_publish_commit(p, &lease));
        for (size_t i = 0; i < WEIGHT; i++) /* it stays mapped, with its contents */
                ck_assert_int_eq(weight[i], storage_byte(1, 0, i));
        ck_assert_str_eq(client_state(client, "tiny"), "");
        ck_assert_uint_eq(client_leases(client), 1);
        streamer_publish_abort(p);
        must(kill(child, SIGKILL));
        must(waitpid(child, NULL, 0));
        client_wait_used(client, 0);
        streamer_detach(publish_model(client, &opts, 1));
}

/* ---- memory that stays writable ---- */

FIXTURE(.all = {start_default, stop}, .each = {setup, teardown});

TEST(cuda_ipc_is_refused_unless_configured)
{
        streamer_found found = STREAMER_FOUND_INIT;
        streamer_publication *claim;
        if (!daemon_on_gpu())
                return;
        json_decref(find(client, &opts, "absent", NULL));
        fails(client, STREAMER_EUNSUPPORTED, "publish.cuda_ipc", streamer_publish_find(client, &opts, &found, &claim));
}

FIXTURE(.all = {start_ipc, stop}, .each = {setup, teardown});

TEST(cuda_ipc_is_published_where_configured)
{
        streamer_lease *lease = publish_model(client, &opts, 1);
        check_model(client, lease, 1);
        streamer_detach(lease);
        streamer_detach(attach_model(client, &opts, 1));
}

/* ---- memory ---- */

FIXTURE(.all = {start, stop}, .each = {setup, teardown});

TEST(memory_is_charged_from_the_beginning)
{
        streamer_publication *p = claim_of(client, &opts, "absent");
        ck_assert_uint_eq(client_used(client), 0);
        fill_storages(client, p, 1);
        ck_assert_uint_eq(client_used(client), CHARGED);
        ck_assert_str_eq(client_state(client, "tiny"), "loading");
        ck_assert_uint_eq(client_leases(client), 1);
        streamer_publish_abort(p);
        client_wait_used(client, 0);
        ck_assert_str_eq(client_state(client, "tiny"), "");
}

TEST(more_than_the_budget_is_refused)
{
        const uint64_t bytes = UINT64_C(200) << 20;
        streamer_publication *p = claim_of(client, &opts, "absent");
        fails(client, STREAMER_ENOMEM, "", streamer_publish_begin(p, &bytes, 1));
        streamer_publish_abort(p);
        client_wait_used(client, 0);
        streamer_detach(publish_model(client, &opts, 1));
}

/* It evicts the least recently used model, and is evicted itself. */
TEST(publishing_evicts_and_is_evicted)
{
        const uint64_t bytes = UINT64_C(120) << 20;
        streamer_lease *lease;
        streamer_detach(publish_model(client, &opts, 1));
        opts.name = "first";
        streamer_publication *p = claim_of(client, &opts, "absent");
        ok(client, streamer_publish_begin(p, &bytes, 1));
        storage_of(client, p, 0);
        ok(client, streamer_publish_commit(p, &lease));
        streamer_detach(lease);
        ck_assert_str_eq(client_state(client, "tiny"), "ready");
        ok(client, streamer_pin(client, "tiny", 1));
        opts.name = "second";
        p = claim_of(client, &opts, "absent");
        ok(client, streamer_publish_begin(p, &bytes, 1));
        ck_assert_str_eq(client_state(client, "first"), "");
        ck_assert_str_eq(client_state(client, "tiny"), "ready");
        streamer_publish_abort(p);
}

/* ---- while it is being published ---- */

FIXTURE(.all = {start, stop}, .each = {setup, teardown});

TEST(an_attach_waits_for_the_commit)
{
        streamer_attach_opts attach = STREAMER_ATTACH_OPTS_INIT;
        streamer_client *reader = client_open(&d);
        streamer_lease *lease, *other;
        streamer_publication *p = claim_of(client, &opts, "absent");
        fill_storages(client, p, 1);
        describe_tensors(client, p);
        attach.timeout_ms = 100;
        ck_assert_int_eq(streamer_attach(reader, "tiny", &attach, &other), STREAMER_ETIMEOUT);
        ok(client, streamer_publish_commit(p, &lease));
        ok(reader, streamer_attach(reader, "tiny", NULL, &other));
        check_model(reader, other, 1);
        streamer_detach(other);
        streamer_detach(lease);
        streamer_close(reader);
}

TEST(cancel_ends_a_publication)
{
        streamer_lease *lease;
        streamer_publication *p = claim_of(client, &opts, "absent");
        fill_storages(client, p, 1);
        describe_tensors(client, p);
        ok(client, streamer_cancel(client, "tiny"));
        fails(client, STREAMER_ELOST, "", streamer_publish_commit(p, &lease));
        streamer_publish_abort(p);
        client_wait_used(client, 0);
        ck_assert_int_eq(streamer_cancel(client, "tiny"), STREAMER_ENOENT);
}

struct waiter {
        streamer_client *client;
        streamer_found found;
        streamer_publication *claim;
        int result;
};

static void *wait_for_claim(void *arg)
{
        struct waiter *w = arg;
        w->found = (streamer_found)STREAMER_FOUND_INIT;
        w->result = streamer_publish_find(w->client, &opts, &w->found, &w->claim);
        return NULL;
}

/* The daemon has its request: a ping behind it was answered. */
static void await_request(streamer_client *c)
{
        json_decref(client_call(c, "ping", NULL));
}

/* _i 0: the claim is committed, 1: it is aborted. */
TEST(another_client_waits_for_the_claim, .to = 2)
{
        struct waiter w = {.client = client_open(&d)};
        pthread_t thread;
        streamer_lease *lease = NULL;
        streamer_publication *p = claim_of(client, &opts, "absent");
        opts.timeout_ms = -1;
        must(-pthread_create(&thread, NULL, wait_for_claim, &w));
        await_request(w.client);
        fill_storages(client, p, 1);
        describe_tensors(client, p);
        if (_i == 0)
                ok(client, streamer_publish_commit(p, &lease));
        else
                streamer_publish_abort(p);
        must(-pthread_join(thread, NULL));
        ck_assert_int_eq(w.result, 0);
        ck_assert_str_eq(w.found.state, _i == 0 ? "hit" : "absent");
        ck_assert((w.claim == NULL) == (_i == 0));
        streamer_publish_abort(w.claim);
        streamer_detach(lease);
        streamer_close(w.client);
}

TEST(the_wait_for_a_claim_has_an_end)
{
        streamer_client *other = client_open(&d);
        streamer_found found = STREAMER_FOUND_INIT;
        streamer_publication *p = claim_of(client, &opts, "absent"), *claim = NULL;
        opts.timeout_ms = 50;
        ck_assert_int_eq(streamer_publish_find(other, &opts, &found, &claim), STREAMER_ETIMEOUT);
        ck_assert_ptr_null(claim);
        opts.flags = STREAMER_PUBLISH_NO_WAIT;
        opts.timeout_ms = 0;
        ok(other, streamer_publish_find(other, &opts, &found, &claim));
        ck_assert_str_eq(found.state, "claimed");
        ck_assert_int_eq(found.pid, getpid());
        ck_assert_ptr_null(claim);
        json_decref(find(other, &opts, "claimed", NULL));
        streamer_publish_abort(p);
        await_request(client);
        opts.flags = 0;
        streamer_publish_abort(claim_of(other, &opts, "absent"));
        streamer_close(other);
}

FIXTURE(.outer = {start, stop}, .each = {setup, teardown});

/* Nothing of them is left when the daemon ends. */
TEST(the_daemon_ends_with_claims_and_waiting_clients)
{
        struct waiter w = {.client = client_open(&d)};
        pthread_t thread;
        streamer_publication *p = claim_of(client, &opts, "absent");
        opts.timeout_ms = -1;
        must(-pthread_create(&thread, NULL, wait_for_claim, &w));
        await_request(w.client);
        fill_storages(client, p, 1);
        ck_assert_int_eq(daemon_stop(&d), 0);
        must(-pthread_join(thread, NULL));
        ck_assert_int_ne(w.result, 0);
        streamer_publish_abort(p);
        streamer_close(w.client);
        start();
        client_wait_leases(client, 0);
}

/* ---- misuse ---- */

FIXTURE(.all = {start, stop}, .each = {setup, teardown});

TEST(calls_in_the_wrong_order_are_refused)
{
        static const uint64_t bytes[] = {100};
        const streamer_published_tensor t = {sizeof(t), "t", "int8", 1,   STREAMER_PUBLISHED_BUFFER, 0, 0, 0, NULL,
                                             NULL,      0,   0,      NULL};
        streamer_lease *lease;
        void *data;
        streamer_publication *p = claim_of(client, &opts, "absent");
        fails(client, STREAMER_EINVAL, "has not begun", streamer_publish_storage(p, 0, &data));
        fails(client, STREAMER_EINVAL, "has not begun", streamer_publish_tensor(p, &t));
        fails(client, STREAMER_EINVAL, "has not begun", streamer_publish_commit(p, &lease));
        ok(client, streamer_publish_begin(p, bytes, 1));
        fails(client, STREAMER_EINVAL, "has begun", streamer_publish_begin(p, bytes, 1));
        fails(client, STREAMER_EINVAL, "no storage 1", streamer_publish_storage(p, 1, &data));
        fails(client, STREAMER_EINVAL, "was not requested", streamer_publish_commit(p, &lease));
        storage_of(client, p, 0);
        ok(client, streamer_publish_commit(p, &lease));
        streamer_detach(lease);
        streamer_publish_abort(NULL);
}

struct wrong_tensor {
        streamer_published_tensor tensor;
        int code;
        const char *text;
};

static const uint64_t three[] = {3, 3}, rows[] = {3, 1}, wide[] = {UINT64_MAX, 1}, high[] = {UINT64_C(1) << 33, 1};

#define TENSOR(...)                                                                                                    \
        {                                                                                                              \
                .struct_size = sizeof(streamer_published_tensor), .kind = STREAMER_PUBLISHED_BUFFER, __VA_ARGS__       \
        }

/* Storage 0 has 40 bytes. */
static const struct wrong_tensor wrong_tensors[] = {
        {TENSOR(.dtype = "f", .item = 4), STREAMER_EINVAL, "name"},
        {TENSOR(.name = "", .dtype = "f", .item = 4), STREAMER_EINVAL, "name"},
        {TENSOR(.name = "t", .item = 4), STREAMER_EINVAL, "dtype"},
        {TENSOR(.name = "t", .dtype = "f"), STREAMER_EINVAL, "out of range"},
        {TENSOR(.name = "t", .dtype = "f", .item = 17), STREAMER_EINVAL, "out of range"},
        {TENSOR(.name = "t", .dtype = "f", .item = 4, .offset = 2), STREAMER_EINVAL, "out of range"},
        {TENSOR(.name = "t", .dtype = "f", .item = 4, .rank = 65, .shape = three, .strides = rows), STREAMER_EINVAL,
         "out of range"},
        {TENSOR(.name = "t", .dtype = "f", .item = 4, .rank = 2), STREAMER_EINVAL, "shape"},
        {TENSOR(.name = "t", .dtype = "f", .item = 4, .storage = 1), STREAMER_EINVAL, "no storage 1"},
        {TENSOR(.name = "t", .dtype = "f", .item = 4, .offset = 40), STREAMER_EINVAL, "does not lie"},
        {TENSOR(.name = "t", .dtype = "f", .item = 4, .rank = 2, .shape = three, .strides = rows, .offset = 8),
         STREAMER_EINVAL, "does not lie"},
        {TENSOR(.name = "t", .dtype = "f", .item = 4, .rank = 2, .shape = three, .strides = wide), STREAMER_EINVAL,
         "does not lie"},
        {TENSOR(.name = "t", .dtype = "f", .item = 4, .rank = 2, .shape = high, .strides = high), STREAMER_EINVAL,
         "does not lie"},
        {TENSOR(.name = "t", .dtype = "f", .item = 4, .flags = 128), STREAMER_EINVAL, "flags"},
};

TEST(a_tensor_outside_of_its_storage_is_refused, EACH(wrong_tensors))
{
        static const uint64_t bytes[] = {40};
        const struct wrong_tensor *row = &wrong_tensors[_i];
        streamer_publication *p = claim_of(client, &opts, "absent");
        ok(client, streamer_publish_begin(p, bytes, 1));
        fails(client, row->code, row->text, streamer_publish_tensor(p, &row->tensor));
        streamer_publish_abort(p);
}

/* The table is checked before the memory is sealed: the publication may continue. */
TEST(an_overlap_that_is_not_declared_is_refused, .to = 2)
{
        static const uint32_t aliases[] = {0 /* none */, 2 /* another group */};
        static const uint64_t bytes[] = {40};
        streamer_published_tensor t =
                TENSOR(.name = "a", .dtype = "f", .item = 4, .rank = 2, .shape = three, .strides = rows, .alias = 1);
        streamer_lease *lease;
        streamer_publication *p = claim_of(client, &opts, "absent");
        ok(client, streamer_publish_begin(p, bytes, 1));
        storage_of(client, p, 0);
        ok(client, streamer_publish_tensor(p, &t));
        t.name = "b";
        t.alias = aliases[_i];
        ok(client, streamer_publish_tensor(p, &t));
        fails(client, STREAMER_EINVAL, "'a' and 'b' overlap", streamer_publish_commit(p, &lease));
        streamer_publish_abort(p);
}

TEST(two_tensors_of_one_name_are_refused)
{
        static const uint64_t bytes[] = {40};
        streamer_published_tensor t = TENSOR(.name = "a", .dtype = "f", .item = 4);
        streamer_lease *lease;
        streamer_publication *p = claim_of(client, &opts, "absent");
        ok(client, streamer_publish_begin(p, bytes, 1));
        storage_of(client, p, 0);
        ok(client, streamer_publish_tensor(p, &t));
        t.offset = 8;
        ok(client, streamer_publish_tensor(p, &t));
        fails(client, STREAMER_EINVAL, "two tensors are named 'a'", streamer_publish_commit(p, &lease));
        streamer_publish_abort(p);
}

/* ---- raw requests ---- */

static struct wire wire;

static const msgpack_object *wire_call(struct request request, const char *code)
{
        static uint64_t id = 100;
        bool done;
        request.id = ++id;
        ck_assert(wire_request(&wire, &request));
        do
                ck_assert(wire_read(&wire));
        while (object_get(&wire.reply.unpacked.data, "event") != NULL);
        const msgpack_object *reply = &wire.reply.unpacked.data;
        ck_assert(object_bool(reply, "ok", &done));
        if (code == NULL)
                ck_assert(done);
        else
                ck_assert(object_str_eq(reply, "code", code));
        return reply;
}

static uint64_t wire_claim(void)
{
        struct request find_request = {.verb = VERB_publish_find, .u.publish_find = {.model = "raw", .claim = true}};
        uint64_t claim = 0;
        ck_assert(object_u64(wire_call(find_request, NULL), "claim", &claim));
        return claim;
}

static struct request of_claim(enum verb verb, uint64_t claim, uint64_t bytes)
{
        struct request request = {.verb = verb};
        if (verb == VERB_publish_begin) {
                request.u.publish_begin.claim = claim;
                request.u.publish_begin.bytes = bytes;
        } else if (verb == VERB_publish_segment) {
                request.u.publish_segment.claim = claim;
                request.u.publish_segment.bytes = bytes;
        } else if (verb == VERB_publish_commit) {
                request.u.publish_commit.claim = claim;
                request.u.publish_commit.bytes = bytes;
        } else {
                request.u.publish_abort.claim = claim;
        }
        return request;
}

/* Its memory stays while this process, which lives, may have mapped it: until the detach. */
static void wire_begin(uint64_t claim, uint64_t bytes, struct request *detach)
{
        *detach = (struct request){.verb = VERB_detach};
        const msgpack_object *reply = wire_call(of_claim(VERB_publish_begin, claim, bytes), NULL);
        ck_assert(object_u64(reply, "lease", &detach->u.detach.lease));
}

static void wire_end(const struct request *detach)
{
        wire_call(*detach, NULL);
        wire_close(&wire);
        client_wait_used(client, 0);
}

FIXTURE(.all = {start, stop}, .each = {setup, teardown});

TEST(a_claim_is_valid_on_its_connection_only)
{
        static const enum verb verbs[] = {VERB_publish_begin, VERB_publish_segment, VERB_publish_commit,
                                          VERB_publish_abort};
        wire_open(&wire, &d);
        wire_hello(&wire);
        uint64_t claim = wire_claim();
        wire_close(&wire);
        wire_open(&wire, &d);
        wire_hello(&wire);
        for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
                wire_call(of_claim(verbs[i], claim, 1), "not-found");
        wire_claim();
        wire_close(&wire);
}

TEST(segments_beyond_what_was_reserved_are_refused)
{
        wire_open(&wire, &d);
        wire_hello(&wire);
        struct request detach;
        uint64_t claim = wire_claim();
        wire_call(of_claim(VERB_publish_segment, claim, 1), "invalid"); /* it has not begun */
        wire_begin(claim, 3 << 20, &detach);
        wire_call(of_claim(VERB_publish_begin, claim, 1), "invalid");
        wire_call(of_claim(VERB_publish_segment, claim, 0), "invalid");
        wire_call(of_claim(VERB_publish_segment, claim, UINT64_MAX), "invalid");
        wire_call(of_claim(VERB_publish_segment, claim, 5 << 20), "limit");
        wire_call(of_claim(VERB_publish_segment, claim, 1), NULL);
        wire_call(of_claim(VERB_publish_segment, claim, 2 << 20), NULL);
        wire_call(of_claim(VERB_publish_segment, claim, 1), "limit");
        ck_assert_uint_eq(client_used(client), 4 << 20);
        wire_end(&detach);
}

static const struct published_place_row {
        uint64_t segment, offset, bytes;
} places[] = {{0, 0, 0},          {0, 0, 4096},         {1, 0, 4096},    {UINT64_MAX, 0, 1},      {0, 8, 4096},
              {0, 2 << 20, 4096}, {0, 256, UINT64_MAX}, {0, 0, 2 << 20}, {0, 2 << 20, UINT64_MAX}};

/* Memory of zeroes is no table, wherever it is said to be. */
TEST(a_commit_without_a_table_is_refused, EACH(places))
{
        wire_open(&wire, &d);
        wire_hello(&wire);
        struct request detach;
        uint64_t claim = wire_claim();
        wire_begin(claim, 1, &detach);
        wire_call(of_claim(VERB_publish_segment, claim, 1), NULL);
        struct request commit = of_claim(VERB_publish_commit, claim, places[_i].bytes);
        commit.u.publish_commit.segment = places[_i].segment;
        commit.u.publish_commit.offset = places[_i].offset;
        wire_call(commit, "invalid");
        wire_call(of_claim(VERB_publish_commit, claim, 1), "not-found");
        ck_assert_str_eq(client_state(client, "raw"), "");
        wire_end(&detach);
}

TEST(a_commit_before_any_memory_is_refused)
{
        wire_open(&wire, &d);
        wire_hello(&wire);
        struct request detach;
        uint64_t claim = wire_claim();
        wire_call(of_claim(VERB_publish_commit, claim, 1), "invalid");
        wire_begin(claim, 1, &detach);
        wire_call(of_claim(VERB_publish_commit, claim, 1), "invalid");
        wire_end(&detach);
}

TEST(a_connection_has_a_limited_number_of_claims)
{
        struct request find_request = {.verb = VERB_publish_find, .u.publish_find = {.claim = true}};
        char name[16];
        wire_open(&wire, &d);
        wire_hello(&wire);
        find_request.u.publish_find.model = name;
        for (int i = 0; i < 64; i++) {
                snprintf(name, sizeof(name), "m%d", i);
                wire_call(find_request, NULL);
        }
        snprintf(name, sizeof(name), "one more");
        wire_call(find_request, "limit");
        wire_close(&wire);
}
