/* SPDX-License-Identifier: Apache-2.0
 *
 * Growable memory straight from the system: growth moves pages instead of copying bytes, and what
 * is freed is returned to the system at once. A header of 100,000 tensors would otherwise leave
 * its tables in malloc's arenas for as long as the daemon lives.
 */
#ifndef DAEMON_BASE_JSON_PAGES_H
#define DAEMON_BASE_JSON_PAGES_H

#include <stdbool.h>
#include <stddef.h>

struct pages {
        void *p;
        size_t size; /* bytes mapped */
};

/* Space for `bytes`; new bytes are zero. p may move. False: no memory, nothing has changed. */
bool pages_reserve(struct pages *pages, size_t bytes);
void pages_deinit(struct pages *pages);

/* Hands over the first `bytes`, gives back the rest and leaves `pages` empty. NULL for 0 bytes.
 * The owner calls pages_drop() with the same number. */
void *pages_take(struct pages *pages, size_t bytes);
void pages_drop(void *p, size_t bytes);

#endif
