/* SPDX-License-Identifier: Apache-2.0
 *
 * The lists of the file: roots, devices, http.allow_plain, http.hosts, s3.sources and preload. No error text repeats a
 * value of http.hosts or s3.sources: it may be a secret given under the wrong key.
 */
#include "daemon/config/setting.h"

#include "daemon/base/util.h"
#include "daemon/load/load.h"
#include "daemon/model/ranks.h"
#include "daemon/source/source.h"
#include "proto/hub.h"

#define ENTRIES(fields) (fields), ARRAY_SIZE(fields)

static int check_root(const char *text, char why[SETTING_WHY])
{
        return text[0] == '/' ? 0 : setting_wrong(why, "'%.80s' is not an absolute path", text);
}

static const struct setting root_fields[] = {{NULL, SETTING_TEXT, .size = sizeof(char *), .check = check_root}};

const struct setting_list list_roots = {ENTRIES(root_fields), sizeof(char *), SETTING_LIST_MAX,
                                        offsetof(struct config, n_roots), .takes = "a root is a path"};

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

static int set_prefault(void *field, const char *text, char why[SETTING_WHY])
{
        if (strcmp(text, "auto") == 0)
                *(uint64_t *)field = PREFAULT_AUTO;
        else if (config_parse_size(text, field) < 0)
                return setting_wrong(why, "'%.40s' is not auto or a size (bytes, or with KiB, MiB, GiB, TiB)", text);
        return 0;
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
         .set = set_budget},
        {"pages", SETTING_WORD, F(pages), .words = page_words},
        {"prefaulted", SETTING_OWN, F(prefault), "auto", .set = set_prefault},
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
        ENTRIES(device_fields),
        sizeof(struct config_device),
        SETTING_LIST_MAX,
        offsetof(struct config, n_devices),
        "a device is a word such as host=8GiB, or { device, budget, pages, prefaulted, handles }",
        .set_word = set_device_word,
        .check = check_device};

/* ---- http.allow_plain, http.hosts ---- */

#define HOSTS "hosts: a name or address, with a port or without"

static int check_host_text(const char *text, char why[SETTING_WHY])
{
        bool valid = text[0] != '\0' && strlen(text) < 256 && text[strcspn(text, "/@?# \t")] == '\0';
        return valid ? 0 : setting_wrong(why, "takes " HOSTS);
}

static const struct setting plain_host_fields[] = {
        {NULL, SETTING_TEXT, .size = sizeof(char *), .check = check_host_text}};

const struct setting_list list_plain_hosts = {ENTRIES(plain_host_fields), sizeof(char *), SETTING_LIST_MAX,
                                              offsetof(struct config, http.n_allow_plain), .takes = "takes " HOSTS};

#define F(name) #name, SETTING_TEXT, SETTING_FIELD(struct web_host, name)
static const struct setting host_fields[] = {
        {F(host), .check = check_host_text}, {F(token)}, {F(token_file)}, {F(user)}, {F(password)}, {F(password_file)}};
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
        for (const struct web_host *other = config->http.hosts; other != h; other++)
                if (strcmp(other->host, h->host) == 0)
                        return setting_wrong(why, "the host is listed twice");
        return 0;
}

const struct setting_list list_hosts = {ENTRIES(host_fields), sizeof(struct web_host), SETTING_LIST_MAX,
                                        offsetof(struct config, http.n_hosts), .check = check_host};

/* ---- s3.sources ---- */

static int set_unsigned(void *field, const char *text, char why[SETTING_WHY])
{
        struct s3_endpoint_opts *s3 = container_of(field, struct s3_endpoint_opts, is_unsigned);
        s3->is_unsigned = strcmp(text, "true") == 0;
        s3->is_signed = strcmp(text, "false") == 0;
        return s3->is_unsigned || s3->is_signed ? 0 : setting_wrong(why, "neither true nor false");
}

#define F(name) #name, SETTING_TEXT, SETTING_FIELD(struct s3_endpoint_opts, name)
static const struct setting s3_fields[] = {
        {F(source)},
        {F(endpoint)},
        {F(region)},
        {F(ca)},
        {F(profile)},
        {F(access_key)},
        {F(secret_key)},
        {F(session_token)},
        {"addressing", SETTING_WORD, SETTING_FIELD(struct s3_endpoint_opts, addressing),
         .words = setting_addressing_words},
        {"unsigned", SETTING_OWN, offsetof(struct s3_endpoint_opts, is_unsigned), 2 * sizeof(bool),
         .set = set_unsigned},
};
#undef F

static int check_s3_source(struct config *config, void *entry, unsigned given, char why[SETTING_WHY])
{
        const struct s3_endpoint_opts *s3 = entry;
        const char *source = s3->source;
        if (source == NULL || strncmp(source, "s3://", 5) != 0 || source[5] == '\0' || source[5] == '/')
                return setting_wrong(why, "has no 'source' that begins with s3://BUCKET");
        if ((s3->access_key == NULL) != (s3->secret_key == NULL))
                return setting_wrong(why, "of access_key and secret_key one is given without the other");
        if (s3->session_token != NULL && s3->access_key == NULL)
                return setting_wrong(why, "session_token without access_key");
        if (s3->is_unsigned && s3->access_key != NULL)
                return setting_wrong(why, "unsigned, and with keys");
        for (const struct s3_endpoint_opts *other = config->s3_sources; other != s3; other++)
                if (strcmp(other->source, source) == 0)
                        return setting_wrong(why, "the source is listed twice");
        return 0;
}

const struct setting_list list_s3_sources = {ENTRIES(s3_fields), sizeof(struct s3_endpoint_opts), SETTING_LIST_MAX,
                                             offsetof(struct config, n_s3_sources), .check = check_s3_source};

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

static int set_devices(void *field, const char *value, char why[SETTING_WHY])
{
        struct model_record *entry = container_of(field, struct model_record, devices);
        if (value == NULL)
                return 0;
        if (entry->n_devices == LOAD_DEVICES)
                return setting_wrong(why, "more than %d devices", LOAD_DEVICES);
        return model_record_add_device(entry, value, false) == 0 ? 0 : setting_wrong(why, "no memory");
}

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
        {"devices", SETTING_OWN, F(devices), .set = set_devices, .several = true},
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

static void deinit_preload(struct config *config)
{
        for (size_t i = 0; i < config->n_preload; i++)
                model_record_deinit(&config->preload[i]);
        free(config->preload);
        config->preload = NULL;
        config->n_preload = 0;
}

const struct setting_list list_preload = {
        ENTRIES(preload_fields), sizeof(struct model_record), PRELOAD_MAX, offsetof(struct config, n_preload),
        .check = check_preload,  .deinit = deinit_preload};
