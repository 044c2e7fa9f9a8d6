/* SPDX-License-Identifier: Apache-2.0
 *
 * Headers of encrypted files: what is accepted, and for each field what is refused, be it signed or not. And chunks, as
 * they are decrypted.
 */
#include "daemon/crypt/encrypted_file.h"

#include "tests/lib/core.h"
#include "tests/lib/encrypted_model.h"

static struct keyring *keyring;
static struct resolved resolved;
static struct error error;
static struct model *model;

static struct keyring *keys_of(const char *which, bool plaintext)
{
        struct keyring *made;
        char *path = suite_path("keys"), *file = format_text("file:%s", path);
        const struct keyring_opts opts = {.files = &file, .n_files = 1, .plaintext_tensors = plaintext};
        encrypted_keys_write(path, encrypted_keys(which));
        ck_assert_msg(keyring_new(&made, &opts, &error) == 0, "%s", error.text);
        return made;
}

static void begin(void)
{
        keyring = keys_of(NULL, false);
        model = model_new(5);
        model_set_metadata(model, "{}");
        model_add(model, "empty", "U8", (uint64_t[]){0}, 1);
        model_add(model, "large", "U8", (uint64_t[]){100000}, 1);
        model_add(model, "sm\"all \xc3\xa9", "U8", (uint64_t[]){7}, 1);
}

static void end(void)
{
        resolve_deinit(&resolved);
        keyring_free(keyring);
}

static const struct plan_layout layout = {.page = 4096, .align = 1, .granularity = 2 * MiB};

static int resolve_file(const char *path, const char *encrypted_only)
{
        struct resolve_budget budget = {.bytes = 0};
        const struct resolve_opts opts = {
                .layout = &layout, .block_size = MiB, .keyring = keyring, .encrypted_only = encrypted_only};
        error = (struct error){0};
        resolved = (struct resolved){.borrowed = false};
        int r = source_open(core_sources(), path, false, &resolved.set, &error);
        return r ?: resolve_plan(&resolved, &opts, &budget, &error);
}

static int resolve_form(const struct encrypted_form *form)
{
        char *path = suite_path("e.safetensors");
        encrypted_write(form, model, path);
        return resolve_file(path, NULL);
}

static void accepts(const struct encrypted_form *form)
{
        int r = resolve_form(form);
        ck_assert_msg(r == 0, "%s", error.text);
        ck_assert_ptr_nonnull(resolved.encrypted[0]);
}

CORE_FIXTURE(begin, end);

/* ---- what is accepted ---- */

static const struct {
        struct encrypted_form form;
        const char *cipher;
        uint64_t chunk;
} accepted[] = {
        {{.version1 = false}, "aes256gcm", 2 * MiB},
        {{.version1 = true}, "aes256gcm", CHUNK_WHOLE},
        {{.cipher = "aes128gcm", .chunk = 65536}, "aes128gcm", 65536},
        {{.cipher = "chacha20poly1305", .chunk = 16}, "chacha20poly1305", 16},
        {{.cipher = "chacha20poly1305", .version1 = true}, "chacha20poly1305", CHUNK_WHOLE},
        {{.chunk = UINT64_C(1) << 35}, "aes256gcm", UINT64_C(1) << 35},
        {{.find = "aes256gcm", .replace = "AES-256-GCM"}, "aes256gcm", 2 * MiB},
        {{.find = "\"alg\":\"ed25519\"",
          .replace = "\"alg\":\"Ed25519\",\"x\":\"AAAA\",\"jku\":\"file:///etc/passwd\""},
         "aes256gcm",
         2 * MiB},
        {{.find = "\"kid\":\"aes256gcm\",", .replace = ""}, "aes256gcm", 2 * MiB},
        {{.find = "\"kid\":\"signer\",", .replace = ""}, "aes256gcm", 2 * MiB},
        {{.find = "\"remote\":\"package model\\nallow = true\"", .replace = "\"remote\":\"\""}, "aes256gcm", 2 * MiB},
        {{.chunk = 50000, .counter = UINT32_MAX - 1}, "aes256gcm", 50000},
};

