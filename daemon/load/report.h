/* SPDX-License-Identifier: Apache-2.0
 *
 * What is said and counted of a load at its end: one line of the log, and the metrics.
 */
#ifndef DAEMON_LOAD_REPORT_H
#define DAEMON_LOAD_REPORT_H

#include "daemon/load/load.h"

void load_report(const struct load *load);

#define SHOWN_SOURCE 512
/* A source as logs and replies show it: without what may be secret in a URL. */
void report_shown_source(char out[SHOWN_SOURCE], const char *source);

#endif
