/* SPDX-License-Identifier: Apache-2.0
 *
 * A client's model becomes resident: it is found by its key, read by others, sealed, and a model like any other.
 */
#include "client/python.h"
#include "tests/integration/published_fixture.h"

#include "tests/lib/streamerctl.h"
#include "tests/lib/wire.h"

static void begin(const char *settings)
{
        setenv("FAKECUDA_DIRTY", "1", 1);
        daemon_begin(daemon_on_gpu() ? "device: \"cuda:0\", budget: 160MiB" : "device: host, budget: 160MiB", settings);
}

static void begin_dirty(void)
{
        setenv("FAKECUDA_DIRTY", "1", 1);
        daemon_begin_default();
}

static void begin_few_fds(void)
{
        begin("limits: {fds_per_client: 129}\n");
}

/* ---- a model ---- */

FIXTURE(.all = {begin_dirty, daemon_end}, .each = {connect_client, disconnect_client});

TEST(what_a_published_model_does_not_have_is_not_found)
{
        streamer_published_tensor t = STREAMER_PUBLISHED_TENSOR_INIT;
        streamer_tensor storage = STREAMER_TENSOR_INIT;
        streamer_lease *lease = publish_model(client, &opts, 1);
        fails(client, STREAMER_ENOENT, "published_get: no such tensor: 4", streamer_published_get(lease, 4, &t));
        fails(client, STREAMER_ENOENT, "published_find: no such tensor: 'bias'",
              streamer_published_find(lease, "bias", &t));
        fails(client, STREAMER_ENOENT, "published_storage: no such storage: 3",
              streamer_published_storage(lease, 3, &storage));
        streamer_detach(lease);
}

TEST(show_prints_publisher_base_and_key)
{
        char *expected = format_text("published   by uid %u\nkey         arch=Llama\nkey         torch=2.6.0\n",
                                     (unsigned)getuid());
        streamer_detach(publish_model(client, &opts, 1));
        const json_t *model = client_show(client, "tiny");
        ck_assert_uint_eq(json_number(model, "published.uid"), getuid());
        ck_assert(json_is_null(json_at(model, "published.base")));
        ck_assert_str_eq(json_text(model, "published.key.torch"), "2.6.0");
        ck_assert_str_eq(json_text(model, "published.key.arch"), "Llama");
        ck_assert_uint_eq(json_number(model, "tensors"), 4); /* three storages and the table */
        ck_assert_str_eq(json_text(model, "state"), "ready");
        ctl_says(test_daemon.socket, 0, expected, "show", "tiny", NULL);
}

