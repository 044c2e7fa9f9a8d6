/* SPDX-License-Identifier: Apache-2.0
 *
 * The headers of a folder: what they may take, of one load and of its user, and names that two files have.
 */
#include "daemon/load/content/resolve.h"
#include "daemon/base/util.h"
#include "tests/lib/core.h"

#include <endian.h>
#include <sys/stat.h>

#define BLOCK (8 * MiB)
#define HEADER (600 * KiB)
#define USER 60502

static const struct plan_layout layout = {.page = 4096, .align = 1, .granularity = 2 * MiB};
static struct resolved resolved;
static struct resolve_budget budget;
static struct error error;
static struct quotas users;
static char *folder;

static void begin(void)
{
        quotas_init(&users);
        static unsigned n;
        folder = suite_path("model-%d-%u", (int)getpid(), n++);
        must(mkdir(folder, 0755));
}

static void end(void)
{
        resolve_deinit(&resolved);
        quota_discharge(&budget.charge);
        ck_assert_ptr_null(quotas_find(&users, USER));
}

CORE_FIXTURE(begin, end);

/* A file with an empty tensor of this name, and a header of so many bytes. */
static void put(const char *file, const char *tensor, size_t n)
{
        char *data = must_alloc(8 + n);
        uint64_t prefix = htole64(n);
        memcpy(data, &prefix, sizeof(prefix));
        memset(data + 8, ' ', n);
        int len = sprintf(data + 8, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", tensor);
        data[8 + len] = ' ';
        file_write(format_text("%s/%s", folder, file), data, 8 + n);
        free(data);
}

static int resolve(void)
{
        ck_assert_int_eq(source_open(core_sources(), folder, false, &resolved.set, &error), 0);
        const struct resolve_opts opts = {.layout = &layout, .block_size = BLOCK, .keyring = &keyring_none};
        return resolve_plan(&resolved, &opts, &budget, &error);
}

static void hold(uint64_t max)
{
        must(quota_hold(&users, USER, &budget.charge, QUOTA_TABLES, 0));
        budget.user_max = max;
}

TEST(what_headers_take_is_charged_until_they_are_freed)
{
        put("a.safetensors", "a", HEADER);
        put("b.safetensors", "b", HEADER);
        hold(GiB);
        ck_assert_msg(resolve() == 0, "%s", error.text);
        ck_assert_uint_ge(quotas_held(&users, USER, QUOTA_TABLES), 2 * HEADER);
        ck_assert_uint_le(quotas_held(&users, USER, QUOTA_TABLES), 2 * HEADER + 64 * KiB);
        ck_assert_uint_eq(budget.bytes, budget.charge.amount);
}

/* The second one's is known from its length alone. */
TEST(a_header_beyond_the_limit_is_not_read)
{
        put("a.safetensors", "a", HEADER);
        put("b.safetensors", "b", HEADER);
        budget.bytes = RESOLVE_BYTES_MAX - MiB;
        FAILS_SAYING(error, resolve(), STREAMER_ELIMIT,
                     "its headers and tables of tensors would take more than 512 MiB");
        ck_assert_uint_le(budget.bytes, RESOLVE_BYTES_MAX);
}

TEST(a_header_beyond_the_users_share_is_not_read)
{
        put("a.safetensors", "a", HEADER);
        hold(MiB / 2);
        FAILS_WITH(error, resolve(), STREAMER_ELIMIT, "bytes of headers of loads under way");
        ck_assert_uint_le(quotas_held(&users, USER, QUOTA_TABLES), MiB / 2);
}

/* The bytes of a sparse file need no storage, but their digests need memory. */
TEST(the_digests_of_a_large_file_are_counted)
{
        char text[200];
        uint64_t bytes = UINT64_C(8) << 40, prefix = htole64(128);
        memset(text, ' ', sizeof(text));
        memcpy(text, &prefix, sizeof(prefix));
        int len = sprintf(text + 8, "{\"a\":{\"dtype\":\"U8\",\"shape\":[%llu],\"data_offsets\":[0,%llu]}}",
                          (unsigned long long)bytes, (unsigned long long)bytes);
        text[8 + len] = ' ';
        char *path = format_text("%s/a.safetensors", folder);
        file_write(path, text, 136);
        if (truncate(path, (off_t)(136 + bytes)) < 0)
                return; /* the file system has no such files */
        budget.bytes = RESOLVE_BYTES_MAX - 100 * MiB;
        FAILS_WITH(error, resolve(), STREAMER_ELIMIT, "more than 512 MiB");
        budget.bytes = 0;
        resolve_deinit(&resolved);
        ck_assert_msg(resolve() == 0, "%s", error.text);
        ck_assert_uint_ge(budget.bytes, (bytes >> 20) * 16);
}

/* The third file is not valid. */
TEST(a_name_in_two_files_is_found_before_the_next_file_is_parsed)
{
        put("a.safetensors", "x", 128);
        put("b.safetensors", "x", 128);
        file_write(format_text("%s/c.safetensors", folder), "\x10\0\0\0\0\0\0\0not a header....", 24);
        FAILS_WITH(error, resolve(), STREAMER_EFAILED, "tensor 'x' is in two files");
}
