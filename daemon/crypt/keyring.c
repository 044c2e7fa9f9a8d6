/* SPDX-License-Identifier: Apache-2.0
 *
 * A file of keys is read into memory for secrets, parsed there in place, and wiped; only the keys are copied.
 */
#include "daemon/crypt/keyring.h"

#include "daemon/base/json/json.h"
#include "daemon/base/text/base64.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/text/text.h"
#include "daemon/base/util.h"
#include "daemon/crypt/key_memory.h"
#include "proto/require.h"

#include <openssl/evp.h>
#include <strings.h>
#include <sys/prctl.h>

#define FILE_MAX MiB
#define SECRETS_SIZE ((size_t)KEYRING_KEYS_MAX * CIPHER_KEY_MAX)

/* A file that is being parsed. */
struct reading {
        struct json json;
        struct keyring *keyring;
        struct error *error;
        const char *path;
};

/* The members of a key; NULL: absent. */
struct members {
        struct json_string type, algorithm, curve, id, secret, public_key;
        bool has_type, has_algorithm, has_curve, has_id, has_secret, has_public_key;
};

__attribute__((format(printf, 2, 3))) static bool refuse(struct reading *r, const char *format, ...)
{
        char why[300];
        va_list args;
        va_start(args, format);
        vsnprintf(why, sizeof(why), format, args);
        va_end(args);
        if (r->error->code == 0)
                error_set(r->error, STREAMER_EFAILED, "encryption.keys: %s (%s)", why, r->path);
        return false;
}

/* ---- a key ---- */

static bool is_text(const struct json *j, struct json_string s, const char *text)
{
        return s.len == strlen(text) && strncasecmp(j->text + s.at, text, s.len) == 0;
}

/* Into the middle of the text, which is wiped with it. */
static bool decode(struct reading *r, const char *id, struct json_string value, size_t size, unsigned char **bytes)
{
        char *text = r->json.text + value.at;
        size_t decoded;
        if (!base64_decode(text, value.len, BASE64_RELAXED, &decoded))
                return refuse(r, "key '%s' is not in base64", id);
        if (decoded != size)
                return refuse(r, "key '%s' has %zu bytes, and its algorithm takes %zu", id, decoded, size);
        *bytes = (unsigned char *)text;
        return true;
}

/* A key that is given twice counts once; another one of the same id is an error. */
static bool add_decryption_key(struct reading *r, const struct members *m, const char *id)
{
        struct keyring *keyring = r->keyring;
        unsigned char *bytes;
        int kind = m->has_algorithm ? cipher_find(r->json.text + m->algorithm.at, m->algorithm.len) : -1;
        if (kind < 0)
                return refuse(r, "key '%s': its 'alg' is none of aes128gcm, aes256gcm, chacha20poly1305", id);
        if (!m->has_secret)
                return refuse(r, "key '%s' has no 'k'", id);
        size_t size = cipher_key_size((enum cipher_kind)kind);
        if (!decode(r, id, m->secret, size, &bytes))
                return false;
        for (size_t i = 0; i < keyring->n_keys; i++) {
                const struct decryption_key *known = &keyring->keys[i];
                if (strcmp(known->id, id) != 0)
                        continue;
                bool same = known->kind == (enum cipher_kind)kind && memcmp(known->secret, bytes, size) == 0;
                return same || refuse(r, "two keys have the id '%s'", id);
        }
        if (keyring->n_keys == KEYRING_KEYS_MAX)
                return refuse(r, "more than %u keys", KEYRING_KEYS_MAX);
        unsigned char *secret = keyring->secrets + keyring->n_keys * CIPHER_KEY_MAX;
        char *copy = strdup(id);
        struct decryption_key *keys = array_grow(keyring->keys, keyring->n_keys, sizeof(*keys));
        if (keys != NULL)
                keyring->keys = keys;
        if (keys == NULL || copy == NULL) {
                free(copy);
                return refuse(r, "no memory");
        }
        memcpy(secret, bytes, size);
        keys[keyring->n_keys++] = (struct decryption_key){copy, (enum cipher_kind)kind, secret};
        return true;
}

static bool add_signer(struct reading *r, const struct members *m, const char *id)
{
        struct keyring *keyring = r->keyring;
        unsigned char *bytes;
        bool ed25519 = (m->has_algorithm && is_text(&r->json, m->algorithm, "ed25519")) ||
                       (m->has_curve && is_text(&r->json, m->curve, "ed25519"));
        if (!ed25519)
                return refuse(r, "signer '%s': its 'alg' is not ed25519", id);
        if (!m->has_public_key)
                return refuse(r, "signer '%s' has no 'x'", id);
        if (!decode(r, id, m->public_key, sizeof(keyring->signers[0].public_key), &bytes))
                return false;
        for (size_t i = 0; i < keyring->n_signers; i++)
                if (strcmp(keyring->signers[i].id, id) == 0)
                        return memcmp(keyring->signers[i].public_key, bytes, sizeof(keyring->signers[i].public_key)) ==
                                       0 ||
                               refuse(r, "two signers have the id '%s'", id);
        if (keyring->n_signers == KEYRING_KEYS_MAX)
                return refuse(r, "more than %u signers", KEYRING_KEYS_MAX);
        struct signer signer = {.id = strdup(id)};
        struct signer *signers = array_grow(keyring->signers, keyring->n_signers, sizeof(*signers));
        if (signers != NULL)
                keyring->signers = signers;
        memcpy(signer.public_key, bytes, sizeof(signer.public_key));
        signer.key = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, bytes, sizeof(signer.public_key));
        if (signers == NULL || signer.id == NULL || signer.key == NULL) {
                bool memory = signers == NULL || signer.id == NULL;
                EVP_PKEY_free(signer.key);
                free(signer.id);
                return memory ? refuse(r, "no memory") : refuse(r, "OpenSSL does not take the key of signer '%s'", id);
        }
        signers[keyring->n_signers++] = signer;
        return true;
}

