/* SPDX-License-Identifier: Apache-2.0
 *
 * streamerctl export of a published model: the tensors of its table, each whole and in the order of its elements.
 */
#include "tests/integration/published_fixture.h"

#include "tests/lib/streamerctl.h"

FIXTURE(.all = {daemon_begin_default, daemon_end}, .each = {connect_client, disconnect_client});

/* Publishes one storage of `bytes`, each of the value of its index, with one tensor. */
static streamer_lease *publish_one(uint64_t bytes, const streamer_published_tensor *tensor)
{
        streamer_lease *lease;
        streamer_publication *p = claim_of(client, &opts, "absent");
        ok(client, streamer_publish_begin(p, &bytes, 1));
        unsigned char *data = storage_of(client, p, 0);
        for (size_t i = 0; i < bytes; i++)
                data[i] = (unsigned char)i;
        ok(client, streamer_publish_tensor(p, tensor));
        ok(client, streamer_publish_commit(p, &lease));
        return lease;
}

static streamer_published_tensor tensor_of(const char *name, const char *dtype, uint32_t item, uint32_t rank,
                                           const uint64_t *shape, const uint64_t *strides)
{
        return (streamer_published_tensor){.struct_size = sizeof(streamer_published_tensor),
                                           .name = name,
                                           .dtype = dtype,
                                           .item = item,
                                           .kind = STREAMER_PUBLISHED_PARAMETER,
                                           .rank = rank,
                                           .shape = shape,
                                           .strides = strides};
}

/* The file that was written, and where its data begins. */
static const unsigned char *exported(const char *file, json_t **header)
{
        size_t size;
        uint64_t n;
        const char *bytes = file_read(file, &size);
        memcpy(&n, bytes, sizeof(n));
        *header = json_loadb(bytes + 8, n, 0, NULL);
        ck_assert_ptr_nonnull(*header);
        return (const unsigned char *)bytes + 8 + n;
}

static uint64_t offset_of(const json_t *header, const char *name)
{
        const json_t *offsets = json_object_get(json_object_get(header, name), "data_offsets");
        return (uint64_t)json_integer_value(json_array_get(offsets, 0));
}

TEST(views_attributes_and_key_are_written)
{
        json_t *header;
        char *file = suite_path("tiny.safetensors");
        streamer_detach(publish_model(client, &opts, 1));
        ctl_says(test_daemon.socket, 0, "tiny  exported to ", "export", "tiny", file, NULL);
        const unsigned char *data = exported(file, &header);
        const json_t *metadata = json_object_get(header, "__metadata__");
        ck_assert_str_eq(json_string_value(json_object_get(metadata, "streamerd.attribute.linear.scale")), "0.5");
        ck_assert_str_eq(json_string_value(json_object_get(metadata, "streamerd.key.arch")), "Llama");
        ck_assert_uint_eq(json_object_size(header), 5);
        ck_assert_str_eq(json_text(header, "empty.dtype"), "I64");
        for (size_t i = 0; i < WEIGHT; i++)
                ck_assert_uint_eq(data[offset_of(header, "weight") + i], storage_byte(1, 0, i));
        for (size_t column = 0; column < COLUMNS; column++)
                for (size_t row = 0; row < ROWS; row++)
                        for (size_t b = 0; b < 4; b++)
                                ck_assert_uint_eq(data[offset_of(header, "weight_t") + (column * ROWS + row) * 4 + b],
                                                  storage_byte(1, 0, (row * COLUMNS + column) * 4 + b));
        ctl_says(test_daemon.socket, 0, "again  generation", "load", file, "--name", "again", NULL);
}

/* The second of every two rows, each repeated. */
TEST(a_tensor_with_gaps_and_repetitions_is_gathered)
{
        static const uint64_t shape[] = {3, 2, 4}, strides[] = {8, 0, 1};
        json_t *header;
        char *file = suite_path("gaps.safetensors");
        streamer_published_tensor t = tensor_of("t", "uint8", 1, 3, shape, strides);
        t.offset = 4;
        streamer_detach(publish_one(24, &t));
        ctl_says(test_daemon.socket, 0, "exported", "export", "tiny", file, NULL);
        const unsigned char *data = exported(file, &header);
        for (size_t i = 0; i < 24; i++)
                ck_assert_uint_eq(data[i], 4 + i / 8 * 8 + i % 4);
}

