/* SPDX-License-Identifier: Apache-2.0
 *
 * The one door by which other threads reach the loop: they post an item, the loop calls its
 * function. Items are embedded in what they belong to, so that posting allocates nothing. An item
 * is called on a later turn of the loop, never inside the call that posted it.
 */
#ifndef DAEMON_BASE_WAKE_H
#define DAEMON_BASE_WAKE_H

struct uv_loop_s;
struct wake;

struct wake_item {
        struct wake_item *next;
        void (*fn)(struct wake_item *item);
};

/* NULL on failure. The loop owns the handle until wake_close(); free after the loop has run down. */
struct wake *wake_new(struct uv_loop_s *loop);
void wake_close(struct wake *wake);
struct wake *wake_free(struct wake *wake);

/* From any thread. The item must not be posted again before its function was called. */
void wake_post(struct wake *wake, struct wake_item *item);

/* On the loop thread: calls what has been posted (used while shutting down). */
void wake_drain(struct wake *wake);

#endif
