/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of keys: their form, their mode, and what is refused.
 */
#include "daemon/crypt/keyring.h"

#include "tests/lib/encrypted_model.h"
#include "tests/lib/suite.h"

static struct keyring *keyring;
static struct error error;

/* A file of this text; its setting. */
static char *key_file(const char *name, const char *text)
{
        char *path = suite_path("%s", name);
        encrypted_keys_write(path, text);
        return format_text("file:%s", path);
}

static int read_keys(char *const *files, size_t n)
{
        const struct keyring_opts opts = {.files = files, .n_files = n};
        keyring = NULL;
        return keyring_new(&keyring, &opts, &error);
}

#define K16 "AAECAwQFBgcICQoLDA0ODw=="
#define K32 "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="

TEST(a_set_of_keys_is_read)
{
        char *file = key_file("set", encrypted_keys(NULL));
        ck_assert_msg(read_keys(&file, 1) == 0, "%s", error.text);
        ck_assert_uint_eq(keyring->n_keys, 3);
        ck_assert_str_eq(keyring->keys[1].id, "aes256gcm");
        ck_assert_int_eq(keyring->keys[1].kind, CIPHER_AES256GCM);
        ck_assert_uint_eq(keyring->n_signers, 1);
        ck_assert_str_eq(keyring->signers[0].id, "signer");
        keyring_free(keyring);
}

TEST(single_keys_of_several_files_are_read)
{
        char *files[] = {
                key_file("a",
                         "{\"kty\":\"oct\",\"alg\":\"AES-128-GCM\",\"k\":\"AAECAwQFBgcICQoLDA0ODw\",\"jku\":\"x\"}"),
                key_file("b", "{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"kid\":\"s\",\"x\":\"" K32 "\"}\n")};
        ck_assert_msg(read_keys(files, 2) == 0, "%s", error.text);
        ck_assert_uint_eq(keyring->n_keys, 1);
        ck_assert_str_eq(keyring->keys[0].id, "");
        ck_assert_int_eq(keyring->keys[0].secret[15], 15);
        ck_assert_uint_eq(keyring->n_signers, 1);
        keyring_free(keyring);
}

/* As while keys are replaced: the new file has the old keys, too. */
TEST(a_key_that_is_given_twice_counts_once)
{
        char *files[] = {key_file("a", encrypted_keys(NULL)), key_file("b", encrypted_keys(NULL))};
        ck_assert_msg(read_keys(files, 2) == 0, "%s", error.text);
        ck_assert_uint_eq(keyring->n_keys, 3);
        ck_assert_uint_eq(keyring->n_signers, 1);
        keyring_free(keyring);
}

TEST(no_file_is_no_key)
{
        ck_assert_int_eq(read_keys(NULL, 0), 0);
        ck_assert_uint_eq(keyring->n_keys + keyring->n_signers, 0);
        keyring_free(keyring);
}

#define OCT "\"kty\":\"oct\",\"kid\":\"a\","
static const struct {
        const char *text, *why;
} wrong[] = {
        {"", "the file is empty, or larger than 1.0 MiB"},
        {"[]", "it is not JSON of a key or a set of keys"},
        {"{\"keys\":[]", "it is not JSON of a key or a set of keys"},
        {"{\"keys\":{}}", "it is not JSON of a key or a set of keys"},
        {"{\"keys\":[]} {}", "it is not JSON of a key or a set of keys"},
        {"{\"keys\":[{\"keys\":[]}]}", "key '': its 'kty' is neither oct nor okp"},
        {"{}", "key '': its 'kty' is neither oct nor okp"},
        {"{\"kty\":\"rsa\",\"kid\":\"a\"}", "key 'a': its 'kty' is neither oct nor okp"},
        {"{\"kty\":1}", "'kty' of a key is not a text"},
        {"{" OCT "\"k\":\"" K32 "\"}", "key 'a': its 'alg' is none of aes128gcm, aes256gcm, chacha20poly1305"},
        {"{" OCT "\"alg\":\"aes192gcm\"}", "key 'a': its 'alg' is none of aes128gcm, aes256gcm, chacha20poly1305"},
        {"{" OCT "\"alg\":\"aes256gcm\"}", "key 'a' has no 'k'"},
        {"{" OCT "\"alg\":\"aes256gcm\",\"k\":\"" K16 "\"}", "key 'a' has 16 bytes, and its algorithm takes 32"},
        {"{" OCT "\"alg\":\"aes128gcm\",\"k\":\"" K32 "\"}", "key 'a' has 32 bytes, and its algorithm takes 16"},
        {"{" OCT "\"alg\":\"aes128gcm\",\"k\":\"?\"}", "key 'a' is not in base64"},
        {"{" OCT "\"alg\":\"aes128gcm\",\"k\":\"" K16 "\",\"kid\":\"b\"}", "it is not JSON of a key or a set of keys"},
        {"{\"kty\":\"oct\",\"alg\":\"aes128gcm\",\"kid\":\"a\\nb\",\"k\":\"" K16 "\"}",
         "the 'kid' of a key is no line of at most 255 bytes"},
        {"{\"kty\":\"okp\",\"kid\":\"s\",\"alg\":\"x25519\",\"x\":\"" K32 "\"}",
         "signer 's': its 'alg' is not ed25519"},
        {"{\"kty\":\"okp\",\"kid\":\"s\",\"alg\":\"ed25519\",\"d\":\"" K32 "\"}", "signer 's' has no 'x'"},
        {"{\"keys\":[{" OCT "\"alg\":\"aes128gcm\",\"k\":\"" K16 "\"},{" OCT "\"alg\":\"aes256gcm\",\"k\":\"" K32
         "\"}]}",
         "two keys have the id 'a'"},
        {"{\"keys\":[{\"kty\":\"okp\",\"alg\":\"ed25519\",\"kid\":\"s\",\"x\":\"" K32
         "\"},{\"kty\":\"okp\",\"alg\":\"ed25519\",\"kid\":\"s\",\"x\":\"BA"
         "ECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\"}]}",
         "two signers have the id 's'"},
};

