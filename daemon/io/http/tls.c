/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS sessions that read ahead. libcurl reads one record of 16 KiB after the other from its TLS library, and for each
 * OpenSSL reads the socket twice: the five bytes of its header, then the rest. A session that reads ahead reads all
 * that the socket has.
 *
 * libcurl does not know what a session has read ahead, and no socket reports it. So before the loop waits it calls
 * http_tls_may_have_more().
 */
#include "daemon/io/http/transfer.h"

#include "daemon/base/util.h"

#include <curl/curl.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Faster than half as much (docs/performance.md); more was not measured. It is decrypted in place and then copied, so
 * it must fit in the cache. */
#define AHEAD (128 * KiB)

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool ours; /* libcurl uses the OpenSSL that this program is linked with, so it may be passed its objects */

/* A libcurl with several TLS libraries names those that it does not use in brackets. */
static void compare_libraries(void)
{
        const char *used = curl_version_info(CURLVERSION_NOW)->ssl_version;
        char name[64];
        size_t len = (size_t)snprintf(name, sizeof(name), "OpenSSL/%s", OpenSSL_version(OPENSSL_VERSION_STRING));
        for (; used != NULL && !ours; used = *used != '\0' ? used + 1 : NULL) {
                size_t word = strcspn(used, " ");
                ours = word == len && strncmp(used, name, len) == 0;
                used += word;
        }
}

static CURLcode on_context(CURL *easy, void *context, void *unused)
{
        SSL_CTX *tls = context;
        (void)easy, (void)unused;
        SSL_CTX_set_read_ahead(tls, 1);
        SSL_CTX_set_default_read_buffer_len(tls, AHEAD);
        /* Else the buffer is freed each time that it is empty, some thousand times a second. */
        SSL_CTX_clear_mode(tls, SSL_MODE_RELEASE_BUFFERS);
        return CURLE_OK;
}

bool http_tls_set(void *easy)
{
        pthread_once(&once, compare_libraries);
        return !ours || curl_easy_setopt(easy, CURLOPT_SSL_CTX_FUNCTION, on_context) == CURLE_OK;
}

bool http_tls_may_have_more(void *easy)
{
        const struct curl_tlssessioninfo *session = NULL;
        if (!ours || curl_easy_getinfo(easy, CURLINFO_TLS_SSL_PTR, &session) != CURLE_OK)
                return false;
        if (session->backend != CURLSSLBACKEND_OPENSSL || session->internals == NULL)
                return false;
        return !SSL_want_read((const SSL *)session->internals);
}
