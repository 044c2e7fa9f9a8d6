/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon that does what a script says: for what the real one never sends, or not at the moment
 * that a test needs. The script runs in a thread of the test:
 *
 *   static void script(struct fake *f)
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
#ifndef TESTS_LIB_FAKE_H
#define TESTS_LIB_FAKE_H

#include "proto/codec.h"
#include "proto/frame.h"
#include "tests/lib/base.h"

#include <pthread.h>
#include <semaphore.h>

struct fake {
        char socket[108];
        int listener, fd;
        pthread_t thread;
        void (*script)(struct fake *f);
        sem_t turn; /* of the script */
        struct frame_reader in;
        struct request request; /* the last one */
        struct writer message;
        msgpack_sbuffer out; /* messages that are done and not yet sent */
};

void fake_start(struct fake *f, void (*script)(struct fake *f));
void fake_finish(struct fake *f); /* waits for the script's end */
void fake_go(struct fake *f);     /* from the test: fake_pause() goes on */

/* ---- in the script ---- */

void fake_pause(struct fake *f);  /* until fake_go() */
void fake_accept(struct fake *f); /* a connection */
void fake_hello(struct fake *f);  /* a connection, and the answer to its hello */
void fake_close(struct fake *f);
void fake_vanish(struct fake *f); /* nobody listens any more */

/* Reads the next request, which must have this verb. Its fields are in f->request. */
void fake_expect(struct fake *f, enum verb verb);
bool fake_ends(struct fake *f); /* the client has closed the connection */

/* Messages: open one, write its fields to f->message, finish it; then send all that are finished,
 * in one piece, with descriptors. */
void fake_reply(struct fake *f, size_t pairs);
void fake_reply_to(struct fake *f, uint64_t id, size_t pairs);
void fake_event(struct fake *f, const char *event, size_t pairs);
void fake_done(struct fake *f);
void fake_send(struct fake *f, const int *fds, size_t n_fds);
void fake_raw(struct fake *f, const void *data, size_t size); /* bytes as they are */

void fake_ok(struct fake *f); /* a reply without fields */
void fake_error(struct fake *f, int code, const char *text);

#endif
