/* SPDX-License-Identifier: Apache-2.0
 *
 * The note of what a source consisted of: what was encoded is decoded, and nothing else is.
 */
#include "daemon/io/disk/disk_source.h"
#include "daemon/base/util.h"
#include "tests/lib/suite.h"

static struct disk_source *source;
static unsigned char *bytes;
static size_t size;

static void encode(void)
{
        static char url[] = "http://s/b/m", path[] = "s3://b/m", index_path[] = "s3://b/i.json";
        unsigned char id[DISK_ID_SIZE] = {1};
        source = disk_source_new(id, 3);
        ck_assert(disk_source_add(source, &(struct disk_member){.is_index = true, .url = url, .path = index_path}));
        for (unsigned char i = 0; i < 2; i++) {
                struct disk_member member = {.folder_len = 5, .url = url, .path = path};
                memset(member.id, i + 2, sizeof(member.id));
                memset(member.alone, i + 12, sizeof(member.alone));
                ck_assert(disk_source_add(source, &member));
        }
        bytes = disk_source_encode(source, &size);
        ck_assert_ptr_nonnull(bytes);
}

FIXTURE(.each = {encode, NULL});

TEST(a_note_is_decoded_as_it_was_encoded)
{
        struct disk_source *out;
        ck_assert_int_eq(disk_source_decode(&out, bytes, size), 0);
        ck_assert(disk_source_equal(out, source));
        ck_assert_uint_eq(out->n, 3);
        ck_assert(out->members[0].is_index && !out->members[1].is_index);
        ck_assert_uint_eq(out->members[2].folder_len, 5);
        ck_assert_str_eq(out->members[2].path, "s3://b/m");
        ck_assert_uint_eq(out->members[2].alone[31], 13);
        out->members[2].id[0] ^= 1;
        ck_assert(!disk_source_equal(out, source));
        out->members[2].id[0] ^= 1;
        out->members[2].alone[0] ^= 1;
        ck_assert(!disk_source_equal(out, source));
        disk_source_free(out);
}

TEST(an_object_of_a_source_is_a_source)
{
        static char url[] = "http://s/b/in/m", path[] = "s3://b/many/in/m";
        struct disk_member member = {.folder_len = 12, .url = url, .path = path};
        memset(member.alone, 7, sizeof(member.alone));
        struct disk_source *out = disk_source_alone(&member);
        ck_assert_ptr_nonnull(out);
        ck_assert_uint_eq(out->n, 1);
        ck_assert_mem_eq(out->id, member.alone, sizeof(out->id));
        ck_assert_str_eq(out->members[0].path + out->members[0].folder_len, "m");
        disk_source_free(out);
}

TEST(a_note_of_which_any_bit_was_changed_is_refused)
{
        for (size_t i = 0; i < size * 8; i++) {
                bytes[i / 8] ^= (unsigned char)(1u << i % 8);
                ck_assert_msg(disk_source_decode(&source, bytes, size) == STREAMER_EFAILED, "bit %zu", i);
                bytes[i / 8] ^= (unsigned char)(1u << i % 8);
        }
}

TEST(a_note_that_is_shorter_or_longer_is_refused)
{
        unsigned char *more = calloc(1, size + 16);
        memcpy(more, bytes, size);
        for (size_t n = 0; n <= size + 16; n++) {
                struct disk_source *out = NULL;
                ck_assert_int_eq(disk_source_decode(&out, more, n), n == size ? 0 : STREAMER_EFAILED);
                disk_source_free(out);
        }
}

/* With the right digest. */
static bool decodes(void)
{
        hash_bytes(bytes, size - DIGEST_SIZE, bytes + size - DIGEST_SIZE);
        struct disk_source *out = NULL;
        int r = disk_source_decode(&out, bytes, size);
        disk_source_free(out);
        return r == 0;
}

TEST(numbers_that_do_not_fit_the_rest_are_refused)
{
        ck_assert(decodes());
        bytes[40] = 2; /* members */
        ck_assert(!decodes());
        bytes[40] = 4;
        ck_assert(!decodes());
        bytes[40] = 3;
        bytes[47] = 0x80;
        ck_assert(!decodes());
        bytes[47] = 0;
        bytes[48 + 32 + 32 + 4 + 1] = 1; /* the length of a folder beyond the path's */
        ck_assert(!decodes());
}
