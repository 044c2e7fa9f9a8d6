/* SPDX-License-Identifier: Apache-2.0
 *
 * Published SHA-256 digests: where they are found, and which are not accepted.
 */
#include "tests/unit/source_fixture.h"

#define HASH "0123456789abcdef0123456789ABCDEF0123456789abcdef0123456789abcdef"
#define OTHER "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"

/* ---- the cache of the Hub ---- */

static void make_cache(const char *blob)
{
        make_file(format_text("root/models--org--name/blobs/%s", blob), "x");
        make_folder("root/models--org--name/snapshots");
        make_folder("root/models--org--name/snapshots/rev");
        make_link(format_text("../../blobs/%s", blob), "root/models--org--name/snapshots/rev/model.safetensors");
}

#define SNAPSHOT "root/models--org--name/snapshots/rev"

FIXTURE(.each = {make_stage, NULL});

TEST(a_snapshot_with_blobs_outside_the_root_is_refused)
{
        make_cache(HASH);
        open_roots(at(SNAPSHOT));
        assert_refuses(SNAPSHOT, STREAMER_EFAILED, "outside the roots");
}

/* ---- published digests ---- */

static int open_verified(const char *name)
{
        return source_open(&(struct sources){.roots = roots}, at(name), true, &set, &error);
}

static void assert_published(const char *name)
{
        static const unsigned char first[] = {0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef};
        ck_assert_msg(open_verified(name) == 0, "%s", error.text);
        ck_assert(set.objects[0].has_sha256);
        for (size_t i = 0; i < 32; i++)
                ck_assert_uint_eq(set.objects[0].sha256[i], first[i % 8]);
}

TEST(a_blob_is_named_by_its_digest)
{
        make_cache(HASH);
        assert_published(SNAPSHOT);
        assert_published(SNAPSHOT "/model.safetensors");
}

TEST(a_digest_is_fetched_only_on_request)
{
        make_cache(HASH);
        assert_opens(SNAPSHOT, 1);
        ck_assert(!set.objects[0].has_sha256);
}

TEST(a_blob_of_another_naming_has_no_digest)
{
        make_cache("0123456789abcdef0123456789abcdef01234567");
        FAILS_WITH(error, open_verified(SNAPSHOT), STREAMER_EFAILED, "no published SHA-256");
}

static const char *const good_sums[] = {
        HASH "  model.safetensors\n",
        HASH " *model.safetensors\n",
        HASH "  model.safetensors",
        HASH "  ./model.safetensors\r\n",
        "# made by hand\n\n" OTHER "  other\n" OTHER "  sub/model.safetensors\n" HASH "  model.safetensors\n",
        HASH "  model.safetensors\n" HASH "  model.safetensors\n",
};

TEST(a_list_of_sums_gives_the_digest, EACH(good_sums))
{
        make_file("root/model.safetensors", "x");
        make_file("root/SHA256SUMS", good_sums[_i]);
        assert_published("root");
        assert_published("root/model.safetensors");
}

static const struct {
        const char *text, *what;
} bad_sums[] = {
        {"", "no published SHA-256"},
        {HASH "  other.safetensors\n", "no published SHA-256"},
        {HASH "  model.safetensors \n", "no published SHA-256"},
        {"#\n" HASH " model.safetensors\n", "SHA256SUMS:2)"},
        {HASH "  \n", "SHA256SUMS:1)"},
        {HASH, "not 'digest  name'"},
        {"012345  model.safetensors\n", "not 'digest  name'"},
        {"g" HASH "  model.safetensors\n", "not 'digest  name'"},
        {"SHA256 (model.safetensors) = " HASH "\n", "not 'digest  name'"},
        {"\\" HASH "  model.safetensors\n", "escaped file names are not supported ("},
        {HASH "  model.safetensors\n" OTHER "  model.safetensors\n", "two published digests that differ"},
};

TEST(a_list_of_sums_that_cannot_be_trusted_is_refused, EACH(bad_sums))
{
        make_file("root/model.safetensors", "x");
        make_file("root/SHA256SUMS", bad_sums[_i].text);
        FAILS_WITH(error, open_verified("root"), STREAMER_EFAILED, bad_sums[_i].what);
        ck_assert_uint_eq(set.n_objects, 0);
}

TEST(a_list_and_a_blob_that_differ_are_refused)
{
        make_cache(HASH);
        make_file(SNAPSHOT "/SHA256SUMS", OTHER "  model.safetensors\n");
        FAILS_WITH(error, open_verified(SNAPSHOT), STREAMER_EFAILED, "two published digests that differ");
}

TEST(each_file_needs_its_digest)
{
        make_file("root/a.safetensors", "x");
        make_file("root/b.safetensors", "x");
        make_file("root/SHA256SUMS", HASH "  a.safetensors\n");
        FAILS_WITH(error, open_verified("root"), STREAMER_EFAILED, "no published SHA-256");
        make_file("root/SHA256SUMS", HASH "  a.safetensors\n" OTHER "  b.safetensors\n");
        assert_published("root");
        ck_assert_uint_eq(set.objects[1].sha256[0], 0xff);
}

TEST(a_list_of_sums_is_bounded)
{
        make_file("root/model.safetensors", "x");
        make_file("root/SHA256SUMS", "");
        must(truncate(at("root/SHA256SUMS"), (16 << 20) + 1));
        FAILS_WITH(error, open_verified("root"), STREAMER_EFAILED, "more than the 16777216 allowed");
}
