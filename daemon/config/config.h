/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon's settings. config/streamerd.yaml describes each key. A wrong one is refused with file, line and key.
 */
#pragma once

#include "daemon/config/settings/values.h"

#define CONFIG_PRINTED 1 /* for --help, --version, --check-config or completion: there is nothing else to do */

/* From argv, environ and the file. 0, CONFIG_PRINTED, STREAMER_EINVAL (usage, exit 2) or another STREAMER_E* with the
 * text to print. */
int config_load(struct config *config, int argc, char **argv, struct error *error);
void config_init(struct config *config);   /* the defaults */
void config_deinit(struct config *config); /* accepts a zeroed one */

/* YAML text of this length, as a file of this name, into a config that has its defaults. STREAMER_EINVAL:
 * "file:line: key: what". */
int config_parse_yaml(struct config *config, const char *name, const char *text, size_t len, struct error *error);
