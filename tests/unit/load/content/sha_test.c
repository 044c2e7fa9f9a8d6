/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 of whole files, over the bytes that were loaded: the header as read, tensors from their segments, and
 * unused bytes between them from the file.
 */
#include "tests/lib/core.h"

#include "daemon/base/crc32c.h"
#include "daemon/base/hash.h"
#include "daemon/load/content/resolve.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

#define BLOCK (2 * MiB)

static struct fake_device fake;
static struct model *model;
static struct resolved resolved;
static struct segment segments[PLAN_MAX_SEGMENTS];
static struct error error;

static void publish_digests(void)
{
        for (size_t i = 0; i < resolved.set.n_objects; i++) {
                struct object *object = &resolved.set.objects[i];
                size_t size;
                char *image = file_read(object->path, &size);
                SHA256((const unsigned char *)image, size, object->sha256);
                object->has_sha256 = true;
        }
}

static void fill_segments(void)
{
        for (size_t i = 0; i < resolved.plan.n_tensors; i++) {
                const struct plan_tensor *t = &resolved.plan.tensors[i];
                if (t->bytes > 0)
                        model_contents(model, core_tensor(&resolved, model, i), 0,
                                       fake_memory(&segments[t->segment]) + t->offset, t->bytes);
        }
}

/* As a load at that point: opened, headers parsed, all bytes in place. */
static void sha_begin(const char *path, bool hidden)
{
        fake_device_init(&fake, "fake", 1024 * MiB, hidden);
        ck_assert_int_eq(source_open(core_sources(), path, false, &resolved.set, &error), 0);
        struct resolve_budget budget = {.bytes = 0};
        const struct resolve_opts opts = {
                .layout = &fake.device.layout, .block_size = BLOCK, .sha256 = true, .keyring = &keyring_none};
        int r = resolve_plan(&resolved, &opts, &budget, &error);
        ck_assert_msg(r == 0, "%s", error.text);
        for (size_t i = 0; i < resolved.plan.n_segments; i++)
                ck_assert_int_eq(fake.device.ops->alloc(&fake.device, resolved.plan.segments[i], &segments[i], &error),
                                 0);
        publish_digests();
        fill_segments();
}

static bool stop;

static int check(size_t file)
{
        error = (struct error){0};
        struct sha_check *step = sha_check_new(NULL, &resolved, &fake.device, segments, file, &stop);
        int r = SHA_MORE;
        while (r == SHA_MORE)
                r = sha_check_run(step, &error);
        sha_check_free(step);
        return r;
}

static void make_model(void)
{
        model = model_new(9);
        model_set_metadata(model, "{\"format\":\"pt\"}");
        model_add(model, "a", "U8", (uint64_t[]){7}, 1);
        model_add(model, "large", "U8", (uint64_t[]){3 * MiB + 11}, 1);
        model_add(model, "empty", "F32", (uint64_t[]){0}, 1);
        model_add(model, "mid", "BF16", (uint64_t[]){MiB / 2}, 1);
        model_add_many(model, "z", 20, 1001);
}

static void begin_file(bool hidden)
{
        make_model();
        sha_begin(core_write(model, "file.safetensors"), hidden);
}

static void begin_folder(bool stale)
{
        make_model();
        char *folder = suite_path("folder");
        model_write_sharded(model, folder, 3, stale);
        sha_begin(folder, false);
        ck_assert_uint_eq(resolved.set.n_objects, 3);
}

static unsigned char *byte_of(const char *name, uint64_t at)
{
        for (size_t i = 0; i < resolved.plan.n_tensors; i++) {
                const struct plan_tensor *t = &resolved.plan.tensors[i];
                if (strcmp(model->tensors[core_tensor(&resolved, model, i)].name, name) == 0)
                        return fake_memory(&segments[t->segment]) + t->offset + at;
        }
        ck_abort_msg("no tensor '%s'", name);
}

/* ---- one file ---- */

CORE_FIXTURE(NULL, NULL);

TEST(published_bytes_that_are_in_place_match, .to = 2)
{
        begin_file(_i == 1);
        ck_assert_msg(check(0) == 0, "%s", error.text);
}

TEST(one_wrong_bit_in_memory_does_not_match, .to = 2)
{
        begin_file(_i == 1);
        *byte_of("large", 2 * MiB + 5) ^= 1;
        ck_assert_int_eq(check(0), STREAMER_EFAILED);
}

TEST(a_digest_mismatch_names_both_and_the_file)
{
        begin_file(false);
        char published[65], read[65];
        struct object *object = &resolved.set.objects[0];
        hex_encode(read, object->sha256, 32);
        object->sha256[0] ^= 1;
        hex_encode(published, object->sha256, 32);
        FAILS_WITH(error, check(0), STREAMER_EFAILED, published);
        ck_assert_ptr_nonnull(strstr(error.text, read));
        ck_assert_ptr_nonnull(strstr(error.text, object->path));
}

