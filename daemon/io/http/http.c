/* SPDX-License-Identifier: Apache-2.0
 *
 * What all requests share: settings, sessions of TLS, and the lists of headers.
 *
 * A host's session is resumed by the next thread that connects to it, which saves a signature and the transfer of
 * certificates. Addresses are not shared: each thread looks them up, so that ranges spread over all addresses of a
 * store. libcurl does not allow threads to share connections.
 */
#include "daemon/io/http/http.h"

#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"

#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <strings.h>

/* Checked: a share that could not be given `lock` still calls `unlock` when it is freed. */
static pthread_mutex_t share_locks[] = {[0 ... CURL_LOCK_DATA_LAST - 1] = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP};

static void lock(CURL *easy, curl_lock_data data, curl_lock_access access, void *context)
{
        pthread_mutex_lock(&share_locks[data]);
}

static void unlock(CURL *easy, curl_lock_data data, void *context)
{
        pthread_mutex_unlock(&share_locks[data]);
}

int http_new(struct http **out, const struct http_opts *opts, struct error *error)
{
        if (opts->ca != NULL && access(opts->ca, R_OK) < 0)
                return error_errno(error, STREAMER_EINVAL, errno, "http.ca: %s", opts->ca);
        if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
                return error_set(error, STREAMER_EOS, "libcurl cannot be used");
        struct http *http = calloc(1, sizeof(*http));
        CURLSH *share = http != NULL ? http->share = curl_share_init() : NULL;
        /* `unlock` before `lock`: a share with the latter alone would keep the lock for ever. */
        if (share == NULL || curl_share_setopt(share, CURLSHOPT_SHARE, CURL_LOCK_DATA_SSL_SESSION) != CURLSHE_OK ||
            curl_share_setopt(share, CURLSHOPT_UNLOCKFUNC, unlock) != CURLSHE_OK ||
            curl_share_setopt(share, CURLSHOPT_LOCKFUNC, lock) != CURLSHE_OK) {
                http_free(http);
                return error_no_memory(error);
        }
        http->opts = *opts;
        *out = http;
        return 0;
}

struct http *http_free(struct http *http)
{
        if (http != NULL && http->share != NULL)
                curl_share_cleanup(http->share);
        free(http);
        return NULL;
}

int http_headers_add(struct http_headers *headers, const char *name, const char *value, struct error *error)
{
        bool is_token = name[0] != '\0' && name[strcspn(name, " \t\r\n:()<>@,;\\\"/[]?={}")] == '\0';
        if (!is_token || strpbrk(value, "\r\n") != NULL)
                return error_set(error, STREAMER_EINVAL, "a header that cannot be sent: %s", name);
        if (headers->n == HTTP_HEADERS_MAX)
                return error_set(error, STREAMER_ELIMIT, "more than %d headers", HTTP_HEADERS_MAX);
        cleanup_free char *line = format_new("%s: %s", name, value);
        bool added = line != NULL && http_headers_append(headers, line);
        if (line != NULL)
                explicit_bzero(line, strlen(line)); /* it may be a secret, as any header that is sent */
        return added ? 0 : error_no_memory(error);
}

bool http_headers_append(struct http_headers *headers, const char *line)
{
        struct curl_slist *lines = curl_slist_append(headers->lines, line);
        if (lines == NULL)
                return false;
        headers->lines = lines;
        headers->n++;
        return true;
}

const char *http_headers_find(const struct http_headers *headers, const char *name)
{
        return http_headers_find_nth(headers, name, 0);
}

const char *http_headers_find_nth(const struct http_headers *headers, const char *name, size_t n)
{
        size_t len = strlen(name);
        for (const struct curl_slist *line = headers->lines; line != NULL; line = line->next)
                if (strncasecmp(line->data, name, len) == 0 && line->data[len] == ':' && n-- == 0)
                        return line->data + len + 2;
        return NULL;
}

void http_headers_deinit(struct http_headers *headers)
{
        for (struct curl_slist *line = headers->lines; line != NULL; line = line->next)
                explicit_bzero(line->data, strlen(line->data));
        curl_slist_free_all(headers->lines);
        secret_free(headers->query);
        *headers = (struct http_headers){.n = 0};
}

void http_answer_deinit(struct http_answer *answer)
{
        http_headers_deinit(&answer->headers);
        /* So may be the answer, even a partial one: keys of a session. */
        if (answer->body != NULL)
                explicit_bzero(answer->body, answer->body_len);
        free(answer->body);
        free(answer->redirect_url);
        free(answer->condition);
        *answer = (struct http_answer){0};
}

struct http_access *http_access_ref(struct http_access *access)
{
        if (access != NULL)
                __atomic_add_fetch(&access->refs, 1, __ATOMIC_RELAXED);
        return access;
}

struct http_access *http_access_unref(struct http_access *access)
{
        if (access != NULL && __atomic_sub_fetch(&access->refs, 1, __ATOMIC_ACQ_REL) == 0)
                access->ops->free(access);
        return NULL;
}
