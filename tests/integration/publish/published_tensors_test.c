/* SPDX-License-Identifier: Apache-2.0
 *
 * A model that a client makes of tensors is like one of a file: named tensors, metadata, digest. Each is a new
 * generation of its name, and few of them are in memory at once.
 */
#include "tests/integration/published_fixture.h"

#include "tests/lib/streamerctl.h"

static void connect_for_tensors(void)
{
        connect_client();
        opts = options("policy");
        opts.n_key = 0;
        opts.flags = STREAMER_PUBLISH_TENSORS | STREAMER_PUBLISH_REPLACE;
}

static streamer_publication *claim_any(void)
{
        streamer_found found = STREAMER_FOUND_INIT;
        streamer_publication *claim = NULL;
        ok(client, streamer_publish_find(client, &opts, &found, &claim));
        free(found.differs);
        ck_assert_ptr_nonnull(claim);
        return claim;
}

/* Pairs of F4 are elements of a byte. */
static void describe(streamer_publication *p, const struct model_tensor *t, size_t storage)
{
        uint64_t shape[MODEL_RANK_MAX], strides[MODEL_RANK_MAX], count = 1, step = 1;
        for (uint32_t d = 0; d < t->rank; d++)
                shape[d] = t->shape[d] / (strcmp(t->dtype, "F4") == 0 && d + 1 == t->rank ? 2 : 1);
        for (uint32_t d = t->rank; d-- > 0; step *= shape[d] > 0 ? shape[d] : 1)
                strides[d] = step;
        for (uint32_t d = 0; d < t->rank; d++)
                count *= shape[d];
        const streamer_published_tensor tensor = {.struct_size = sizeof(tensor),
                                                  .name = t->name,
                                                  .dtype = t->dtype,
                                                  .item = count > 0 ? (uint32_t)(t->bytes / count) : 4,
                                                  .kind = STREAMER_PUBLISHED_PARAMETER,
                                                  .rank = t->rank,
                                                  .shape = shape,
                                                  .strides = strides,
                                                  .storage = storage};
        ok(client, streamer_publish_tensor(p, &tensor));
}

/* Reserves memory for the model and fills it. */
static void fill_model(streamer_publication *p, const struct model *m)
{
        uint64_t *bytes = must_alloc(m->n * sizeof(*bytes));
        for (size_t i = 0; i < m->n; i++)
                bytes[i] = m->tensors[i].bytes;
        ok(client, streamer_publish_begin(p, bytes, m->n));
        for (size_t i = 0; i < m->n; i++) {
                void *data = storage_of(client, p, i);
                if (m->tensors[i].bytes > 0)
                        model_contents(m, i, 0, data, m->tensors[i].bytes);
                describe(p, &m->tensors[i], i);
        }
}

/* A new generation; the lease is the publisher's. */
static streamer_lease *put_model(const struct model *m)
{
        streamer_lease *lease;
        streamer_publication *p = claim_any();
        fill_model(p, m);
        ok(client, streamer_publish_attribute(p, "step", "7"));
        ok(client, streamer_publish_commit(p, &lease));
        return lease;
}

static struct model *small_model(uint64_t seed)
{
        struct model *m = model_new(seed);
        model_add(m, "z", "BF16", (uint64_t[]){1000, 64}, 2);
        model_add(m, "a", "F32", (uint64_t[]){3, 5, 7}, 3);
        model_add(m, "a.scale", "F64", NULL, 0);
        model_add(m, "empty", "F32", (uint64_t[]){4, 0}, 2);
        model_add(m, "packed", "F4", (uint64_t[]){5, 6}, 2);
        model_add(m, "\xc3\xa9", "U8", (uint64_t[]){5000001}, 1);
        return m;
}

