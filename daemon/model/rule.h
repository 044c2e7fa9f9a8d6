/* SPDX-License-Identifier: Apache-2.0
 *
 * How a broken rule is told: in one line of printable text, whatever bytes the header held.
 */
#ifndef DAEMON_MODEL_RULE_H
#define DAEMON_MODEL_RULE_H

#include "daemon/model/json.h"

#define RULE_QUOTE 140 /* room for a quoted name */

/* The start of a name with control bytes as \xNN; "..." where it is cut. */
void rule_quote(char quoted[RULE_QUOTE], struct name name);

/* "rule: detail", for a rule that is broken before the text is read. */
void rule_refuse(struct st_error *error, enum st_rule rule, const char *detail);

/* "rule: WHAT 'name': detail (header offset N)" from the text's first fault; without the middle part
 * where name.s is NULL. The text begins `start` bytes into its file. */
void rule_tell(struct st_error *error, const struct json *j, uint64_t start, const char *what, struct name name);

#endif
