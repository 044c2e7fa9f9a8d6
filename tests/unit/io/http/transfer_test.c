/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers byte by byte: headers that are too many, too long or too late, and answers that do not end in time.
 */
#include "tests/lib/ports.h"
#include "tests/lib/suite.h"

#include "daemon/base/log/log.h"
#include "daemon/base/util.h"
#include "daemon/io/http/http.h"

#include <sys/socket.h>

/* ---- a server that sends what it is told to, and drips `drip` after it until the connection is closed; "": it stays
 * silent ---- */

static const char *text, *drip;
static char **texts; /* in place of it: of each request */
static unsigned port;
static _Atomic unsigned requests;

static void *serve_one(void *arg)
{
        int fd = (int)(intptr_t)arg;
        char request[4096];
        must((int)read(fd, request, sizeof(request)));
        const char *answer = texts != NULL ? texts[requests] : text;
        requests++;
        bool open = send(fd, answer, strlen(answer), MSG_NOSIGNAL) > 0;
        while (open && drip != NULL) {
                struct pollfd closed = {.fd = fd, .events = POLLIN};
                open = send(fd, drip, strlen(drip), MSG_NOSIGNAL) >= 0 && poll(&closed, 1, 50) == 0;
        }
        close(fd);
        return NULL;
}

static void *serve(void *arg)
{
        pthread_attr_t detached;
        must(pthread_attr_init(&detached));
        must(pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED));
        for (;;) {
                pthread_t thread;
                int fd = must(accept((int)(intptr_t)arg, NULL, NULL));
                must(pthread_create(&thread, &detached, serve_one, (void *)(intptr_t)fd));
        }
        return NULL;
}

/* ---- fixture ---- */

static struct http *http;
static struct error error;
static struct http_fetch fetch;

static void start(uint64_t limit_ns)
{
        const struct http_opts opts = {.connect_timeout_ns = limit_ns,
                                       .stall_ns = limit_ns,
                                       .backoff_ns = SECOND / 1000,
                                       .retry_after_ns = SECOND,
                                       .redirects = 2,
                                       .tries = 2,
                                       .threads = 1};
        pthread_t thread;
        int listener = listen_on_loopback(16, &port);
        log_set_level(LOG_LEVEL_ERROR);
        must(pthread_create(&thread, NULL, serve, (void *)(intptr_t)listener));
        pthread_detach(thread);
        ck_assert_int_eq(http_new(&http, &opts, &error), 0);
        fetch = (struct http_fetch){
                .request = {.url = format_text("http://127.0.0.1:%u/x", port), .shown = "the-object"},
                .max_body = 1000};
}

static void before(void)
{
        start(60 * SECOND);
}

static void before_hasty(void)
{
        start(SECOND / 2);
}

static void after(void)
{
        http_fetch_deinit(&fetch);
        http_free(http);
}

/* ---- headers ---- */

FIXTURE(.each = {before, after});

static const char *with_headers(unsigned n, size_t last_len)
{
        char *all = format_text("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n");
        for (unsigned i = 2; i < n; i++)
                all = format_text("%sX-%u: 1\r\n", all, i);
        char *last = must_alloc(last_len + 1);
        memset(last, 'y', last_len);
        return format_text("%sETag: %s\r\n\r\n", all, last);
}

TEST(as_many_headers_as_are_stored_are_accepted)
{
        text = with_headers(HTTP_HEADERS_MAX, 8000);
        ck_assert_msg(http_fetch(http, &fetch, 1, &error) == 0, "%s", error.text);
        ck_assert_uint_eq(strlen(http_headers_find(&fetch.answer.headers, "ETag")), 8000);
}

TEST(too_many_headers_fail_the_answer)
{
        text = with_headers(HTTP_HEADERS_MAX + 1, 3);
        FAILS_SAYING(error, http_fetch(http, &fetch, 1, &error), STREAMER_EFAILED,
                     "the server's answer has more than 96 headers (the-object)");
}

TEST(too_long_a_header_fails_the_answer)
{
        text = with_headers(3, 8200);
        FAILS_SAYING(error, http_fetch(http, &fetch, 1, &error), STREAMER_EFAILED,
                     "the server's answer has a header of more than 8192 bytes (the-object)");
}

/* The second line belongs to the ETag. */
TEST(a_folded_header_fails_the_answer)
{
        text = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: \"1\"\r\n \"2\"\r\n\r\n";
        FAILS_SAYING(error, http_fetch(http, &fetch, 1, &error), STREAMER_EFAILED,
                     "the server's answer has a header of several lines (the-object)");
}

/* ---- refusals ---- */

/* Of the request, of a redirect's target, and in the words of the status. */
TEST(a_refusal_is_quoted_without_the_queries_that_it_repeats)
{
        char *refusal = format_text("HTTP/1.1 404 no /y?sig=HOPSECRET\r\nContent-Length: 59\r\n\r\n"
                                    "<Error>/y?sig=HOPSECRET of S3CRET, HOPSECRET</Error>       ");
        char *answers[] = {format_text("HTTP/1.1 302 Found\r\nContent-Length: 0\r\nConnection: close\r\n"
                                       "Location: /y?sig=HOPSECRET\r\n\r\n"),
                           refusal};
        texts = answers;
        fetch.request.url = format_text("http://127.0.0.1:%u/x?q=S3CRET", port);
        fetch.request.has_private_query = true;
        FAILS_SAYING(error, http_fetch(http, &fetch, 1, &error), STREAMER_ENOENT,
                     "the server answers 404 no /y: <Error>/y of ..., ...</Error> (the-object)");
}

