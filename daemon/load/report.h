/* SPDX-License-Identifier: Apache-2.0
 *
 * What is said and counted of a load at its end, and when some of its devices serve before: one line of
 * the log, and the metrics.
 */
#ifndef DAEMON_LOAD_REPORT_H
#define DAEMON_LOAD_REPORT_H

#include "daemon/load/load.h"

void load_report(const struct load *load);
/* Those that live will serve while the others still wait for room. */
void load_report_round(const struct load *load);

#endif
