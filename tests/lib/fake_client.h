/* SPDX-License-Identifier: Apache-2.0
 *
 * The library's side of a scripted daemon: connects to it, calls.
 */
#ifndef TESTS_LIB_FAKE_CLIENT_H
#define TESTS_LIB_FAKE_CLIENT_H

#include "streamer/client.h"
#include "tests/lib/fake.h"

/* Starts the daemon and connects. */
streamer_client *fake_connect(struct fake *f, void (*script)(struct fake *f));
/* Closes, and waits for the script's end. */
void fake_disconnect(struct fake *f, streamer_client *c);

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
