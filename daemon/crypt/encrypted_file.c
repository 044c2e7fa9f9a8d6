/* SPDX-License-Identifier: Apache-2.0
 *
 * Four members of the metadata are the format's, each JSON or base64 in a string. The JSON in them is parsed in place,
 * as the header was; base64 is decoded in place. So a tensor takes 20 bytes besides the header's text.
 */
#include "daemon/crypt/encrypted_file.h"

#include "daemon/base/text/base64.h"
#include "daemon/base/util.h"
#include "daemon/crypt/key_memory.h"
#include "proto/require.h"

#include <endian.h>
#include <inttypes.h>
#include <strings.h>

#define DEFAULT_CHUNK (UINT64_C(2) << 20)
/* The only policy: others would have to be evaluated. */
#define POLICY "package model\nallow = true"

enum member { MEMBER_KEYS, MEMBER_ENCRYPTION, MEMBER_POLICY, MEMBER_SIGNATURE, MEMBERS };
static const char *const member_names[MEMBERS] = {
        [MEMBER_KEYS] = "__crypto_keys__",
        [MEMBER_ENCRYPTION] = "__encryption__",
        [MEMBER_POLICY] = "__policy__",
        [MEMBER_SIGNATURE] = "__signature__",
};

/* What a member of keys says of one. */
struct key_info {
        struct json_string type, algorithm, id;
        bool given, has_type, has_algorithm, has_id;
};

struct header_reading {
        struct encrypted_file *file;
        struct st_header *header;
        struct keyring *keyring;
        struct error *error;
        struct st_pair members[MEMBERS]; /* key_len 0: absent */
        struct json json;                /* of the member that is being parsed; its text is in the header's */
        struct key_info enc, sign;
        bool version1;
        struct nameset names; /* of the header's tensors */
};

__attribute__((format(printf, 2, 3))) static bool refuse(struct header_reading *r, const char *format, ...)
{
        va_list args;
        if (r->error->code != 0)
                return false;
        va_start(args, format);
        error_vset(r->error, STREAMER_EFAILED, format, args);
        va_end(args);
        return false;
}

static bool no_memory(struct header_reading *r)
{
        if (r->error->code == 0)
                error_no_memory(r->error);
        return false;
}

/* ---- members ---- */

/* Moves them out of the metadata. False: there are none. */
static bool take_members(struct header_reading *r)
{
        struct st_header *header = r->header;
        size_t n = header->n_metadata;
        header->n_metadata = 0;
        for (size_t i = 0; i < n; i++) {
                const struct st_pair pair = header->metadata[i];
                enum member m = 0;
                while (m < MEMBERS && strcmp(header->text + pair.key, member_names[m]) != 0)
                        m++;
                if (m < MEMBERS)
                        r->members[m] = pair;
                else
                        header->metadata[header->n_metadata++] = pair;
        }
        return header->n_metadata < n;
}

static void open_member(struct header_reading *r, enum member m)
{
        json_init(&r->json, r->header->text + r->members[m].value, r->members[m].value_len);
}

/* What parse() has found, or the fault of the text. */
static bool close_member(struct header_reading *r, enum member m, bool ok)
{
        ok = ok && json_end(&r->json);
        if (!ok && r->json.fault == JSON_NO_MEMORY)
                no_memory(r);
        else if (!ok)
                refuse(r, "%s of its metadata: %s (offset %zu)", member_names[m],
                       r->json.fault != JSON_OK ? r->json.detail : "of an unexpected form", r->json.fault_at);
        json_deinit(&r->json);
        return ok;
}

static bool take_text(struct json *j, struct json_string *value, bool *given)
{
        if (json_peek(j) != '"')
                return json_unexpected(j, "a text");
        *given = true;
        return json_take_string(j, value);
}

/* ---- __crypto_keys__ ---- */

/* What it says of key material (k, x) and of where to find it (jku) is not used. */
static bool parse_key_info(struct json *j, struct key_info *info)
{
        struct json_string key;
        info->given = true;
        if (!json_open(j, '{'))
                return json_unexpected(j, "an object");
        size_t keys = j->n_keys;
        for (size_t n = 0; json_member(j, &n, &key) && json_keys_add(j, keys, key);)
                if (!(JSON_IS(j, key, "kty")   ? take_text(j, &info->type, &info->has_type)
                      : JSON_IS(j, key, "alg") ? take_text(j, &info->algorithm, &info->has_algorithm)
                      : JSON_IS(j, key, "kid") ? take_text(j, &info->id, &info->has_id)
                                               : json_skip(j)))
                        return false;
        return json_keys_end(j, keys);
}