TEST(a_header_is_read, EACH(accepted))
{
        accepts(&accepted[_i].form);
        const struct encrypted_file *file = resolved.encrypted[0];
        ck_assert_str_eq(cipher_name(file->kind), accepted[_i].cipher);
        ck_assert_uint_eq(file->chunk, accepted[_i].chunk);
        ck_assert_str_eq(file->key->id, accepted[_i].cipher);
        ck_assert_str_eq(file->signer->id, "signer");
        ck_assert_str_eq(resolved.encryption->cipher, accepted[_i].cipher);
        ck_assert_str_eq(resolved.encryption->signer, "signer");
        ck_assert_uint_eq(resolved.encryption->n_keys, 1);
        ck_assert_str_eq(resolved.encryption->keys[0], accepted[_i].cipher);
        ck_assert_uint_eq(resolved.files[0].chunk, accepted[_i].chunk);
        /* What says that it is encrypted is not of the model. */
        const struct st_header *header = &resolved.files[0].header;
        ck_assert_uint_eq(header->n_metadata, 1);
        ck_assert_str_eq(header->text + header->metadata[0].key, "format");
}

/* ---- chunks ---- */

/* All of tensor i, in pieces of so many bytes, from the file's text. False: a tag is wrong. */
static bool decrypt(size_t i, const unsigned char *data, size_t step, unsigned char *to)
{
        const struct encrypted_file *file = resolved.encrypted[0];
        const struct st_tensor *t = &resolved.files[0].header.tensors[i];
        uint64_t bytes = t->end - t->begin;
        struct chunk chunk = {.file = NULL};
        int r = 0;
        for (uint64_t at = 0; r == 0 && at < bytes;) {
                if (chunk.file == NULL)
                        r = chunk_begin(&chunk, file, (uint32_t)i, at, bytes, &error);
                uint64_t left = chunk_end(file, at, bytes) - at, n = left < step ? left : step;
                ck_assert_uint_eq(chunk.at, at);
                r = r ?: chunk_decrypt(&chunk, to + at, data + t->begin + at, n, &error);
                at += n;
        }
        chunk_deinit(&chunk);
        ck_assert(r == 0 || r == CIPHER_WRONG_TAG);
        return r == 0;
}

TEST(chunks_are_decrypted_in_pieces, EACH(accepted))
{
        size_t size;
        accepts(&accepted[_i].form);
        char *file = file_read(suite_path("e.safetensors"), &size);
        unsigned char *data = (unsigned char *)file + resolved.files[0].header.data_start, *to = must_alloc(100000);
        for (size_t step = 100000; step > 0; step /= 30) {
                ck_assert(decrypt(1, data, step, to));
                ck_assert(model_check(model, 1, to));
                ck_assert(decrypt(2, data, step, to));
                ck_assert(model_check(model, 2, to));
        }
        data[99999] ^= 1;
        ck_assert(!decrypt(1, data, 4096, to));
        ck_assert(decrypt(2, data, 4096, to));
}

/* In place, in pieces of so many bytes. */
static void encrypt(const struct encrypted_file *file, size_t i, unsigned char *bytes, uint64_t n, size_t step)
{
        struct chunk chunk = {.file = NULL};
        for (uint64_t at = 0; at < n;) {
                if (chunk.file == NULL)
                        ck_assert_int_eq(chunk_begin(&chunk, file, (uint32_t)i, at, n, &error), 0);
                uint64_t left = chunk.end - chunk.at, piece = left < step ? left : step;
                ck_assert_int_eq(chunk_encrypt(&chunk, bytes + at, piece, &error), 0);
                at += piece;
        }
        ck_assert_ptr_null(chunk.file);
        chunk_deinit(&chunk);
}

