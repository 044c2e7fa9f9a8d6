/* SPDX-License-Identifier: Apache-2.0
 *
 * The lists of the file: roots, disk_cache.also, devices, http.allow_plain, http.hosts, s3.sources, gcs.sources,
 * azure.sources, preload and access.roles. No error text repeats a value of http.hosts, the sources of stores: it may
 * be a secret given under the wrong key.
 */
#include "daemon/config/setting.h"

#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/load/load.h"
#include "daemon/model/ranks.h"
#include "daemon/source/source.h"
#include "proto/hub.h"

#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>

/* Entries of this type, with these fields. */
#define ENTRIES(of, type) .fields = (of), .n_fields = ARRAY_SIZE(of), .entry_size = sizeof(type)
#define IDS_MAX 256 /* users or groups of a rule */

static const struct setting root_fields[] = {
        {NULL, SETTING_TEXT, .size = sizeof(char *), .check = setting_check_absolute}};

const struct setting_list list_roots = {ENTRIES(root_fields, char *), .takes = "a root is a path"};

/* It is compared with paths as the kernel gives them; a slash at the end is allowed. */
static int check_also(const char *path, char why[SETTING_WHY])
{
        if (setting_check_absolute(path, why) < 0)
                return -1;
        for (const char *part = path; *part == '/'; part += strcspn(part, "/")) {
                size_t len = strcspn(++part, "/");
                bool is_dots = len > 0 && len <= 2 && strspn(part, ".") >= len;
                if (is_dots || (len == 0 && *part != '\0'))
                        return setting_wrong(why, "'%.150s' matches no file: name it without '.', '..' and '//'", path);
        }
        return 0;
}

static const struct setting also_fields[] = {{NULL, SETTING_TEXT, .size = sizeof(char *), .check = check_also}};

const struct setting_list list_also = {ENTRIES(also_fields, char *), .takes = "takes paths of folders"};

static int check_key_file(const char *text, char why[SETTING_WHY])
{
        /* The text may be a key. */
        return secret_is_reference(text) ? 0 : setting_wrong(why, "is neither file:PATH nor credential:NAME");
}

static const struct setting key_fields[] = {{NULL, SETTING_TEXT, .size = sizeof(char *), .check = check_key_file}};

const struct setting_list list_keys = {ENTRIES(key_fields, char *), .takes = "takes file:PATH or credential:NAME"};

/* ---- devices ---- */

/* "host", or a GPU, whose name may end in the mark of an optional device. */
static int check_device_name(const char *name, char why[SETTING_WHY])
{
        size_t len = strlen(name);
        len -= len > 5 && name[len - 1] == '?';
        bool cuda = strncmp(name, "cuda:", 5) == 0;
        bool by_uuid = strncmp(name, "cuda:GPU-", 9) == 0 || strncmp(name, "cuda:MIG-", 9) == 0;
        size_t digits = cuda ? strspn(name + 5, "0123456789") : 0;
        bool by_index = digits >= 1 && digits <= 3 && 5 + digits == len;
        if (strcmp(name, "host") == 0 || by_index || by_uuid || (len == 8 && strncmp(name, "cuda:all", len) == 0))
                return 0;
        return setting_wrong(why, "'%.60s' is not a device (host, cuda:N, cuda:GPU-UUID, cuda:all, or cuda:all?)",
                             name);
}

static int set_budget(void *field, const char *text, char why[SETTING_WHY])
{
        struct config_device *device = container_of(field, struct config_device, budget);
        char digits[4] = "";
        uint64_t percent;
        size_t len = strlen(text);
        device->budget_percent = 0;
        if (len < 2 || len > sizeof(digits) || text[len - 1] != '%')
                return config_parse_size(text, &device->budget) == 0 && device->budget > 0
                               ? 0
                               : setting_wrong(why, "'%.40s' is not a budget (a size such as 8GiB, or 90%%)", text);
        memcpy(digits, text, len - 1);
        if (config_parse_size(digits, &percent) < 0 || percent < 1 || percent > 100)
                return setting_wrong(why, "'%.40s' is not within 1%% to 100%%", text);
        device->budget_percent = (unsigned)percent;
        return 0;
}

static void budget_text(const void *field, char *out, size_t size)
{
        const struct config_device *device = container_of(field, const struct config_device, budget);
        char text[SETTING_NUMBER_TEXT];
        if (device->budget_percent != 0)
                snprintf(out, size, "%u%%", device->budget_percent);
        else
                snprintf(out, size, "%s", config_size_text(device->budget, text));
}