/* A text of the file, for chunks. */
static const char *shown(const struct json *j, const struct json_string *s, char quoted[NAME_QUOTE])
{
        error_escape_n(quoted, NAME_QUOTE, j->text + s->at, s->len);
        return quoted;
}

static bool has_id(const struct json *j, const struct key_info *info, const char *id)
{
        return !info->has_id || (info->id.len == strlen(id) && memcmp(j->text + info->id.at, id, info->id.len) == 0);
}

/* The key for data keys; without an id in the header, the only one of its algorithm. */
static bool find_key(struct header_reading *r)
{
        const struct json *j = &r->json;
        const struct keyring *keyring = r->keyring;
        char quoted[NAME_QUOTE];
        int kind = r->enc.has_algorithm ? cipher_find(j->text + r->enc.algorithm.at, r->enc.algorithm.len) : -1;
        if (!r->enc.has_algorithm)
                return refuse(r, "%s of its metadata names no cipher", member_names[MEMBER_KEYS]);
        if (kind < 0)
                return refuse(r, "encrypted with '%s', which is none of aes128gcm, aes256gcm and chacha20poly1305",
                              shown(j, &r->enc.algorithm, quoted));
        r->file->kind = (enum cipher_kind)kind;
        size_t n = 0;
        const struct decryption_key *other = NULL;
        for (size_t i = 0; i < keyring->n_keys; i++) {
                if (!has_id(j, &r->enc, keyring->keys[i].id))
                        continue;
                if (keyring->keys[i].kind != r->file->kind) {
                        other = &keyring->keys[i];
                        continue;
                }
                r->file->key = &keyring->keys[i];
                n++;
        }
        if (n == 1)
                return true;
        if (n > 1)
                return refuse(r, "encrypted with a key without an id, and encryption.keys has %zu of %s", n,
                              cipher_name(r->file->kind));
        if (!r->enc.has_id)
                return refuse(r, "encrypted with a key of %s without an id, and encryption.keys has none",
                              cipher_name(r->file->kind));
        if (other != NULL)
                return refuse(r, "encrypted with %s, and key '%s' of encryption.keys is of %s",
                              cipher_name(r->file->kind), shown(j, &r->enc.id, quoted), cipher_name(other->kind));
        return refuse(r, "encrypted with key '%s' (%s), which is not among encryption.keys",
                      shown(j, &r->enc.id, quoted), cipher_name(r->file->kind));
}

static bool parse_version(struct header_reading *r, struct json_string version, uint64_t chunk, bool has_chunk)
{
        const struct json *j = &r->json;
        char quoted[NAME_QUOTE];
        r->version1 = JSON_IS(j, version, "1");
        if (!r->version1 && !JSON_IS(j, version, "2"))
                return refuse(r, "version '%s' of CryptoTensors is not known (1, 2)", shown(j, &version, quoted));
        r->file->chunk = r->version1 ? CHUNK_WHOLE : has_chunk ? chunk : DEFAULT_CHUNK;
        return true;
}

static bool parse_keys(struct header_reading *r)
{
        struct json *j = &r->json;
        struct json_string key, version = {0, 0};
        uint64_t chunk = 0;
        bool has_version = false, has_chunk = false;
        if (!json_open(j, '{'))
                return json_unexpected(j, "an object");
        size_t keys = j->n_keys;
        for (size_t n = 0; json_member(j, &n, &key) && json_keys_add(j, keys, key);) {
                if (JSON_IS(j, key, "chunk_size"))
                        has_chunk = true;
                if (!(JSON_IS(j, key, "version")      ? take_text(j, &version, &has_version)
                      : JSON_IS(j, key, "chunk_size") ? json_whole(j, JSON_SYNTAX, &chunk)
                      : JSON_IS(j, key, "enc")        ? parse_key_info(j, &r->enc)
                      : JSON_IS(j, key, "sign")       ? parse_key_info(j, &r->sign)
                                                      : json_skip(j)))
                        return false;
        }
        return json_keys_end(j, keys) && parse_version(r, version, chunk, has_chunk);
}

