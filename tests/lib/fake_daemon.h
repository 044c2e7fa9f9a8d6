/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon that does what a conversation says: for what the real one never sends, or not at the moment
 * that a test needs. The conversation runs in a thread of the test:
 *
 *   client = fake_connect(&fake, "hello\n"
 *                                "> load watch=true\n"
 *                                "< op=5 name=m\n"
 *                                "* op op=5 state=ready\n");
 *
 *   hello [-F | +F]     accept a connection, and answer its hello; without feature F, or with one more
 *   accept              accept a connection
 *   > VERB [FIELDS]     read a request: it must have this verb and these fields (0 and false: absent as well)
 *   < [FIELDS]          reply to the last request; <N: to the one N before it
 *   < model             reply to an attach with f->model
 *   with N ...          these descriptors of f->model go with the next message
 *   raw #HEX            bytes as they are
 *   ! CODE TEXT         fail the last request with a wire code
 *   * EVENT [FIELDS]    an event
 *   arrive N            tensor N of f->model has arrived
 *   pause               until fake_resume()
 *   end                 the client closes the connection
 *   close, vanish       close the connection; and the listening socket as well
 *
 * FIELDS are NAME=VALUE, a VALUE is 12, -1, true, null, word, 'text', #hex, [VALUE ...] or {FIELDS}. Successive
 * messages are sent in one piece.
 */
#pragma once

#include "streamer/client.h"
#include "proto/codec.h"
#include "proto/frame.h"
#include "tests/lib/base.h"

#define FAKE_REQUESTS 8

struct fake_daemon {
        char socket[108];
        int listener, fd;
        pthread_t thread;
        const char *text;
        void (*script)(struct fake_daemon *f); /* instead of a text */
        struct fake_model *model;
        sem_t turn; /* of the conversation */
        struct frame_reader in;
        struct message request;      /* the last one */
        uint64_t ids[FAKE_REQUESTS]; /* of the last requests; the newest is the first */
        msgpack_sbuffer out;         /* messages that are not yet sent */
        int fds[3];                  /* that are sent with them */
        size_t n_fds;
};

void fake_start(struct fake_daemon *f, const char *text);
/* One that text cannot express. It calls the functions below. */
void fake_start_script(struct fake_daemon *f, void (*script)(struct fake_daemon *f));
void fake_finish(struct fake_daemon *f); /* waits for the end of the conversation; f->request can be read then */
void fake_resume(struct fake_daemon *f); /* ends a pause */

/* ---- in a script ---- */

void fake_say(struct fake_daemon *f, const char *text);
/* Reads a request, whatever it is, to f->request and f->ids[0]; false: the client has closed the connection. */
bool fake_next(struct fake_daemon *f);

/* ---- the client ---- */

/* Starts the daemon and connects. */
streamer_client *fake_connect(struct fake_daemon *f, const char *text);
streamer_client *fake_connect_script(struct fake_daemon *f, void (*script)(struct fake_daemon *f));
/* Closes, and waits for the end of the conversation. */
void fake_disconnect(struct fake_daemon *f, streamer_client *c);

#define CALL_GIVES(c, verb, args, want)                                                                                \
        do {                                                                                                           \
                char *call_reply;                                                                                      \
                ck_assert_int_eq(streamer_call((c), (verb), (args), &call_reply), 0);                                  \
                ck_assert_str_eq(call_reply, (want));                                                                  \
                free(call_reply);                                                                                      \
        } while (0)

/* Of this client; NULL: of calls without one. */
#define FAILS(c, call, code, text)                                                                                     \
        do {                                                                                                           \
                ck_assert_int_eq((call), (code));                                                                      \
                ck_assert_str_eq(streamer_last_error(c), (text));                                                      \
        } while (0)
#define CALL_FAILS(c, verb, args, code, text) FAILS(c, streamer_call((c), (verb), (args), NULL), code, text)
