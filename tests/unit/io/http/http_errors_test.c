/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests that get no answer: one row for each class of libcurl's errors. The error names the cause, after one try or
 * after all of them.
 */
#include "tests/lib/fake_resolver.h"
#include "tests/lib/suite.h"

#include "daemon/base/log/log.h"
#include "daemon/base/util.h"
#include "daemon/io/http/http.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#define TRIES 3u

/* libcurl calls this function: names with ".known." have this host's address, and other names fail. */
static int resolve(const char *name, const char *service, struct addrinfo **found)
{
        struct {
                struct addrinfo info;
                struct sockaddr_in address;
        } *one = calloc(1, sizeof(*one));
        if (one == NULL || strstr(name, ".known.") == NULL)
                return strstr(name, ".later.") != NULL ? EAI_AGAIN : EAI_NONAME;
        one->address = (struct sockaddr_in){.sin_family = AF_INET,
                                            .sin_port = htons((uint16_t)(service != NULL ? atoi(service) : 0)),
                                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        one->info = (struct addrinfo){.ai_family = AF_INET,
                                      .ai_socktype = SOCK_STREAM,
                                      .ai_addrlen = sizeof(one->address),
                                      .ai_addr = (struct sockaddr *)&one->address};
        *found = &one->info;
        return 0;
}

BEFORE_ALL()
{
        fake_getaddrinfo = resolve;
}

/* ---- a server that is of no use ---- */

enum answer { NO_SERVER, CLOSES, RESETS, SILENT, NONSENSE, CUT };

static enum answer answer;
static _Atomic unsigned connections;

static void serve_one(int fd)
{
        static const char text[] = "this is not HTTP\r\n\r\n";
        static const char part[] = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n0123456789";
        char request[4096];
        if (answer == SILENT)
                return;                           /* open until the process ends */
        must(read(fd, request, sizeof(request))); /* else the kernel resets the connection */
        if (answer == RESETS)
                must(setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger)));
        if (answer == NONSENSE)
                must(write(fd, text, sizeof(text) - 1));
        if (answer == CUT)
                must(write(fd, part, sizeof(part) - 1));
        close(fd);
}

static void *serve(void *listener)
{
        for (;;) {
                int fd = must(accept((int)(intptr_t)listener, NULL, NULL));
                connections++;
                serve_one(fd);
        }
        return NULL;
}

static unsigned start_server(void)
{
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t len = sizeof(at);
        pthread_t thread;
        int listener = must(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        must(bind(listener, (struct sockaddr *)&at, len));
        must(getsockname(listener, (struct sockaddr *)&at, &len));
        if (answer == NO_SERVER)
                return ntohs(at.sin_port); /* bound: nobody else listens there */
        must(listen(listener, 16));
        must(pthread_create(&thread, NULL, serve, (void *)(intptr_t)listener));
        pthread_detach(thread);
        return ntohs(at.sin_port);
}

/* ---- each error ---- */

static const struct {
        enum answer answer;
        const char *origin; /* without the port */
        const char *proxy;  /* of the environment; NULL: none */
        const char *ca;     /* contents of the file of certificates; NULL: the system's */
        unsigned tries;
        const char *text;
} rows[] = {
        {NO_SERVER, "https://no.such.host", NULL, NULL, TRIES, "cannot resolve host no.such.host (the-object)"},
        {NO_SERVER, "https://asks.later.host", NULL, NULL, TRIES, "cannot resolve host asks.later.host"},
        {NO_SERVER, "http://no.such.host", NULL, NULL, TRIES, "cannot resolve host no.such.host"},
        {CLOSES, "https://is.known.host", "http://no.such.proxy:1", NULL, TRIES, "cannot resolve the proxy's host"},
        {NO_SERVER, "https://is.known.host", NULL, NULL, TRIES, "connect to server"},
        {CLOSES, "http://is.known.host", NULL, NULL, TRIES, "returned nothing"},
        {CLOSES, "https://is.known.host", NULL, NULL, TRIES, "SSL connect error"},
        {NONSENSE, "https://is.known.host", NULL, NULL, TRIES, "SSL connect error"},
        {RESETS, "http://is.known.host", NULL, NULL, TRIES, "the peer"},
        {SILENT, "https://is.known.host", NULL, NULL, TRIES, "Timeout was reached"},
        {SILENT, "http://is.known.host", NULL, NULL, TRIES, "no byte for 0.3 s"},
        {NONSENSE, "http://is.known.host", NULL, NULL, 1, "Unsupported protocol"},
        {CUT, "http://is.known.host", NULL, NULL, TRIES, "Transferred a partial file after 10 bytes"},
        {SILENT, "https://is.known.host", NULL, "no certificate", 1, "SSL CA cert"},
};

TEST(a_request_without_an_answer_names_the_cause, EACH(rows))
{
        /* One deadline can pass in a row: of the TLS handshake, which belongs to the connect, or of the answer. */
        bool silent = rows[_i].answer == SILENT, tls = strncmp(rows[_i].origin, "https", 5) == 0;
        struct http_opts opts = {.connect_timeout_ns = silent && tls ? SECOND * 3 / 10 : 60 * SECOND,
                                 .stall_ns = silent && !tls ? SECOND * 3 / 10 : 60 * SECOND,
                                 .backoff_ns = SECOND / 1000,
                                 .retry_after_ns = SECOND,
                                 .tries = TRIES,
                                 .allow_plain = (const char *const[]){"is.known.host", "no.such.host"},
                                 .n_allow_plain = 2,
                                 .threads = 1};
        struct http_fetch fetch = {.request = {.shown = "the-object"}, .max_body = 100};
        struct http *http;
        struct error error = {0};
        char url[64], expected[128];

        log_set_level(LOG_LEVEL_ERROR);
        answer = rows[_i].answer;
        unsigned port = start_server();
        snprintf(url, sizeof(url), "%s:%u/", rows[_i].origin, port);
        fetch.request.url = url;
        if (rows[_i].proxy != NULL) {
                setenv("https_proxy", rows[_i].proxy, 1);
                unsetenv("no_proxy");
                unsetenv("NO_PROXY");
        }
        if (rows[_i].ca != NULL) {
                opts.ca = suite_path("ca-%d", _i);
                file_write(opts.ca, rows[_i].ca, strlen(rows[_i].ca));
        }
        ck_assert_int_eq(http_new(&http, &opts, &error), 0);
        FAILS_WITH(error, http_fetch(http, &fetch, 1, &error), STREAMER_EFAILED, rows[_i].text);
        snprintf(expected, sizeof(expected), "given up after %u tries: ", TRIES);
        ck_assert_msg((strstr(error.text, expected) != NULL) == (rows[_i].tries == TRIES), "%s", error.text);
        if (connections > 0)
                ck_assert_uint_eq(connections, rows[_i].tries);
        http_free(http);
}
