/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules of `access.roles`. Names of users and groups are resolved here, once: the look-up may ask a directory
 * server, so it must not happen while a client waits.
 */
#include "daemon/config/setting.h"

#include "daemon/base/util.h"
#include "daemon/source/source.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>

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

static int append(struct role_list *list, const char *text, char why[SETTING_WHY])
{
        if (list->n == SETTING_LIST_MAX)
                return setting_wrong(why, "more than %d of them", SETTING_LIST_MAX);
        char **v = array_grow(list->v, list->n, sizeof(*v));
        if (v == NULL)
                return setting_wrong(why, "no memory");
        list->v = v;
        v[list->n] = strdup(text);
        if (v[list->n] == NULL)
                return setting_wrong(why, "no memory");
        list->n++;
        return 0;
}

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
        return append(list, canonical, why);
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
        return append(list, value, why);
}

/* ---- rules ---- */

static int set_role(void *member, const char *value, char why[SETTING_WHY])
{
        enum role role = role_parse(value);
        if (role == ROLE_NONE)
                return setting_wrong(why, "'%.40s' is not attach, load or admin", value);
        *(enum role *)member = role;
        return 0;
}

#define F(name) SETTING_FIELD(struct role_rule, name)
static const struct setting fields[] = {
        {"role", SETTING_OWN, F(role), .set = set_role},
        {"users", SETTING_OWN, F(users), .set = set_users, .several = true},
        {"groups", SETTING_OWN, F(groups), .set = set_groups, .several = true},
        {"roots", SETTING_OWN, F(roots), .set = set_roots, .several = true},
        {"buckets", SETTING_OWN, F(buckets), .set = set_buckets, .several = true},
        {"connections", SETTING_NUMBER, F(max[QUOTA_CONNECTIONS]), NULL, 1, UINT64_MAX},
        {"leases", SETTING_NUMBER, F(max[QUOTA_LEASES]), NULL, 1, UINT64_MAX},
        {"loads", SETTING_NUMBER, F(max[QUOTA_LOADS]), NULL, 1, UINT64_MAX},
        {"models", SETTING_NUMBER, F(max[QUOTA_MODELS]), NULL, 1, UINT64_MAX},
        {"bytes", SETTING_SIZE, F(max[QUOTA_BYTES]), NULL, 1, UINT64_MAX},
};
_Static_assert(ARRAY_SIZE(fields) == 5 + QUOTA_SLOT_COUNT, "a key for each quota");

static int check_rule(struct config *config, void *entry, unsigned given, char why[SETTING_WHY])
{
        const struct role_rule *rule = entry;
        if (rule->role == ROLE_NONE)
                return setting_wrong(why, "has no 'role'");
        if (!rule->users.all && rule->users.n == 0 && !rule->groups.all && rule->groups.n == 0)
                return setting_wrong(why, "names no user: it requires 'users' or 'groups'");
        return 0;
}

static void deinit_rules(struct config *config)
{
        roles_deinit(&config->access);
}

const struct setting_list list_rules = {fields,
                                        ARRAY_SIZE(fields),
                                        sizeof(struct role_rule),
                                        SETTING_LIST_MAX,
                                        offsetof(struct config, access.n),
                                        .line = offsetof(struct role_rule, line),
                                        .check = check_rule,
                                        .deinit = deinit_rules};

/* ---- with the rest of the settings ---- */

static bool below_a_root(const struct config *config, const char *path)
{
        for (size_t i = 0; i < config->n_roots; i++)
                if (source_is_below(config->roots[i], path))
                        return true;
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
