/* SPDX-License-Identifier: Apache-2.0
 *
 * Every refusal names the rule that caused it, so that its author finds it.
 */
#include "daemon/serve/access/role.h"

#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/source/source.h"

#include <string.h>
#include <strings.h>

/* ---- words ---- */

static const char *const names[] = {
        [ROLE_NONE] = "none", [ROLE_ATTACH] = "attach", [ROLE_LOAD] = "load", [ROLE_ADMIN] = "admin"};

const char *role_name(enum role role)
{
        return names[role];
}

enum role role_parse(const char *word)
{
        for (size_t i = ROLE_ATTACH; i < ARRAY_SIZE(names); i++)
                if (strcmp(names[i], word) == 0)
                        return (enum role)i;
        return ROLE_NONE;
}

/* A verb that is in no set requires an admin. Verbs that change a model also check who owns it (access.h). */
#define V(verb) (UINT64_C(1) << VERB_##verb)
static const uint64_t of_attach = V(hello) | V(ping) | V(version) | V(list) | V(show) | V(status) | V(ps) | V(wait) |
                                  V(attach) | V(detach) | V(whoami) | V(subscribe) | V(metrics) | V(reclaim) |
                                  V(doctor) | V(publish_find);
static const uint64_t of_load = V(probe) | V(load) | V(verify) | V(cancel) | V(unload) | V(set_priority) | V(pin) |
                                V(unpin) | V(fetch) | V(keep_alive) | V(publish_begin) | V(publish_segment) |
                                V(publish_commit) | V(publish_abort) | V(diff) | V(cache) | V(cache_verify);
_Static_assert(VERB_COUNT <= 64, "sets have a bit for each verb");

enum role role_needed(enum verb verb)
{
        uint64_t bit = UINT64_C(1) << verb;
        return of_attach & bit ? ROLE_ATTACH : of_load & bit ? ROLE_LOAD : ROLE_ADMIN;
}

/* ---- life ---- */

static void list_deinit(struct role_list *list)
{
        for (size_t i = 0; i < list->n; i++)
                free(list->v[i]);
        free(list->v);
}

static const char *rule_text(char text[ROLE_TEXT], const struct roles *roles, const struct role_rule *rule)
{
        snprintf(text, ROLE_TEXT, "access.roles[%zu], %.100s:%u", (size_t)(rule - roles->rules),
                 roles->file != NULL ? roles->file : "", rule->line);
        return text;
}

int roles_open(struct roles *roles, struct source_roots *within, struct error *error)
{
        for (size_t i = 0; i < roles->n; i++) {
                struct role_rule *rule = &roles->rules[i];
                if (!rule->roots.given)
                        continue;
                char text[ROLE_TEXT];
                rule_text(text, roles, rule);
                struct error why = {0};
                if (source_roots_new_rule(&rule->opened, (const char *const *)rule->roots.v, rule->roots.n, text,
                                          within, &why) < 0)
                        return error_set(error, why.code, "%s: roots: %s", text, why.text);
        }
        return 0;
}

void roles_deinit(struct roles *roles)
{
        for (size_t i = 0; i < roles->n; i++) {
                struct role_rule *rule = &roles->rules[i];
                free(rule->users.v);
                free(rule->groups.v);
                list_deinit(&rule->roots);
                list_deinit(&rule->buckets);
                source_roots_free(rule->opened);
        }
        free(roles->rules);
        *roles = (struct roles){0};
}

/* ---- the role of a caller ---- */

static bool has_id(const struct role_ids *ids, uint32_t id)
{
        for (size_t i = 0; i < ids->n; i++)
                if (ids->v[i] == id || ids->v[i] == ROLE_ANYONE)
                        return true;
        return false;
}

static bool in_groups(const struct role_ids *ids, const struct caller *caller)
{
        if (has_id(ids, caller->gid))
                return true;
        for (size_t i = 0; i < caller->n_groups; i++)
                if (has_id(ids, caller->groups[i]))
                        return true;
        return false;
}

bool role_is_own(uid_t uid)
{
        return uid == 0 || uid == geteuid();
}