/* With a copy of what the header says. */
TEST(what_was_decrypted_is_encrypted_to_the_same_bytes, EACH(accepted))
{
        size_t size, n;
        accepts(&accepted[_i].form);
        const struct st_header *header = &resolved.files[0].header;
        char *all = file_read(suite_path("e.safetensors"), &size);
        struct encrypted_file *file =
                encrypted_file_copy(resolved.encrypted[0], header->data_start - ST_PREFIX, header->n_tensors);
        ck_assert_ptr_nonnull(file);
        for (size_t i = 1; i <= 2; i++) {
                const struct st_tensor *t = &header->tensors[i];
                unsigned char *stored = (unsigned char *)all + header->data_start + t->begin;
                n = t->end - t->begin;
                for (size_t step = 100000; step > 0; step /= 30) {
                        unsigned char *bytes = must_alloc(n);
                        ck_assert(decrypt(i, (unsigned char *)all + header->data_start, 100000, bytes));
                        ck_assert_mem_ne(bytes, stored, n);
                        encrypt(file, i, bytes, n, step);
                        ck_assert_mem_eq(bytes, stored, n);
                        free(bytes);
                }
        }
        encrypted_file_free(file);
}

/* The chunks of a tensor have nonces of their own: none stands for another. */
TEST(chunks_cannot_be_exchanged)
{
        size_t size;
        unsigned char first[20000];
        accepts(&(struct encrypted_form){.chunk = 20000});
        char *file = file_read(suite_path("e.safetensors"), &size);
        unsigned char *data = (unsigned char *)file + resolved.files[0].header.data_start, *to = must_alloc(100000);
        memcpy(first, data, sizeof(first));
        memcpy(data, data + 20000, 20000);
        memcpy(data + 20000, first, 20000);
        ck_assert(!decrypt(1, data, 100000, to));
}

/* ---- what is refused, although its signature is right ---- */