/* The daemon's own questions are no secrets, but for a signature. */
TEST(a_refusal_names_what_the_daemon_asked_for)
{
        text = "HTTP/1.1 404 Not Found\r\nContent-Length: 47\r\n\r\nno container of that name, says SIGNEDSIGNED..\n\n";
        fetch.request.url = format_text("http://127.0.0.1:%u/x?restype=container", port);
        FAILS_SAYING(error, http_fetch(http, &fetch, 1, &error), STREAMER_ENOENT,
                     "the server answers 404 Not Found: no container of that name, says SIGNEDSIGNED.. (the-object)");
        http_fetch_deinit(&fetch);
        fetch.request.url = format_text("http://127.0.0.1:%u/x?sv=1&sig=SIGNEDSIGNED", port);
        FAILS_SAYING(error, http_fetch(http, &fetch, 1, &error), STREAMER_ENOENT,
                     "the server answers 404 Not Found: no container of that name, says ..... (the-object)");
}

TEST(a_trailer_is_no_header)
{
        text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: ETag\r\n\r\n"
               "4\r\nfour\r\n0\r\nETag: \"1\"\r\nHTTP/1.1 404 Not Found: x\r\n\r\n";
        ck_assert_msg(http_fetch(http, &fetch, 1, &error) == 0, "%s", error.text);
        ck_assert_int_eq(fetch.answer.status, 200);
        ck_assert_ptr_null(http_headers_find(&fetch.answer.headers, "ETag"));
        ck_assert_str_eq(fetch.answer.body, "four");
}

TEST(a_header_with_the_name_of_a_status_line_is_a_header)
{
        text = "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nHTTP/1.1 404: Not Found\r\nContent-Length: 0\r\n\r\n";
        ck_assert_msg(http_fetch(http, &fetch, 1, &error) == 0, "%s", error.text);
        ck_assert_int_eq(fetch.answer.status, 200);
        ck_assert_str_eq(http_headers_find(&fetch.answer.headers, "ETag"), "\"1\"");
}

TEST(the_headers_of_an_interim_answer_do_not_count)
{
        text = "HTTP/1.1 103 Early Hints\r\nETag: \"0\"\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        ck_assert_msg(http_fetch(http, &fetch, 1, &error) == 0, "%s", error.text);
        ck_assert_ptr_null(http_headers_find(&fetch.answer.headers, "ETag"));
}

/* ---- time ---- */

FIXTURE(.each = {before_hasty, after});

TEST(a_refusal_that_drips_ends_in_time)
{
        text = "HTTP/1.1 404 Not Found\r\nContent-Length: 1000000\r\n\r\nnot here";
        drip = " ";
        FAILS_WITH(error, http_fetch(http, &fetch, 1, &error), STREAMER_ENOENT,
                   "the server answers 404 Not Found: not here (the-object)");
        ck_assert_uint_eq(requests, 1);
}

TEST(a_refusal_that_stalls_ends_with_its_status)
{
        text = "HTTP/1.1 403 Forbidden\r\nContent-Length: 1000000\r\n\r\nnot you";
        drip = "";
        FAILS_WITH(error, http_fetch(http, &fetch, 1, &error), STREAMER_EPERM,
                   "the server answers 403 Forbidden: not you (the-object)");
        ck_assert_uint_eq(requests, 1);
}

TEST(a_redirect_that_drips_is_followed_in_time)
{
        text = format_text("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:%u/y\r\n"
                           "Content-Length: 1000000\r\n\r\n",
                           port);
        drip = "x";
        FAILS_WITH(error, http_fetch(http, &fetch, 1, &error), STREAMER_EFAILED,
                   "a redirect of more than http.redirects steps");
        ck_assert_uint_eq(requests, 3);
}

/* To another origin (another host of the same address), and from there perhaps back to the first. A stored target is
 * requested at once, with the credentials of its origin. */
TEST(a_target_to_which_another_origin_led_back_is_not_stored, .to = 2)
{
        bool back = _i == 1;
        char *found[] = {format_text("http://localhost:%u/there", port), format_text("http://127.0.0.1:%u/back", port)};
        char *lines[3] = {NULL};
        for (int i = 0; i <= back; i++)
                lines[i] = format_text("HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: %s\r\n\r\n", found[i]);
        lines[1 + back] = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody";
        texts = lines;
        fetch.max_body = 10;
        ck_assert_msg(http_fetch(http, &fetch, 1, &error) == 0, "%s", error.text);
        ck_assert_uint_eq(requests, 2u + back);
        if (back)
                ck_assert_ptr_null(fetch.answer.redirect_url);
        else
                ck_assert_str_eq(fetch.answer.redirect_url, found[0]);
}

static const char *const dripping[] = {"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n",
                                       "HTTP/1.1 200 OK\r\nETag: \"1\"\r\n"};

TEST(a_small_answer_that_drips_fails_in_time, EACH(dripping))
{
        fetch.max_body = MiB;
        text = dripping[_i];
        drip = "x";
        FAILS_WITH(error, http_fetch(http, &fetch, 1, &error), STREAMER_EFAILED, "given up after 2 tries: ");
        const char *expected = _i == 0 ? "the answer takes too long: " : "no byte for 0.5 s (the-object)";
        ck_assert_msg(strstr(error.text, expected) != NULL, "%s", error.text);
        ck_assert_uint_eq(requests, 2);
}

TEST(a_body_grows_to_what_is_received)
{
        char *body = must_alloc(200001);
        memset(body, 'y', 200000);
        fetch.max_body = MiB;
        text = format_text("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n%s", body);
        ck_assert_msg(http_fetch(http, &fetch, 1, &error) == 0, "%s", error.text);
        ck_assert_uint_eq(fetch.answer.body_len, 200000);
        ck_assert_str_eq(fetch.answer.body, body);
}
