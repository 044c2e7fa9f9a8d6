/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/monitor/page_request.h"

#include "tests/lib/suite.h"

static struct page_request request;

/* In memory of its own size, for sanitizers. */
static enum page_parsed parse(const char *text, size_t size)
{
        char *head = must_alloc(size + 1);
        memcpy(head, text, size);
        return page_request_parse(&request, head, size);
}

#define LINE "GET /readyz HTTP/1.1\r\n"

static const struct {
        const char *head;
        enum page_method method;
        const char *path, *model, *token;
} complete[] = {
        {LINE "\r\n", PAGE_GET, "/readyz", NULL, NULL},
        {"GET / HTTP/1.0\r\n\r\n", PAGE_GET, "/", NULL, NULL},
        {"HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n", PAGE_HEAD, "/metrics", NULL, NULL},
        {"head /metrics HTTP/1.1\r\n\r\n", PAGE_OTHER, "/metrics", NULL, NULL},
        {"DELETE /metrics HTTP/1.1\r\n\r\n", PAGE_OTHER, "/metrics", NULL, NULL},
        {"GET /readyz?model=a HTTP/1.1\r\n\r\n", PAGE_GET, "/readyz", "a", NULL},
        {"GET /readyz?x=1&model=org%2Fa+b&model=c HTTP/1.1\r\n\r\n", PAGE_GET, "/readyz", "org/a b", NULL},
        {"GET /readyz?model= HTTP/1.1\r\n\r\n", PAGE_GET, "/readyz", "", NULL},
        {"GET /readyz?model HTTP/1.1\r\n\r\n", PAGE_GET, "/readyz", "", NULL},
        {"GET /readyz? HTTP/1.1\r\n\r\n", PAGE_GET, "/readyz", NULL, NULL},
        {"GET /readyz?models=a HTTP/1.1\r\n\r\n", PAGE_GET, "/readyz", NULL, NULL},
        {LINE "Authorization: Bearer abc\r\n\r\n", PAGE_GET, "/readyz", NULL, "abc"},
        {LINE "authorization:bearer  abc \r\nHost: a\r\n\r\n", PAGE_GET, "/readyz", NULL, "abc"},
        {LINE "Authorization: Basic YTpi\r\n\r\n", PAGE_GET, "/readyz", NULL, NULL},
        {LINE "X-Authorization: Bearer abc\r\n\r\n", PAGE_GET, "/readyz", NULL, NULL},
        {LINE "Empty:\r\n\r\n", PAGE_GET, "/readyz", NULL, NULL},
        {LINE "\r\nGET /metrics HTTP/1.1\r\n\r\n", PAGE_GET, "/readyz", NULL, NULL},
};

static void same(const char *have, const char *want)
{
        ck_assert_int_eq(have == NULL, want == NULL);
        if (want != NULL)
                ck_assert_str_eq(have, want);
}

TEST(a_complete_head_is_parsed, EACH(complete))
{
        ck_assert_int_eq(parse(complete[_i].head, strlen(complete[_i].head)), PAGE_COMPLETE);
        ck_assert_int_eq(request.method, complete[_i].method);
        same(request.path, complete[_i].path);
        same(request.model, complete[_i].model);
        same(request.token, complete[_i].token);
}

TEST(a_part_of_a_head_is_incomplete, EACH(complete))
{
        const char *end = strstr(complete[_i].head, "\r\n\r\n");
        for (size_t n = 0; n < (size_t)(end - complete[_i].head) + 4; n++)
                ck_assert_int_eq(parse(complete[_i].head, n), PAGE_INCOMPLETE);
}

static const char *const invalid[] = {
        "\r\n\r\n",
        "GET\r\n\r\n",
        "GET /\r\n\r\n",
        "GET / \r\n\r\n",
        " / HTTP/1.1\r\n\r\n",
        "GET  / HTTP/1.1\r\n\r\n",
        "GET / HTTP/2.0\r\n\r\n",
        "GET / HTTP/1.1 \r\n\r\n",
        "GET / HTTP/1.\r\n\r\n",
        "GET readyz HTTP/1.1\r\n\r\n",
        "GET http://h/ HTTP/1.1\r\n\r\n",
        "GET /readyz?model=%4 HTTP/1.1\r\n\r\n",
        "GET /readyz?model=%00 HTTP/1.1\r\n\r\n",
        "GET /readyz?model=%zz HTTP/1.1\r\n\r\n",
        LINE "no colon\r\n\r\n",
        LINE ": value\r\n\r\n",
        LINE "Name : value\r\n\r\n",
        LINE "Name: value\r\n continued: x\r\n\r\n",
        LINE "Name: a\nOther: b\r\n\r\n",
        LINE "Name: a\rb\r\n\r\n",
        LINE "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
};

TEST(another_text_is_refused, EACH(invalid))
{
        ck_assert_int_eq(parse(invalid[_i], strlen(invalid[_i])), PAGE_INVALID);
}

TEST(a_nul_is_refused)
{
        static const char text[] = "GET / HTTP/1.1\r\nA: b\0c\r\n\r\n";
        ck_assert_int_eq(parse(text, sizeof(text) - 1), PAGE_INVALID);
}

/* ---- who may read a page ---- */

static const struct {
        const char *path, *model;
        bool health;
} pages[] = {
        {"/livez", NULL, true},   {"/healthz", NULL, true}, {"/startupz", NULL, true}, {"/readyz", NULL, true},
        {"/readyz", "a", false},  {"/readyz", "", false},   {"/metrics", NULL, false}, {"/", NULL, false},
        {"/livez/", NULL, false}, {"/LIVEZ", NULL, false},  {"/%6civez", NULL, false},
};

TEST(health_pages_name_no_model, EACH(pages))
{
        request = (struct page_request){.path = pages[_i].path, .model = pages[_i].model};
        ck_assert_int_eq(page_request_is_health(&request), pages[_i].health);
}
