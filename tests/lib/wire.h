/* SPDX-License-Identifier: Apache-2.0
 *
 * A client without a library: bytes on the socket. For what no library would send.
 */
#ifndef TESTS_LIB_WIRE_H
#define TESTS_LIB_WIRE_H

#include "tests/lib/daemon.h"

#include "proto/codec.h"

struct wire {
        int fd;
        struct message reply; /* the last one */
        bool has_reply;
};

void wire_open(struct wire *w, const struct daemon *d);
void wire_close(struct wire *w);
void wire_hello(struct wire *w); /* as the library does */

/* As they are. False where the daemon has closed the connection. */
bool wire_send(struct wire *w, const void *data, size_t size);
/* With the frame's header. */
bool wire_frame(struct wire *w, const void *body, size_t size);
bool wire_request(struct wire *w, const struct request *request);
/* {verb: "verb", id: id, key: "value"} or without the last pair where key is NULL. */
bool wire_verb(struct wire *w, const char *verb, uint64_t id, const char *key, const char *value);

/* The next frame into w->reply; false when the daemon has closed the connection. Fails after 20 s.
 * Descriptors that come with it are closed. */
bool wire_read(struct wire *w);
/* Whether the reply has this "code"; events on the way to it are skipped. */
bool wire_read_code(struct wire *w, const char *code);
/* The daemon closes it: reads to the end. */
bool wire_ends(struct wire *w);

#endif