/* No text repeats a key. */
TEST(a_wrong_file_is_refused, EACH(wrong))
{
        char *file = key_file("wrong", wrong[_i].text);
        FAILS_WITH(error, read_keys(&file, 1), STREAMER_EFAILED, wrong[_i].why);
        ck_assert_ptr_nonnull(strstr(error.text, "encryption.keys: "));
        ck_assert_ptr_nonnull(strstr(error.text, suite_path("wrong")));
        ck_assert_ptr_null(strstr(error.text, "AAECA"));
        ck_assert_ptr_null(keyring);
}

static const struct {
        mode_t mode;
        const char *why; /* NULL: it is read */
} modes[] = {{0400, NULL},
             {0600, NULL},
             {0440, NULL},
             {0640, NULL},
             {0604, "other users can read or write the file (mode 0604; chmod 400)"},
             {0644, "other users can read or write the file (mode 0644; chmod 400)"},
             {0602, "other users can read or write the file"},
             {0660, "other users can read or write the file"}};

TEST(a_file_that_others_can_read_is_refused, EACH(modes))
{
        char *file = key_file("mode", encrypted_keys(NULL));
        must(chmod(suite_path("mode"), modes[_i].mode));
        if (modes[_i].why == NULL)
                ck_assert_msg(read_keys(&file, 1) == 0, "%s", error.text);
        else
                FAILS_WITH(error, read_keys(&file, 1), STREAMER_EFAILED, modes[_i].why);
}

TEST(a_file_of_another_user_is_refused)
{
        char *file = key_file("owner", encrypted_keys(NULL));
        if (geteuid() != 0)
                SKIP("needs root");
        must(chown(suite_path("owner"), 60101, 0));
        FAILS_WITH(error, read_keys(&file, 1), STREAMER_EFAILED,
                   "the file belongs to uid 60101, and neither to root nor to the daemon's user");
}

TEST(what_is_no_file_is_refused)
{
        char *missing = format_text("file:%s", suite_path("missing")), *folder = format_text("file:%s", suite_folder());
        char *credential = format_text("credential:keys");
        FAILS_WITH(error, read_keys(&missing, 1), STREAMER_EFAILED, "No such file or directory");
        FAILS_WITH(error, read_keys(&folder, 1), STREAMER_EFAILED, "encryption.keys: not a regular file");
        unsetenv("CREDENTIALS_DIRECTORY");
        FAILS_WITH(error, read_keys(&credential, 1), STREAMER_EFAILED, "the service manager has passed none");
        key_file("keys", encrypted_keys(NULL));
        setenv("CREDENTIALS_DIRECTORY", suite_folder(), 1);
        ck_assert_msg(read_keys(&credential, 1) == 0, "%s", error.text);
}

/* More keys than there is memory for them: what is left out would be missing for a load. */
TEST(more_than_the_most_keys_are_refused, .to = 2)
{
        char *text = NULL;
        size_t size;
        FILE *f = open_memstream(&text, &size);
        fputs("{\"keys\":[", f);
        for (unsigned i = 0; i <= KEYRING_KEYS_MAX; i++)
                fprintf(f, "%s{\"kty\":\"%s\",\"alg\":\"%s\",\"kid\":\"%u\",\"%s\":\"" K32 "\"}", i > 0 ? "," : "",
                        _i == 0 ? "oct" : "okp", _i == 0 ? "aes256gcm" : "ed25519", i, _i == 0 ? "k" : "x");
        fputs("]}", f);
        fclose(f);
        char *file = key_file("many", text);
        FAILS_WITH(error, read_keys(&file, 1), STREAMER_EFAILED,
                   _i == 0 ? "more than 1024 keys" : "more than 1024 signers");
}