struct role_grant role_find(const struct roles *roles, const struct caller *caller, gid_t group)
{
        struct role_grant grant = {.role = ROLE_NONE, .own = role_is_own(caller->uid), .roles = roles, .group = group};
        if (grant.own) {
                grant.role = ROLE_ADMIN;
                return grant;
        }
        if (!roles->given) {
                const struct role_ids members = {.v = &group, .n = 1};
                if (in_groups(&members, caller))
                        grant.role = ROLE_LOAD;
                return grant;
        }
        for (size_t i = 0; i < roles->n; i++) {
                const struct role_rule *rule = &roles->rules[i];
                if (!has_id(&rule->users, caller->uid) && !in_groups(&rule->groups, caller))
                        continue;
                grant.role = rule->role;
                grant.rule = rule;
                grant.roots = rule->opened;
                return grant;
        }
        return grant;
}

const char *role_grant_text(const struct role_grant *grant, char text[ROLE_TEXT])
{
        const struct roles *roles = grant->roles;
        if (grant->own)
                return "root and the daemon's own user may do all";
        if (grant->rule != NULL)
                return rule_text(text, roles, grant->rule);
        if (roles->given)
                snprintf(text, ROLE_TEXT, "access.roles, %.100s", roles->file != NULL ? roles->file : "");
        else
                snprintf(text, ROLE_TEXT, "the default: the socket's group %u may load", (unsigned)grant->group);
        return text;
}

/* ---- the requirements of verbs and sources ---- */

int role_check(const struct role_grant *grant, uid_t uid, enum verb verb, struct error *error)
{
        const char *name = verb_desc(verb)->name;
        char text[ROLE_TEXT];
        if (grant->role >= role_needed(verb))
                return 0;
        const char *why = role_grant_text(grant, text);
        if (grant->role == ROLE_NONE)
                return error_set(error, STREAMER_EPERM, "%s: uid %u has no role (%s)", name, uid, why);
        return error_set(error, STREAMER_EPERM, "%s: requires role '%s'; uid %u has role '%s' (%s)", name,
                         role_name(role_needed(verb)), uid, role_name(grant->role), why);
}

/* `prefix` itself, or something below it. */
static bool below(const char *prefix, const char *source)
{
        size_t len = strlen(prefix);
        if (strncmp(prefix, source, len) != 0)
                return false;
        return len == 0 || prefix[len - 1] == '/' || source[len] == '/' || source[len] == '\0';
}

/* An HTTP server may resolve "." and "..", also percent-encoded. S3 keys are literal. */
static bool climbs(const char *source)
{
        if (strncasecmp(source, "http", 4) != 0)
                return false;
        for (const char *at = strstr(source, "://"); at != NULL && *at != '\0'; at++) {
                size_t dots = *at == '/' ? strspn(at + 1, ".") : 0;
                bool step = (dots == 1 || dots == 2) && strchr("/?#", at[1 + dots]) != NULL;
                if (step || strncasecmp(at, "%2e", 3) == 0 || strncasecmp(at, "%2f", 3) == 0 || *at == '\\')
                        return true;
        }
        return false;
}

const char *role_encrypted_only(const struct role_grant *grant)
{
        return grant->rule != NULL && grant->rule->encrypted_only ? "encrypted_only of the caller's role" : NULL;
}

int role_check_source(const struct role_grant *grant, const char *canonical, struct error *error)
{
        char shown[REDACTED_SOURCE], text[ROLE_TEXT];
        if (grant->rule == NULL)
                return 0;
        require(!grant->rule->roots.given || grant->roots != NULL);
        const struct role_list *list = &grant->rule->buckets;
        bool allowed = false;
        for (size_t i = 0; i < list->n; i++)
                allowed = allowed || below(list->v[i], canonical);
        if (canonical[0] == '/' || !list->given || (allowed && !climbs(canonical)))
                return 0;
        redact_source(shown, canonical);
        return error_set(error, STREAMER_EPERM, "%s: below none of its buckets (%s)", shown,
                         role_grant_text(grant, text));
}
