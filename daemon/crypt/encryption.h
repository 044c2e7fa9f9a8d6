/* SPDX-License-Identifier: Apache-2.0
 *
 * How the files of a model are encrypted, for people: its ciphers, the ids of its keys and signers. Immutable; shared
 * by threads.
 */
#pragma once

#include "daemon/crypt/encrypted_file.h"

#define ENCRYPTION_KEYS_MAX 64u

struct encryption {
        unsigned refs;                   /* atomic */
        char *cipher;                    /* separated by commas if the files have several */
        char *signer;                    /* likewise */
        char *keys[ENCRYPTION_KEYS_MAX]; /* each once; more are left out */
        size_t n_keys;
};

struct encryption *encryption_alloc(void); /* an empty one; NULL: no memory */
/* Of files that are encrypted, of which nothing else is known. NULL: no memory. */
struct encryption *encryption_unknown(void);
/* Of these files, NULL where one is not encrypted; *out is NULL if none is. STREAMER_ENOMEM. */
int encryption_new(struct encryption **out, struct encrypted_file *const *files, size_t n, struct error *error);
struct encryption *encryption_ref(struct encryption *encryption);  /* NULL stays NULL */
struct encryption *encryption_free(struct encryption *encryption); /* with the last reference */
