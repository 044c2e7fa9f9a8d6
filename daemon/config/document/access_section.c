/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules of `access.roles`. Names of users and groups are resolved here, once: the look-up may ask a directory
 * server, so it must not happen while a client waits.
 */
#include "daemon/config/document/document.h"

#include "daemon/base/util.h"
#include "daemon/source/source.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <string.h>

#define IDS_MAX 256

/* ---- users and groups ---- */

static int find_user(const char *name, uint32_t *id)
{
        char buffer[16384];
        struct passwd entry, *found = NULL;
        int r = getpwnam_r(name, &entry, buffer, sizeof(buffer), &found);
        if (found != NULL)
                *id = found->pw_uid;
        return found != NULL ? 0 : r != 0 ? r : ENOENT;
}

static int find_group(const char *name, uint32_t *id)
{
        static char buffer[1 << 20]; /* a group's entry lists its members */
        struct group entry, *found = NULL;
        int r = getgrnam_r(name, &entry, buffer, sizeof(buffer), &found);
        if (found != NULL)
                *id = found->gr_gid;
        return found != NULL ? 0 : r != 0 ? r : ENOENT;
}

static int set_ids(struct role_ids *ids, const char *value, int (*find)(const char *, uint32_t *), const char *what,
                   char why[SETTING_WHY])
{
        uint32_t id;
        if (value == NULL)
                return 0;
        if (strcmp(value, "*") == 0) {
                ids->all = true;
                return 0;
        }
        bool is_number = value[0] != '\0' && strspn(value, "0123456789") == strlen(value);
        uint64_t number = 0;
        if (is_number && (config_parse_size(value, &number) < 0 || number >= UINT32_MAX)) /* the last is no id */
                return setting_wrong(why, "'%.60s' is no %s's number", value, what);
        id = (uint32_t)number;
        int r = is_number ? 0 : find(value, &id);
        if (r == ENOENT)
                return setting_wrong(why, "there is no %s '%.60s'", what, value);
        if (r != 0)
                return setting_wrong(why, "%s '%.60s' cannot be looked up: %s", what, value, strerrordesc_np(r));
        if (ids->n == IDS_MAX)
                return setting_wrong(why, "more than %d of them", IDS_MAX);
        uint32_t *v = array_grow(ids->v, ids->n, sizeof(*v));
        if (v == NULL)
                return setting_wrong(why, "no memory");
        ids->v = v;
        v[ids->n++] = id;
        return 0;
}

static int set_users(void *member, const char *value, char why[SETTING_WHY])
{
        return set_ids(member, value, find_user, "user", why);
}

static int set_groups(void *member, const char *value, char why[SETTING_WHY])
{
        return set_ids(member, value, find_group, "group", why);
}

/* ---- roots and buckets ---- */

static int set_roots(void *member, const char *value, char why[SETTING_WHY])
{
        struct role_list *list = member;
        struct error error = {0};
        cleanup_free char *canonical = NULL;
        list->given = true;
        if (value == NULL)
                return 0;
        if (value[0] != '/')
                return setting_wrong(why, "'%.80s' is not an absolute path", value);
        if (source_canonical(value, &canonical, &error) < 0)
                return setting_wrong(why, "%.150s", error.text);
        return setting_append(&list->v, &list->n, SETTING_LIST_MAX, "of them", canonical, why);
}

static int set_buckets(void *member, const char *value, char why[SETTING_WHY])
{
        struct role_list *list = member;
        list->given = true;
        if (value == NULL)
                return 0;
        const char *rest = strstr(value, "://");
        if (rest == NULL || rest == value || rest[3] == '\0')
                return setting_wrong(why, "'%.80s' is not the beginning of a URI, such as s3://bucket/folder/", value);
        return setting_append(&list->v, &list->n, SETTING_LIST_MAX, "of them", value, why);
}

/* ---- role and limits ---- */

