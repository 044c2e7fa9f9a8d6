/* SPDX-License-Identifier: Apache-2.0
 *
 * The lists of the section http: hosts that plain http is allowed to, and credentials by host. No error text repeats a
 * value: it may be a secret given under the wrong key.
 */
#include "daemon/config/document/document.h"

#include "daemon/base/util.h"

#include <string.h>

/* "host", "host:port", "[v6]:port". */
static bool is_host(const char *text)
{
        return text[0] != '\0' && strlen(text) < 256 && text[strcspn(text, "/@?# \t")] == '\0';
}

/* ---- allow_plain ---- */

int http_read_plain_host(struct doc *doc)
{
        struct config *config = doc->config;
        char why[SETTING_WHY];
        if (!doc_at(doc, YAML_SCALAR_EVENT) || !is_host(doc_scalar(doc)))
                return doc_fail(doc, "takes hosts: a name or address, with a port or without");
        int r = setting_append(&config->http.allow_plain, &config->http.n_allow_plain, SETTING_LIST_MAX, "hosts",
                               doc_scalar(doc), why);
        return r < 0 ? doc_fail(doc, why) : 0;
}

/* ---- hosts ---- */

static const struct doc_field fields[] = {
        DOC_TEXT(struct web_host, host), DOC_TEXT(struct web_host, token),    DOC_TEXT(struct web_host, token_file),
        DOC_TEXT(struct web_host, user), DOC_TEXT(struct web_host, password), DOC_TEXT(struct web_host, password_file)};

static int check_host(struct doc *doc, void *entry)
{
        const struct web_host *h = entry;
        bool token = h->token != NULL || h->token_file != NULL;
        bool password = h->password != NULL || h->password_file != NULL;
        if (h->host == NULL || !is_host(h->host))
                return doc_fail(doc, "has no 'host' (a name or address, with a port or without)");
        if ((h->token != NULL && h->token_file != NULL) || (h->password != NULL && h->password_file != NULL))
                return doc_fail(doc, "a value and a file for the same secret");
        if (token == (h->user != NULL) || (h->user != NULL) != password)
                return doc_fail(doc, "takes token or token_file, or user with password or password_file");
        for (const struct web_host *other = doc->config->http.hosts; other != h; other++)
                if (strcmp(other->host, h->host) == 0)
                        return doc_fail(doc, "the host is listed twice");
        return 0;
}

const struct doc_list http_hosts = {.key = "http.hosts",
                                    .fields = fields,
                                    .n_fields = ARRAY_SIZE(fields),
                                    .entry_size = sizeof(struct web_host),
                                    .max = SETTING_LIST_MAX,
                                    .too_many = "too many hosts",
                                    .entries = offsetof(struct config, http.hosts),
                                    .n = offsetof(struct config, http.n_hosts),
                                    .check = check_host};

bool http_same_hosts(const struct config *a, const struct config *b)
{
        bool same = a->http.n_hosts == b->http.n_hosts;
        for (size_t i = 0; same && i < a->http.n_hosts; i++)
                same = doc_same_texts(&http_hosts, &a->http.hosts[i], &b->http.hosts[i]);
        return same;
}