/* ---- the signature ---- */

static bool check_signature(struct header_reading *r, const struct signed_text *checked)
{
        const struct json *j = &r->json;
        const struct st_pair *member = &r->members[MEMBER_SIGNATURE];
        char quoted[NAME_QUOTE];
        const struct signer *named = NULL;
        size_t n = 0;
        bool ed25519 = r->sign.has_algorithm && r->sign.algorithm.len == strlen("ed25519") &&
                       strncasecmp(j->text + r->sign.algorithm.at, "ed25519", r->sign.algorithm.len) == 0;
        if (!ed25519)
                return refuse(r, "signed with '%s', and ed25519 is needed",
                              r->sign.has_algorithm ? shown(j, &r->sign.algorithm, quoted) : "");
        for (size_t i = 0; i < r->keyring->n_signers; i++) {
                const struct signer *signer = &r->keyring->signers[i];
                if (!has_id(j, &r->sign, signer->id))
                        continue;
                n++;
                if (named == NULL || signer == checked->signer)
                        named = signer;
        }
        if (n == 0)
                return refuse(r, "signed by '%s', which is no signer of encryption.keys",
                              r->sign.has_id ? shown(j, &r->sign.id, quoted) : "");
        if (checked->failed && checked->signer != named)
                return refuse(r, "OpenSSL could not compare the signature of its header");
        /* The member that was cut out is the one of the metadata. */
        if (!checked->found || checked->at != member->value || checked->signer != named)
                return refuse(r,
                              "the signature of its header is not one by '%s': the header was changed, or is damaged",
                              named->id);
        r->file->signer = named;
        return true;
}

/* ---- __policy__ ---- */

static bool parse_policy(struct header_reading *r)
{
        struct json *j = &r->json;
        struct json_string key, text = {0, 0};
        bool given = false, known = true;
        if (!json_open(j, '{'))
                return json_unexpected(j, "an object");
        size_t keys = j->n_keys;
        for (size_t n = 0; json_member(j, &n, &key) && json_keys_add(j, keys, key);) {
                bool local = JSON_IS(j, key, "local");
                if (!take_text(j, &text, &given))
                        return false;
                /* That of remote readers is none of ours where it is empty. */
                known = known && (local || JSON_IS(j, key, "remote")) &&
                        (JSON_IS(j, text, POLICY) || (!local && text.len == 0));
        }
        if (!json_keys_end(j, keys))
                return false;
        return known || refuse(r, "its policy is not the default one, and others are not evaluated");
}

/* ---- __encryption__ ---- */

static const char *tensor_name(const struct header_reading *r, size_t tensor, char quoted[NAME_QUOTE])
{
        const struct st_tensor *t = &r->header->tensors[tensor];
        error_escape_n(quoted, NAME_QUOTE, st_name(r->header, t), t->name_len);
        return quoted;
}

static uint64_t bytes_of(const struct header_reading *r, size_t tensor)
{
        return r->header->tensors[tensor].end - r->header->tensors[tensor].begin;
}

/* Chunks of a tensor; an empty one has one, too. */
static uint64_t chunks_of(const struct encrypted_file *file, uint64_t bytes)
{
        return bytes == 0 || file->chunk == CHUNK_WHOLE ? 1 : (bytes - 1) / file->chunk + 1;
}

/* A field of a tensor: its name, where it belongs, and how long it must be. */
struct field {
        const char *name;
        uint32_t *at;
        uint64_t size;
        bool given;
};

static bool take_field(struct header_reading *r, const struct st_tensor *tensor, struct field *field)
{
        struct json *j = &r->json;
        struct json_string value;
        char quoted[NAME_QUOTE];
        size_t decoded;
        size_t index = (size_t)(tensor - r->header->tensors);
        if (!take_text(j, &value, &field->given))
                return false;
        if (!base64_decode(j->text + value.at, value.len, BASE64_STANDARD, &decoded))
                return refuse(r, "tensor '%s': its %s is not in base64", tensor_name(r, index, quoted), field->name);
        if (decoded != field->size)
                return refuse(r, "tensor '%s': its %s has %zu bytes, and %" PRIu64 " are needed",
                              tensor_name(r, index, quoted), field->name, decoded, field->size);
        if (decoded > 0)
                *field->at = r->members[MEMBER_ENCRYPTION].value + value.at;
        return true;
}

