/* SPDX-License-Identifier: Apache-2.0
 *
 * Sizes and durations, as text.
 */
#ifndef DAEMON_CONFIG_SETTINGS_UNITS_H
#define DAEMON_CONFIG_SETTINGS_UNITS_H

#include <stdint.h>

/* "8GiB", "512MiB", "4096": 0 or -1 (syntax, overflow). */
int config_parse_size(const char *text, uint64_t *bytes);
int config_parse_duration(const char *text, uint64_t *ns); /* "30s", "5m", "250ms" */

#endif