/* The bytes in memory count: a file that has changed since says nothing about them. */
TEST(bytes_in_place_are_not_read_again)
{
        begin_file(false);
        char *path = resolved.set.objects[0].path;
        uint64_t at = resolved.files[0].header.data_start + 100;
        int fd = must(open(path, O_WRONLY | O_CLOEXEC));
        must(pwrite(fd, "changed", 7, (off_t)at));
        ck_assert_int_eq(check(0), 0);
}

TEST(a_file_without_a_tensor_is_its_header)
{
        model = model_new(1);
        sha_begin(core_write(model, "none.safetensors"), false);
        ck_assert_msg(check(0) == 0, "%s", error.text);
}

TEST(a_changed_header_does_not_match)
{
        begin_file(false);
        ck_assert_int_eq(EVP_DigestUpdate(resolved.texts[0].sha256, " ", 1), 1);
        ck_assert_int_eq(check(0), STREAMER_EFAILED);
}

/* ---- a crc32c of the store's ---- */

static void publish_crc32c(uint32_t flip)
{
        struct object *object = &resolved.set.objects[0];
        size_t size;
        char *image = file_read(object->path, &size);
        object->crc32c = crc32c(0, image, size) ^ flip;
        object->has_crc32c = true;
        object->has_sha256 = false;
}

TEST(a_crc32c_counts_where_no_digest_is_published, .to = 2)
{
        begin_file(_i == 1);
        publish_crc32c(0);
        ck_assert_msg(check(0) == 0, "%s", error.text);
}

TEST(another_crc32c_is_named)
{
        begin_file(false);
        publish_crc32c(1);
        const struct object *object = &resolved.set.objects[0];
        FAILS_SAYING(error, check(0), STREAMER_EFAILED,
                     format_text("crc32c differs: %08x published, %08x read (%s)", object->crc32c, object->crc32c ^ 1,
                                 object->path));
}

TEST(a_digest_comes_before_a_crc32c)
{
        begin_file(false);
        publish_crc32c(1);
        resolved.set.objects[0].has_sha256 = true;
        ck_assert_int_eq(check(0), 0);
}

/* ---- several files ---- */

TEST(each_file_is_verified_separately)
{
        begin_folder(false);
        *byte_of("large", 0) ^= 1; /* the second tensor: round robin puts it into the second file */
        ck_assert_int_eq(check(0), 0);
        ck_assert_int_eq(check(1), STREAMER_EFAILED);
        ck_assert_int_eq(check(2), 0);
}

TEST(stale_tensors_that_the_model_does_not_use_count_too)
{
        begin_folder(true);
        for (size_t i = 0; i < 3; i++)
                ck_assert_msg(check(i) == 0, "%s", error.text);
}

/* Where the file last has bytes of a tensor that another file gives the model; 0: nowhere. */
static uint64_t stale_bytes(size_t file)
{
        const struct st_header *header = &resolved.files[file].header;
        uint64_t at = 0, end = header->data_start;
        for (size_t t = 0; t < header->n_tensors; t++) {
                if (header->data_start + header->tensors[t].begin > end)
                        at = end;
                end = header->data_start + header->tensors[t].end;
        }
        return end < resolved.set.objects[file].version.size ? end : at;
}

/* The bytes between those of the model: a change in the file is detected. */
TEST(a_wrong_byte_in_a_stale_tensor_does_not_match)
{
        begin_folder(true);
        uint64_t at = stale_bytes(1);
        ck_assert_uint_gt(at, 0);
        int fd = must(open(resolved.set.objects[1].path, O_RDWR | O_CLOEXEC));
        char byte;
        must(pread(fd, &byte, 1, (off_t)at));
        byte = (char)(byte ^ 1);
        must(pwrite(fd, &byte, 1, (off_t)at));
        ck_assert_int_eq(check(0), 0);
        ck_assert_int_eq(check(1), STREAMER_EFAILED);
}

TEST(a_file_truncated_in_a_stale_tensor_is_an_error)
{
        begin_folder(true);
        for (size_t i = 0; i < 3; i++)
                must(truncate(resolved.set.objects[i].path, (off_t)resolved.files[i].header.data_start));
        unsigned stale = 0, failed = 0;
        for (size_t i = 0; i < 3; i++) {
                bool reads = stale_bytes(i) > 0;
                stale += reads;
                if (check(i) == 0)
                        ck_assert(!reads);
                else
                        failed += strstr(error.text, "cut short") != NULL;
        }
        ck_assert_uint_gt(stale, 0);
        ck_assert_uint_eq(failed, stale);
}

TEST(a_check_stops_when_asked)
{
        begin_file(false);
        stop = true;
        FAILS_SAYING(error, check(0), STREAMER_ECANCELED, "cancelled");
}