static void check_tensors(streamer_lease *lease, const struct model *m)
{
        size_t n;
        ok(client, streamer_tensor_count(lease, &n));
        ck_assert_uint_eq(n, m->n);
        for (size_t i = 0; i < n; i++) {
                streamer_tensor t = STREAMER_TENSOR_INIT;
                ok(client, streamer_tensor_find(lease, m->tensors[i].name, &t));
                ck_assert_str_eq(t.dtype_name, m->tensors[i].dtype);
                ck_assert_uint_eq(t.rank, m->tensors[i].rank);
                for (uint32_t d = 0; d < t.rank; d++)
                        ck_assert_uint_eq(t.shape[d], m->tensors[i].shape[d]);
                ck_assert_uint_eq(t.bytes, m->tensors[i].bytes);
                unsigned char *bytes = must_alloc(t.bytes + 1);
                ok(client, streamer_tensor_read(lease, &t, 0, bytes, t.bytes));
                ck_assert(model_check(m, i, bytes));
                free(bytes);
        }
}

FIXTURE(.all = {daemon_begin_default, daemon_end}, .each = {connect_for_tensors, disconnect_client});

TEST(it_is_the_model_that_a_file_of_these_tensors_is)
{
        char digest[33];
        const struct model *m = small_model(1);
        streamer_tensor next = STREAMER_TENSOR_INIT;
        model_digest(m, digest);
        streamer_lease *lease = put_model(m), *reader;
        ck_assert_str_eq(streamer_digest(lease), digest);
        check_tensors(lease, m);
        for (size_t i = 0; i < m->n; i++)
                ok(client, streamer_tensor_next(lease, 0, &next));
        ck_assert_int_eq(streamer_tensor_next(lease, 0, &next), STREAMER_E_END);
        reader = client_attach(client, "policy");
        ck_assert_str_eq(streamer_digest(reader), digest);
        ck_assert_uint_eq(streamer_generation(reader), streamer_generation(lease));
        check_tensors(reader, m);
        ck_assert_str_eq(streamer_metadata(reader, "step"), "7");
        ck_assert_uint_eq(streamer_metadata_count(reader), 1);
        fails(client, STREAMER_ENOENT, "is not a published model", streamer_published_count(reader, NULL, NULL, NULL));
        streamer_detach(reader);
        streamer_detach(lease);
        json_decref(client_call(client, "verify", "{\"model\":\"policy\"}"));
        const json_t *model = client_show(client, "policy");
        ck_assert_uint_eq(json_number(model, "tensors"), m->n);
        ck_assert_uint_eq(json_number(model, "published.uid"), getuid());
}

TEST(it_is_exported_as_a_file_of_the_same_digest)
{
        char *file = suite_path("policy.safetensors");
        streamer_detach(put_model(small_model(1)));
        ctl_says(test_daemon.socket, 0, "exported", "export", "policy", file, NULL);
        ctl_says(test_daemon.socket, 0, "copy", "load", file, "--name", "copy", NULL);
        ck_assert_str_eq(json_text(client_show(client, "copy"), "digest"),
                         json_text(client_show(client, "policy"), "digest"));
}

TEST(each_is_a_new_generation_and_readers_keep_theirs)
{
        const struct model *first = small_model(1), *second = small_model(2);
        streamer_detach(put_model(first));
        streamer_lease *old = client_attach(client, "policy");
        streamer_detach(put_model(second));
        streamer_lease *new = client_attach(client, "policy");
        ck_assert_uint_gt(streamer_generation(new), streamer_generation(old));
        check_tensors(old, first);
        check_tensors(new, second);
        streamer_detach(old);
        streamer_detach(new);
}

/* The memory of one that nobody reads is freed as the next one serves. */
TEST(a_third_generation_waits_until_readers_have_left_the_first)
{
        const uint64_t bytes = 4096;
        const struct model *m = small_model(1);
        streamer_detach(put_model(m));
        streamer_lease *first = client_attach(client, "policy");
        streamer_detach(put_model(m));
        streamer_publication *p = claim_any();
        char *said = format_text("policy: 2 generations are in memory (publish.keep: 2); generation %ju has 1 lease",
                                 (uintmax_t)streamer_generation(first));
        fails(client, STREAMER_ELIMIT, said, streamer_publish_begin(p, &bytes, 1));
        streamer_detach(first);
        ok(client, streamer_publish_begin(p, &bytes, 1));
        streamer_publish_abort(p);
}

