/* SPDX-License-Identifier: Apache-2.0
 *
 * A client on the level of frames, for requests that the library would not send.
 */
#pragma once

#include "tests/lib/daemon.h"

#include "proto/codec.h"

struct wire {
        int fd;
        struct message reply; /* the last one */
        bool has_reply;
};

void wire_open(struct wire *w, const struct daemon *d);
void wire_close(struct wire *w);
void wire_hello(struct wire *w);                           /* sends the same hello as the library */
void wire_connect(struct wire *w, const struct daemon *d); /* wire_open() and wire_hello() */

/* Sends bytes as they are. False if the daemon has closed the connection. */
bool wire_send(struct wire *w, const void *data, size_t size);
/* Sends a frame. */
bool wire_frame(struct wire *w, const void *body, size_t size);
bool wire_request(struct wire *w, const struct request *request);
/* The bytes of `n` frames with this request, one after the other; the caller frees. */
char *wire_frames(const struct request *request, size_t n, size_t *size);
/* Sends {verb: "verb", id: id, key: "value"}; without the last pair if key is NULL. */
bool wire_verb(struct wire *w, const char *verb, uint64_t id, const char *key, const char *value);

/* Reads the next frame into w->reply; false if the daemon has closed the connection. Fails where none comes.
 * Received descriptors are
 * closed. */
bool wire_read(struct wire *w);
/* The next frame, which must come. */
const msgpack_object *wire_next(struct wire *w);
/* The next frame is the reply to a request that was accepted. */
void wire_read_ok(struct wire *w);
/* The next reply, which must come; skips events before it. The second one: it must accept its request. */
const msgpack_object *wire_reply(struct wire *w);
const msgpack_object *wire_reply_ok(struct wire *w);
/* Whether the next reply has this "code". */
bool wire_read_code(struct wire *w, const char *code);
/* The next reply must have this code, and its text contain `part`. */
void wire_read_error(struct wire *w, const char *code, const char *part);
void wire_read_whole_error(struct wire *w, const char *code, const char *text); /* and with no other text */
/* The text of the last reply must contain this. */
void wire_told(const struct wire *w, const char *part);
/* A member of the last frame, which must be there. */
uint64_t wire_number(const struct wire *w, const char *key);
/* Returns when the daemon has closed the connection; until then the test waits, and in the end fails by its limit of
 * time. */
void wire_read_to_end(struct wire *w);