static bool take_member(struct reading *r, struct json_string key, struct members *m)
{
        const struct {
                const char *name;
                struct json_string *value;
                bool *given;
        } known[] = {{"kty", &m->type, &m->has_type},   {"alg", &m->algorithm, &m->has_algorithm},
                     {"crv", &m->curve, &m->has_curve}, {"kid", &m->id, &m->has_id},
                     {"k", &m->secret, &m->has_secret}, {"x", &m->public_key, &m->has_public_key}};
        struct json *j = &r->json;
        for (size_t i = 0; i < ARRAY_SIZE(known); i++) {
                if (!json_is(j, key, known[i].name, strlen(known[i].name)))
                        continue;
                if (json_peek(j) != '"')
                        return refuse(r, "'%s' of a key is not a text", known[i].name);
                *known[i].given = true;
                return json_take_string(j, known[i].value);
        }
        return json_skip(j);
}

/* A key id, which is printed, and compared with the key ids in files. */
static bool is_id(const char *text, size_t len)
{
        for (size_t i = 0; i < len; i++)
                if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
                        return false;
        return len <= KEYRING_ID_MAX;
}

static bool add_key(struct reading *r, const struct members *m)
{
        const char *id = m->has_id ? r->json.text + m->id.at : "";
        if (m->has_id && !is_id(id, m->id.len))
                return refuse(r, "the 'kid' of a key is no line of at most %u bytes", KEYRING_ID_MAX);
        if (m->has_type && is_text(&r->json, m->type, "oct"))
                return add_decryption_key(r, m, id);
        if (m->has_type && is_text(&r->json, m->type, "okp"))
                return add_signer(r, m, id);
        return refuse(r, "key '%s': its 'kty' is neither oct nor okp", id);
}

/* A key, or a set: an object whose member "keys" is an array. */
static bool read_object(struct reading *r, bool is_member)
{
        struct json *j = &r->json;
        struct members members = {.has_type = false};
        struct json_string key;
        bool is_set = false;
        if (!json_open(j, '{'))
                return json_unexpected(j, "an object");
        size_t keys = j->n_keys;
        for (size_t n = 0; json_member(j, &n, &key) && json_keys_add(j, keys, key);) {
                if (is_member || !JSON_IS(j, key, "keys")) {
                        if (!take_member(r, key, &members))
                                return false;
                        continue;
                }
                is_set = true;
                if (!json_open(j, '['))
                        return json_unexpected(j, "an array");
                for (size_t i = 0; json_more(j, ']', i); i++)
                        if (!read_object(r, true))
                                return false;
        }
        return json_keys_end(j, keys) && (is_set || add_key(r, &members));
}

/* ---- a file ---- */

static bool parse(struct reading *r, char *text, size_t size)
{
        json_init(&r->json, text, size);
        bool ok = read_object(r, false) && json_end(&r->json);
        if (!ok && r->json.fault == JSON_NO_MEMORY)
                refuse(r, "no memory");
        else if (!ok)
                refuse(r, "it is not JSON of a key or a set of keys (offset %zu)", r->json.fault_at);
        json_deinit(&r->json);
        return ok;
}

static int read_file(struct keyring *keyring, const char *setting, struct error *error)
{
        cleanup_free char *path = NULL;
        cleanup_with(secret_keys_deinit) struct text text = {0};
        int r = secret_location(setting, &path, error)
                        ?: secret_read_keys("encryption.keys", path, FILE_MAX, &text, error);
        struct reading reading = {.keyring = keyring, .error = error, .path = path};
        return r == 0 && !parse(&reading, text.data, text.size) ? error->code : r;
}

/* ---- the keyring ---- */

struct keyring keyring_none = {.refs = 1};

int keyring_new(struct keyring **out, const struct keyring_opts *opts, struct error *error)
{
        struct keyring *keyring = calloc(1, sizeof(*keyring));
        if (keyring == NULL)
                return error_no_memory(error);
        keyring->refs = 1;
        keyring->plaintext_tensors = opts->plaintext_tensors;
        keyring->require_encrypted = opts->require_encrypted;
        error->code = 0;
        if (opts->n_files > 0)
                key_memory_open();
        if (opts->n_files > 0 && (keyring->secrets = secret_map(SECRETS_SIZE)) == NULL)
                error_no_memory(error);
        for (size_t i = 0; error->code == 0 && i < opts->n_files; i++)
                read_file(keyring, opts->files[i], error);
        if (error->code < 0) {
                keyring_free(keyring);
                return error->code;
        }
        *out = keyring;
        return 0;
}

struct keyring *keyring_ref(struct keyring *keyring)
{
        if (keyring != NULL)
                __atomic_add_fetch(&keyring->refs, 1, __ATOMIC_RELAXED);
        return keyring;
}

struct keyring *keyring_free(struct keyring *keyring)
{
        if (keyring == NULL || __atomic_sub_fetch(&keyring->refs, 1, __ATOMIC_ACQ_REL) > 0)
                return NULL;
        for (size_t i = 0; i < keyring->n_keys; i++)
                free(keyring->keys[i].id);
        for (size_t i = 0; i < keyring->n_signers; i++) {
                free(keyring->signers[i].id);
                EVP_PKEY_free(keyring->signers[i].key);
        }
        free(keyring->keys);
        free(keyring->signers);
        secret_unmap(keyring->secrets, SECRETS_SIZE);
        free(keyring);
        return NULL;
}

void keyring_protect_process(void)
{
        prctl(PR_SET_DUMPABLE, 0);
}
