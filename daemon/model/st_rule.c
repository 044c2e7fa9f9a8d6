/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules' names, and the messages that contain them.
 */
#include "daemon/model/st_rule.h"

#include <stdio.h>
#include <string.h>

const char *st_rule_name(enum st_rule rule)
{
        static const char *const names[] = {[ST_OK] = "ok",
#define X(name, text) [ST_##name] = (text),
                                            ST_JSON_RULES(X) ST_RULES(X)
#undef X
        };
        return names[rule];
}

void rule_refuse(struct st_error *error, enum st_rule rule, const char *detail)
{
        error->rule = rule;
        error->offset = 0;
        snprintf(error->text, sizeof(error->text), "%s: %s", st_rule_name(rule), detail);
}

void rule_report(struct st_error *error, const struct json *j, uint64_t start, const char *what, struct name name)
{
        char quoted[NAME_QUOTE] = "", subject[NAME_QUOTE + 32] = "";
        if (name.s != NULL) {
                name_quote(quoted, name);
                snprintf(subject, sizeof(subject), "%s '%s': ", what, quoted);
        }
        error->rule = (enum st_rule)j->fault;
        error->offset = start + j->fault_at;
        snprintf(error->text, sizeof(error->text), "%s: %s%s (%s %zu)", st_rule_name(error->rule), subject, j->detail,
                 start > 0 ? "header offset" : "offset", j->fault_at);
}