TEST(publications_are_counted)
{
        streamer_publication *p = claim_of(client, &opts, "absent");
        double ready = client_metric(client, "streamerd_publications_total{result=\"ready\"}"),
               cancelled = client_metric(client, "streamerd_publications_total{result=\"cancelled\"}");
        char *bytes = format_text("streamerd_published_bytes{device=\"%s\"}", daemon_on_gpu() ? "cuda:0" : "host");
        fill_storages(client, p, 1);
        ck_assert(client_metric(client, bytes) == SEGMENT);
        streamer_publish_abort(p);
        streamer_detach(publish_model(client, &opts, 1));
        ck_assert(client_metric(client, "streamerd_publications_total{result=\"ready\"}") == ready + 1);
        ck_assert(client_metric(client, "streamerd_publications_total{result=\"cancelled\"}") == cancelled + 1);
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
        streamer_publication *p = filled(client, &opts);
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

/* What was there before was another user's, perhaps. */
TEST(the_memory_is_zeroed)
{
        const uint64_t bytes = WEIGHT;
        streamer_publication *p = claim_of(client, &opts, "absent");
        ok(client, streamer_publish_begin(p, &bytes, 1));
        const unsigned char *data = storage_of(client, p, 0);
        for (size_t i = 0; i < bytes; i++)
                ck_assert_int_eq(data[i], 0);
        streamer_publish_abort(p);
}

/* 40 storages of 1 MB and one that is larger than a segment would be. */
TEST(many_storages_take_several_segments)
{
        uint64_t bytes[41];
        streamer_lease *lease;
        streamer_tensor storage = STREAMER_TENSOR_INIT;
        streamer_segment segment = STREAMER_SEGMENT_INIT;
        streamer_publication *p = claim_of(client, &opts, "absent");
        for (size_t i = 0; i < 41; i++)
                bytes[i] = i == 7 ? 70 << 20 : 1000 * 1000 + i;
        ok(client, streamer_publish_begin(p, bytes, 41));
        uint64_t reserved = client_used(client);
        for (size_t i = 41; i-- > 0;)
                if (!daemon_on_gpu())
                        memset(storage_of(client, p, i), (int)i + 1, bytes[i]);
                else
                        storage_of(client, p, i);
        ok(client, streamer_publish_commit(p, &lease));
        ck_assert_uint_ge(streamer_segment_count(lease), 2);
        for (size_t i = 0; i < streamer_segment_count(lease); i++) {
                ok(client, streamer_segment_get(lease, i, &segment));
                reserved -= segment.size;
        }
        ck_assert_uint_eq(reserved, 0);
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

static const struct {
        const char *fields[3];
        size_t n;
        const char *field, *have, *want; /* the first difference */
} other_keys[] = {
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

TEST(each_field_that_differs_is_reported, EACH(other_keys))
{
        streamer_detach(publish_model(client, &opts, 1));
        opts.key = (const char *const *)other_keys[_i].fields;
        opts.n_key = other_keys[_i].n;
        json_t *differs = find(client, &opts, "mismatch", NULL), *first = json_array_get(differs, 0);
        ck_assert_str_eq(json_text(first, "field"), other_keys[_i].field);
        ck_assert(same(json_object_get(first, "have"), other_keys[_i].have));
        ck_assert(same(json_object_get(first, "want"), other_keys[_i].want));
}

static const char *const wrong_keys[][2] = {{"torch", "NAME=VALUE"}, {"=2", "NAME=VALUE"}, {"torch=3", "occurs twice"}};

TEST(an_invalid_key_is_refused, EACH(wrong_keys))
{
        const char *fields[] = {"torch=2", wrong_keys[_i][0]};
        streamer_found found = STREAMER_FOUND_INIT;
        opts.key = fields;
        fails(client, STREAMER_EINVAL, wrong_keys[_i][1], streamer_publish_find(client, &opts, &found, NULL));
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

/* The load comes after the claim (0), after the memory was granted (1), or serves under another name and is given this
 * one by a further load (2). */
TEST(a_model_that_was_loaded_meanwhile_is_not_replaced, .to = 3)
{
        static const uint64_t bytes[] = {BUFFER};
        struct model *m = model_mixed(4, 1 << 16);
        streamer_lease *lease = NULL;
        char *path = suite_path("meanwhile.safetensors");
        model_write(m, path);
        if (_i == 2)
                client_load(client, path, "other");
        streamer_publication *p = claim_of(client, &opts, "absent");
        if (_i > 0) {
                fill_storages(client, p, 1);
                describe_tensors(client, p);
        }
        client_load(client, path, "tiny");
        fails(client, STREAMER_EBUSY, "tiny: a model that was loaded has this name",
              _i > 0 ? streamer_publish_commit(p, &lease) : streamer_publish_begin(p, bytes, 1));
        ck_assert_ptr_null(lease);
        streamer_publish_abort(p);
        client_equals(client, "tiny", m);
        ck_assert_str_eq(client_state(client, "tiny"), "ready");
        client_unload(client, "tiny");
        streamer_detach(publish_model(client, &opts, 2)); /* the name is free */
}

/* ---- sealing ---- */

TEST(the_memory_keeps_its_address_and_later_writes_reach_no_other_process)
{
        ABOUT_HOST_MEMORY();
        streamer_lease *lease;
        streamer_tensor storage = STREAMER_TENSOR_INIT;
        streamer_publication *p = filled(client, &opts);
        const void *before = storage_of(client, p, 0);
        ok(client, streamer_publish_commit(p, &lease));
        streamer_client *reader = client_open(&test_daemon);
        streamer_lease *other = attach_model(reader, &opts, 1);
        ok(client, streamer_published_storage(lease, 0, &storage));
        ck_assert_ptr_eq(storage.data, before);
        ck_assert_int_eq(streamer_lease_writable(lease), 1);
        ck_assert_int_eq(streamer_lease_writable(other), 0);
        memset((void *)(uintptr_t)storage.data, 0xff, storage.bytes);
        ck_assert_int_eq(((const unsigned char *)storage.data)[WEIGHT - 1], 0xff);
        check_model(reader, other, 1);
        json_decref(client_call(client, "verify", "{\"model\":\"tiny\"}"));
        streamer_detach(other);
        streamer_detach(lease);
}

TEST(protected_memory_gets_copies_of_pages_that_are_written_to_which_the_next_call_and_the_commit_drop)
{
        streamer_lease *lease;
        streamer_publication *p = filled(client, &opts);
        unsigned char *weight = storage_of(client, p, 0);
        if (daemon_on_gpu()) {
                fails(client, STREAMER_EUNSUPPORTED, "a GPU's", streamer_python_protect(p));
                streamer_publish_abort(p);
                return;
        }
        ok(client, streamer_python_protect(p));
        weight[WEIGHT - 1] ^= 1;
        ok(client, streamer_python_protect(p));
        ck_assert_int_eq(weight[WEIGHT - 1], storage_byte(1, 0, WEIGHT - 1));
        weight[WEIGHT - 1] ^= 1;
        ok(client, streamer_publish_commit(p, &lease));
        check_model(client, lease, 1);
        streamer_detach(lease);
}

/* A child has inherited the writable mapping. */
TEST(a_writable_mapping_that_remains_refuses_the_commit)
{
        ABOUT_HOST_MEMORY();
        streamer_lease *lease;
        streamer_publication *p = filled(client, &opts);
        pid_t child = child_start(NULL);
        const unsigned char *weight = storage_of(client, p, 0);
        fails(client, STREAMER_EBUSY, "writable mapping", streamer_publish_commit(p, &lease));
        for (size_t i = 0; i < WEIGHT; i++) /* it stays mapped, with its contents */
                ck_assert_int_eq(weight[i], storage_byte(1, 0, i));
        ck_assert_str_eq(client_state(client, "tiny"), "");
        ck_assert_uint_eq(client_leases(client), 1);
        streamer_publish_abort(p);
        child_kill(child);
        client_wait_used(client, 0);
        streamer_detach(publish_model(client, &opts, 1));
}

/* ---- memory ---- */

TEST(memory_is_charged_from_the_beginning)
{
        streamer_publication *p = claim_of(client, &opts, "absent");
        ck_assert_uint_eq(client_used(client), 0);
        fill_storages(client, p, 1);
        ck_assert_uint_eq(client_used(client), SEGMENT);
        ck_assert_str_eq(client_state(client, "tiny"), "loading");
        fails(client, STREAMER_EFAILED, "its tensors are not known (loading)",
              streamer_call(client, "show", "{\"model\":\"tiny\",\"tensors\":true}", NULL));
        ck_assert_uint_eq(client_leases(client), 1);
        streamer_publish_abort(p);
        client_wait_used(client, 0);
        ck_assert_str_eq(client_state(client, "tiny"), "");
}

/* Its storage, and the place of its table. */
TEST(a_small_model_takes_small_pages)
{
        const uint64_t bytes = 20;
        streamer_lease *lease;
        streamer_segment segment = STREAMER_SEGMENT_INIT;
        ABOUT_HOST_MEMORY();
        streamer_publication *p = claim_of(client, &opts, "absent");
        ok(client, streamer_publish_begin(p, &bytes, 1));
        const uint64_t used = client_used(client);
        ck_assert_uint_lt(used, MIB);
        ck_assert_uint_eq(used % (uint64_t)sysconf(_SC_PAGESIZE), 0);
        memset(storage_of(client, p, 0), 7, bytes);
        ok(client, streamer_publish_commit(p, &lease));
        ck_assert_uint_eq(streamer_segment_count(lease), 1);
        ok(client, streamer_segment_get(lease, 0, &segment));
        ck_assert_uint_eq(segment.size, used);
        ck_assert_str_eq(json_text(client_show(client, "tiny"), "devices.0.page_kind"), "4k");
        json_decref(client_call(client, "verify", "{\"model\":\"tiny\"}"));
        streamer_detach(lease);
}

/* ---- while it is being published ---- */

TEST(an_attach_waits_for_the_commit)
{
        streamer_attach_opts attach = STREAMER_ATTACH_OPTS_INIT;
        streamer_client *reader = client_open(&test_daemon);
        streamer_lease *lease, *other;
        streamer_publication *p = filled(client, &opts);
        attach.timeout_ms = 100;
        const char *why = format_text("tiny: process %d is still publishing it", (int)getpid());
        fails(reader, STREAMER_ETIMEOUT, why, streamer_attach(reader, "tiny", &attach, &other));
        fails(reader, STREAMER_ETIMEOUT, why, streamer_wait(reader, "tiny", 1));
        ok(client, streamer_publish_commit(p, &lease));
        ok(reader, streamer_attach(reader, "tiny", NULL, &other));
        check_model(reader, other, 1);
        streamer_detach(other);
        streamer_detach(lease);
}

TEST(cancel_ends_a_publication)
{
        streamer_lease *lease;
        streamer_publication *p = filled(client, &opts);
        ok(client, streamer_cancel(client, "tiny"));
        fails(client, STREAMER_ELOST, "", streamer_publish_commit(p, &lease));
        streamer_publish_abort(p);
        client_wait_used(client, 0);
        ck_assert_int_eq(streamer_cancel(client, "tiny"), STREAMER_ENOENT);
}

struct waiter {
        streamer_client *client;
        streamer_found found;
        bool searches; /* and claims nothing */
        streamer_publication *claim;
        int result;
};

static void *wait_for_claim(void *arg)
{
        struct waiter *w = arg;
        w->found = (streamer_found)STREAMER_FOUND_INIT;
        w->result = streamer_publish_find(w->client, &opts, &w->found, w->searches ? NULL : &w->claim);
        return NULL;
}

/* The daemon has its request: a ping behind it was answered. */
static void await_request(streamer_client *c)
{
        json_decref(client_call(c, "ping", NULL));
}

/* _i & 1: the claim is aborted, else it is committed; _i & 2: the other client claims nothing. */
TEST(another_client_waits_for_the_claim, .to = 4)
{
        struct waiter w = {.client = client_open(&test_daemon), .searches = (_i & 2) != 0};
        bool commits = (_i & 1) == 0;
        pthread_t thread;
        streamer_lease *lease = NULL;
        streamer_publication *p = claim_of(client, &opts, "absent");
        opts.timeout_ms = -1;
        must(-pthread_create(&thread, NULL, wait_for_claim, &w));
        await_request(w.client);
        fill_storages(client, p, 1);
        describe_tensors(client, p);
        if (commits)
                ok(client, streamer_publish_commit(p, &lease));
        else
                streamer_publish_abort(p);
        must(-pthread_join(thread, NULL));
        ck_assert_int_eq(w.result, 0);
        ck_assert_str_eq(w.found.state, commits ? "hit" : "absent");
        ck_assert((w.claim == NULL) == (commits || w.searches));
        streamer_publish_abort(w.claim);
        streamer_detach(lease);
}

/* More than a user's requests that workers answer at once: they hold none of these places while they wait. */
TEST(many_clients_wait_for_the_claim)
{
        enum { WAITERS = 20 };
        static struct waiter waiters[WAITERS];
        pthread_t threads[WAITERS];
        streamer_publication *p = claim_of(client, &opts, "absent");
        opts.timeout_ms = -1;
        for (int i = 0; i < WAITERS; i++) {
                waiters[i] = (struct waiter){.client = client_open(&test_daemon), .searches = i % 2 == 0};
                must(-pthread_create(&threads[i], NULL, wait_for_claim, &waiters[i]));
                await_request(waiters[i].client);
        }
        streamer_publish_opts other = options("other");
        streamer_detach(publish_model(client, &other, 2));
        streamer_detach(commit_model(client, p, 1));
        for (int i = 0; i < WAITERS; i++) {
                must(-pthread_join(threads[i], NULL));
                ck_assert_int_eq(waiters[i].result, 0);
                ck_assert_str_eq(waiters[i].found.state, "hit");
                streamer_close(waiters[i].client);
        }
}

TEST(the_wait_for_a_claim_has_an_end)
{
        streamer_client *other = client_open(&test_daemon);
        streamer_found found = STREAMER_FOUND_INIT;
        streamer_publication *p = claim_of(client, &opts, "absent"), *claim = NULL;
        opts.timeout_ms = 50;
        const char *why = format_text("%s: process %d is still publishing it", opts.name, (int)getpid());
        fails(other, STREAMER_ETIMEOUT, why, streamer_publish_find(other, &opts, &found, &claim));
        ck_assert_ptr_null(claim);
        fails(other, STREAMER_ETIMEOUT, why, streamer_publish_find(other, &opts, &found, NULL));
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
}

/* ---- misuse ---- */

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
        fails(client, STREAMER_EINVAL, "publish_storage: there is no storage 1", streamer_publish_storage(p, 1, &data));
        fails(client, STREAMER_EINVAL, "was not requested", streamer_publish_commit(p, &lease));
        storage_of(client, p, 0);
        ok(client, streamer_publish_commit(p, &lease));
        streamer_detach(lease);
        streamer_publish_abort(NULL);
}

static const uint64_t three[] = {3, 3}, rows[] = {3, 1}, wide[] = {UINT64_MAX, 1}, high[] = {UINT64_C(1) << 33, 1};

#define TENSOR(...)                                                                                                    \
        {                                                                                                              \
                .struct_size = sizeof(streamer_published_tensor), .kind = STREAMER_PUBLISHED_BUFFER, __VA_ARGS__       \
        }

/* Storage 0 has 40 bytes. */
static const struct {
        streamer_published_tensor tensor;
        const char *text;
} wrong_tensors[] = {
        {TENSOR(.dtype = "f", .item = 4), "name"},
        {TENSOR(.name = "", .dtype = "f", .item = 4), "name"},
        {TENSOR(.name = "t", .item = 4), "dtype"},
        {TENSOR(.name = "t", .dtype = "f"), "out of range"},
        {TENSOR(.name = "t", .dtype = "f", .item = 17), "out of range"},
        {TENSOR(.name = "t", .dtype = "f", .item = 4, .offset = 2),
         "its offset 2 is not a multiple of its item, 4 bytes: let the storage begin where its memory is aligned for "
         "every tensor in it"},
        {TENSOR(.name = "t", .dtype = "f", .item = 4, .rank = 65, .shape = three, .strides = rows), "out of range"},
        {TENSOR(.name = "t", .dtype = "f", .item = 4, .rank = 2), "shape"},
        {TENSOR(.name = "t", .dtype = "f", .item = 4, .storage = 1), "publish_tensor: 't': there is no storage 1"},
        {TENSOR(.name = "t", .dtype = "f", .item = 4, .offset = 40), "does not lie"},
        {TENSOR(.name = "t", .dtype = "f", .item = 4, .rank = 2, .shape = three, .strides = rows, .offset = 8),
         "does not lie"},
        {TENSOR(.name = "t", .dtype = "f", .item = 4, .rank = 2, .shape = three, .strides = wide), "does not lie"},
        {TENSOR(.name = "t", .dtype = "f", .item = 4, .rank = 2, .shape = high, .strides = high), "does not lie"},
        {TENSOR(.name = "t", .dtype = "f", .item = 4, .flags = 128), "flags"},
};

TEST(a_tensor_outside_of_its_storage_is_refused, EACH(wrong_tensors))
{
        static const uint64_t bytes[] = {40};
        streamer_publication *p = claim_of(client, &opts, "absent");
        ok(client, streamer_publish_begin(p, bytes, 1));
        fails(client, STREAMER_EINVAL, wrong_tensors[_i].text, streamer_publish_tensor(p, &wrong_tensors[_i].tensor));
        streamer_publish_abort(p);
}

/* The second tensor; the first is three by three at offset 0, named "a", of the alias group 1. */
static const struct wrong_pair {
        const char *name, *text;
        uint64_t offset;
        uint32_t alias;
} wrong_pairs[] = {
        {"b", "'a' and 'b' overlap", 0, 0},
        {"b", "'a' and 'b' overlap", 0, 2},
        {"a", "two tensors are named 'a'", 36, 1},
};

/* The table is checked before the memory is sealed: the publication may continue. */
TEST(two_tensors_that_exclude_each_other_are_refused, EACH(wrong_pairs))
{
        static const uint64_t bytes[] = {40};
        const struct wrong_pair *row = &wrong_pairs[_i];
        const streamer_published_tensor first = TENSOR(.name = "a", .dtype = "f", .item = 4, .rank = 2, .shape = three,
                                                       .strides = rows, .alias = 1),
                                        second = TENSOR(.name = row->name, .dtype = "f", .item = 4,
                                                        .offset = row->offset, .alias = row->alias);
        streamer_lease *lease;
        streamer_publication *p = claim_of(client, &opts, "absent");
        ok(client, streamer_publish_begin(p, bytes, 1));
        storage_of(client, p, 0);
        ok(client, streamer_publish_tensor(p, &first));
        ok(client, streamer_publish_tensor(p, &second));
        fails(client, STREAMER_EINVAL, row->text, streamer_publish_commit(p, &lease));
        streamer_publish_abort(p);
}

TEST(a_table_of_more_than_256_mib_is_refused)
{
        enum { TEXTS = 4096, TEXT = 65536 };
        static const uint64_t bytes[] = {40};
        char *value = must_alloc(TEXT + 1), name[16];
        streamer_lease *lease;
        streamer_publication *p = claim_of(client, &opts, "absent");
        memset(value, 'x', TEXT);
        value[TEXT] = '\0';
        ok(client, streamer_publish_begin(p, bytes, 1));
        storage_of(client, p, 0);
        for (int i = 0; i < TEXTS; i++) {
                snprintf(name, sizeof(name), "%d", i);
                ok(client, streamer_publish_attribute(p, name, value));
        }
        fails(client, STREAMER_ELIMIT, "publish_commit: the table of names, shapes and texts takes 268",
              streamer_publish_commit(p, &lease));
        fails(client, STREAMER_ELIMIT, " bytes, and 268435456 are left for it", streamer_publish_commit(p, &lease));
        streamer_publish_abort(p);
}

/* ---- raw requests ---- */

/* The connection of a publisher, its claim, and the detach of its lease. */
static struct wire wire;
static uint64_t claim;
static struct request detach;

static void wire_call(struct request request, const char *code)
{
        static uint64_t id = 100;
        request.id = ++id;
        ck_assert(wire_request(&wire, &request));
        if (code == NULL)
                wire_reply_ok(&wire);
        else
                wire_read_error(&wire, code, "");
}

static void wire_fails(struct request request, const char *code, const char *text)
{
        wire_call(request, code);
        wire_told(&wire, text);
}

static void open_wire(void)
{
        struct request find_request = {.verb = VERB_publish_find, .u.publish_find = {.model = "raw", .claim = true}};
        wire_connect(&wire, &test_daemon);
        wire_call(find_request, NULL);
        claim = wire_number(&wire, "claim");
}

static void close_wire(void)
{
        wire_close(&wire);
}

static struct request of_claim(enum verb verb, uint64_t bytes)
{
        switch (verb) {
        case VERB_publish_begin:
                return (struct request){.verb = verb, .u.publish_begin = {.claim = claim, .bytes = bytes}};
        case VERB_publish_segment:
                return (struct request){.verb = verb, .u.publish_segment = {.claim = claim, .bytes = bytes}};
        case VERB_publish_commit:
                return (struct request){.verb = verb, .u.publish_commit = {.claim = claim, .bytes = bytes}};
        default:
                return (struct request){.verb = verb, .u.publish_abort = {.claim = claim}};
        }
}

/* Its memory stays while this process, which lives, may have mapped it: until the detach. */
static void wire_begin(uint64_t bytes)
{
        wire_call(of_claim(VERB_publish_begin, bytes), NULL);
        detach = (struct request){.verb = VERB_detach, .u.detach.lease = wire_number(&wire, "lease")};
}

FIXTURE(.all = {begin_dirty, daemon_end}, .outer = {connect_client, disconnect_client},
        .each = {open_wire, close_wire});

/* The daemon's own clock, which a client without one relies on. */
TEST(the_daemon_ends_the_wait_for_a_claim, .to = 2)
{
        struct request wait = {.verb = VERB_publish_find,
                               .u.publish_find = {.model = "raw", .wait = true, .timeout_ms = 20, .claim = _i == 0}};
        struct wire other;
        wire_connect(&other, &test_daemon);
        wait.id = 2;
        ck_assert(wire_request(&other, &wait));
        ck_assert(wire_read_code(&other, "timeout"));
        wire_call(of_claim(VERB_publish_abort, 0), NULL);
        ck_assert(wire_request(&other, &wait));
        ck_assert(object_str_eq(wire_next(&other), "state", "absent"));
}

TEST(a_claim_is_valid_on_its_connection_only)
{
        static const enum verb verbs[] = {VERB_publish_begin, VERB_publish_segment, VERB_publish_commit,
                                          VERB_publish_abort};
        wire_close(&wire);
        wire_connect(&wire, &test_daemon);
        for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
                wire_fails(of_claim(verbs[i], 1), "not-found", ": not held by this connection");
}

TEST(requests_before_the_beginning_and_segments_beyond_the_budget_are_refused)
{
        wire_fails(of_claim(VERB_publish_segment, 1), "invalid", "raw: the publication has not begun");
        wire_call(of_claim(VERB_publish_commit, 1), "invalid");
        wire_begin(4 << 20);
        wire_fails(of_claim(VERB_publish_begin, 1), "invalid", "raw: the publication has begun already");
        wire_call(of_claim(VERB_publish_segment, 0), "invalid");
        wire_call(of_claim(VERB_publish_segment, UINT64_MAX), "invalid");
        wire_call(of_claim(VERB_publish_segment, (1 << 20) + 1), NULL);
        wire_call(of_claim(VERB_publish_segment, 2 << 20), NULL);
        ck_assert_uint_eq(client_used(client), 4 << 20);
        wire_call(of_claim(VERB_publish_segment, (1 << 20) + 1), NULL);
        ck_assert_uint_eq(client_used(client), 6 << 20);
        wire_fails(of_claim(VERB_publish_segment, UINT64_C(1) << 40), "no-memory", "does not fit: ");
        wire_call(of_claim(VERB_publish_segment, 1), "not-found");
        wire_call(detach, NULL);
}

#define REFUSED "the table is refused: "
#define OUTSIDE REFUSED "it is not aligned, or outside its segment"

static const struct published_place_row {
        uint64_t segment, offset, bytes;
        const char *text;
} places[] = {
        {0, 0, 0, REFUSED "it is too small"},
        {0, 0, 4096, REFUSED "wrong magic"},
        {1, 0, 4096, OUTSIDE},
        {UINT64_MAX, 0, 1, OUTSIDE},
        {0, 8, 4096, OUTSIDE},
        {0, 2 << 20, 4096, OUTSIDE},
        {0, 256, UINT64_MAX, OUTSIDE},
        {0, 0, 2 << 20, REFUSED "wrong magic"},
        {0, 2 << 20, UINT64_MAX, OUTSIDE},
};

/* Memory of zeroes is no table, wherever it is said to be. */
TEST(a_commit_without_a_table_is_refused, EACH(places))
{
        wire_begin(2 << 20);
        wire_call(of_claim(VERB_publish_segment, 2 << 20), NULL);
        struct request commit = of_claim(VERB_publish_commit, places[_i].bytes);
        commit.u.publish_commit.segment = places[_i].segment;
        commit.u.publish_commit.offset = places[_i].offset;
        wire_fails(commit, "invalid", places[_i].text);
        wire_call(of_claim(VERB_publish_commit, 1), "not-found");
        ck_assert_str_eq(client_state(client, "raw"), "");
        wire_call(detach, NULL);
}

TEST(a_model_has_a_limited_number_of_segments)
{
        enum { SEGMENTS = 64 };
        wire_begin((SEGMENTS + 1) * (UINT64_C(2) << 20));
        for (int i = 0; i < SEGMENTS; i++)
                wire_call(of_claim(VERB_publish_segment, 1), NULL);
        wire_fails(of_claim(VERB_publish_segment, 1), "limit", "raw: a model has 64 segments at most");
        wire_call(detach, NULL);
        close_wire();
        ck_assert(log_wait_for(test_daemon.log,
                               " was not published: the connection of its publisher was closed before the commit"));
        open_wire();
}

TEST(a_publication_has_one_request_at_a_time)
{
        enum { TRIES = 30 };
        bool busy = false;
        size_t size;
        struct request segment = of_claim(VERB_publish_segment, 1);
        segment.id = 2;
        const char *twice = wire_frames(&segment, 2, &size);
        wire_begin(2 * TRIES * (UINT64_C(2) << 20));
        for (int i = 0; i < TRIES && !busy; i++) {
                /* In one piece: the daemon reads both before it has done the first, unless its turn ends between them.
                 */
                ck_assert(wire_send(&wire, twice, size));
                for (int k = 0; k < 2; k++) {
                        const msgpack_object *reply = wire_next(&wire);
                        if (object_get(reply, "segment") != NULL)
                                continue;
                        ck_assert(object_str_eq(reply, "code", "in-use"));
                        wire_told(&wire, "raw: another request of this publication is under way");
                        busy = true;
                }
        }
        ck_assert(busy);
        wire_call(detach, NULL);
}

TEST(a_connection_has_a_limited_number_of_claims)
{
        struct request find_request = {.verb = VERB_publish_find, .u.publish_find = {.claim = true}};
        char name[16];
        find_request.u.publish_find.model = name;
        for (int i = 1; i < 64; i++) {
                snprintf(name, sizeof(name), "m%d", i);
                wire_call(find_request, NULL);
        }
        snprintf(name, sizeof(name), "one more");
        wire_fails(find_request, "limit", "publish_find: this connection has 64 claims");
}

FIXTURE(.all = {begin_few_fds, daemon_end}, .each = {connect_client, disconnect_client});

/* The client has not received what it was sent before: 2 descriptors of a segment and of each attach. */
TEST(a_segment_that_cannot_be_sent_is_refused_and_may_be_requested_later)
{
        ABOUT_HOST_MEMORY();
        enum { ATTACHES = 63 };
        struct request attached[ATTACHES], attach = {.verb = VERB_attach, .u.attach = {.model = "loaded"}};
        char *path = suite_path("loaded.safetensors");
        model_write(model_mixed(3, 1 << 16), path);
        client_load(client, path, "loaded");
        uint64_t loaded = client_used(client);
        open_wire();
        wire_begin(6 << 20);
        struct request first = of_claim(VERB_publish_segment, 2 << 20),
                       second = of_claim(VERB_publish_segment, 4 << 20);
        ck_assert(wire_request(&wire, &first));
        ck_assert_int_eq(poll(&(struct pollfd){.fd = wire.fd, .events = POLLIN}, 1, PATIENCE_MS), 1);
        for (int i = 0; i < ATTACHES; i++)
                ck_assert(wire_request(&wire, &attach));
        ck_assert(wire_request(&wire, &second));
        AWAIT(client_metric(client, "streamerd_request_errors_total{code=\"limit\"}") > 0);
        wire_read_ok(&wire);
        for (int i = 0; i < ATTACHES; i++) {
                wire_read_ok(&wire);
                attached[i] = (struct request){.verb = VERB_detach, .u.detach.lease = wire_number(&wire, "lease")};
        }
        ck_assert(object_str_eq(wire_next(&wire), "code", "limit"));
        wire_call(second, NULL);
        ck_assert_uint_eq(wire_number(&wire, "number"), 1);
        ck_assert_uint_eq(client_used(client), loaded + (6 << 20));
        for (int i = 0; i < ATTACHES; i++)
                wire_call(attached[i], NULL);
        ok(client, streamer_unload(client, "loaded", 0));
        wire_call(detach, NULL);
        close_wire();
}

/* ---- a daemon that ends ---- */

FIXTURE(.outer = {begin_dirty, daemon_end}, .each = {connect_client, disconnect_client});

/* Nothing of them is left when the daemon ends; its log says why. */
TEST(the_daemon_ends_with_claims_and_waiting_clients)
{
        struct waiter w = {.client = client_open(&test_daemon)};
        pthread_t thread;
        streamer_publication *p = claim_of(client, &opts, "absent");
        opts.timeout_ms = -1;
        must(-pthread_create(&thread, NULL, wait_for_claim, &w));
        await_request(w.client);
        fill_storages(client, p, 1);
        ck_assert_int_eq(daemon_stop(&test_daemon), 0);
        ck_assert(log_wait_for(test_daemon.log, " was not published: the daemon ends"));
        must(-pthread_join(thread, NULL));
        ck_assert_int_ne(w.result, 0);
        streamer_publish_abort(p);
        begin_dirty();
        client_wait_leases(client, 0);
}

/* ---- memory that stays writable ---- */

FIXTURE(.each = {NULL, daemon_end});

/* _i 1: where configured. */
TEST(cuda_ipc_is_refused_unless_configured, .to = 2)
{
        streamer_found found = STREAMER_FOUND_INIT;
        streamer_publication *publication;
        begin(_i == 0 ? "" : "publish: {cuda_ipc: true}\n");
        streamer_client *c = client_open(&test_daemon);
        opts = options("tiny");
        json_decref(find(c, &opts, "absent", NULL));
        if (_i == 0 && daemon_on_gpu()) {
                fails(c, STREAMER_EUNSUPPORTED, "publish.cuda_ipc",
                      streamer_publish_find(c, &opts, &found, &publication));
                return;
        }
        streamer_lease *lease = publish_model(c, &opts, 1);
        check_model(c, lease, 1);
        streamer_detach(lease);
        streamer_detach(attach_model(c, &opts, 1));
}