static int set_prefault(void *field, const char *text, char why[SETTING_WHY])
{
        if (strcmp(text, "auto") == 0)
                *(uint64_t *)field = PREFAULT_AUTO;
        else if (config_parse_size(text, field) < 0)
                return setting_wrong(why, "'%.40s' is not auto or a size (bytes, or with KiB, MiB, GiB, TiB)", text);
        return 0;
}

static void prefault_text(const void *field, char *out, size_t size)
{
        char text[SETTING_NUMBER_TEXT];
        uint64_t bytes = *(const uint64_t *)field;
        snprintf(out, size, "%s", bytes == PREFAULT_AUTO ? "auto" : config_size_text(bytes, text));
}

static const char *const page_words[] = {[HOST_PAGES_AUTO] = "auto",
                                         [HOST_PAGES_HUGETLB] = "hugetlb",
                                         [HOST_PAGES_THP] = "thp",
                                         [HOST_PAGES_4K] = "4k",
                                         NULL};
static const char *const handle_words[] = {
        [CUDA_HANDLES_IPC] = "cuda-ipc", [CUDA_HANDLES_VMM_FD] = "cuda-vmm-fd", NULL};

#define F(name) SETTING_FIELD(struct config_device, name)
static const struct setting device_fields[] = {
        {"device", SETTING_TEXT, F(name), .check = check_device_name},
        {"budget", SETTING_OWN, offsetof(struct config_device, budget), sizeof(uint64_t) + sizeof(unsigned), "90%",
         .set = set_budget, .text = budget_text},
        {"pages", SETTING_WORD, F(pages), .words = page_words},
        {"prefaulted", SETTING_OWN, F(prefault), "auto", .set = set_prefault, .text = prefault_text},
        {"handles", SETTING_WORD, F(handles), .words = handle_words},
};
#undef F

/* Its name, and its budget after "=". */
static int set_device_word(void *entry, const char *text, char why[SETTING_WHY])
{
        size_t len = strcspn(text, "=");
        cleanup_free char *name = strndup(text, len);
        if (name == NULL)
                return setting_wrong(why, "no memory");
        int r = setting_set_field(&device_fields[0], entry, name, why);
        return r == 0 && text[len] == '=' ? setting_set_field(&device_fields[1], entry, text + len + 1, why) : r;
}

static int check_device(struct config *config, void *entry, unsigned given, char why[SETTING_WHY])
{
        struct config_device *device = entry;
        size_t len = device->name != NULL ? strlen(device->name) : 0;
        if (len == 0)
                return setting_wrong(why, "has no 'device'");
        bool host = strcmp(device->name, "host") == 0;
        for (unsigned i = 2; i < ARRAY_SIZE(device_fields); i++)
                if ((given >> i & 1) != 0 && host == (i == 4))
                        return setting_wrong(why, "%s: of %s only", device_fields[i].key,
                                             host ? "CUDA devices" : "the host device");
        device->optional = device->name[len - 1] == '?';
        device->name[len - device->optional] = '\0';
        for (const struct config_device *other = config->devices; other != device; other++)
                if (strcmp(other->name, device->name) == 0)
                        return setting_wrong(why, "%.60s is listed twice", device->name);
        return 0;
}

const struct setting_list list_devices = {
        ENTRIES(device_fields, struct config_device), .set_word = set_device_word, .check = check_device,
        .takes = "a device is a word such as host=8GiB, or { device, budget, pages, prefaulted, handles }"};

/* ---- http.allow_plain, http.hosts ---- */

#define HOSTS "hosts: a name or address, with a port or without"

static int check_host_text(const char *text, char why[SETTING_WHY])
{
        bool valid = text[0] != '\0' && strlen(text) < 256 && text[strcspn(text, "/@?# \t")] == '\0';
        return valid ? 0 : setting_wrong(why, "takes " HOSTS);
}

static const struct setting plain_host_fields[] = {
        {NULL, SETTING_TEXT, .size = sizeof(char *), .check = check_host_text}};

const struct setting_list list_plain_hosts = {ENTRIES(plain_host_fields, char *), .takes = "takes " HOSTS};

static int check_origin_text(const char *text, char why[SETTING_WHY])
{
        struct http_url origin;
        return http_origin_parse(&origin, text) == 0
                       ? 0
                       : setting_wrong(why, "takes a host, with a port or without, after https://, http:// or nothing");
}