static bool parse_tensor(struct header_reading *r, size_t index)
{
        struct json *j = &r->json;
        struct encrypted_tensor *e = &r->file->tensors[index];
        const struct st_tensor *tensor = &r->header->tensors[index];
        uint64_t bytes = bytes_of(r, index);
        bool none = r->version1 && bytes == 0; /* nothing is encrypted, and nothing compared */
        struct field fields[] = {
                {.name = "wrapped_key", .at = &e->wrapped_key, .size = cipher_key_size(r->file->kind)},
                {.name = "key_iv", .at = &e->key_nonce, .size = CIPHER_NONCE},
                {.name = "key_tag", .at = &e->key_tag, .size = CIPHER_TAG},
                {.name = r->version1 ? "iv" : "base_iv", .at = &e->nonce, .size = none ? 0 : CIPHER_NONCE},
                {.name = r->version1 ? "tag" : "tags",
                 .at = &e->tags,
                 .size = none ? 0 : CIPHER_TAG * chunks_of(r->file, bytes)},
        };
        struct json_string key;
        char quoted[NAME_QUOTE];
        if (!json_open(j, '{'))
                return json_unexpected(j, "an object");
        size_t keys = j->n_keys;
        for (size_t n = 0; json_member(j, &n, &key) && json_keys_add(j, keys, key);) {
                struct field *field = fields;
                while (field < fields + ARRAY_SIZE(fields) && !json_is(j, key, field->name, strlen(field->name)))
                        field++;
                if (!(field < fields + ARRAY_SIZE(fields) ? take_field(r, tensor, field) : json_skip(j)))
                        return false;
        }
        for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
                if (j->fault == JSON_OK && !fields[i].given)
                        return refuse(r, "tensor '%s': its %s is missing", tensor_name(r, index, quoted),
                                      fields[i].name);
        return json_keys_end(j, keys);
}

static bool parse_encryption(struct header_reading *r)
{
        struct json *j = &r->json;
        struct st_header *header = r->header;
        const struct names_in_text tensors = {header->text, header->tensors, sizeof(*header->tensors)};
        struct json_string name;
        char quoted[NAME_QUOTE];
        if (!nameset_begin(&r->names, header->n_tensors))
                return no_memory(r);
        for (uint32_t i = 0; i < header->n_tensors; i++)
                nameset_add(&r->names, names_in_text_at, &tensors, i);
        if (!json_open(j, '{'))
                return json_unexpected(j, "an object");
        for (size_t n = 0; json_member(j, &n, &name);) {
                uint32_t index =
                        nameset_find(&r->names, names_in_text_at, &tensors, (struct name){j->text + name.at, name.len});
                if (index == NAMES_NONE)
                        return refuse(r, "tensor '%s' is listed as encrypted, and is not in the file",
                                      shown(j, &name, quoted));
                if (r->file->tensors[index].wrapped_key != 0)
                        return refuse(r, "tensor '%s' is listed as encrypted twice", tensor_name(r, index, quoted));
                if (!parse_tensor(r, index))
                        return false;
        }
        return j->fault == JSON_OK;
}

/* ---- tensors ---- */

static const unsigned char *bytes_at(const struct encrypted_file *file, uint32_t at)
{
        return (const unsigned char *)file->text + at;
}

static void free_key(unsigned char **key)
{
        key_memory_free(*key, CIPHER_KEY_MAX);
}

/* The data key, for free_key(). 0, CIPHER_WRONG_TAG, STREAMER_EFAILED or STREAMER_ENOMEM. */
static int open_key(const struct encrypted_file *file, const struct encrypted_tensor *e, unsigned char **key,
                    struct error *error)
{
        *key = key_memory_alloc(CIPHER_KEY_MAX);
        if (*key == NULL)
                return error_no_memory(error);
        return cipher_open(file->kind, file->key->secret, bytes_at(file, e->key_nonce), *key,
                           bytes_at(file, e->wrapped_key), cipher_key_size(file->kind), bytes_at(file, e->key_tag),
                           error);
}

