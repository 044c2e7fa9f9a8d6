/* SPDX-License-Identifier: Apache-2.0
 *
 * The metrics as text: what is counted as it happens (daemon/base/metric.h), and what is looked up
 * when somebody asks. And how long turns of the loop take.
 */
#ifndef DAEMON_SERVE_METRICS_H
#define DAEMON_SERVE_METRICS_H

#include "daemon/base/metric.h"
#include "daemon/serve/server.h"

/* All metrics, in the order of their table; text->failed where memory ran out. */
void metrics_write(struct metric_text *text, const struct server *server);

/* Times the loop's turns from now on. */
struct loop_watch {
        uv_prepare_t prepare;
        uint64_t last_ns, last_idle_ns;
};
void loop_watch_start(struct loop_watch *watch, uv_loop_t *loop);

#endif