TEST(many_generations_take_the_memory_of_two)
{
        const struct model *m = small_model(1);
        streamer_detach(put_model(m));
        client_wait_leases(client, 0);
        uint64_t one = client_used(client);
        for (int i = 0; i < 20; i++)
                streamer_detach(put_model(m));
        client_wait_leases(client, 0);
        client_wait_used(client, one);
}

/* The table of names and texts, which becomes metadata, has a segment of its own where it is large. */
TEST(texts_may_take_more_than_the_tensors)
{
        enum { TEXTS = 40, TEXT = 65536 };
        const struct model *m = small_model(1);
        char value[TEXT + 1], name[16];
        streamer_lease *lease;
        streamer_publication *p = claim_any();
        memset(value, 'x', TEXT);
        value[TEXT] = '\0';
        fill_model(p, m);
        for (int i = 0; i < TEXTS; i++) {
                snprintf(name, sizeof(name), "text %d", i);
                ok(client, streamer_publish_attribute(p, name, value));
        }
        ok(client, streamer_publish_commit(p, &lease));
        check_tensors(lease, m);
        ck_assert_uint_eq(streamer_metadata_count(lease), TEXTS);
        ck_assert_str_eq(streamer_metadata(lease, "text 39"), value);
        streamer_detach(lease);
}

TEST(a_text_has_a_limit)
{
        char *value = must_alloc(65538);
        streamer_lease *lease;
        streamer_publication *p = claim_any();
        memset(value, 'x', 65537);
        value[65537] = '\0';
        fill_model(p, small_model(1));
        ok(client, streamer_publish_attribute(p, "text", value));
        fails(client, STREAMER_EINVAL, "a text has more than 65536 bytes", streamer_publish_commit(p, &lease));
        streamer_publish_abort(p);
        free(value);
}

/* Other names, and models with a table, do not count. */
TEST(the_limit_is_of_one_name)
{
        const struct model *m = small_model(1);
        streamer_lease *leases[4];
        for (size_t i = 0; i < 4; i++) {
                opts.name = i % 2 == 0 ? "policy" : "critic";
                leases[i] = put_model(m);
        }
        for (size_t i = 0; i < 4; i++)
                streamer_detach(leases[i]);
}

/* ---- what is refused ---- */

static const uint64_t pair[] = {2}, step[] = {1}, gap[] = {2}, square[] = {2, 2}, across[] = {1, 2};
static const uint64_t huge[] = {0, UINT64_MAX / 2 + 1}, huge_steps[] = {1, 1};

static const struct {
        streamer_published_tensor t;
        const char *attribute, *text;
} refused[] = {
        {{.name = "t", .dtype = "float32", .item = 4, .rank = 1, .shape = pair, .strides = step},
         NULL,
         "tensor 't': float32 of 4 bytes is no dtype of safetensors"},
        {{.name = "t", .dtype = "F32", .item = 2, .rank = 1, .shape = pair, .strides = step},
         NULL,
         "tensor 't': F32 of 2 bytes is no dtype of safetensors"},
        {{.name = "t", .dtype = "F6_E2M3", .item = 1, .rank = 1, .shape = pair, .strides = step},
         NULL,
         "tensor 't': F6_E2M3 of 1 bytes is no dtype of safetensors"},
        {{.name = "t", .dtype = "F4", .item = 2, .rank = 1, .shape = pair, .strides = step},
         NULL,
         "tensor 't': F4 of 2 bytes is no dtype of safetensors"},
        {{.name = "t", .dtype = "F4", .item = 1}, NULL, "tensor 't': F4 of 1 bytes is no dtype of safetensors"},
        {{.name = "t", .dtype = "F4", .item = 1, .rank = 2, .shape = huge, .strides = huge_steps},
         NULL,
         "tensor 't': its last dimension is too large"},
        {{.name = "t", .dtype = "U8", .item = 1, .rank = 1, .shape = pair, .strides = gap},
         NULL,
         "the table is refused: tensor 't': it is not contiguous"},
        {{.name = "t", .dtype = "U8", .item = 1, .rank = 2, .shape = square, .strides = across},
         NULL,
         "the table is refused: tensor 't': it is not contiguous"},
        {{.name = "t", .dtype = "U8", .item = 1, .rank = 1, .shape = pair, .strides = step, .alias = 3},
         NULL,
         "tensor 't': it shares bytes with others"},
        {{.name = "streamerd.table", .dtype = "U8", .item = 1, .rank = 1, .shape = pair, .strides = step},
         NULL,
         "tensor 'streamerd.table': its name is reserved, or not UTF-8"},
        {{.name = "\xff", .dtype = "U8", .item = 1, .rank = 1, .shape = pair, .strides = step},
         NULL,
         "its name is reserved, or not UTF-8"},
        {{.name = "t", .dtype = "U8", .item = 1, .rank = 1, .shape = pair, .strides = step},
         "streamerd.key.x",
         "metadata 'streamerd.key.x': its name is reserved, or a text is not UTF-8"},
        {{.name = "t", .dtype = "U8", .item = 1, .rank = 1, .shape = pair, .strides = step},
         "\xff",
         "its name is reserved, or a text is not UTF-8"},
};

