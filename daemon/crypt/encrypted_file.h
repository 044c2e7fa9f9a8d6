/* SPDX-License-Identifier: Apache-2.0
 *
 * An encrypted safetensors file, as CryptoTensors writes it (docs/encryption.md): what its header says, and the
 * decryption of its tensors.
 *
 * Decryption, as a whole. The header is signed, and says for each tensor its data key, encrypted with a key of the
 * configuration, a nonce and tags. A *chunk* is what one tag covers: a part of a tensor (version 2), or all of it
 * (version 1). It has the length of its plaintext, so that tensors have the same places in both.
 *
 *   header read > signature compared, on its raw text > parsed > keys found, each data key opened once, empty tensors
 *   compared with their tags > planned: blocks end with chunks where these fit > read
 *   block: ciphertext in place (segment or slot) > decrypted there, piece by piece > tag compared > hashed > landed
 *
 * All of it is done by the thread that has read the bytes, while they are in its cache, and nothing is copied. What
 * makes unauthenticated bytes invisible:
 *
 *   hash, device, log     take the bytes of a chunk after its tag; of one that is longer than a block, only the
 *                         tensor's arrival comes after it, and a wrong tag fails the load
 *   clients               are lent the memory of an encrypted model when it is ready, not before: a mapping shows all
 * of a segment, and so what is being decrypted (attach_can_follow())
 *
 * A chunk that is longer than a block is read in the order of its bytes, by one thread: the run of its blocks is
 * reserved as a whole (plan_block.continues, reader.h "Runs").
 *
 * How it fails: with one line that names the tensor. A wrong tag fails the load.
 */
#pragma once

#include "daemon/crypt/keyring.h"
#include "daemon/model/safetensors.h"

/* ---- the signature ---- */

#define SIGNATURE_BYTES 64u

/* Of a header's raw text, which parsing changes. */
struct signed_text {
        bool found;
        uint32_t at;                 /* in the text, of the signature's value */
        const struct signer *signer; /* whose signature it is; NULL: of none in the keyring; borrowed */
        bool failed;                 /* OpenSSL could not compare it with that of each */
};
/* The text is the same afterwards. */
void signed_text_check(struct signed_text *checked, char *text, size_t n, const struct keyring *keyring);

/* ---- the header ---- */

/* Of one tensor: places in the header's text, of what was decoded there. */
struct encrypted_tensor {
        uint32_t wrapped_key; /* 0: the tensor is not encrypted */
        uint32_t key_nonce, key_tag;
        uint32_t nonce; /* of its first chunk */
        uint32_t tags;  /* of all, one after the other; 0: an empty tensor of version 1, which has none */
};

#define CHUNK_WHOLE UINT64_MAX /* one chunk is the tensor */
#define CHUNK_MIN CIPHER_TAG

struct encrypted_file {
        struct keyring *keyring; /* a reference */
        const char *text;        /* of the header, borrowed */
        char *own_text;          /* NULL: it is borrowed */
        enum cipher_kind kind;
        uint64_t chunk; /* bytes of a chunk; CHUNK_WHOLE */
        const struct decryption_key *key;
        const struct signer *signer;
        struct encrypted_tensor *tensors; /* in the order of the header's tensors */
};

/* Whether the header is that of an encrypted file, and what it says. It loses the pairs of metadata that say so. *out
 * is NULL where it is not encrypted. STREAMER_EFAILED, without the file's name; STREAMER_ENOMEM. */
int encrypted_file_read(struct encrypted_file **out, struct st_header *header, const struct signed_text *checked,
                        struct keyring *keyring, struct error *error);
/* The same for other uses: with a text of its own, of which the header has n bytes. NULL: no memory. */
struct encrypted_file *encrypted_file_copy(const struct encrypted_file *file, uint64_t n, size_t n_tensors);
struct encrypted_file *encrypted_file_free(struct encrypted_file *file); /* accepts NULL */

/* ---- chunks ---- */

/* Of a tensor of this file that is decrypted: where its present chunk ends. */
struct chunk {
        struct cipher cipher;
        const struct encrypted_file *file;  /* NULL: none is under way */
        uint32_t tensor;                    /* in the header */
        uint64_t number, end;               /* of the chunk in the tensor, and its end there */
        uint64_t at;                        /* the next byte, in the tensor */
        const struct encrypted_file *keyed; /* the cipher has the key of the tensor, of this file; NULL: none */
};

/* At the beginning of a chunk: byte `at` of a tensor that has `bytes`. 0, or STREAMER_EFAILED. */
int chunk_begin(struct chunk *chunk, const struct encrypted_file *file, uint32_t tensor, uint64_t at, uint64_t bytes,
                struct error *error);
/* The next n bytes of the chunk, at most the rest; `to` may be `from`. At its end the tag is compared: then `file` is
 * NULL. 0, CIPHER_WRONG_TAG, or STREAMER_EFAILED. */
int chunk_decrypt(struct chunk *chunk, unsigned char *to, const unsigned char *from, uint64_t n, struct error *error);
/* The reverse, of bytes that were decrypted before: the same key and nonce yield the same ciphertext, to which the
 * header has the tags. At the end of the chunk `file` is NULL. 0, or STREAMER_EFAILED. */
int chunk_encrypt(struct chunk *chunk, unsigned char *bytes, uint64_t n, struct error *error);
void chunk_deinit(struct chunk *chunk); /* wipes its key; accepts a zeroed one */

/* Where the chunk ends in which byte `at` of a tensor of so many bytes is. */
static inline uint64_t chunk_end(const struct encrypted_file *file, uint64_t at, uint64_t bytes)
{
        uint64_t left = bytes - at, rest = file->chunk == CHUNK_WHOLE ? left : file->chunk - at % file->chunk;
        return at + (rest < left ? rest : left);
}
