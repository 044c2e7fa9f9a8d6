/* SPDX-License-Identifier: Apache-2.0
 *
 * The key and base of a published model, in its manifest's metadata: read after a restart, and refused where they are
 * damaged.
 */
#include "daemon/resident/published.h"
#include "tests/lib/suite.h"

#include "proto/published/table.h"

#define HEX "00112233445566778899aabbccddeeff"

static unsigned char bytes[1024] __attribute__((aligned(8)));
static struct error error;

/* A manifest whose metadata is this pair. */
static int read_pair(struct published **published, const char *key, const char *value)
{
        struct manifest_view view;
        const char *why = "";
        const struct manifest_counts counts = {
                .n_segments = 1, .n_metadata = 1, .strings_len = strlen(key) + strlen(value) + 2};
        size_t size = (size_t)manifest_size(&counts);
        ck_assert_uint_le(size, sizeof(bytes));
        struct manifest_fill fill = {.header = manifest_init(bytes, &counts)};
        manifest_add_pair(&fill, key, strlen(key), value, strlen(value));
        ck_assert_msg(manifest_open(&view, bytes, size, &why) == 0, "%s", why);
        return published_read(published, &view, &error);
}

TEST(a_field_of_the_key_is_read)
{
        struct published *published;
        ck_assert_int_eq(read_pair(&published, PUBLISHED_KEY "torch", "2.6.0"), 0);
        ck_assert_uint_eq(published->n_key, 1);
        ck_assert_str_eq(published->key[0], "torch=2.6.0");
}

TEST(the_digest_of_the_base_is_read)
{
        struct published *published;
        ck_assert_int_eq(read_pair(&published, PUBLISHED_BASE_DIGEST, HEX), 0);
        ck_assert(published->base.has_digest);
        ck_assert_int_eq(published->base.digest[15], 0xff);
}

TEST(the_answers_of_a_base_are_read_where_its_query_is_lost)
{
        struct published *published;
        ck_assert_int_eq(read_pair(&published, PUBLISHED_BASE_ANSWERS, HEX), 0);
        ck_assert(published->base.has_answers && published->base.query_lost);
        ck_assert_int_eq(published->base.answers[15], 0xff);
        ck_assert_int_eq(read_pair(&published, PUBLISHED_BASE, "https://host/m.safetensors"), 0);
        ck_assert(!published->base.has_answers && !published->base.query_lost);
}

static const char *const damaged[][2] = {
        {PUBLISHED_KEY, "2.6.0"},
        {PUBLISHED_BASE_DIGEST, "0011"},
        {PUBLISHED_BASE_DIGEST, "x0112233445566778899aabbccddeeff"},
        {PUBLISHED_BASE_IDENTITY, HEX "00"},
        {PUBLISHED_BASE_ANSWERS, "0011"},
};

TEST(a_damaged_pair_is_refused, EACH(damaged))
{
        struct published *published;
        FAILS_SAYING(error, read_pair(&published, damaged[_i][0], damaged[_i][1]), STREAMER_ECORRUPT,
                     "the key and base of a published model cannot be read");
        ck_assert_ptr_null(published);
}
