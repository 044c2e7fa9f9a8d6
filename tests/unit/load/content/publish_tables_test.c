/* SPDX-License-Identifier: Apache-2.0
 *
 * The results of publishing: the manifest, its records and metadata, and the digests of tensors and of the model.
 */
#include "tests/unit/publish_fixture.h"

/* ---- the tables ---- */

static void land_all(void)
{
        for (size_t i = 0; i < plan->n_blocks; i++)
                land(i);
}

CORE_FIXTURE(begin_one_file, end);

TEST(the_manifest_is_one_that_clients_accept)
{
        build();
        struct manifest_view view = view_of();
        const char *why;
        ck_assert_uint_eq(view.header->generation, 42);
        ck_assert_uint_eq(view.header->data_bytes, model->bytes);
        ck_assert_uint_eq(view.header->n_records, model->n);
        ck_assert_uint_eq(view.header->n_segments, plan->n_segments);
        for (size_t i = 0; i < model->n; i++) {
                const struct model_tensor *t = &model->tensors[i];
                int64_t at = manifest_find(&view, t->name, strlen(t->name), &why);
                ck_assert_msg(at >= 0, "%s", t->name);
                const struct manifest_record *r = manifest_record(&view, (uint64_t)at);
                ck_assert_uint_eq(tensor_of(&view, (uint64_t)at), i);
                ck_assert_str_eq(dtype_name(r->dtype), t->dtype);
                ck_assert_uint_eq(r->rank, t->rank);
                ck_assert_mem_eq(view.shapes + r->shape_off, t->shape, t->rank * sizeof(uint64_t));
                ck_assert_uint_eq(r->bytes, t->bytes);
        }
}

TEST(records_have_the_planned_offsets)
{
        build();
        struct manifest_view view = view_of();
        for (size_t i = 0; i < plan->n_tensors; i++) {
                const char *why, *name = model->tensors[core_tensor(&resolved, model, i)].name;
                const struct manifest_record *r =
                        manifest_record(&view, (uint64_t)manifest_find(&view, name, strlen(name), &why));
                ck_assert_uint_eq(r->segment, plan->tensors[i].segment);
                ck_assert_uint_eq(r->offset, plan->tensors[i].offset);
        }
}

TEST(metadata_of_the_file_is_in_the_manifest)
{
        build();
        struct manifest_view view = view_of();
        ck_assert_str_eq(manifest_metadata(&view, "format"), "pt");
        ck_assert_str_eq(manifest_metadata(&view, "note"), "\xc3\xa4");
        ck_assert_ptr_null(manifest_metadata(&view, "other"));
}

/* The model digest. */
static void model_digest_is_right(void)
{
        struct error error = {0};
        char got[33], want[33];
        ck_assert_int_eq(publish_finish(&publish, &error), 0);
        hex_encode(got, view_of().header->digest, DIGEST_SIZE);
        model_digest(model, want);
        ck_assert_str_eq(got, want);
}

TEST(digests_match_an_independent_computation)
{
        build();
        land_all();
        struct manifest_view view = view_of();
        for (uint64_t i = 0; i < view.header->n_records; i++)
                digest_is_right(&view, i);
        model_digest_is_right();
}

CORE_FIXTURE(begin_by_file, end);

TEST(sharding_changes_no_digest)
{
        build();
        land_all();
        for (size_t i = 0; i < 3; i++)
                publish_file(&publish, i);
        model_digest_is_right();
}

CORE_FIXTURE(begin_one_file, end);

TEST(the_model_digest_is_absent_before_the_end)
{
        static const unsigned char zero[DIGEST_SIZE];
        build();
        land_all();
        struct manifest_view view = view_of();
        ck_assert_mem_eq(view.header->digest, zero, DIGEST_SIZE);
}

CORE_FIXTURE(NULL, NULL);

TEST(a_model_without_tensors_has_tables_too)
{
        struct error error = {0};
        unsigned char want[DIGEST_SIZE];
        model = model_new(1);
        publish_open(core_write(model, "none.safetensors"), false);
        build();
        struct manifest_view view = view_of();
        ck_assert_uint_eq(view.header->n_records, 0);
        ck_assert_uint_eq(visible(), 0);
        ck_assert_int_eq(publish_finish(&publish, &error), 0);
        hash_bytes("", 0, want);
        ck_assert_mem_eq(view.header->digest, want, DIGEST_SIZE);
        end();
}
