/* SPDX-License-Identifier: Apache-2.0
 *
 * The header of an encrypted file: two bytes are the number of its data bytes, the rest is its text. Its signature
 * counts as that of a signer that is trusted, so that what it signs is reached.
 *
 * The check of the signature leaves the text as it is. An accepted header says for each tensor where its key, nonce and
 * tags are, within its text.
 */
#include "daemon/crypt/encryption.h"
#include "proto/codec.h"
#include "proto/scope.h"
#include "tests/fuzz/fuzz.h"
#include "tests/lib/encrypted_model.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct keyring *keyring;

static void read_keys(void)
{
        cleanup_free char *text = encrypted_keys(NULL);
        char file[64], *files[] = {file};
        struct error error;
        const struct keyring_opts opts = {.files = files, .n_files = 1, .plaintext_tensors = true};
        int fd = memfd_create("keys", MFD_CLOEXEC);
        holds(write(fd, text, strlen(text)) == (ssize_t)strlen(text) && fchmod(fd, 0400) == 0);
        snprintf(file, sizeof(file), "file:/proc/self/fd/%d", fd);
        holds(keyring_new(&keyring, &opts, &error) == 0);
        close(fd);
}

/* Where the parser finds it; else what was found in the raw text. */
static struct signed_text trusted(const struct st_header *header, struct signed_text checked)
{
        for (size_t i = 0; i < header->n_metadata; i++)
                if (strcmp(header->text + header->metadata[i].key, "__signature__") == 0)
                        checked = (struct signed_text){true, header->metadata[i].value, &keyring->signers[0], false};
        return checked;
}

static void check_place(const struct st_header *header, uint32_t at, uint64_t size)
{
        holds(at > 0 && size <= header->data_start && at <= header->data_start - ST_PREFIX - size);
}

static void check_file(const struct encrypted_file *file, const struct st_header *header)
{
        unsigned char bytes[64] = {0};
        holds(file->chunk >= CHUNK_MIN && file->key != NULL && file->signer != NULL);
        for (uint32_t i = 0; i < header->n_tensors; i++) {
                const struct encrypted_tensor *e = &file->tensors[i];
                uint64_t size = header->tensors[i].end - header->tensors[i].begin;
                if (e->wrapped_key == 0)
                        continue;
                check_place(header, e->wrapped_key, cipher_key_size(file->kind));
                check_place(header, e->key_nonce, CIPHER_NONCE);
                check_place(header, e->key_tag, CIPHER_TAG);
                if (size == 0)
                        continue;
                uint64_t n = file->chunk == CHUNK_WHOLE ? 1 : (size - 1) / file->chunk + 1;
                check_place(header, e->nonce, CIPHER_NONCE);
                check_place(header, e->tags, CIPHER_TAG * n);
                /* Any bytes: they do not match their tag. */
                struct chunk chunk = {.file = NULL};
                struct error error;
                holds(chunk_begin(&chunk, file, i, 0, size, &error) == 0);
                uint64_t len = chunk_end(file, 0, size);
                if (len <= sizeof(bytes))
                        chunk_decrypt(&chunk, bytes, bytes, len, &error);
                chunk_deinit(&chunk);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct st_header header;
        struct st_error st;
        struct error error = {0};
        struct signed_text checked;
        struct encrypted_file *file = NULL;
        if (size < 2 || size > 100000)
                return 0;
        if (keyring == NULL)
                read_keys();
        uint64_t n = size - 2, bytes = data[0] | (uint64_t)data[1] << 8;
        char *text = fuzz_copy(data + 2, n, 0);
        signed_text_check(&checked, text, n, keyring);
        holds(memcmp(text, data + 2, n) == 0);
        if (st_parse(&header, text, n, ST_PREFIX + n + bytes, &st) == 0) {
                const struct signed_text as_if = trusted(&header, checked);
                int r = encrypted_file_read(&file, &header, &as_if, keyring, &error);
                holds(r == 0 || (file == NULL && error.text[0] != '\0' && codec_utf8(error.text, strlen(error.text))));
                if (file != NULL) {
                        struct encryption *encryption;
                        check_file(file, &header);
                        holds(encryption_new(&encryption, &file, 1, &error) == 0);
                        encryption_free(encryption);
                }
                encrypted_file_free(file);
                st_header_deinit(&header);
        }
        free(text);
        return 0;
}
