/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of callers: NULL handles and pointers, sizes of 0, and structs of older and newer versions.
 */
#include "tests/unit/client_fixture.h"

#define INVALID(call, text) FAILS(NULL, call, STREAMER_EINVAL, text)
#define INVALID_OF(client, call, text) FAILS(client, call, STREAMER_EINVAL, text)

CLIENT_FIXTURE();

TEST(a_null_client_is_named)
{
        INVALID(streamer_connect(NULL, NULL), "connect: 'client' is NULL");
        INVALID(streamer_fd(NULL), "fd: 'client' is NULL");
        INVALID(streamer_process(NULL), "process: 'client' is NULL");
        INVALID(streamer_list(NULL, NULL), "list: 'client' is NULL");
        INVALID(streamer_load(NULL, NULL, NULL), "load: 'client' is NULL");
        INVALID(streamer_open(NULL, NULL, NULL, NULL), "open: 'client' is NULL");
        INVALID(streamer_open_start(NULL, NULL, NULL, NULL), "open_start: 'client' is NULL");
        INVALID(streamer_attach(NULL, NULL, NULL, NULL), "attach: 'client' is NULL");
        INVALID(streamer_wait(NULL, "m", 0), "wait: 'client' is NULL");
        INVALID(streamer_cancel(NULL, "m"), "cancel: 'client' is NULL");
        INVALID(streamer_unload(NULL, "m", 0), "unload: 'client' is NULL");
        INVALID(streamer_pin(NULL, "m", 1), "pin: 'client' is NULL");
        INVALID(streamer_keep_alive(NULL, "m", 1), "keep_alive: 'client' is NULL");
        INVALID(streamer_call(NULL, "ping", NULL, NULL), "call: 'client' is NULL");
        INVALID(streamer_subscribe(NULL, NULL), "subscribe: 'client' is NULL");
        INVALID(streamer_event_next(NULL, 0, NULL), "event_next: 'client' is NULL");
        INVALID(streamer_fetch(NULL, "/m", "f", NULL, NULL), "fetch: 'client' is NULL");
}

TEST(another_null_handle_is_named)
{
        streamer_model model = STREAMER_MODEL_INIT;
        INVALID(streamer_op_wait(NULL, 0, NULL), "op_wait: 'op' is NULL");
        INVALID(streamer_op_lease(NULL, 0, NULL), "op_lease: 'op' is NULL");
        INVALID(streamer_model_list_get(NULL, 0, &model), "model_list_get: 'list' is NULL");
        INVALID(streamer_lease_check(NULL), "lease_check: 'lease' is NULL");
        INVALID(streamer_tensor_count(NULL, NULL), "tensor_count: 'lease' is NULL");
        INVALID(streamer_tensor_name(NULL, 0, NULL), "tensor_name: 'lease' is NULL");
        INVALID(streamer_tensor_get(NULL, 0, &t), "tensor_get: 'lease' is NULL");
        INVALID(streamer_tensor_find(NULL, "a", &t), "tensor_find: 'lease' is NULL");
        INVALID(streamer_tensor_next(NULL, 0, &t), "tensor_next: 'lease' is NULL");
        INVALID(streamer_tensor_dlpack(NULL, &t, 0, NULL), "tensor_dlpack: 'lease' is NULL");
        INVALID(streamer_segment_get(NULL, 0, NULL), "segment_get: 'lease' is NULL");
        INVALID(streamer_metadata_get(NULL, 0, NULL, NULL), "metadata_get: 'lease' is NULL");
        ck_assert_uint_eq(streamer_model_list_count(NULL), 0);
        ck_assert_uint_eq(streamer_op_failure_count(NULL), 0);
        ck_assert_uint_eq(streamer_op_eviction_count(NULL), 0);
        ck_assert_uint_eq(streamer_segment_count(NULL), 0);
        ck_assert_uint_eq(streamer_metadata_count(NULL), 0);
        ck_assert_int_eq(streamer_has_metadata(NULL), 0);
        ck_assert_uint_eq(streamer_generation(NULL), 0);
        ck_assert_ptr_null(streamer_op_model(NULL));
        ck_assert_ptr_null(streamer_lease_model(NULL));
        ck_assert_ptr_null(streamer_metadata(NULL, "k"));
        ck_assert_str_eq(streamer_digest(NULL), "");
        streamer_close(NULL);
        streamer_detach(NULL);
        streamer_op_free(NULL);
        streamer_model_list_free(NULL);
        streamer_free(NULL);
}

