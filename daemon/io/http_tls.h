/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions of TLS that read ahead. libcurl asks its TLS library for one record of 16 KiB after the other,
 * and OpenSSL asks the socket twice for each: for the five bytes of its header, then for the rest. A session
 * that reads ahead asks for as much as there is.
 *
 * What libcurl does not know of then is what a session has read that nobody asked for: no socket will tell
 * of it. Who waits asks here first.
 */
#ifndef DAEMON_IO_HTTP_TLS_H
#define DAEMON_IO_HTTP_TLS_H

#include <stdbool.h>

/* For the connections that a handle (CURL) makes; where libcurl's TLS is another library, nothing. False: no
 * memory. */
bool http_tls_set(void *easy);

/* False: the session of its connection, if there is one, found too few bytes for a record when it was read
 * last. So no record is whole in it, and what it waits for is told by the socket. */
bool http_tls_may_have_more(void *easy);

#endif