#define F(name) #name, SETTING_TEXT, SETTING_FIELD(struct web_host, name)
static const struct setting host_fields[] = {
        {F(host), .check = check_origin_text}, {F(token), .secret = true}, {F(token_file)}, {F(user)},
        {F(password), .secret = true},         {F(password_file)}};
#undef F

static int check_host(struct config *config, void *entry, unsigned given, char why[SETTING_WHY])
{
        const struct web_host *h = entry;
        bool token = h->token != NULL || h->token_file != NULL;
        bool password = h->password != NULL || h->password_file != NULL;
        if (h->host == NULL)
                return setting_wrong(why, "has no 'host'");
        if ((h->token != NULL && h->token_file != NULL) || (h->password != NULL && h->password_file != NULL))
                return setting_wrong(why, "a value and a file for the same secret");
        if (token == (h->user != NULL) || (h->user != NULL) != password)
                return setting_wrong(why, "takes token or token_file, or user with password or password_file");
        struct http_url origin, another;
        require(http_origin_parse(&origin, h->host) == 0);
        for (const struct web_host *other = config->http.hosts; other != h; other++)
                if (http_origin_parse(&another, other->host) == 0 && http_same_origin(&origin, &another))
                        return setting_wrong(why, "the host is listed twice");
        return 0;
}

const struct setting_list list_hosts = {ENTRIES(host_fields, struct web_host), .check = check_host};

/* ---- s3.sources, gcs.sources, azure.sources ---- */

/* Of a source, a bool that overrides that of all sources. The next bool in its struct is that it is given as false. */
static int set_given_bool(void *field, const char *text, char why[SETTING_WHY])
{
        bool *given = field;
        given[0] = strcmp(text, "true") == 0;
        given[1] = strcmp(text, "false") == 0;
        return given[0] || given[1] ? 0 : setting_wrong(why, "neither true nor false");
}

static void given_bool_text(const void *field, char *out, size_t size)
{
        const bool *given = field;
        snprintf(out, size, "%s", given[0] ? "true" : given[1] ? "false" : "");
}
#define GIVEN_BOOL(name, type, field)                                                                                  \
        {                                                                                                              \
                name, SETTING_OWN, offsetof(type, field), 2 * sizeof(bool), .set = set_given_bool,                     \
                                                                            .text = given_bool_text                    \
        }
_Static_assert(offsetof(struct s3_endpoint_opts, is_signed) == offsetof(struct s3_endpoint_opts, is_unsigned) + 1, "");
_Static_assert(offsetof(struct azure_opts, is_authorized) == offsetof(struct azure_opts, is_anonymous) + 1, "");
_Static_assert(offsetof(struct gcs_opts, is_authorized) == offsetof(struct gcs_opts, is_anonymous) + 1, "");

/* An entry's source begins with the scheme and a bucket, and is not that of an entry before. */
static int check_own_source(const void *first, const void *entry, size_t size, const char *scheme,
                            char why[SETTING_WHY])
{
        /* The source is the first field. */
        const char *source = *(const char *const *)entry, *bucket = source != NULL ? source + strlen(scheme) : NULL;
        if (source == NULL || strncmp(source, scheme, strlen(scheme)) != 0 || bucket[0] == '\0' || bucket[0] == '/')
                return setting_wrong(why, "has no 'source' that begins with %sBUCKET", scheme);
        for (const char *other = first; other != entry; other += size)
                if (strcmp(*(const char *const *)(const void *)other, source) == 0)
                        return setting_wrong(why, "the source is listed twice");
        return 0;
}

#define F(name) #name, SETTING_TEXT, SETTING_FIELD(struct s3_endpoint_opts, name)
static const struct setting s3_fields[] = {
        {F(source)},
        {F(endpoint)},
        {F(region)},
        {F(ca)},
        {F(profile)},
        {F(access_key), .secret = true},
        {F(secret_key), .secret = true},
        {F(session_token), .secret = true},
        {F(sse_c_key), .secret = true, .check = check_key_file},
        {"addressing", SETTING_WORD, SETTING_FIELD(struct s3_endpoint_opts, addressing),
         .words = setting_addressing_words},
        GIVEN_BOOL("unsigned", struct s3_endpoint_opts, is_unsigned),
};
#undef F

