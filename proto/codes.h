/* SPDX-License-Identifier: Apache-2.0
 *
 * The one table of outcomes: wire code, library code, exit code of streamerctl, text.
 * docs/errors.md is checked against it by the tests.
 */
#pragma once

#include "streamer/client.h"

/*        wire code        library code            exit  text */
// clang-format off
#define CODES(X) \
        X("failed", STREAMER_EFAILED, 1, "failed") \
        X("invalid", STREAMER_EINVAL, 2, "invalid request") \
        X("not-found", STREAMER_ENOENT, 3, "no such model, tensor or source") \
        X("unreachable", STREAMER_EUNREACHABLE, 4, "the daemon cannot be reached") \
        X("timeout", STREAMER_ETIMEOUT, 5, "timed out") \
        X("in-use", STREAMER_EBUSY, 6, "in use") \
        X("no-memory", STREAMER_ENOMEM, 7, "insufficient memory") \
        X("denied", STREAMER_EPERM, 8, "permission denied") \
        X("end", STREAMER_EEND, 1, "no more tensors") \
        X("forked", STREAMER_EFORK, 1, "the handle belongs to the parent process") \
        X("lost", STREAMER_ELOST, 1, "the lease was lost") \
        X("protocol", STREAMER_EPROTO, 1, "protocol error") \
        X("cancelled", STREAMER_ECANCELED, 1, "cancelled") \
        X("digest", STREAMER_EDIGEST, 1, "the digest differs") \
        X("limit", STREAMER_ELIMIT, 1, "a limit of the daemon is reached") \
        X("unsupported", STREAMER_EUNSUPPORTED, 1, "not supported here") \
        X("corrupt", STREAMER_ECORRUPT, 1, "the tensor table is corrupt") \
        X("system", STREAMER_EOS, 1, "a system call failed") \
        X("revoked", STREAMER_EREVOKED, 1, "the model was unloaded by force")
// clang-format on

const char *code_wire(int code);                  /* "failed" for an unknown code */
int code_from_wire(const char *wire, size_t len); /* STREAMER_EFAILED for an unknown word */
int code_exit(int code);                          /* 0 for 0 */
const char *code_text(int code);