/* torch counts pairs of 4 bits, safetensors the elements. */
TEST(packed_pairs_have_the_shape_of_their_elements)
{
        static const uint64_t shape[] = {2, 8}, strides[] = {8, 1};
        json_t *header;
        char *file = suite_path("pairs.safetensors");
        const streamer_published_tensor t = tensor_of("t", "float4_e2m1fn_x2", 1, 2, shape, strides);
        streamer_detach(publish_one(16, &t));
        ctl_says(test_daemon.socket, 0, "exported", "export", "tiny", file, NULL);
        const unsigned char *data = exported(file, &header);
        ck_assert_str_eq(json_text(header, "t.dtype"), "F4");
        ck_assert_int_eq(json_integer_value(json_array_get(json_object_get(json_object_get(header, "t"), "shape"), 1)),
                         16);
        ck_assert_uint_eq(data[15], 15);
}

static const char *const waiting[] = {"export", "cat"};

TEST(the_wait_for_a_model_that_is_being_published_is_said, EACH(waiting))
{
        static const char expected[] = "streamerctl: tiny: not ready yet, waiting\n";
        char said[sizeof(expected)] = "";
        struct ctl_running running;
        struct ctl r;
        streamer_lease *lease;
        const char *what = _i == 0 ? suite_path("waited.safetensors") : "streamerd.storage.000002";
        streamer_publication *p = filled(client, &opts);
        ctl_start(&running, test_daemon.socket,
                  (const char *const[]){waiting[_i], "tiny", what, "--timeout", "60", NULL});
        for (size_t n = 0; n < sizeof(expected) - 1;) {
                ssize_t got = must(read(running.err, said + n, sizeof(expected) - 1 - n));
                ck_assert_int_gt(got, 0);
                n += (size_t)got;
        }
        ck_assert_str_eq(said, expected);
        ok(client, streamer_publish_commit(p, &lease));
        ctl_finish(&running, &r);
        ck_assert_msg(r.code == 0, "%s", r.err);
        ck_assert_str_eq(r.err, "");
        streamer_detach(lease);
}

/* 60,000 empty tensors with long names: the library reserves room for their table by their storages. */
TEST(a_header_that_safetensors_refuses_is_not_written, .slow = true)
{
        static const uint64_t none[] = {0}, step[] = {1};
        static uint64_t bytes[60000];
        static char name[1801];
        char *file = suite_path("long.safetensors");
        streamer_lease *lease;
        streamer_publication *p = claim_of(client, &opts, "absent");
        ok(client, streamer_publish_begin(p, bytes, 60000));
        for (size_t i = 0; i < 60000; i++) {
                snprintf(name, sizeof(name), "%01800zu", i);
                streamer_published_tensor t = tensor_of(name, "uint8", 1, 1, none, step);
                t.storage = i;
                storage_of(client, p, i);
                ok(client, streamer_publish_tensor(p, &t));
        }
        ok(client, streamer_publish_commit(p, &lease));
        streamer_detach(lease);
        ctl_says(test_daemon.socket, 1, "bytes would be needed, and safetensors allows 100000000", "export", "tiny",
                 file, NULL);
        ck_assert_int_eq(access(file, F_OK), -1);
}

static const uint64_t two[] = {2}, one[] = {1};

static const struct {
        const char *name, *dtype;
        uint32_t item;
        const char *text;
} refused[] = {
        {"t", "complex128", 16, "tensor 't': safetensors has no dtype for complex128 of 16 bytes"},
        {"t", "float32", 2, "tensor 't': safetensors has no dtype for float32 of 2 bytes"},
        {"__metadata__", "float32", 4, "a tensor is named __metadata__, which is safetensors' own name"},
        {"\xff", "float32", 4, "a name or an attribute is not UTF-8, which safetensors requires"},
};

TEST(what_the_format_cannot_hold_is_named_and_nothing_is_written, EACH(refused))
{
        char *file = suite_path("refused.safetensors");
        const uint64_t bytes[] = {32, 8};
        const streamer_published_tensor t =
                tensor_of(refused[_i].name, refused[_i].dtype, refused[_i].item, 1, two, one);
        streamer_published_tensor another = tensor_of("u", "float32", 4, 1, two, one);
        streamer_lease *lease;
        streamer_publication *p = claim_of(client, &opts, "absent");
        ok(client, streamer_publish_begin(p, bytes, 2));
        another.storage = 1;
        storage_of(client, p, 0);
        storage_of(client, p, 1);
        ok(client, streamer_publish_tensor(p, &t));
        ok(client, streamer_publish_tensor(p, &another));
        ok(client, streamer_publish_commit(p, &lease));
        streamer_detach(lease);
        ctl_says(test_daemon.socket, 1, refused[_i].text, "export", "tiny", file, NULL);
        ck_assert_int_eq(access(file, F_OK), -1);
}
