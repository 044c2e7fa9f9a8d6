/* SPDX-License-Identifier: Apache-2.0
 *
 * URLs as text. What has user and password in it is refused: it would end up in logs and in shells'
 * histories, and settings hold credentials by host.
 */
#include "daemon/io/http/policy.h"

#include "daemon/base/text/percent.h"
#include "daemon/base/util.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <string.h>
#include <strings.h>

#define URL_MAX 8192u

/* No byte of it is a control character, a space or part of UTF-8. */
static bool printable(const char *text)
{
        for (const char *c = text; *c != '\0'; c++)
                if (*c <= ' ' || *c == 0x7f)
                        return false;
        return true;
}

/* As far as who connects need not know: with a colon, and maybe with a zone. */
static bool is_v6(const char *host)
{
        size_t len = strspn(host, "0123456789abcdef:.");
        return memchr(host, ':', len) != NULL && (host[len] == '\0' || host[len] == '%');
}

/* "host", "host:port", "[v6]:port" up to `end`. */
static int parse_authority(struct http_url *url, const char *text, const char *end)
{
        const char *from = text, *stop, *rest;
        if (*from == '[') {
                from++;
                stop = memchr(from, ']', (size_t)(end - from));
                rest = stop != NULL ? stop + 1 : NULL;
        } else {
                stop = memchr(from, ':', (size_t)(end - from)) ?: end;
                rest = stop;
        }
        size_t len = stop != NULL ? (size_t)(stop - from) : 0;
        if (len == 0 || len >= sizeof(url->host))
                return -1;
        for (size_t i = 0; i < len; i++)
                url->host[i] = (char)tolower((unsigned char)from[i]);
        url->host[len] = '\0';
        if (*text == '[' && !is_v6(url->host))
                return -1;
        if (rest == end)
                return 0;
        unsigned port = 0;
        if (*rest != ':' || rest + 1 == end || end - rest > 6)
                return -1;
        for (const char *c = rest + 1; c < end; c++) {
                if (!isdigit((unsigned char)*c))
                        return -1;
                port = port * 10 + (unsigned)(*c - '0');
        }
        url->port = port;
        return port > 0 && port < 65536 ? 0 : -1;
}

int http_url_parse(struct http_url *url, const char *text)
{
        bool tls = strncasecmp(text, "https://", 8) == 0;
        if ((!tls && strncasecmp(text, "http://", 7) != 0) || strlen(text) > URL_MAX || !printable(text))
                return -1;
        const char *authority = text + (tls ? 8 : 7);
        const char *end = authority + strcspn(authority, "/?#");
        *url = (struct http_url){.tls = tls, .port = tls ? 443 : 80, .path = end};
        if (memchr(authority, '@', (size_t)(end - authority)) != NULL)
                return -1;
        return parse_authority(url, authority, end);
}

bool http_url_same_origin(const struct http_url *a, const struct http_url *b)
{
        return a->tls == b->tls && a->port == b->port && strcmp(a->host, b->host) == 0;
}

bool http_url_loopback(const struct http_url *url)
{
        struct in_addr v4;
        struct in6_addr v6;
        if (strcmp(url->host, "localhost") == 0)
                return true;
        if (inet_pton(AF_INET, url->host, &v4) == 1)
                return ntohl(v4.s_addr) >> 24 == 127;
        return inet_pton(AF_INET6, url->host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool http_host_matches(const struct http_url *url, const char *pattern)
{
        char host[sizeof(url->host) + 8];
        bool v6 = strchr(url->host, ':') != NULL;
        snprintf(host, sizeof(host), v6 ? "[%s]:%u" : "%s:%u", url->host, url->port);
        return strcasecmp(pattern, url->host) == 0 || strcasecmp(pattern, host) == 0;
}

char *http_url_encode(const char *text, const char *keep)
{
        char *out = malloc(3 * strlen(text) + 1);
        if (out != NULL)
                percent_encode(out, text, keep);
        return out;
}

/* ---- references ---- */

/* In place: "." and ".." of the path, up to its query. */
static void remove_dots(char *path)
{
        char *to = path, *end = path + strcspn(path, "?#");
        cleanup_free char *query = strdup(end);
        *end = '\0';
        for (const char *from = path; *from == '/';) {
                size_t len = strcspn(from + 1, "/");
                bool last = from[1 + len] == '\0';
                const char *name = from + 1;
                if (len == 2 && name[0] == '.' && name[1] == '.') {
                        while (to > path && *--to != '/')
                                ;
                        if (last)
                                *to++ = '/';
                } else if (len == 1 && name[0] == '.') {
                        if (last)
                                *to++ = '/';
                } else {
                        memmove(to, from, len + 1);
                        to += len + 1;
                }
                from += len + 1;
        }
        if (query != NULL)
                memcpy(to, query, strlen(query) + 1);
        else
                *to = '\0';
}

char *http_url_join(const char *base, const char *reference)
{
        struct http_url url;
        char *joined;
        if (strncasecmp(reference, "http://", 7) == 0 || strncasecmp(reference, "https://", 8) == 0)
                return strdup(reference);
        bool other_scheme = reference[strcspn(reference, ":/?#")] == ':';
        if (other_scheme || http_url_parse(&url, base) < 0)
                return NULL;
        int origin = (int)(url.path - base);
        int path = (int)strcspn(url.path, "?#");
        if (strncmp(reference, "//", 2) == 0)
                return format_new("%s:%s", url.tls ? "https" : "http", reference);
        if (reference[0] == '/')
                joined = format_new("%.*s%s", origin, base, reference);
        else if (reference[0] == '?' || reference[0] == '\0')
                joined = format_new("%.*s%s", origin + path, base, reference);
        else {
                while (path > 0 && url.path[path - 1] != '/')
                        path--;
                joined = format_new("%.*s%s%s", origin + path, base, path == 0 ? "/" : "", reference);
        }
        if (joined != NULL)
                remove_dots(joined + origin);
        return joined;
}
