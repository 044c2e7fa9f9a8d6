/* SPDX-License-Identifier: Apache-2.0
 *
 * The effective configuration as rows of text, each with its origin: for the verb `config`.
 */
#ifndef DAEMON_CONFIG_DESCRIBE_H
#define DAEMON_CONFIG_DESCRIBE_H

#include "daemon/config/config.h"
#include "daemon/serve/server_state.h"

/* Calls `row` for each key, and for each entry of a list. Secrets are redacted. */
void config_describe(const struct config *config, config_row_fn *row, void *arg);

#endif
