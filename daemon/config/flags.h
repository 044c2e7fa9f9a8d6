/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line: one table of flags, from which follow the parser, --help and completion. Private to
 * daemon/config.
 */
#ifndef DAEMON_CONFIG_FLAGS_H
#define DAEMON_CONFIG_FLAGS_H

#include "daemon/config/setting.h"

struct flag {
        const char *name;         /* without "--" */
        const char *value;        /* what --help calls it; NULL: takes none */
        const char *help;         /* further lines follow a line break */
        const char *const *words; /* values to offer, up to a NULL; NULL: none */
        bool path;                /* a path stands there */
};

extern const struct flag flags[];
extern const size_t n_flags;

/* What decides the rest, before any value is looked at. */
struct flags_first {
        const char *config; /* --config; NULL: not given */
        bool help, version, check;
};

/* Checks the grammar of the whole line. */
int flags_scan(struct flags_first *first, int argc, char **argv, struct error *error);

/* Writes the values of a line that was scanned. */
int flags_apply(struct config *config, int argc, char **argv, struct error *error);

/* Of `streamerd complete -- WORDS...`: prints what may stand for the last word, one candidate a line
 * with a tab and what it is, or ":files" where a path stands. False: this is no such line. */
bool flags_complete(int argc, char **argv);

#endif
