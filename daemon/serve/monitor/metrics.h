/* SPDX-License-Identifier: Apache-2.0
 *
 * The metrics as text: what is counted as it happens (daemon/base/metric.h), and what is looked up
 * when somebody asks.
 */
#ifndef DAEMON_SERVE_MONITOR_METRICS_H
#define DAEMON_SERVE_MONITOR_METRICS_H

#include "daemon/base/metric/metric.h"
#include "daemon/serve/server_state.h"

/* All metrics, in the order of their table; text->failed where memory ran out. */
void metrics_write(struct metric_text *text, const struct server *server);

#endif
