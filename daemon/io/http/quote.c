/* SPDX-License-Identifier: Apache-2.0
 *
 * What a server says, for messages that other users and the log have: without what may be a secret of the request that
 * it repeats. A query may be one, a link's signature above all.
 *
 * Bytes that are not quoted are marked first, and removed then, so that the order of the secrets does not matter. Where
 * there is no memory to find them, nothing is quoted.
 */
#include "daemon/io/http/transfer.h"

#include "daemon/base/text/percent.h"
#include "daemon/base/util.h"

#define SECRET_MIN 4u /* bytes: a shorter value is no secret, and may be a part of any word */

enum mark { QUOTED, REMOVED, REPLACED };

/* The query of a URL, or of a path, wherever the text has one: from a '?' that follows a path to the end of the word.
 */
static void mark_queries(unsigned char *marks, const char *text)
{
        static const char ends[] = " \t\r\n\"'<>\\`)]}";
        for (const char *at = strchr(text, '?'); at != NULL; at = strchr(at, '?')) {
                size_t len = strcspn(at, ends);
                bool after_path = at > text && strchr(ends, at[-1]) == NULL;
                if (after_path && len > 1)
                        memset(marks + (at - text), REMOVED, len);
                at += len > 0 ? len : 1;
        }
}

/* Also its beginning at the end of a text, which may have been cut there. */
static void mark_secret(unsigned char *marks, const char *text, const char *secret)
{
        size_t len = strlen(secret), size = strlen(text);
        if (len < SECRET_MIN)
                return;
        for (size_t i = 0; i + SECRET_MIN <= size; i++) {
                size_t n = size - i < len ? size - i : len;
                for (size_t k = 0; memcmp(text + i, secret, n) == 0 && k < n; k++)
                        if (marks[i + k] == QUOTED)
                                marks[i + k] = REPLACED;
        }
}

/* As it is in the query, decoded, and encoded as others would. False: no memory. */
static bool mark_value(unsigned char *marks, const char *text, const char *value, size_t len)
{
        static const char plus[] = {'+', ' '};
        cleanup_free char *raw = strndup(value, len);
        if (raw == NULL)
                return false;
        mark_secret(marks, text, raw);
        for (size_t i = 0; i < ARRAY_SIZE(plus); i++) {
                cleanup_free char *decoded = strdup(raw);
                if (decoded == NULL)
                        return false;
                if (!percent_decode(decoded, plus[i]))
                        continue;
                cleanup_free char *encoded = http_url_encode(decoded, "");
                if (encoded == NULL)
                        return false;
                mark_secret(marks, text, decoded);
                mark_secret(marks, text, encoded);
        }
        return true;
}

/* False: no memory. */
static bool mark_values(unsigned char *marks, const char *text, const char *query)
{
        bool ok = true;
        for (size_t len; ok && *query != '\0' && *query != '#'; query += len + (query[len] == '&')) {
                len = strcspn(query, "&#");
                const char *equals = memchr(query, '=', len), *value = equals != NULL ? equals + 1 : query;
                ok = mark_value(marks, text, value, (size_t)(query + len - value));
        }
        return ok;
}

/* A run of marked bytes that was a value becomes "...", which is shorter; one that was a query, nothing. */
static void remove_marked(const unsigned char *marks, char *text)
{
        char *to = text;
        size_t size = strlen(text);
        for (size_t i = 0, end; i < size; i = end) {
                bool removed = false;
                for (end = i; end < size && marks[end] != QUOTED; end++)
                        removed = removed || marks[end] == REMOVED;
                if (end == i) {
                        *to++ = text[end++];
                } else if (!removed) {
                        require(end - i >= SECRET_MIN);
                        to = stpcpy(to, "...");
                }
        }
        *to = '\0';
}

void http_quote(char *text, const char *const *queries, size_t n)
{
        cleanup_free unsigned char *marks = calloc(1, strlen(text) + 1);
        bool ok = marks != NULL;
        if (ok)
                mark_queries(marks, text);
        for (size_t i = 0; ok && i < n; i++)
                ok = queries[i] == NULL || mark_values(marks, text, queries[i]);
        if (ok)
                remove_marked(marks, text);
        else
                text[0] = '\0';
}