TEST(a_missing_argument_is_named)
{
        size_t n;
        char bytes[4];
        streamer_tensor unset = {.struct_size = 0};
        streamer_attach_opts unsized = {.struct_size = 0};
        streamer_load_opts load = STREAMER_LOAD_OPTS_INIT;
        streamer_open_opts open = STREAMER_OPEN_OPTS_INIT;
        streamer_op *op;
        streamer_lease *other;
        attach(SERVE, 0);
        INVALID_OF(client, streamer_attach(client, NULL, NULL, &other), "attach: 'model' is NULL");
        INVALID_OF(client, streamer_attach(client, "", NULL, &other), "attach: 'model' is empty");
        INVALID_OF(client, streamer_subscribe(client, ""), "subscribe: 'model' is empty");
        INVALID_OF(client, streamer_attach(client, "m", NULL, NULL), "attach: 'lease' is NULL");
        INVALID_OF(client, streamer_attach(client, "m", &unsized, &other),
                   "attach: the struct_size of 'opts' is not set");
        INVALID_OF(client, streamer_load(client, &load, &op), "load: 'source' is NULL");
        INVALID_OF(client, streamer_list(client, NULL), "list: 'list' is NULL");
        INVALID_OF(client, streamer_call(client, NULL, NULL, NULL), "call: 'verb' is NULL");
        INVALID_OF(client, streamer_fetch(client, NULL, "f", NULL, NULL), "fetch: 'source' is NULL");
        INVALID_OF(client, streamer_fetch(client, "/x", NULL, NULL, NULL), "fetch: 'file' is NULL");
        INVALID_OF(client, streamer_fetch(client, "/x", "f", NULL, NULL), "fetch: 'data' is NULL");
        INVALID_OF(client, streamer_fetch_list(client, NULL, NULL), "fetch_list: 'source' is NULL");
        INVALID_OF(client, streamer_fetch_list(client, "/x", NULL), "fetch_list: 'json' is NULL");
        INVALID_OF(client, streamer_unload(client, "m", 8), "unload: unknown flags 0x8");
        INVALID_OF(client, streamer_tensor_count(lease, NULL), "tensor_count: 'count' is NULL");
        INVALID_OF(client, streamer_tensor_find(lease, NULL, &t), "tensor_find: 'name' is NULL");
        INVALID_OF(client, streamer_tensor_get(lease, 0, NULL), "tensor_get: 'tensor' is NULL");
        INVALID_OF(client, streamer_tensor_get(lease, 0, &unset), "tensor_get: the struct_size of 'tensor' is not set");
        ck_assert_int_eq(streamer_tensor_get(lease, 0, &t), 0);
        INVALID_OF(client, streamer_tensor_read(lease, &t, 0, NULL, 1), "tensor_read: 'to' is NULL");
        t.offset = FAKE_SEGMENT;
        INVALID_OF(client, streamer_tensor_read(lease, &t, 0, bytes, 1), "tensor_read: 'tensor' is not of this lease");
        load.source = "/m";
        open.load = &load;
        INVALID_OF(client, streamer_open(client, "/m", &open, &other), "open: 'opts->load->source' must be NULL");
        ck_assert_int_eq(streamer_tensor_count(lease, &n), 0);
}

/* A caller that was compiled with fewer members, and one with more. */
TEST(a_shorter_struct_of_the_caller_is_not_overrun)
{
        struct {
                streamer_tensor t;
                char later[16];
        } newer;
        streamer_tensor older;
        attach(SERVE, 0);
        memset(&older, 0x5a, sizeof(older));
        older.struct_size = offsetof(streamer_tensor, dtype);
        ck_assert_int_eq(streamer_tensor_get(lease, 0, &older), 0);
        ck_assert_str_eq(older.dtype_name, "U8");
        ck_assert_uint_eq(older.rank, 0x5a5a5a5a);
        ck_assert_uint_eq(older.struct_size, offsetof(streamer_tensor, dtype));

        memset(&newer, 0x5a, sizeof(newer));
        newer.t.struct_size = sizeof(newer);
        ck_assert_int_eq(streamer_tensor_get(lease, 0, &newer.t), 0);
        ck_assert_uint_eq(newer.t.bytes, 4);
        ck_assert_mem_eq(newer.later, (const char[16]){0}, 16);
        ck_assert_uint_eq(newer.t.struct_size, sizeof(newer));
}

TEST(options_that_the_library_does_not_know_are_refused)
{
        struct {
                streamer_attach_opts opts;
                uint64_t later;
        } newer = {.opts = {.struct_size = sizeof(newer)}};
        streamer_lease *other;
        attach(SERVE, 0);
        newer.later = 1;
        ck_assert_int_eq(streamer_attach(client, "m", &newer.opts, &other), STREAMER_EINVAL);
        ck_assert_ptr_nonnull(strstr(streamer_last_error(client), "it is older than its caller"));
}

TEST(dtypes_have_names_and_bits)
{
        ck_assert_str_eq(streamer_dtype_name(STREAMER_DTYPE_BF16), "BF16");
        ck_assert_uint_eq(streamer_dtype_bits(STREAMER_DTYPE_F4), 4);
        ck_assert_ptr_null(streamer_dtype_name(STREAMER_DTYPE_UNKNOWN));
        ck_assert_uint_eq(streamer_dtype_bits((streamer_dtype)999), 0);
}