#define E .chunk = 20000, .find
static const struct {
        struct encrypted_form form;
        const char *why;
} refused[] = {
        {{E = "\"version\":\"2\"", .replace = "\"version\":\"3\""}, "version '3' of CryptoTensors is not known (1, 2)"},
        {{E = ",\"version\":\"2\"", .replace = ""}, "version '' of CryptoTensors is not known"},
        {{E = "\"version\":\"2\"", .replace = "\"version\":2"}, "__crypto_keys__ of its metadata: "},
        {{E = "\"version\":\"2\"", .replace = "\"version\":\"1\""}, "tensor 'empty': its iv is missing"},
        {{E = "20000", .replace = "0"}, "its chunk_size of 0 bytes is not between 16 and 68719476704"},
        {{E = "20000", .replace = "1"}, "its chunk_size of 1 bytes is not between 16 and 68719476704"},
        {{E = "20000", .replace = "15"}, "its chunk_size of 15 bytes is not between 16"},
        {{E = "20000", .replace = "16"}, "tensor 'large': its tags has 80 bytes, and 100000 are needed"},
        {{E = "20000", .replace = "9223372036854775808"}, "its chunk_size of 9223372036854775808 bytes is not between"},
        {{E = "20000", .replace = "18446744073709551615"}, "its chunk_size of 18446744073709551615 bytes"},
        {{E = "20000", .replace = "18446744073709551616"}, "__crypto_keys__ of its metadata: "},
        {{E = "20000", .replace = "-1"}, "__crypto_keys__ of its metadata: "},
        {{E = "20000", .replace = "\"20000\""}, "__crypto_keys__ of its metadata: "},
        {{E = "20000", .replace = "100000"}, "tensor 'large': its tags has 80 bytes, and 16 are needed"},
        {{E = "\"alg\":\"aes256gcm\"", .replace = "\"alg\":\"aes256ctr\""},
         "encrypted with 'aes256ctr', which is none of aes128gcm, aes256gcm and chacha20poly1305"},
        {{E = "\"alg\":\"aes256gcm\",", .replace = ""}, "__crypto_keys__ of its metadata names no cipher"},
        {{E = "\"alg\":\"aes256gcm\"", .replace = "\"alg\":\"chacha20poly1305\""},
         "encrypted with chacha20poly1305, and key 'aes256gcm' of encryption.keys is of aes256gcm"},
        {{E = "\"kid\":\"aes256gcm\"", .replace = "\"kid\":\"gone\""},
         "encrypted with key 'gone' (aes256gcm), which is not among encryption.keys"},
        {{E = "\"kid\":\"signer\"", .replace = "\"kid\":\"gone\""},
         "signed by 'gone', which is no signer of encryption.keys"},
        {{E = "\"alg\":\"ed25519\"", .replace = "\"alg\":\"rs256\""}, "signed with 'rs256', and ed25519 is needed"},
        {{E = "\"sign\":", .replace = "\"sigh\":"}, "signed with '', and ed25519 is needed"},
        {{E = "{\"alg\"", .replace = "{\"alg\":\"x\",\"alg\""}, "__crypto_keys__ of its metadata: "},
        {{E = "allow = true", .replace = "allow = false"},
         "its policy is not the default one, and others are not evaluated"},
        {{E = "\"local\"", .replace = "\"locale\""}, "its policy is not the default one"},
        {{E = "\"local\":\"package model\\nallow = true\"", .replace = "\"local\":\"\""},
         "its policy is not the default one"},
        {{E = "{\"local\"", .replace = "[\"local\""}, "__policy__ of its metadata: "},
        {{E = "\"wrapped_key\"", .replace = "\"wrapped\""}, "tensor 'empty': its wrapped_key is missing"},
        {{E = "\"key_iv\"", .replace = "\"keyiv\""}, "tensor 'empty': its key_iv is missing"},
        {{E = "\"key_tag\"", .replace = "\"keytag\""}, "tensor 'empty': its key_tag is missing"},
        {{E = "\"base_iv\"", .replace = "\"iv\""}, "tensor 'empty': its base_iv is missing"},
        {{E = "\"tags\"", .replace = "\"tag\""}, "tensor 'empty': its tags is missing"},
        {{E = "\"tags\":\"", .replace = "\"tags\":\"AAAA"}, "tensor 'empty': its tags has 19 bytes, and 16 are needed"},
        {{E = "\"tags\":\"", .replace = "\"tags\":\"!"}, "tensor 'empty': its tags is not in base64"},
        {{E = "\"wrapped_key\":\"", .replace = "\"wrapped_key\":7,\"x\":\""}, "__encryption__ of its metadata: "},
        {{E = "\"key_tag\":\"", .replace = "\"key_tag\":\"AAAAAAAAAAAAAAAAAAAAAA==\",\"x\":\""},
         "tensor 'empty': its key does not open with key 'aes256gcm'"},
        {{E = "\"tags\":\"", .replace = "\"tags\":\"AAAAAAAAAAAAAAAAAAAAAA==\",\"x\":\""},
         "tensor 'empty': it does not match its tag: the file is damaged, or was changed"},
        {{E = "\"large\":", .replace = "\"larger\":"},
         "tensor 'larger' is listed as encrypted, and is not in the file"},
        {{E = "\"large\":", .replace = "\"empty\":"}, "tensor 'empty' is listed as encrypted twice"},
        {{E = "{\"empty\":", .replace = "[\"empty\":"}, "__encryption__ of its metadata: "},
        {{.chunk = 20000, .counter = UINT32_MAX - 3},
         "tensor 'large': the counter in its base_iv overflows within its 5 chunks"},
        {{.plain = 1},
         "tensor 'empty' is not encrypted, and so not protected (encryption.plaintext_tensors: allow admits such "
         "files)"},
        {{.is_unsigned = true}, "encrypted, and its header is not signed"},
        {{.other_signer = true},
         "the signature of its header is not one by 'signer': the header was changed, or is damaged"},
        {{.omit = "__crypto_keys__"}, "encrypted, and __crypto_keys__ is missing from its metadata"},
        {{.omit = "__encryption__"}, "encrypted, and __encryption__ is missing from its metadata"},
        {{.omit = "__policy__"}, "encrypted, and __policy__ is missing from its metadata"},
};

TEST(a_header_is_refused_that_is_signed, EACH(refused))
{
        FAILS_WITH(error, resolve_form(&refused[_i].form), STREAMER_EFAILED, refused[_i].why);
        ck_assert_ptr_nonnull(strstr(error.text, " (")); /* the file's name */
        ck_assert_ptr_nonnull(strstr(error.text, suite_path("e.safetensors")));
        ck_assert_ptr_null(resolved.encrypted[0]);
}

