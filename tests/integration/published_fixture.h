/* SPDX-License-Identifier: Apache-2.0
 *
 * Publishing a small model through the library: a weight, a transposed view of it, an empty tensor, a buffer and an
 * attribute.
 */
#pragma once

#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

#define ROWS 300u
#define COLUMNS 1000u
#define WEIGHT (ROWS * COLUMNS * 4u)
#define BUFFER 40u
#define SEGMENT (UINT64_C(2) << 20) /* its one segment takes so much */
#define CHARGED (SEGMENT + 4096)    /* and, once it is committed, its manifest */

static streamer_publish_opts opts;
static const char *key[] = {"torch=2.6.0", "arch=Llama"};

static inline streamer_publish_opts options(const char *name)
{
        return (streamer_publish_opts){
                .struct_size = sizeof(streamer_publish_opts), .name = name, .key = key, .n_key = 2};
}

/* A daemon with a device of these settings ("device: host, budget: 1GiB") and further lines of its configuration. */
static inline void daemon_begin(const char *device, const char *settings)
{
        char *text = format_text("devices:\n  - {%s}\nroots: [%s]\n%s", device, suite_folder(), settings);
        DAEMON_START(&test_daemon, suite_path("d"), "--config", suite_file("published.yaml", text));
}

/* With memory of a GPU that a client can map: by descriptor, not by cuda-ipc. */
static inline void daemon_begin_default(void)
{
        daemon_begin(daemon_on_gpu() ? "device: \"cuda:0\", budget: 160MiB, handles: cuda-vmm-fd"
                                     : "device: host, budget: 160MiB",
                     "");
}

static inline void daemon_end(void)
{
        ck_assert_int_eq(daemon_stop(&test_daemon), 0);
}

#define ok(client, call) client_ok((client), (call), #call)

#define fails(client, code, text, call) client_fails((client), (call), (code), (text))

/* Byte i of storage s of the model with this seed. */
static inline unsigned char storage_byte(unsigned seed, unsigned s, size_t i)
{
        return (unsigned char)(seed + 31 * s + i * 7 + (i >> 8) * 13);
}

static inline void unload_everything(streamer_client *c)
{
        json_t *reply = client_call(c, "list", NULL), *model;
        size_t i;
        json_array_foreach(json_object_get(reply, "models"), i, model)
        {
                if (strcmp(json_text(model, "state"), "draining") != 0)
                        ok(c, streamer_unload(c, json_text(model, "name"), 0));
        }
}

static inline void connect_client(void)
{
        client = client_open(&test_daemon);
        opts = options("tiny");
}

/* Nothing of a test is left: no lease, no claim, no memory. */
static inline void disconnect_client(void)
{
        client_wait_leases(client, 0);
        unload_everything(client);
        client_wait_used(client, 0);
        streamer_close(client);
}

static inline void write_base(const char *path, uint64_t seed)
{
        struct model *m = model_mixed(seed, 1 << 16);
        model_write(m, path);
}

/* What is found; *claim is made where it is not NULL. The reply's differences as JSON, or NULL. */
static inline json_t *find(streamer_client *c, const streamer_publish_opts *of, const char *state,
                           streamer_publication **claim)
{
        streamer_found found = STREAMER_FOUND_INIT;
        ok(c, streamer_publish_find(c, of, &found, claim));
        ck_assert_str_eq(found.state, state);
        json_t *differs = found.differs != NULL ? json_loads(found.differs, 0, NULL) : NULL;
        return differs;
}

static inline streamer_publication *claim_of(streamer_client *c, const streamer_publish_opts *of, const char *state)
{
        streamer_publication *claim = NULL;
        json_decref(find(c, of, state, &claim));
        ck_assert_ptr_nonnull(claim);
        return claim;
}

static inline void *storage_of(streamer_client *c, streamer_publication *publication, size_t i)
{
        void *data = NULL;
        ok(c, streamer_publish_storage(publication, i, &data));
        return data;
}

/* Reserves memory and fills the storages. */
static inline void fill_storages(streamer_client *c, streamer_publication *publication, unsigned seed)
{
        const uint64_t bytes[] = {WEIGHT, 0, BUFFER};
        ok(c, streamer_publish_begin(publication, bytes, 3));
        for (unsigned s = 0; s < 3; s++) {
                unsigned char *data = storage_of(c, publication, s);
                for (size_t i = 0; i < bytes[s]; i++)
                        data[i] = storage_byte(seed, s, i);
        }
}

