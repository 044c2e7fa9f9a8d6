/* SPDX-License-Identifier: Apache-2.0
 *
 * Encrypted files in the disk cache: a copy is what the store has, and nothing of it is decrypted on the disk.
 */
#include "tests/integration/disk_fixture.h"
#include "tests/integration/encrypted_fixture.h"

#include <fcntl.h>
#include <xxhash.h>

#define SOURCE "s3://b/one/model.safetensors"

static const char *object_path(void)
{
        return bucket("/one/model.safetensors");
}

static void start_encrypted(void)
{
        start_with(format_text("%s=64MiB", cache_path()),
                   format_text(DISK_DEFAULTS "encryption:\n  keys: [\"file:%s\"]\n"
                                             "  plaintext_tensors: allow\n",
                               keys_path()));
}

static void begin(void)
{
        begin_store();
        must(mkdir(bucket("/one"), 0755));
        encrypted_keys_write(keys_path(), encrypted_keys(NULL));
        model = encrypted_model(41);
        start_encrypted();
}

FIXTURE(.each = {begin, stop});

/* Chunks that are smaller than a leaf, that end within one, of several blocks, and the whole tensor. */
static const struct encrypted_form forms[] = {
        {.version1 = false},
        {.chunk = 65536},
        {.chunk = 1500000},
        {.chunk = 3 << 20},
        {.version1 = true},
        {.plain = 2},
        {.version1 = true, .plain = 1},
        {.cipher = "chacha20poly1305"},
        {.cipher = "chacha20poly1305", .version1 = true},
        {.cipher = "aes128gcm"},
};

static void assert_is_the_object(const char *path)
{
        size_t size, stored;
        char *object = file_read(object_path(), &size), *copy = file_read(path, &stored);
        ck_assert_uint_eq(stored, size);
        ck_assert_mem_eq(copy, object, size);
        free(object);
        free(copy);
}

TEST(a_copy_has_the_bytes_of_the_store, EACH(forms))
{
        encrypted_write(&forms[_i], model, object_path());
        store_behind(SOURCE, model, 1);
        ck_assert_uint_eq(each_stored("data", assert_is_the_object), 1);
        ctl_says(disk_daemon.socket, 0, "verified 1 ent", "cache", "verify", NULL);
        count_anew();
        ck_assert_str_eq(load_from(SOURCE, model), "disk");
        ck_assert_uint_le(store_bytes, 8);
        stop();
        start_encrypted();
        ck_assert_str_eq(load_from(SOURCE, model), "disk");
}

static const char *cached_entry;

static void take_path(const char *path)
{
        cached_entry = path;
}

/* The digests of what is in plain would tell whose weights these are. */
TEST(digests_of_what_is_encrypted_are_not_stored)
{
        XXH128_canonical_t digest;
        size_t size;
        encrypted_write(&forms[1], model, object_path());
        store_behind(SOURCE, model, 1);
        each_stored("entry", take_path);
        char *entry = file_read(cached_entry, &size);
        for (size_t i = 0; i < model->n; i++) {
                if (model->tensors[i].bytes == 0 || model->tensors[i].bytes > 1 << 20)
                        continue;
                unsigned char *bytes = malloc(model->tensors[i].bytes);
                model_contents(model, i, 0, bytes, model->tensors[i].bytes);
                XXH128_canonicalFromHash(&digest, XXH3_128bits(bytes, model->tensors[i].bytes));
                free(bytes);
                ck_assert_ptr_null(memmem(entry, size, &digest, sizeof(digest)));
        }
        free(entry);
}

static long spoil_at;

static void spoil(const char *path)
{
        flip_bits(path, spoil_at, 1);
}

static const struct damage {
        struct encrypted_form form;
        long at;
} damages[] = {
        {{.version1 = false}, -1},     {{.version1 = false}, 2 << 20}, {{.version1 = true}, 2 << 20},
        {{.version1 = true}, 4 << 20}, {{.chunk = 3 << 20}, 3 << 20},  {{.plain = 2}, 2 << 20},
};

TEST(a_damaged_copy_is_removed_and_the_object_read_from_its_store, EACH(damages))
{
        encrypted_write(&damages[_i].form, model, object_path());
        store_behind(SOURCE, model, 1);
        spoil_at = damages[_i].at;
        ck_assert_uint_eq(each_stored("data", spoil), 1);
        ck_assert_str_eq(load_from(SOURCE, model), "store");
        ck_assert(client_metric(client, "streamerd_disk_cache_damaged_total") == 1);
        store_behind(SOURCE, model, 1);
        ck_assert_str_eq(load_from(SOURCE, model), "disk");
}

TEST(without_its_key_a_copy_is_not_loaded)
{
        encrypted_write(&forms[0], model, object_path());
        store_behind(SOURCE, model, 1);
        stop();
        start();
        client_load_fails(client, SOURCE, "m", STREAMER_EFAILED, NULL);
        ck_assert_uint_eq(disk_number("entries"), 1);
}
