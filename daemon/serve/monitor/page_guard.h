/* SPDX-License-Identifier: Apache-2.0
 *
 * Who may read the pages of a listener: TLS, whose clients may have a certificate, and bearer tokens. The files are
 * read again when they change; if the new ones are invalid, the previous ones stay, and the log has the reason.
 *
 * May block; used by the thread of the page server alone.
 */
#pragma once

#include "daemon/base/error.h"

struct ssl_st;
struct page_guard;

/* Paths; NULL: none. */
struct page_guard_opts {
        const char *certificate; /* PEM: the server's, then its chain */
        const char *key;         /* PEM, without a passphrase */
        const char *client_ca;   /* PEM: who signs the certificates of clients */
        const char *token_file;  /* a bearer token on each line */
};

/* STREAMER_EFAILED names the setting and the file. */
int page_guard_new(struct page_guard **guard, const struct page_guard_opts *opts, struct error *error);
struct page_guard *page_guard_free(struct page_guard *guard); /* accepts NULL */

/* Before each connection. */
void page_guard_refresh(struct page_guard *guard);
bool page_guard_has_tls(const struct page_guard *guard); /* false for NULL */
/* A connection that has to accept the client's handshake; NULL: no memory. */
struct ssl_st *page_guard_accept(const struct page_guard *guard, int fd);
/* Its certificate or its token says so, or neither is required. `tls` and `token` may be NULL. The time depends on no
 * byte of a token. */
bool page_guard_permits(const struct page_guard *guard, const struct ssl_st *tls, const char *token);