/* ---- changes after the signature ---- */

/* Each byte of the header, but its padding: the signature does not match, or the header is no header any more, or says
 * nothing of encryption by whose absence its tensors are noticed. */
TEST(no_byte_of_a_header_can_be_changed, .slow = true)
{
        size_t size;
        char *path = suite_path("e.safetensors");
        encrypted_write(&(struct encrypted_form){.chunk = 50000}, model, path);
        char *file = file_read(path, &size);
        uint64_t n;
        memcpy(&n, file, 8);
        for (size_t at = 8; at < 8 + n; at++)
                if (file[at] != ' ') {
                        int change = 1 << at % 8;
                        file[at] = (char)(file[at] ^ change);
                        file_write(path, file, size);
                        int r = resolve_file(path, NULL);
                        file[at] = (char)(file[at] ^ change);
                        ck_assert_msg(r < 0, "byte %zu ^ %d is accepted", at, change);
                        resolve_deinit(&resolved);
                }
}

/* Replaces the first `find` in the header of a written file, whose length may change. */
static void edit(const char *find, const char *replace)
{
        size_t size;
        char *path = suite_path("e.safetensors"), *file = file_read(path, &size);
        uint64_t n;
        memcpy(&n, file, 8);
        char *at = memmem(file + 8, n, find, strlen(find));
        ck_assert_ptr_nonnull(at);
        size_t before = (size_t)(at - file), after = before + strlen(find), grown = strlen(replace) - strlen(find);
        char *changed = must_alloc(size + grown);
        memcpy(changed, file, before);
        memcpy(changed + before, replace, strlen(replace));
        memcpy(changed + before + strlen(replace), file + after, size - after);
        n += grown;
        memcpy(changed, &n, 8);
        file_write(path, changed, size + grown);
}

static const struct {
        const char *find, *replace;
} edits[] = {
        /* The member elsewhere, while the metadata's has another name. */
        {"\"__signature__\":\"", "\"__Signature__\":\""},
        {"\"__signature__\":\"", "\"__signature__\": \""},
        {"\"__signature__\":\"", "\"\\u005f_signature__\":\""},
        {"\"__metadata__\"", " \"__metadata__\""},
        {"\"dtype\":\"U8\"", "\"dtype\":\"I8\""},
        {"\"format\":\"pt\"", "\"format\":\"tf\""},
        {"\"format\":\"pt\"", "\"format\":\"pt\",\"more\":\"\""},
        {"[0,100000]", "[0,  100000]"},
};

TEST(a_header_that_was_changed_is_refused, EACH(edits))
{
        ck_assert_int_eq(resolve_form(&(struct encrypted_form){.chunk = 20000}), 0);
        resolve_deinit(&resolved);
        edit(edits[_i].find, edits[_i].replace);
        ck_assert_int_eq(resolve_file(suite_path("e.safetensors"), NULL), STREAMER_EFAILED);
        ck_assert_msg(strstr(error.text, "the signature of its header is not one by 'signer'") != NULL ||
                              strstr(error.text, "its header is not signed") != NULL,
                      "%s", error.text);
}

/* A signature in a place where the parser does not take it for the header's. */
TEST(a_signature_outside_of_the_metadata_does_not_count)
{
        size_t size;
        char *path = suite_path("e.safetensors");
        ck_assert_int_eq(resolve_form(&(struct encrypted_form){.chunk = 20000}), 0);
        resolve_deinit(&resolved);
        char *file = file_read(path, &size);
        char *member = strstr(file + 8, "\"__signature__\":"), *text = strndup(member, 107);
        ck_assert_int_eq(text[106], ',');
        edit(text, "");
        edit("{\"dtype\"", format_text("{%s\"dtype\"", text));
        ck_assert_int_eq(resolve_file(path, NULL), STREAMER_EFAILED);
        ck_assert_ptr_nonnull(strstr(error.text, "encrypted, and its header is not signed"));
}

/* ---- keys and rules ---- */