static inline void describe_tensors(streamer_client *c, streamer_publication *publication)
{
        static const uint64_t shape[] = {ROWS, COLUMNS}, strides[] = {COLUMNS, 1};
        static const uint64_t across[] = {COLUMNS, ROWS}, steps[] = {1, COLUMNS};
        static const uint64_t ten[] = {10}, none[] = {0}, one[] = {1};
        const streamer_published_tensor tensors[] = {
                {sizeof(tensors[0]), "weight", "float32", 4, STREAMER_PUBLISHED_PARAMETER, STREAMER_PUBLISHED_GRAD, 7,
                 2, shape, strides, 0, 0, NULL},
                {sizeof(tensors[0]), "weight_t", "float32", 4, STREAMER_PUBLISHED_PARAMETER, 0, 7, 2, across, steps, 0,
                 0, NULL},
                {sizeof(tensors[0]), "empty", "int64", 8, STREAMER_PUBLISHED_ATTRIBUTE, 0, 0, 1, none, one, 1, 0, NULL},
                {sizeof(tensors[0]), "mean", "float32", 4, STREAMER_PUBLISHED_BUFFER,
                 STREAMER_PUBLISHED_PERSISTENT | STREAMER_PUBLISHED_CLONE, 0, 1, ten, one, 2, 0, NULL}};
        for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++)
                ok(c, streamer_publish_tensor(publication, &tensors[i]));
        ok(c, streamer_publish_attribute(publication, "linear.scale", "0.5"));
}

/* A claim whose commit is due. */
static inline streamer_publication *filled(streamer_client *c, const streamer_publish_opts *of)
{
        streamer_publication *publication = claim_of(c, of, "absent");
        fill_storages(c, publication, 1);
        describe_tensors(c, publication);
        return publication;
}

static inline streamer_lease *commit_model(streamer_client *c, streamer_publication *publication, unsigned seed)
{
        streamer_lease *lease = NULL;
        fill_storages(c, publication, seed);
        describe_tensors(c, publication);
        ok(c, streamer_publish_commit(publication, &lease));
        return lease;
}

/* Publishes it; the lease is the publisher's. */
static inline streamer_lease *publish_model(streamer_client *c, const streamer_publish_opts *of, unsigned seed)
{
        return commit_model(c, claim_of(c, of, "absent"), seed);
}

/* Every byte of the storages, and the description of the tensors. */
static inline void check_model(streamer_client *c, streamer_lease *lease, unsigned seed)
{
        size_t tensors, storages, attributes;
        const char *name, *value;
        streamer_published_tensor t = STREAMER_PUBLISHED_TENSOR_INIT;
        ok(c, streamer_published_count(lease, &tensors, &storages, &attributes));
        ck_assert_uint_eq(tensors, 4);
        ck_assert_uint_eq(storages, 3);
        ck_assert_uint_eq(attributes, 1);
        for (unsigned s = 0; s < 3; s++) {
                streamer_tensor storage = STREAMER_TENSOR_INIT;
                ok(c, streamer_published_storage(lease, s, &storage));
                ck_assert_uint_eq(storage.bytes, s == 0 ? WEIGHT : s == 1 ? 0 : BUFFER);
                unsigned char *bytes = must_alloc(storage.bytes + 1);
                ok(c, streamer_tensor_read(lease, &storage, 0, bytes, storage.bytes));
                for (size_t i = 0; i < storage.bytes; i++)
                        if (bytes[i] != storage_byte(seed, s, i))
                                ck_abort_msg("storage %u differs at %zu", s, i);
        }
        ok(c, streamer_published_find(lease, "weight_t", &t));
        ck_assert_str_eq(t.dtype, "float32");
        ck_assert_uint_eq(t.rank, 2);
        ck_assert_uint_eq(t.shape[0], COLUMNS);
        ck_assert_uint_eq(t.strides[1], COLUMNS);
        ck_assert_uint_eq(t.alias, 7);
        const void *weight = t.data;
        ok(c, streamer_published_get(lease, 0, &t));
        ck_assert_str_eq(t.name, "weight");
        ck_assert_uint_eq(t.flags, STREAMER_PUBLISHED_GRAD);
        ck_assert_ptr_eq(t.data, weight);
        ok(c, streamer_published_find(lease, "empty", &t));
        ck_assert_ptr_null(t.data);
        ck_assert_int_eq(t.kind, STREAMER_PUBLISHED_ATTRIBUTE);
        ok(c, streamer_published_attribute(lease, 0, &name, &value));
        ck_assert_str_eq(name, "linear.scale");
        ck_assert_str_eq(value, "0.5");
}

/* Finds it with these options, attaches, and compares it. */
static inline streamer_lease *attach_model(streamer_client *c, const streamer_publish_opts *of, unsigned seed)
{
        streamer_found found = STREAMER_FOUND_INIT;
        streamer_attach_opts attach = STREAMER_ATTACH_OPTS_INIT;
        streamer_lease *lease = NULL;
        ok(c, streamer_publish_find(c, of, &found, NULL));
        ck_assert_str_eq(found.state, "hit");
        attach.generation = found.generation;
        ok(c, streamer_attach(c, of->name, &attach, &lease));
        ck_assert_str_eq(streamer_digest(lease), found.digest);
        check_model(c, lease, seed);
        return lease;
}