/* Its data key opens; its chunks can be counted; an empty one has its tag. */
static bool check_tensor(struct header_reading *r, size_t index)
{
        const struct encrypted_file *file = r->file;
        const struct encrypted_tensor *e = &file->tensors[index];
        uint64_t bytes = bytes_of(r, index), chunks = chunks_of(file, bytes);
        cleanup_with(free_key) unsigned char *key = NULL;
        char quoted[NAME_QUOTE];
        if (e->wrapped_key == 0)
                return r->keyring->plaintext_tensors ||
                       refuse(r,
                              "tensor '%s' is not encrypted, and so not protected (encryption.plaintext_tensors: allow "
                              "admits such files)",
                              tensor_name(r, index, quoted));
        if (file->chunk == CHUNK_WHOLE && bytes > cipher_message_max(file->kind))
                return refuse(r, "tensor '%s' is longer than a chunk of %s may be", tensor_name(r, index, quoted),
                              cipher_name(file->kind));
        if (file->chunk != CHUNK_WHOLE) {
                uint32_t first;
                memcpy(&first, bytes_at(file, e->nonce) + 8, sizeof(first));
                if (chunks - 1 > UINT32_MAX - be32toh(first))
                        return refuse(r,
                                      "tensor '%s': the counter in its base_iv overflows within its %" PRIu64 " chunks",
                                      tensor_name(r, index, quoted), chunks);
        }
        int rc = open_key(file, e, &key, r->error);
        if (rc == CIPHER_WRONG_TAG)
                refuse(r,
                       "tensor '%s': its key does not open with key '%s': another one has this id, or the file is "
                       "damaged",
                       tensor_name(r, index, quoted), file->key->id);
        if (rc == 0 && bytes == 0 && e->tags != 0) {
                rc = cipher_open(file->kind, key, bytes_at(file, e->nonce), NULL, NULL, 0, bytes_at(file, e->tags),
                                 r->error);
                if (rc == CIPHER_WRONG_TAG)
                        refuse(r, "tensor '%s': it does not match its tag: the file is damaged, or was changed",
                               tensor_name(r, index, quoted));
        }
        return rc == 0;
}

/* ---- all of it ---- */

static bool read_members(struct header_reading *r, const struct signed_text *checked)
{
        for (enum member m = 0; m < MEMBERS; m++)
                if (r->members[m].key_len == 0)
                        return m == MEMBER_SIGNATURE
                                       ? refuse(r, "encrypted, and its header is not signed")
                                       : refuse(r, "encrypted, and %s is missing from its metadata", member_names[m]);
        open_member(r, MEMBER_KEYS);
        bool ok = parse_keys(r) && check_signature(r, checked) && find_key(r);
        if (!close_member(r, MEMBER_KEYS, ok))
                return false;
        uint64_t chunk = r->file->chunk;
        if (!r->version1 && (chunk < CHUNK_MIN || chunk > cipher_message_max(r->file->kind)))
                return refuse(r, "its chunk_size of %" PRIu64 " bytes is not between %u and %" PRIu64, chunk, CHUNK_MIN,
                              cipher_message_max(r->file->kind));
        open_member(r, MEMBER_POLICY);
        if (!close_member(r, MEMBER_POLICY, parse_policy(r)))
                return false;
        open_member(r, MEMBER_ENCRYPTION);
        if (!close_member(r, MEMBER_ENCRYPTION, parse_encryption(r)))
                return false;
        for (size_t i = 0; i < r->header->n_tensors; i++)
                if (!check_tensor(r, i))
                        return false;
        return true;
}

int encrypted_file_read(struct encrypted_file **out, struct st_header *header, const struct signed_text *checked,
                        struct keyring *keyring, struct error *error)
{
        struct header_reading r = {.header = header, .keyring = keyring, .error = error};
        error->code = 0;
        *out = NULL;
        if (!take_members(&r))
                return 0;
        struct encrypted_file *file = calloc(1, sizeof(*file));
        if (file == NULL)
                return error_no_memory(error);
        r.file = file;
        *file = (struct encrypted_file){.keyring = keyring_ref(keyring), .text = header->text};
        file->tensors = calloc(header->n_tensors + 1, sizeof(*file->tensors));
        bool ok = file->tensors != NULL ? read_members(&r, checked) : no_memory(&r);
        nameset_deinit(&r.names);
        if (!ok) {
                encrypted_file_free(file);
                require(error->code < 0);
                return error->code;
        }
        *out = file;
        return 0;
}

