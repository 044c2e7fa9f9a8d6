/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line: the flags of the table of settings. Private to daemon/config.
 */
#ifndef DAEMON_CONFIG_FLAGS_H
#define DAEMON_CONFIG_FLAGS_H

#include "daemon/config/settings/setting.h"

/* Flags that decide the rest, before any value is read. */
struct flags_first {
        const char *config; /* --config; NULL: not given */
        bool help, version, check;
};

/* Checks the grammar of the whole line; with a config, also writes its values into it. */
int flags_read(struct flags_first *first, struct config *config, int argc, char **argv, struct error *error);

/* Of `streamerd complete -- WORDS...`: prints the candidates for the last word, one a line with a tab and a
 * description, or ":files" where a path is expected. False: this is another command line. */
bool flags_complete(int argc, char **argv);

/* What --help prints: the caller's to free; NULL: no memory. */
char *config_usage(void);

#endif
