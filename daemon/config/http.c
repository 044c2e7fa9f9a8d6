/* SPDX-License-Identifier: Apache-2.0
 *
 * The lists of the section http: hosts that plain http is allowed to, and credentials by host. No reason
 * repeats a value: it may be a secret that was given under the wrong key.
 */
#include "daemon/config/lists.h"

#include "daemon/base/secret.h"
#include "daemon/base/util.h"

#include <string.h>

/* "host", "host:port", "[v6]:port". */
static bool is_host(const char *text)
{
        return text[0] != '\0' && strlen(text) < 256 && text[strcspn(text, "/@?# \t")] == '\0';
}

/* ---- allow_plain ---- */

static int read_plain_host(struct doc *doc)
{
        struct config *config = doc->config;
        if (!doc_at(doc, YAML_SCALAR_EVENT) || !is_host(doc_scalar(doc)))
                return doc_fail(doc, "takes hosts: a name or address, with a port or without");
        if (config->http.n_allow_plain == SETTING_LIST_MAX)
                return doc_fail(doc, "too many hosts");
        char **hosts = reallocarray(config->http.allow_plain, config->http.n_allow_plain + 1, sizeof(*hosts));
        if (hosts == NULL)
                return doc_fail(doc, "no memory");
        config->http.allow_plain = hosts;
        hosts[config->http.n_allow_plain] = strdup(doc_scalar(doc));
        if (hosts[config->http.n_allow_plain] == NULL)
                return doc_fail(doc, "no memory");
        config->http.n_allow_plain++;
        return 0;
}

int http_read_allow_plain(struct doc *doc)
{
        return doc_read_list(doc, read_plain_host);
}

/* ---- hosts ---- */

#define HOST_FIELDS(X) X(host) X(token) X(token_file) X(user) X(password) X(password_file)

#define X(name)                                                                                                        \
        static int set_##name(void *entry, const char *value, char why[SETTING_WHY])                                   \
        {                                                                                                              \
                return setting_copy(&((struct config_http_host *)entry)->name, value, why);                            \
        }
HOST_FIELDS(X)
#undef X

static const struct doc_field fields[] = {
#define X(name) {#name, set_##name, false},
        HOST_FIELDS(X)
#undef X
};

static int check_host(struct doc *doc, const struct config_http_host *h)
{
        bool token = h->token != NULL || h->token_file != NULL;
        bool password = h->password != NULL || h->password_file != NULL;
        if (h->host == NULL || !is_host(h->host))
                return doc_fail(doc, "has no 'host' (a name or address, with a port or without)");
        if ((h->token != NULL && h->token_file != NULL) || (h->password != NULL && h->password_file != NULL))
                return doc_fail(doc, "a value and a file for the same secret");
        if (token == (h->user != NULL) || (h->user != NULL) != password)
                return doc_fail(doc, "takes token or token_file, or user with password or password_file");
        for (const struct config_http_host *other = doc->config->http.hosts; other != h; other++)
                if (strcmp(other->host, h->host) == 0)
                        return doc_fail(doc, "the host is listed twice");
        return 0;
}

static const struct doc_list hosts = {.name = "http.hosts",
                                      .fields = fields,
                                      .n_fields = ARRAY_SIZE(fields),
                                      .entry_size = sizeof(struct config_http_host),
                                      .max = SETTING_LIST_MAX,
                                      .too_many = "too many hosts"};

static int read_host(struct doc *doc)
{
        struct config *config = doc->config;
        struct config_http_host *v = doc_grow(doc, &hosts, config->http.hosts, config->http.n_hosts);
        if (v == NULL)
                return doc->error->code;
        config->http.hosts = v;
        size_t i = config->http.n_hosts++;
        int r = doc_read_entry(doc, &hosts, v, i);
        return r < 0 ? r : check_host(doc, &v[i]);
}

int http_read_hosts(struct doc *doc)
{
        return doc_read_list(doc, read_host);
}

/* ---- what a reload finds ---- */

bool http_same_allow_plain(const struct config *a, const struct config *b)
{
        bool same = a->http.n_allow_plain == b->http.n_allow_plain;
        for (size_t i = 0; same && i < a->http.n_allow_plain; i++)
                same = strcmp(a->http.allow_plain[i], b->http.allow_plain[i]) == 0;
        return same;
}

bool http_same_hosts(const struct config *a, const struct config *b)
{
        bool same = a->http.n_hosts == b->http.n_hosts;
        for (size_t i = 0; same && i < a->http.n_hosts; i++) {
                const struct config_http_host *x = &a->http.hosts[i], *y = &b->http.hosts[i];
#define X(name) same = same && setting_same_text(x->name, y->name);
                HOST_FIELDS(X)
#undef X
        }
        return same;
}

/* ---- the end ---- */

void setting_clear_http(struct config *config)
{
        for (size_t i = 0; i < config->http.n_allow_plain; i++)
                free(config->http.allow_plain[i]);
        free(config->http.allow_plain);
        for (size_t i = 0; i < config->http.n_hosts; i++) {
                struct config_http_host *h = &config->http.hosts[i];
#define X(name) secret_free(h->name);
                HOST_FIELDS(X)
#undef X
        }
        free(config->http.hosts);
        free(config->http.ca);
}