struct encrypted_file *encrypted_file_copy(const struct encrypted_file *file, uint64_t n, size_t n_tensors)
{
        struct encrypted_file *copy = malloc(sizeof(*copy));
        if (copy == NULL)
                return NULL;
        *copy = *file;
        copy->keyring = keyring_ref(file->keyring);
        copy->text = copy->own_text = malloc(n + 1);
        copy->tensors = calloc(n_tensors + 1, sizeof(*copy->tensors));
        if (copy->text == NULL || copy->tensors == NULL)
                return encrypted_file_free(copy);
        memcpy(copy->own_text, file->text, n);
        memcpy(copy->tensors, file->tensors, n_tensors * sizeof(*copy->tensors));
        return copy;
}

struct encrypted_file *encrypted_file_free(struct encrypted_file *file)
{
        if (file == NULL)
                return NULL;
        keyring_free(file->keyring);
        free(file->tensors);
        free(file->own_text);
        free(file);
        return NULL;
}

/* ---- chunks ---- */

/* The counter follows the first chunk's, and does not overflow (check_tensor()). */
static void chunk_nonce(const struct encrypted_file *file, const struct encrypted_tensor *e, uint64_t number,
                        unsigned char nonce[CIPHER_NONCE])
{
        uint32_t counter;
        memcpy(nonce, bytes_at(file, e->nonce), CIPHER_NONCE);
        memcpy(&counter, nonce + 8, sizeof(counter));
        counter = be32toh(counter);
        require(number <= UINT32_MAX - counter);
        counter = htobe32(counter + (uint32_t)number);
        memcpy(nonce + 8, &counter, sizeof(counter));
}

int chunk_begin(struct chunk *chunk, const struct encrypted_file *file, uint32_t tensor, uint64_t at, uint64_t bytes,
                struct error *error)
{
        const struct encrypted_tensor *e = &file->tensors[tensor];
        cleanup_with(free_key) unsigned char *key = NULL;
        unsigned char nonce[CIPHER_NONCE];
        bool keyed = chunk->keyed == file && chunk->tensor == tensor;
        require(chunk->file == NULL && at < bytes && e->wrapped_key != 0 && e->tags != 0);
        require(at % file->chunk == 0);
        uint64_t number = at / file->chunk;
        chunk_nonce(file, e, number, nonce);
        int r = keyed ? 0 : open_key(file, e, &key, error);
        if (r == CIPHER_WRONG_TAG) /* it did, when the header was read */
                r = error_set(error, STREAMER_EFAILED, "OpenSSL could not decrypt");
        r = r ?: cipher_begin(&chunk->cipher, file->kind, key, nonce, error);
        chunk->keyed = NULL;
        if (r == 0) {
                chunk->keyed = file;
                chunk->file = file;
                chunk->tensor = tensor;
                chunk->number = number;
                chunk->at = at;
                chunk->end = chunk_end(file, at, bytes);
        }
        return r;
}

int chunk_decrypt(struct chunk *chunk, unsigned char *to, const unsigned char *from, uint64_t n, struct error *error)
{
        const struct encrypted_file *file = chunk->file;
        require(file != NULL && n <= chunk->end - chunk->at);
        int r = cipher_update(&chunk->cipher, to, from, n, error);
        chunk->at += n;
        if (r < 0 || chunk->at < chunk->end)
                return r;
        uint64_t tag = file->tensors[chunk->tensor].tags + chunk->number * CIPHER_TAG;
        chunk->file = NULL;
        return cipher_end(&chunk->cipher, (const unsigned char *)file->text + tag, error);
}

/* These ciphers add one stream of bytes either way. What was not decrypted has no tag to be compared with. */
int chunk_encrypt(struct chunk *chunk, unsigned char *bytes, uint64_t n, struct error *error)
{
        require(chunk->file != NULL && n <= chunk->end - chunk->at);
        int r = cipher_update(&chunk->cipher, bytes, bytes, n, error);
        chunk->at += n;
        if (chunk->at == chunk->end)
                chunk->file = NULL;
        return r;
}

void chunk_deinit(struct chunk *chunk)
{
        cipher_deinit(&chunk->cipher);
        *chunk = (struct chunk){.file = NULL};
}
