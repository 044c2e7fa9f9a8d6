/* SPDX-License-Identifier: Apache-2.0
 *
 * The lists http.allow_plain (hosts), http.hosts (credentials by host) and s3.sources (endpoints and keys for some
 * sources). No error text repeats a value: it may be a secret given under the wrong key.
 */
#include "daemon/config/document/document.h"

#include "daemon/base/util.h"

#include <string.h>

/* "host", "host:port", "[v6]:port". */
static bool is_host(const char *text)
{
        return text[0] != '\0' && strlen(text) < 256 && text[strcspn(text, "/@?# \t")] == '\0';
}

/* ---- http.allow_plain ---- */

int http_read_plain_host(struct doc *doc)
{
        struct config *config = doc->config;
        char why[SETTING_WHY];
        if (doc->event.type != YAML_SCALAR_EVENT || !is_host(doc_scalar(doc)))
                return doc_fail(doc, "takes hosts: a name or address, with a port or without");
        int r = setting_append(&config->http.allow_plain, &config->http.n_allow_plain, SETTING_LIST_MAX, "hosts",
                               doc_scalar(doc), why);
        return r < 0 ? doc_fail(doc, why) : 0;
}

/* ---- http.hosts ---- */

static const struct doc_field host_fields[] = {
        {DOC_TEXT(struct web_host, host)},       {DOC_TEXT(struct web_host, token)},
        {DOC_TEXT(struct web_host, token_file)}, {DOC_TEXT(struct web_host, user)},
        {DOC_TEXT(struct web_host, password)},   {DOC_TEXT(struct web_host, password_file)},
};

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
                                    .fields = host_fields,
                                    .n_fields = ARRAY_SIZE(host_fields),
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

/* ---- s3.sources ---- */

/* The member is the entry. */
static int set_unsigned(void *member, const char *value, char why[SETTING_WHY])
{
        struct s3_endpoint_opts *s3 = member;
        s3->is_unsigned = strcmp(value, "true") == 0;
        s3->is_signed = strcmp(value, "false") == 0;
        return s3->is_unsigned || s3->is_signed ? 0 : setting_wrong(why, "neither true nor false");
}

static const struct doc_field source_fields[] = {
        {DOC_TEXT(struct s3_endpoint_opts, source)},
        {DOC_TEXT(struct s3_endpoint_opts, endpoint)},
        {DOC_TEXT(struct s3_endpoint_opts, region)},
        {DOC_TEXT(struct s3_endpoint_opts, ca)},
        {DOC_TEXT(struct s3_endpoint_opts, profile)},
        {DOC_TEXT(struct s3_endpoint_opts, access_key)},
        {DOC_TEXT(struct s3_endpoint_opts, secret_key)},
        {DOC_TEXT(struct s3_endpoint_opts, session_token)},
        {"addressing", setting_parse_addressing, offsetof(struct s3_endpoint_opts, addressing), false},
        {"unsigned", set_unsigned, 0, false},
};

static int check_source(struct doc *doc, void *entry)
{
        const struct s3_endpoint_opts *s3 = entry;
        const char *source = s3->source;
        if (source == NULL || strncmp(source, "s3://", 5) != 0 || source[5] == '\0' || source[5] == '/')
                return doc_fail(doc, "has no 'source' that begins with s3://BUCKET");
        if ((s3->access_key == NULL) != (s3->secret_key == NULL))
                return doc_fail(doc, "of access_key and secret_key one is given without the other");
        if (s3->session_token != NULL && s3->access_key == NULL)
                return doc_fail(doc, "session_token without access_key");
        if (s3->is_unsigned && s3->access_key != NULL)
                return doc_fail(doc, "unsigned, and with keys");
        for (const struct s3_endpoint_opts *other = doc->config->s3_sources; other != s3; other++)
                if (strcmp(other->source, source) == 0)
                        return doc_fail(doc, "the source is listed twice");
        return 0;
}

const struct doc_list s3_sources = {.key = "s3.sources",
                                    .fields = source_fields,
                                    .n_fields = ARRAY_SIZE(source_fields),
                                    .entry_size = sizeof(struct s3_endpoint_opts),
                                    .max = SETTING_LIST_MAX,
                                    .too_many = "too many sources",
                                    .entries = offsetof(struct config, s3_sources),
                                    .n = offsetof(struct config, n_s3_sources),
                                    .check = check_source};

bool s3_same_sources(const struct config *a, const struct config *b)
{
        bool same = a->n_s3_sources == b->n_s3_sources;
        for (size_t i = 0; same && i < a->n_s3_sources; i++) {
                const struct s3_endpoint_opts *x = &a->s3_sources[i], *y = &b->s3_sources[i];
                same = doc_same_texts(&s3_sources, x, y) && x->addressing == y->addressing &&
                       x->is_unsigned == y->is_unsigned && x->is_signed == y->is_signed;
        }
        return same;
}
