/* SPDX-License-Identifier: Apache-2.0
 *
 * An Azure Blob store on loopback: the program of the same name.
 */
#pragma once

#include "tests/lib/base.h"

#define AZURE_ACCOUNT "devacct"
#define AZURE_KEY "dGhlIHNlY3JldCBrZXkgb2YgdGhlIHRlc3QgYWNjb3VudA=="
#define AZURE_SAS "sv=2023-11-03&se=2099-01-01T00%3A00%3A00Z&sp=rl&sig=the%2Fsecret%2Bsas%3D"

struct azure_store {
        char url[64];      /* "http://127.0.0.1:PORT", of the services */
        char endpoint[80]; /* of the account */
        pid_t pid;
        FILE *to, *from;
};

/* With pages of so many blobs; the first one of a list is empty if they are fewer than ten. */
void azure_store_start(struct azure_store *store, unsigned page);
void azure_store_stop(struct azure_store *store);

/* Runs one command of the program, its fields separated by tabs, which must succeed. Returns its answer; never freed.
 * From one process at a time. */
char *azure_store_do(struct azure_store *store, const char *format, ...) __attribute__((format(printf, 2, 3)));