TEST(what_is_no_tensor_of_a_file_is_refused, EACH(refused))
{
        const uint64_t bytes = 64;
        streamer_lease *lease;
        streamer_published_tensor t = refused[_i].t;
        streamer_publication *p = claim_any();
        t.struct_size = sizeof(t);
        t.kind = STREAMER_PUBLISHED_PARAMETER;
        ok(client, streamer_publish_begin(p, &bytes, 1));
        storage_of(client, p, 0);
        ok(client, streamer_publish_tensor(p, &t));
        if (refused[_i].attribute != NULL)
                ok(client, streamer_publish_attribute(p, refused[_i].attribute, "x"));
        fails(client, STREAMER_EINVAL, refused[_i].text, streamer_publish_commit(p, &lease));
        streamer_publish_abort(p);
        ck_assert_str_eq(client_state(client, "policy"), "");
}

/* ---- a budget for one generation ---- */

static void begin_with_little(void)
{
        daemon_begin(daemon_on_gpu() ? "device: \"cuda:0\", budget: 24MiB, handles: cuda-vmm-fd"
                                     : "device: host, budget: 24MiB",
                     "");
}

FIXTURE(.all = {begin_with_little, daemon_end}, .each = {connect_for_tensors, disconnect_client});

/* The generation that serves stays until the next one is ready, with leases and without. */
TEST(two_generations_that_do_not_fit_are_refused_by_name)
{
        struct model *m = model_new(1);
        uint64_t bytes = UINT64_C(15) << 20;
        model_add(m, "w", "U8", &bytes, 1);
        streamer_detach(put_model(m));
        client_wait_leases(client, 0);
        streamer_publication *p = claim_any();
        fails(client, STREAMER_ENOMEM, "two generations do not fit: 16.0 MiB needed beside 16.0 MiB",
              streamer_publish_begin(p, &bytes, 1));
        streamer_publish_abort(p);
        p = claim_any();
        bytes *= 2;
        fails(client, STREAMER_ENOMEM, "more than the whole budget", streamer_publish_begin(p, &bytes, 1));
        streamer_publish_abort(p);
        ok(client, streamer_unload(client, "policy", 0));
        streamer_detach(put_model(m));
}

/* ---- another number of generations ---- */

static void begin_with_three(void)
{
        daemon_begin(daemon_on_gpu() ? "device: \"cuda:0\", budget: 160MiB, handles: cuda-vmm-fd"
                                     : "device: host, budget: 160MiB",
                     "publish: {keep: 3}\n");
}

FIXTURE(.all = {begin_with_three, daemon_end}, .each = {connect_for_tensors, disconnect_client});

TEST(the_configuration_says_how_many_are_kept)
{
        const uint64_t bytes = 4096;
        const struct model *m = small_model(1);
        streamer_lease *leases[3];
        for (size_t i = 0; i < 3; i++)
                leases[i] = put_model(m);
        streamer_publication *p = claim_any();
        fails(client, STREAMER_ELIMIT, "3 generations are in memory (publish.keep: 3)",
              streamer_publish_begin(p, &bytes, 1));
        streamer_publish_abort(p);
        for (size_t i = 0; i < 3; i++)
                streamer_detach(leases[i]);
}