static int check_s3_source(struct config *config, void *entry, unsigned given, char why[SETTING_WHY])
{
        const struct s3_endpoint_opts *s3 = entry;
        if (check_own_source(config->s3_sources, entry, sizeof(*s3), "s3://", why) < 0)
                return -1;
        if ((s3->access_key == NULL) != (s3->secret_key == NULL))
                return setting_wrong(why, "of access_key and secret_key one is given without the other");
        if (s3->session_token != NULL && s3->access_key == NULL)
                return setting_wrong(why, "session_token without access_key");
        if (s3->is_unsigned && s3->access_key != NULL)
                return setting_wrong(why, "unsigned, and with keys");
        return 0;
}

const struct setting_list list_s3_sources = {ENTRIES(s3_fields, struct s3_endpoint_opts), .check = check_s3_source};

#define F(name) #name, SETTING_TEXT, SETTING_FIELD(struct gcs_opts, name)
static const struct setting gcs_fields[] = {
        {F(source)},
        {F(endpoint)},
        {F(credentials), .secret = true},
        {F(quota_project)},
        GIVEN_BOOL("anonymous", struct gcs_opts, is_anonymous),
};
#undef F

static int check_gcs_source(struct config *config, void *entry, unsigned given, char why[SETTING_WHY])
{
        const struct gcs_opts *gcs = entry;
        if (check_own_source(config->gcs_sources, entry, sizeof(*gcs), "gs://", why) < 0)
                return -1;
        if (gcs->is_anonymous && gcs->credentials != NULL)
                return setting_wrong(why, "anonymous, and with credentials");
        return 0;
}

const struct setting_list list_gcs_sources = {ENTRIES(gcs_fields, struct gcs_opts), .check = check_gcs_source};

#define F(name) #name, SETTING_TEXT, SETTING_FIELD(struct azure_opts, name)
static const struct setting azure_fields[] = {
        {F(source)},
        {F(account)},
        {F(endpoint)},
        {F(connection_string), .secret = true},
        {F(sas_token), .secret = true},
        {F(account_key), .secret = true},
        {F(tenant_id)},
        {F(client_id)},
        {F(client_secret), .secret = true},
        {F(federated_token_file)},
        {F(authority_host)},
        {F(token), .secret = true},
        GIVEN_BOOL("anonymous", struct azure_opts, is_anonymous),
};
#undef F

static int check_azure_source(struct config *config, void *entry, unsigned given, char why[SETTING_WHY])
{
        const struct azure_opts *azure = entry;
        if (check_own_source(config->azure_sources, entry, sizeof(*azure), "az://", why) < 0)
                return -1;
        if (azure->is_anonymous && (azure->connection_string != NULL || azure->sas_token != NULL ||
                                    azure->account_key != NULL || azure->token != NULL || azure->client_id != NULL))
                return setting_wrong(why, "anonymous, and with credentials");
        return 0;
}

const struct setting_list list_azure_sources = {ENTRIES(azure_fields, struct azure_opts), .check = check_azure_source};

/* ---- preload ---- */

static int check_source(const char *value, char why[SETTING_WHY])
{
        cleanup_free char *canonical = NULL;
        struct error error = {0};
        if (strlen(value) > PROTO_TEXT_MAX)
                return setting_wrong(why, "longer than %d bytes", PROTO_TEXT_MAX);
        if (!hub_is_id(value) && source_canonical(value, &canonical, &error) < 0)
                return setting_wrong(why, "%.150s", error.text);
        return 0;
}

static int check_name(const char *value, char why[SETTING_WHY])
{
        bool valid = value[0] != '\0' && strlen(value) <= PROTO_NAME_MAX;
        return valid ? 0 : setting_wrong(why, "a name has 1 to %d bytes", PROTO_NAME_MAX);
}

static const struct setting preload_device_fields[] = {{NULL, SETTING_TEXT, SETTING_FIELD(struct model_device, uuid)}};
static const struct setting_list preload_devices = {ENTRIES(preload_device_fields, struct model_device)};
_Static_assert(SETTING_LIST_MAX <= LOAD_DEVICES, "a load takes them all");

static int check_pattern(const char *value, char why[SETTING_WHY])
{
        struct error error;
        return ranks_check_pattern(value, &error) < 0 ? setting_wrong(why, "%.150s", error.text) : 0;
}

static const char *const layout_words[] = {"replica", "rank", NULL};
static const char *const verify_words[] = {"none", "sha256", NULL};

