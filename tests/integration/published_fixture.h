/* SPDX-License-Identifier: Apache-2.0
 *
 * Publishing a small model through the library: a weight, a transposed view of it, a buffer and an attribute.
 */
#ifndef TESTS_INTEGRATION_PUBLISHED_FIXTURE_H
#define TESTS_INTEGRATION_PUBLISHED_FIXTURE_H

#include "streamer/client.h"
#include "tests/lib/suite.h"

#include <stdlib.h>
#include <string.h>

#define PUBLISHED_ROWS 300u
#define PUBLISHED_COLUMNS 1000u
#define PUBLISHED_WEIGHT (PUBLISHED_ROWS * PUBLISHED_COLUMNS * 4u)
#define PUBLISHED_BUFFER 40u

static inline streamer_client *connect_to(const char *socket)
{
        streamer_client *client;
        streamer_connect_opts opts = STREAMER_CONNECT_OPTS_INIT;
        opts.socket = socket;
        int r = streamer_connect(&opts, &client);
        ck_assert_msg(r == 0, "connect: %s", streamer_last_error(NULL));
        return client;
}

#define ok(client, call)                                                                                               \
        do {                                                                                                           \
                int ok_ = (call);                                                                                      \
                ck_assert_msg(ok_ == 0, "%s: %s: %s", #call, streamer_error_name(ok_), streamer_last_error(client));   \
        } while (0)

/* Fails with this code, and a text that contains `text`. */
#define fails(client, code, text, call)                                                                                \
        do {                                                                                                           \
                int fails_ = (call);                                                                                   \
                ck_assert_msg(fails_ == (code), "%s: %s: %s", #call, streamer_error_name(fails_),                      \
                              streamer_last_error(client));                                                            \
                ck_assert_msg(strstr(streamer_last_error(client), text) != NULL, "%s", streamer_last_error(client));   \
        } while (0)

/* Byte i of storage s of the model with this seed. */
static inline unsigned char published_byte(unsigned seed, unsigned s, size_t i)
{
        return (unsigned char)(seed + 31 * s + i * 7 + (i >> 8) * 13);
}

static inline streamer_publication *claim_of(streamer_client *client, const streamer_publish_opts *opts,
                                             const char *state)
{
        streamer_publication *claim = NULL;
        streamer_found found = STREAMER_FOUND_INIT;
        ok(client, streamer_publish_find(client, opts, &found, &claim));
        ck_assert_str_eq(found.state, state);
        ck_assert_ptr_nonnull(claim);
        streamer_free(found.differs);
        return claim;
}

/* The state of what is found; no claim. */
static inline const char *found_state(streamer_client *client, const streamer_publish_opts *opts)
{
        streamer_found found = STREAMER_FOUND_INIT;
        ok(client, streamer_publish_find(client, opts, &found, NULL));
        streamer_free(found.differs);
        return found.state;
}

static inline void *storage_of(streamer_client *client, streamer_publication *publication, size_t i)
{
        void *data = NULL;
        ok(client, streamer_publish_storage(publication, i, &data));
        return data;
}

/* Reserves memory and fills the storages. */
static inline void fill_storages(streamer_client *client, streamer_publication *publication, unsigned seed)
{
        const uint64_t bytes[] = {PUBLISHED_WEIGHT, 0, PUBLISHED_BUFFER};
        ok(client, streamer_publish_begin(publication, bytes, 3));
        for (unsigned s = 0; s < 3; s++) {
                unsigned char *data = storage_of(client, publication, s);
                for (size_t i = 0; i < bytes[s]; i++)
                        data[i] = published_byte(seed, s, i);
        }
}

static inline void describe_tensors(streamer_client *client, streamer_publication *publication)
{
        const uint64_t shape[] = {PUBLISHED_ROWS, PUBLISHED_COLUMNS}, strides[] = {PUBLISHED_COLUMNS, 1};
        const uint64_t across[] = {PUBLISHED_COLUMNS, PUBLISHED_ROWS}, steps[] = {1, PUBLISHED_COLUMNS};
        const uint64_t ten[] = {10}, none[] = {0}, one[] = {1};
        streamer_published_tensor t = STREAMER_PUBLISHED_TENSOR_INIT;
        t = (streamer_published_tensor){
                sizeof(t), "weight", "float32", 4, STREAMER_PUBLISHED_PARAMETER, 0, 7, 2, shape, strides, 0, 0, NULL};
        ok(client, streamer_publish_tensor(publication, &t));
        t.name = "weight_t";
        t.shape = across;
        t.strides = steps;
        ok(client, streamer_publish_tensor(publication, &t));
        t = (streamer_published_tensor){sizeof(t), "empty", "int64", 8,   STREAMER_PUBLISHED_ATTRIBUTE, 0, 0, 1, none,
                                        one,       1,       0,       NULL};
        ok(client, streamer_publish_tensor(publication, &t));
        t = (streamer_published_tensor){sizeof(t),
                                        "mean",
                                        "float32",
                                        4,
                                        STREAMER_PUBLISHED_BUFFER,
                                        STREAMER_PUBLISHED_PERSISTENT | STREAMER_PUBLISHED_CLONE,
                                        0,
                                        1,
                                        ten,
                                        one,
                                        2,
                                        0,
                                        NULL};
        ok(client, streamer_publish_tensor(publication, &t));
        ok(client, streamer_publish_attribute(publication, "linear.scale", "0.5"));
}

/* Publishes it; the lease keeps it. */
static inline streamer_lease *publish_model(streamer_client *client, const streamer_publish_opts *opts, unsigned seed)
{
        streamer_lease *lease = NULL;
        streamer_publication *publication = claim_of(client, opts, "absent");
        fill_storages(client, publication, seed);
        describe_tensors(client, publication);
        ok(client, streamer_publish_commit(publication, &lease));
        return lease;
}

/* Every byte of the storages, and the description of a tensor. */
static inline void check_model(streamer_client *client, streamer_lease *lease, unsigned seed)
{
        size_t tensors, storages, attributes;
        streamer_published_tensor t = STREAMER_PUBLISHED_TENSOR_INIT;
        ok(client, streamer_published_count(lease, &tensors, &storages, &attributes));
        ck_assert_uint_eq(tensors, 4);
        ck_assert_uint_eq(storages, 3);
        ck_assert_uint_eq(attributes, 1);
        for (unsigned s = 0; s < 3; s++) {
                streamer_tensor storage = STREAMER_TENSOR_INIT;
                ok(client, streamer_published_storage(lease, s, &storage));
                unsigned char *bytes = malloc(storage.bytes + 1);
                ok(client, streamer_tensor_read(lease, &storage, 0, bytes, storage.bytes));
                for (size_t i = 0; i < storage.bytes; i++)
                        if (bytes[i] != published_byte(seed, s, i))
                                ck_abort_msg("storage %u differs at %zu", s, i);
                free(bytes);
        }
        ok(client, streamer_published_find(lease, "weight_t", &t));
        ck_assert_uint_eq(t.rank, 2);
        ck_assert_uint_eq(t.shape[0], PUBLISHED_COLUMNS);
        ck_assert_uint_eq(t.strides[1], PUBLISHED_COLUMNS);
        ck_assert_uint_eq(t.alias, 7);
        ck_assert_ptr_nonnull(t.data);
        ok(client, streamer_published_find(lease, "empty", &t));
        ck_assert_ptr_null(t.data);
        ck_assert_int_eq(t.kind, STREAMER_PUBLISHED_ATTRIBUTE);
}

#endif
