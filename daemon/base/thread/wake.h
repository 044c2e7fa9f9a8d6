/* SPDX-License-Identifier: Apache-2.0
 *
 * Wakes the loop: other threads post a callback, and the loop runs it on a later turn, never inside the call that
 * posted it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct uv_loop_s;
struct wake;

/* Embedded in its object, zeroed. Once it runs it is not touched again: it may be posted again, or freed. */
struct callback {
        struct callback *next;
        void (*run)(struct callback *callback);
        bool posted; /* atomic: and not run yet */
};

/* By the loop's thread, before it starts other handles. NULL on failure. Its handles are closed with the loop's others
 * (uv_walk); free after the loop has run down. */
struct wake *wake_new(struct uv_loop_s *loop);
struct wake *wake_free(struct wake *wake);

/* From any thread; without effect while it is posted, so that it runs once for all calls up to then. */
void wake_post(struct wake *wake, struct callback *callback);

/* On the loop thread: runs what has been posted (used while shutting down). */
void wake_drain(struct wake *wake);

/* On the loop thread: how often it has run something. */
uint64_t wake_count(const struct wake *wake);
