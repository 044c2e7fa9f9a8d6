/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/crypt/encryption.h"

#include "daemon/base/util.h"

#include <string.h>

struct encryption *encryption_alloc(void)
{
        struct encryption *encryption = calloc(1, sizeof(*encryption));
        if (encryption != NULL)
                encryption->refs = 1;
        return encryption;
}

struct encryption *encryption_unknown(void)
{
        struct encryption *encryption = encryption_alloc();
        if (encryption == NULL)
                return NULL;
        encryption->cipher = strdup("unknown");
        encryption->signer = strdup("");
        bool ok = encryption->cipher != NULL && encryption->signer != NULL;
        return ok ? encryption : encryption_free(encryption);
}

/* Appends a word to a text of several, once. False: no memory. */
static bool add_word(char **text, const char *word)
{
        size_t len = strlen(word);
        if (len == 0)
                return *text != NULL || (*text = strdup("")) != NULL;
        for (const char *at = *text; at != NULL && (at = strstr(at, word)) != NULL; at += len)
                if ((at == *text || at[-1] == ' ') && (at[len] == '\0' || at[len] == ','))
                        return true;
        char *longer = filled(*text) != NULL ? format_new("%s, %s", *text, word) : strdup(word);
        if (longer == NULL)
                return false;
        free(*text);
        *text = longer;
        return true;
}

static bool add_key(struct encryption *encryption, const char *id)
{
        for (size_t i = 0; i < encryption->n_keys; i++)
                if (strcmp(encryption->keys[i], id) == 0)
                        return true;
        if (encryption->n_keys == ENCRYPTION_KEYS_MAX)
                return true;
        char *copy = strdup(id);
        if (copy != NULL)
                encryption->keys[encryption->n_keys++] = copy;
        return copy != NULL;
}

int encryption_new(struct encryption **out, struct encrypted_file *const *files, size_t n, struct error *error)
{
        struct encryption *encryption = NULL;
        bool ok = true;
        for (size_t i = 0; ok && i < n; i++) {
                if (files[i] == NULL)
                        continue;
                if (encryption == NULL)
                        encryption = encryption_alloc();
                ok = encryption != NULL && add_word(&encryption->cipher, cipher_name(files[i]->kind)) &&
                     add_word(&encryption->signer, files[i]->signer->id) && add_key(encryption, files[i]->key->id);
        }
        if (!ok) {
                encryption_free(encryption);
                return error_no_memory(error);
        }
        *out = encryption;
        return 0;
}

struct encryption *encryption_ref(struct encryption *encryption)
{
        if (encryption != NULL)
                __atomic_add_fetch(&encryption->refs, 1, __ATOMIC_RELAXED);
        return encryption;
}

struct encryption *encryption_free(struct encryption *encryption)
{
        if (encryption == NULL || __atomic_sub_fetch(&encryption->refs, 1, __ATOMIC_ACQ_REL) > 0)
                return NULL;
        for (size_t i = 0; i < ENCRYPTION_KEYS_MAX; i++)
                free(encryption->keys[i]);
        free(encryption->cipher);
        free(encryption->signer);
        free(encryption);
        return NULL;
}