#define F(name) SETTING_FIELD(struct model_record, name)
static const struct setting preload_fields[] = {
        {"source", SETTING_TEXT, F(source), .check = check_source},
        {"name", SETTING_TEXT, F(name), .check = check_name},
        {"devices", SETTING_LIST, F(devices), .list = &preload_devices},
        {"layout", SETTING_WORD, F(ranks), .words = layout_words},
        {"pattern", SETTING_TEXT, F(pattern), .check = check_pattern},
        {"verify", SETTING_WORD, F(verified), .words = verify_words},
        {"pin", SETTING_WORD, F(settings.pinned), .words = setting_bool_words},
        {"priority", SETTING_NUMBER, F(settings.priority), NULL, 1, PROTO_PRIORITY_MAX},
        {"keep_alive", SETTING_DURATION, F(settings.keep_alive_ns), NULL, 0, PROTO_DURATION_MAX *UINT64_C(1000000)},
};
#undef F

static int check_preload(struct config *config, void *entry, unsigned given, char why[SETTING_WHY])
{
        const struct model_record *last = entry;
        if (last->source == NULL)
                return setting_wrong(why, "has no 'source'");
        if (last->pattern != NULL && !last->ranks)
                return setting_wrong(why, "only the layout 'rank' has a pattern");
        for (const struct model_record *other = config->preload; other != last; other++)
                if (model_record_equal(other, last))
                        return setting_wrong(why, "listed twice");
        return 0;
}

const struct setting_list list_preload = {ENTRIES(preload_fields, struct model_record), .max = PRELOAD_MAX,
                                          .check = check_preload};

/* ---- access.roles ---- */

/* Names are resolved here, once: the look-up may ask a directory server, so it must not happen while a client waits. */
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

static int set_id(uint32_t *id, const char *value, int (*find)(const char *, uint32_t *), const char *what,
                  char why[SETTING_WHY])
{
        bool is_number = value[0] != '\0' && strspn(value, "0123456789") == strlen(value);
        uint64_t number = 0;
        if (strcmp(value, "*") == 0) {
                *id = ROLE_ANYONE;
                return 0;
        }
        if (is_number && (config_parse_size(value, &number) < 0 || number >= ROLE_ANYONE))
                return setting_wrong(why, "'%.60s' is no %s's number", value, what);
        *id = (uint32_t)number;
        int r = is_number ? 0 : find(value, id);
        if (r == ENOENT)
                return setting_wrong(why, "there is no %s '%.60s'", what, value);
        if (r != 0)
                return setting_wrong(why, "%s '%.60s' cannot be looked up: %s", what, value, strerrordesc_np(r));
        return 0;
}

static int set_user(void *id, const char *value, char why[SETTING_WHY])
{
        return set_id(id, value, find_user, "user", why);
}

static int set_group(void *id, const char *value, char why[SETTING_WHY])
{
        return set_id(id, value, find_group, "group", why);
}

static void id_text(const void *field, char *out, size_t size)
{
        uint32_t id = *(const uint32_t *)field;
        if (id == ROLE_ANYONE)
                snprintf(out, size, "\"*\"");
        else
                snprintf(out, size, "%" PRIu32, id);
}

static int set_role_root(void *root, const char *value, char why[SETTING_WHY])
{
        struct error error = {0};
        if (setting_check_absolute(value, why) < 0)
                return -1;
        return source_canonical(value, root, &error) == 0 ? 0 : setting_wrong(why, "%.150s", error.text);
}

static void role_root_text(const void *field, char *out, size_t size)
{
        snprintf(out, size, "%s", *(char *const *)field);
}

static int check_bucket(const char *value, char why[SETTING_WHY])
{
        const char *rest = strstr(value, "://");
        if (rest == NULL || rest == value || rest[3] == '\0')
                return setting_wrong(why, "'%.80s' is not the beginning of a URI, such as s3://bucket/folder/", value);
        return 0;
}

static int set_role(void *member, const char *value, char why[SETTING_WHY])
{
        enum role role = role_parse(value);
        if (role == ROLE_NONE)
                return setting_wrong(why, "'%.40s' is not attach, load or admin", value);
        *(enum role *)member = role;
        return 0;
}

static void role_text(const void *field, char *out, size_t size)
{
        snprintf(out, size, "%s", role_name(*(const enum role *)field));
}