static const struct {
        const char *keys, *why;
} missing[] = {{"", "signed by 'signer', which is no signer of encryption.keys"},
               {"aes256gcm", "signed by 'signer', which is no signer of encryption.keys"},
               {"signer", "encrypted with key 'aes256gcm' (aes256gcm), which is not among encryption.keys"},
               {"signer aes128gcm", "encrypted with key 'aes256gcm' (aes256gcm), which is not among encryption.keys"}};

TEST(a_file_whose_keys_are_missing_is_refused, EACH(missing))
{
        keyring_free(keyring);
        keyring = keys_of(missing[_i].keys, false);
        FAILS_WITH(error, resolve_form(&(struct encrypted_form){.version1 = false}), STREAMER_EFAILED, missing[_i].why);
}

static const struct encrypted_form nameless = {.find = "\"kid\":\"aes256gcm\",", .replace = ""};

TEST(a_key_without_an_id_is_the_only_one_of_its_cipher)
{
        struct keyring two = {.refs = 2};
        struct decryption_key keys[] = {keyring->keys[1], keyring->keys[1]};
        two.keys = keys;
        two.n_keys = 2;
        two.signers = keyring->signers;
        two.n_signers = 1;
        keyring = &two;
        FAILS_WITH(error, resolve_form(&nameless), STREAMER_EFAILED,
                   "encrypted with a key without an id, and encryption.keys has 2 of aes256gcm");
        resolve_deinit(&resolved);
        two.n_keys = 0;
        FAILS_WITH(error, resolve_form(&nameless), STREAMER_EFAILED,
                   "encrypted with a key of aes256gcm without an id, and encryption.keys has none");
}

TEST(another_key_of_the_same_id_is_noticed)
{
        char *path = suite_path("keys"), *text = encrypted_keys(NULL), *at = strstr(text, "\"aes256gcm\",\"k\":\"");
        at[strlen("\"aes256gcm\",\"k\":\"")] ^= 1;
        encrypted_keys_write(path, text);
        char *file = format_text("file:%s", path);
        const struct keyring_opts opts = {.files = &file, .n_files = 1};
        keyring_free(keyring);
        ck_assert_msg(keyring_new(&keyring, &opts, &error) == 0, "%s", error.text);
        FAILS_WITH(
                error, resolve_form(&(struct encrypted_form){.version1 = false}), STREAMER_EFAILED,
                "tensor 'empty': its key does not open with key 'aes256gcm': another one has this id, or the file is "
                "damaged");
}

TEST(tensors_that_are_not_encrypted_can_be_allowed)
{
        keyring_free(keyring);
        keyring = keys_of(NULL, true);
        accepts(&(struct encrypted_form){.plain = 2});
        ck_assert_uint_eq(resolved.encrypted[0]->tensors[1].wrapped_key, 0);
        ck_assert_uint_ne(resolved.encrypted[0]->tensors[2].wrapped_key, 0);
}

TEST(a_file_that_is_not_encrypted_is_not_affected, .to = 2)
{
        char *path = core_write(model, "plain.safetensors");
        int r = resolve_file(path, _i == 1 ? "this test says so" : NULL);
        if (_i == 0) {
                ck_assert_msg(r == 0, "%s", error.text);
                ck_assert_ptr_null(resolved.encrypted[0]);
                ck_assert_ptr_null(resolved.encryption);
                return;
        }
        FAILS_WITH(error, r, STREAMER_EPERM, "not encrypted, and only encrypted files are loaded: this test says so");
}

/* Published digests are of the stored bytes, which are not those of the tensors. */
TEST(sha256_of_an_encrypted_file_is_not_compared)
{
        struct resolve_budget budget = {.bytes = 0};
        const struct resolve_opts opts = {.layout = &layout, .block_size = MiB, .sha256 = true, .keyring = keyring};
        char *path = suite_path("e.safetensors");
        encrypted_write(&(struct encrypted_form){.version1 = false}, model, path);
        ck_assert_int_eq(source_open(core_sources(), path, false, &resolved.set, &error), 0);
        FAILS_WITH(error, resolve_plan(&resolved, &opts, &budget, &error), STREAMER_EUNSUPPORTED,
                   "encrypted: published SHA-256 digests are of what is stored, and the signature and tags are checked "
                   "instead");
}
