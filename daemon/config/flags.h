/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line: one table of flags, from which follow the parser, --help and completion. Private to daemon/config.
 */
#ifndef DAEMON_CONFIG_FLAGS_H
#define DAEMON_CONFIG_FLAGS_H

#include "daemon/config/settings/setting.h"

struct flag {
        const char *name;         /* without "--" */
        const char *value;        /* what --help calls it; NULL: takes none */
        const char *help;         /* further lines follow a line break */
        const char *const *words; /* values to offer, up to a NULL; NULL: none */
        bool path;                /* its value is a path */
};

extern const struct flag flags[];
extern const size_t n_flags;

/* Flags that decide the rest, before any value is read. */
struct flags_first {
        const char *config; /* --config; NULL: not given */
        bool help, version, check;
};

/* Checks the grammar of the whole line. */
int flags_scan(struct flags_first *first, int argc, char **argv, struct error *error);

/* Writes the values of a line that was scanned. */
int flags_apply(struct config *config, int argc, char **argv, struct error *error);

/* Of `streamerd complete -- WORDS...`: prints the candidates for the last word, one a line with a tab and a
 * description, or ":files" where a path is expected. False: this is another command line. */
bool flags_complete(int argc, char **argv);

/* What --help prints: the caller's to free; NULL: no memory. */
char *config_usage(void);

#endif