static int set_role(void *member, const char *value, char why[SETTING_WHY])
{
        enum role role = role_parse(value);
        if (role == ROLE_NONE)
                return setting_wrong(why, "'%.40s' is not attach, load or admin", value);
        *(enum role *)member = role;
        return 0;
}

static int set_max(uint64_t *max, const char *what, const char *value, char why[SETTING_WHY])
{
        bool valid = config_parse_size(value, max) == 0 && *max > 0;
        return valid ? 0 : setting_wrong(why, "'%.40s' is not a %s of 1 or more", value, what);
}

static int set_max_count(void *member, const char *value, char why[SETTING_WHY])
{
        return set_max(member, "number", value, why);
}

static int set_max_bytes(void *member, const char *value, char why[SETTING_WHY])
{
        return set_max(member, "size (bytes, or with KiB, MiB, GiB, TiB)", value, why);
}

#define FIELD(name) offsetof(struct role_rule, name)
static const struct doc_field fields[] = {
        {"role", set_role, FIELD(role), false},
        {"users", set_users, FIELD(users), true},
        {"groups", set_groups, FIELD(groups), true},
        {"roots", set_roots, FIELD(roots), true},
        {"buckets", set_buckets, FIELD(buckets), true},
        {"connections", set_max_count, FIELD(max[QUOTA_CONNECTIONS]), false},
        {"leases", set_max_count, FIELD(max[QUOTA_LEASES]), false},
        {"loads", set_max_count, FIELD(max[QUOTA_LOADS]), false},
        {"models", set_max_count, FIELD(max[QUOTA_MODELS]), false},
        {"bytes", set_max_bytes, FIELD(max[QUOTA_BYTES]), false},
};
_Static_assert(ARRAY_SIZE(fields) == 5 + QUOTA_SLOT_COUNT, "a key for each quota");

/* ---- the list ---- */

static int check_rule(struct doc *doc, void *entry)
{
        struct role_rule *rule = entry;
        rule->line = doc->entry_line;
        if (rule->role == ROLE_NONE)
                return doc_fail(doc, "has no 'role'");
        if (!rule->users.all && rule->users.n == 0 && !rule->groups.all && rule->groups.n == 0)
                return doc_fail(doc, "names no user: it requires 'users' or 'groups'");
        return 0;
}

static const struct doc_list rules = {.key = "access.roles",
                                      .fields = fields,
                                      .n_fields = ARRAY_SIZE(fields),
                                      .entry_size = sizeof(struct role_rule),
                                      .max = SETTING_LIST_MAX,
                                      .too_many = "too many rules",
                                      .entries = offsetof(struct config, access.rules),
                                      .n = offsetof(struct config, access.n),
                                      .check = check_rule};

int access_read_roles(struct doc *doc)
{
        struct roles *roles = &doc->config->access;
        roles->given = true;
        free(roles->file);
        roles->file = strdup(doc->name);
        if (roles->file == NULL)
                return doc_fail(doc, "no memory");
        return doc_read_entries(doc, &rules);
}

/* ---- with the rest of the settings ---- */

static bool below_a_root(const struct config *config, const char *path)
{
        for (size_t i = 0; i < config->n_roots; i++) {
                size_t len = strlen(config->roots[i]);
                while (len > 0 && config->roots[i][len - 1] == '/')
                        len--;
                if (strncmp(config->roots[i], path, len) == 0 && (path[len] == '/' || path[len] == '\0'))
                        return true;
        }
        return false;
}

int access_check_roots(const struct config *config, struct error *error)
{
        const struct roles *roles = &config->access;
        for (size_t i = 0; i < roles->n; i++)
                for (size_t k = 0; k < roles->rules[i].roots.n; k++)
                        if (!below_a_root(config, roles->rules[i].roots.v[k]))
                                return error_set(error, STREAMER_EINVAL,
                                                 "%s:%u: access.roles[%zu].roots: %s is below none of the daemon's own "
                                                 "roots",
                                                 roles->file, roles->rules[i].line, i, roles->rules[i].roots.v[k]);
        return 0;
}
