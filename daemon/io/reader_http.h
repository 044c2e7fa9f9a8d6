/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine for objects over HTTP(S): network threads, each with a loop and kept-alive connections of
 * its own, on which blocks are fetched as ranges straight to where they belong.
 */
#ifndef DAEMON_IO_READER_HTTP_H
#define DAEMON_IO_READER_HTTP_H

struct reader;

/* Its threads are started with the first job. */
void reader_http_init(struct reader *reader);

#endif
