/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules' names, and the sentences that name them.
 */
#include "daemon/model/rule.h"

#include <stdio.h>
#include <string.h>

const char *st_rule_name(enum st_rule rule)
{
        static const char *const names[] = {[ST_OK] = "ok",
#define X(name, text) [ST_##name] = (text),
                                            ST_RULES(X)
#undef X
        };
        return names[rule];
}

static bool is_inside_character(char c)
{
        return ((unsigned char)c & 0xc0) == 0x80;
}

void rule_quote(char quoted[RULE_QUOTE], struct name name)
{
        const size_t room = RULE_QUOTE - sizeof("\\xNN...");
        size_t i = 0, at = 0;
        for (; i < name.len && at < room; i++) {
                unsigned char c = (unsigned char)name.s[i];
                if (c < 0x20 || c == 0x7f)
                        at += (size_t)sprintf(quoted + at, "\\x%02x", c);
                else
                        quoted[at++] = (char)c;
        }
        if (i < name.len) /* never half a character */
                for (; i > 0 && at > 0 && is_inside_character(name.s[i]); i--)
                        at--;
        strcpy(quoted + at, i < name.len ? "..." : "");
}

void rule_refuse(struct st_error *error, enum st_rule rule, const char *detail)
{
        error->rule = rule;
        error->offset = 0;
        snprintf(error->text, sizeof(error->text), "%s: %s", st_rule_name(rule), detail);
}

void rule_tell(struct st_error *error, const struct json *j, uint64_t start, const char *what, struct name name)
{
        char quoted[RULE_QUOTE] = "", subject[RULE_QUOTE + 32] = "";
        if (name.s != NULL) {
                rule_quote(quoted, name);
                snprintf(subject, sizeof(subject), "%s '%s': ", what, quoted);
        }
        error->rule = j->rule;
        error->offset = start + j->fault;
        snprintf(error->text, sizeof(error->text), "%s: %s%s (%s %zu)", st_rule_name(j->rule), subject, j->detail,
                 start > 0 ? "header offset" : "offset", j->fault);
}
