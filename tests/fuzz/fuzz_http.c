/* SPDX-License-Identifier: Apache-2.0
 *
 * Metadata of HTTP responses: ranges, lengths, redirects, pauses, errors. The first byte selects one.
 */
#include "daemon/base/text/secret.h"
#include "daemon/io/http/transfer.h"
#include "tests/fuzz/fuzz.h"

#include <ctype.h>

static void fuzz_range(const char *text)
{
        struct http_content_range range;
        uint64_t total;
        if (http_content_range(text, &range) == 0)
                holds(range.first <= range.last && range.last < range.total);
        if (http_number(text, &total) == 0)
                holds(isdigit((unsigned char)text[strlen(text) - 1]));
}

/* A redacted URL has no query; a requested one is valid. */
static void fuzz_place(const char *text)
{
        static const struct http_opts opts = {.redirects = 1};
        const struct http_request request = {.shown = "fuzz"};
        struct http_url url;
        struct error error;
        char *next = http_url_join("https://host/folder/file?query", text);
        if (next == NULL)
                return;
        char *shown = redact_source_new(next);
        holds(shown != NULL && strpbrk(shown, "?#") == NULL);
        if (http_url_parse(&url, next) == 0) {
                holds(url.host[0] != '\0' && url.port > 0 && url.port <= 65535 && strpbrk(url.host, "@/?#") == NULL);
                int r = http_url_allowed(&opts, &request, next, &url, &error);
                holds(r == 0 ? url.tls || http_url_loopback(&url) : r == STREAMER_EPERM);
        } else {
                holds(http_url_allowed(&opts, &request, next, &url, &error) == STREAMER_EINVAL);
        }
        free(shown);
        free(next);
}

static void fuzz_pause(const char *text)
{
        static const struct http_opts opts = {.backoff_ns = 1000, .retry_after_ns = 1000000};
        for (unsigned tries = 0; tries < 40; tries += 13) {
                uint64_t pause = http_pause(&opts, tries, text, false, UINT64_MAX);
                holds(pause <= opts.retry_after_ns + opts.retry_after_ns / 4);
        }
}

static void fuzz_words(const char *text)
{
        char out[40];
        http_excerpt(out, sizeof(out), text);
        holds(strlen(out) < sizeof(out) && strpbrk(out, "\r\n\t") == NULL);
        if (http_etag_strong(text))
                holds(strlen(text) <= HTTP_ETAG_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static void (*const targets[])(const char *text) = {fuzz_range, fuzz_place, fuzz_pause, fuzz_words};
        if (size == 0)
                return 0;
        char *text = fuzz_copy(data + 1, size - 1, 1);
        targets[data[0] % (sizeof(targets) / sizeof(targets[0]))](text);
        free(text);
        return 0;
}
