/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/crypt/encryption.h"

#include "tests/lib/suite.h"

static struct decryption_key keys[] = {{.id = (char[]){"a"}}, {.id = (char[]){"b"}}};
static struct signer signers[] = {{.id = (char[]){"ann"}}, {.id = (char[]){"an"}}, {.id = (char[]){""}}};
static struct error error;

static struct encryption *of(struct encrypted_file *const *files, size_t n)
{
        struct encryption *e;
        ck_assert_int_eq(encryption_new(&e, files, n, &error), 0);
        return e;
}

TEST(each_word_is_named_once)
{
        struct encrypted_file a = {.kind = CIPHER_AES256GCM, .key = &keys[0], .signer = &signers[0]},
                              b = {.kind = CIPHER_AES128GCM, .key = &keys[1], .signer = &signers[1]},
                              c = {.kind = CIPHER_AES256GCM, .key = &keys[0], .signer = &signers[2]};
        struct encryption *e = of((struct encrypted_file *[]){NULL, &a, &b, NULL, &a, &c}, 6);
        ck_assert_str_eq(e->cipher, "aes256gcm, aes128gcm");
        ck_assert_str_eq(e->signer, "ann, an");
        ck_assert_uint_eq(e->n_keys, 2);
        ck_assert_str_eq(e->keys[1], "b");
        ck_assert_ptr_eq(encryption_ref(e), e);
        encryption_free(e);
        ck_assert_str_eq(e->keys[0], "a");
        encryption_free(e);
        e = of((struct encrypted_file *[]){&c, &b}, 2); /* a signer without an id */
        ck_assert_str_eq(e->signer, "an");
}

TEST(files_that_are_not_encrypted_have_none)
{
        ck_assert_ptr_null(of((struct encrypted_file *[]){NULL, NULL}, 2));
        ck_assert_ptr_null(of(NULL, 0));
        ck_assert_ptr_null(encryption_ref(NULL));
}

TEST(more_keys_than_are_listed_are_left_out)
{
        struct decryption_key many[ENCRYPTION_KEYS_MAX + 5];
        struct encrypted_file files[ENCRYPTION_KEYS_MAX + 5], *list[ENCRYPTION_KEYS_MAX + 5];
        for (size_t i = 0; i < ENCRYPTION_KEYS_MAX + 5; i++) {
                many[i].id = format_text("%zu", i);
                files[i] = (struct encrypted_file){.key = &many[i], .signer = &signers[0]};
                list[i] = &files[i];
        }
        ck_assert_uint_eq(of(list, ENCRYPTION_KEYS_MAX + 5)->n_keys, ENCRYPTION_KEYS_MAX);
}
