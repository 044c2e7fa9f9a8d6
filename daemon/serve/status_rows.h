/* SPDX-License-Identifier: Apache-2.0
 *
 * The lists of status that grow with what clients and settings want, as a page of them: loads, then preloads, then
 * what is to be loaded again.
 */
#ifndef DAEMON_SERVE_STATUS_ROWS_H
#define DAEMON_SERVE_STATUS_ROWS_H

#include "daemon/serve/server.h"

enum status_list { STATUS_LOADS, STATUS_PRELOAD, STATUS_AGAIN, STATUS_LISTS };

struct status_rows {
        struct {
                struct writer rows;
                size_t n;
        } lists[STATUS_LISTS];
        uint64_t left; /* rows that may come yet */
        /* Behind which the page begins, and in the end the next one. */
        enum status_list list;
        struct preload_row preload;
        uint64_t number; /* of a load, or of one that is to be loaded again */
        bool more;
};

/* `after`: the page before's "next", or NULL; `limit`: rows, 0: as many as fit. STREAMER_EINVAL, and there is nothing
 * to be written. */
int status_rows_init(struct status_rows *rows, const char *after, uint64_t limit, struct error *error);
void status_rows_fill(struct status_rows *rows, const struct server *server);
/* STATUS_LISTS keys and their values, and where there is more one for "next". Nothing is left of the rows. */
void status_rows_write(struct status_rows *rows, struct writer *writer);

#endif
