/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon that does what a script says: for what the real one never sends, or not at the moment
 * that a test needs. The script runs in a thread of the test:
 *
 *   static void script(struct fake_daemon *f)
 *   {
 *           fake_hello(f);
 *           fake_expect(f, VERB_ping);
 *           fake_ok(f);
 *   }
 *   ...
 *   fake_start(&f, script);
 *   ... use f.socket ...
 *   fake_finish(&f);
 */
#ifndef TESTS_LIB_FAKE_DAEMON_H
#define TESTS_LIB_FAKE_DAEMON_H

#include "streamer/client.h"
#include "proto/codec.h"
#include "proto/frame.h"
#include "tests/lib/base.h"

#include <pthread.h>
#include <semaphore.h>

struct fake_daemon {
        char socket[108];
        int listener, fd;
        pthread_t thread;
        void (*script)(struct fake_daemon *f);
        sem_t turn; /* of the script */
        struct frame_reader in;
        struct request request; /* the last one */
        struct writer message;
        msgpack_sbuffer out; /* messages that are done and not yet sent */
};

void fake_start(struct fake_daemon *f, void (*script)(struct fake_daemon *f));
void fake_finish(struct fake_daemon *f); /* waits for the script's end */
void fake_resume(struct fake_daemon *f); /* from the test: fake_pause() returns */

/* ---- in the script ---- */

void fake_pause(struct fake_daemon *f);                            /* until fake_resume() */
void fake_accept(struct fake_daemon *f);                           /* a connection */
void fake_hello(struct fake_daemon *f);                            /* a connection, and the answer to its hello */
void fake_hello_older(struct fake_daemon *f, const char *lacking); /* which does not list this feature */
void fake_hello_newer(struct fake_daemon *f, const char *more);    /* which lists this one, too */
void fake_close(struct fake_daemon *f);
void fake_vanish(struct fake_daemon *f); /* closes the listening socket */

/* Reads the next request, which must have this verb. Its fields are in f->request. */
void fake_expect(struct fake_daemon *f, enum verb verb);
bool fake_ends(struct fake_daemon *f); /* the client has closed the connection */

/* Messages: open one, write its fields to f->message, finish it; then send all that are finished,
 * in one piece, with descriptors. */
void fake_reply(struct fake_daemon *f, size_t pairs);
void fake_reply_to(struct fake_daemon *f, uint64_t id, size_t pairs);
void fake_event(struct fake_daemon *f, const char *event, size_t pairs);
void fake_done(struct fake_daemon *f);
void fake_send(struct fake_daemon *f, const int *fds, size_t n_fds);
void fake_raw(struct fake_daemon *f, const void *data, size_t size); /* bytes as they are */

void fake_ok(struct fake_daemon *f); /* a reply without fields */
void fake_ok_unless_closed(struct fake_daemon *f);
void fake_error(struct fake_daemon *f, int code, const char *text);

/* ---- the client ---- */

/* Starts the daemon and connects. */
streamer_client *fake_connect(struct fake_daemon *f, void (*script)(struct fake_daemon *f));
/* Closes, and waits for the script's end. */
void fake_disconnect(struct fake_daemon *f, streamer_client *c);

#define CALL_GIVES(c, verb, args, want)                                                                                \
        do {                                                                                                           \
                char *call_reply;                                                                                      \
                ck_assert_int_eq(streamer_call((c), (verb), (args), &call_reply), 0);                                  \
                ck_assert_str_eq(call_reply, (want));                                                                  \
                free(call_reply);                                                                                      \
        } while (0)

#define CALL_FAILS(c, verb, args, code, text)                                                                          \
        do {                                                                                                           \
                ck_assert_int_eq(streamer_call((c), (verb), (args), NULL), (code));                                    \
                ck_assert_str_eq(streamer_last_error(c), (text));                                                      \
        } while (0)

#endif
