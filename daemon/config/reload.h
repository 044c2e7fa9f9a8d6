/* SPDX-License-Identifier: Apache-2.0
 *
 * Reloads the settings, on SIGHUP or by the verb `reload`.
 *
 *   requested > a worker reads and checks everything > applied as a whole, or refused as a whole
 *
 * Applied are limits, access, preload, the log level, encryption, whose files of keys are read again, and roots, which
 * are opened anew even if they are the same: another file system may be mounted there. Other changed keys are named,
 * and need a restart. Connections, leases, models and loads continue. A request during a reload starts another one.
 */
#pragma once

#include "daemon/config/config.h"

struct reload {
        struct server *server;
        struct config *config;   /* the running one */
        struct sources *sources; /* whose roots are changed */
        int argc;
        char **argv;

        /* private */
        struct work work;
        struct config next;
        struct source_roots *roots; /* of `next`; NULL: not opened, or applied */
        struct keyring *keyring;    /* of it; NULL: it is not read yet, or was taken */
        struct error error;
        bool running, again;
};

void reload_init(struct reload *reload, struct server *server, struct config *config, struct sources *sources, int argc,
                 char **argv);
/* What can change while the daemon runs, into the server and the modules below; at the start, too. STREAMER_ENOMEM. */
int reload_apply(struct reload *reload, struct error *error);
void reload_begin(struct reload *reload);
/* Loads that begin from now on have these keys, whose reference this takes over. */
void reload_set_keyring(struct loads *loads, struct keyring *keyring);

/* Keys that differ and cannot be applied, as "a, b"; "" if none. Pure. */
void reload_restart_keys(const struct config *running, const struct config *next, char *text, size_t size);
