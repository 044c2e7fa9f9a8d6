/* SPDX-License-Identifier: Apache-2.0
 *
 * The credential of one identity: fetched once for all callers, and renewed before it expires, on a thread of its own.
 * Callers never wait: they get an answer that asks them to retry. What is fetched, and from where, is the provider's.
 */
#pragma once

#include "daemon/source/store/credential.h"

/* On the renewal's thread, but for free(). */
struct renewal_ops {
        /* CREDENTIAL_FOUND or an error. Blocks, for a bounded time. */
        int (*fetch)(void *provider, struct credential *credential, struct error *error);
        void (*stop)(void *provider); /* from another thread: a fetch ends soon, with STREAMER_ECANCELED */
        void (*free)(void *provider);
};

struct renewal; /* shared by threads */

/* Owns the provider, unless it fails. */
int renewal_new(struct renewal **renewal, const struct renewal_ops *ops, void *provider, struct error *error);
/* After its last use. Cancels a fetch in progress and waits until it has ended. Accepts NULL, returns NULL. */
struct renewal *renewal_free(struct renewal *renewal);

enum renewal_state {
        RENEWAL_READY, /* with a copy of the credential */
        RENEWAL_LATER, /* it is being fetched, or another one may replace that which the store has refused */
};

/* An enum renewal_state, or an error; STREAMER_EPERM: no provider has one. */
int renewal_get(struct renewal *renewal, struct credential *credential, struct error *error);

/* "credentials from ORIGIN", "no credentials" yet, "anonymous". */
void renewal_describe(struct renewal *renewal, char *text, size_t size);

/* The store refuses the credential of this number. True if there is another one, or may be soon; false also for one
 * that has replaced a refused one a moment ago. */
bool renewal_refused(struct renewal *renewal, uint64_t number);