static const struct setting user_fields[] = {{NULL, SETTING_OWN, .set = set_user, .text = id_text}};
static const struct setting group_fields[] = {{NULL, SETTING_OWN, .set = set_group, .text = id_text}};
static const struct setting role_root_fields[] = {{NULL, SETTING_OWN, .set = set_role_root, .text = role_root_text}};
static const struct setting bucket_fields[] = {{NULL, SETTING_TEXT, .size = sizeof(char *), .check = check_bucket}};
static const struct setting_list users = {ENTRIES(user_fields, uint32_t), .max = IDS_MAX};
static const struct setting_list groups = {ENTRIES(group_fields, uint32_t), .max = IDS_MAX};
static const struct setting_list role_roots = {ENTRIES(role_root_fields, char *), .may_be_empty = true};
static const struct setting_list buckets = {ENTRIES(bucket_fields, char *), .may_be_empty = true};

enum { RULE_ROLE, RULE_USERS, RULE_GROUPS, RULE_ROOTS, RULE_BUCKETS, RULE_ENCRYPTED_ONLY, RULE_QUOTAS };

#define F(name) SETTING_FIELD(struct role_rule, name)
static const struct setting rule_fields[] = {
        [RULE_ROLE] = {"role", SETTING_OWN, F(role), .set = set_role, .text = role_text},
        [RULE_USERS] = {"users", SETTING_LIST, F(users), .list = &users},
        [RULE_GROUPS] = {"groups", SETTING_LIST, F(groups), .list = &groups},
        [RULE_ROOTS] = {"roots", SETTING_LIST, F(roots), .list = &role_roots},
        [RULE_BUCKETS] = {"buckets", SETTING_LIST, F(buckets), .list = &buckets},
        [RULE_ENCRYPTED_ONLY] = {"encrypted_only", SETTING_WORD, F(encrypted_only), .words = setting_bool_words},
        {"connections", SETTING_NUMBER, F(max[QUOTA_CONNECTIONS]), NULL, 1, UINT64_MAX},
        {"leases", SETTING_NUMBER, F(max[QUOTA_LEASES]), NULL, 1, UINT64_MAX},
        {"loads", SETTING_NUMBER, F(max[QUOTA_LOADS]), NULL, 1, UINT64_MAX},
        {"models", SETTING_NUMBER, F(max[QUOTA_MODELS]), NULL, 1, UINT64_MAX},
        {"bytes", SETTING_SIZE, F(max[QUOTA_BYTES]), NULL, 1, UINT64_MAX},
};
#undef F
_Static_assert(ARRAY_SIZE(rule_fields) == RULE_QUOTAS + QUOTA_SLOT_COUNT, "a key for each quota");

static int check_rule(struct config *config, void *entry, unsigned given, char why[SETTING_WHY])
{
        struct role_rule *rule = entry;
        rule->roots.given = (given >> RULE_ROOTS & 1) != 0;
        rule->buckets.given = (given >> RULE_BUCKETS & 1) != 0;
        if (rule->role == ROLE_NONE)
                return setting_wrong(why, "has no 'role'");
        if (rule->users.n == 0 && rule->groups.n == 0)
                return setting_wrong(why, "names no user: it requires 'users' or 'groups'");
        return 0;
}

const struct setting_list list_rules = {ENTRIES(rule_fields, struct role_rule),
                                        .line = offsetof(struct role_rule, line), .check = check_rule};

/* Its links are followed where it exists: the roots themselves are opened later (roles_open()). malloc'd. */
static char *without_links(const char *path)
{
        return realpath(path, NULL) ?: strdup(path);
}

static bool is_below(const char *root, const char *path)
{
        cleanup_free char *real_root = without_links(root), *real = without_links(path), *canonical = NULL;
        struct error error;
        return (source_canonical(root, &canonical, &error) == 0 && source_is_below(canonical, path)) ||
               (real_root != NULL && real != NULL && source_is_below(real_root, real));
}

int access_check_roots(const struct config *config, struct error *error)
{
        const struct roles *roles = &config->access;
        for (size_t i = 0; i < roles->n; i++)
                for (size_t k = 0; k < roles->rules[i].roots.n; k++) {
                        const char *path = roles->rules[i].roots.v[k];
                        bool below = false;
                        for (size_t j = 0; j < config->n_roots; j++)
                                below = below || is_below(config->roots[j], path);
                        if (!below)
                                return error_set(error, STREAMER_EINVAL,
                                                 "%s:%u: access.roles[%zu].roots: %s is below none of the daemon's own "
                                                 "roots",
                                                 roles->file, roles->rules[i].line, i, path);
                }
        return 0;
}
