/* SPDX-License-Identifier: Apache-2.0
 *
 * https through a proxy of the environment: CONNECT, the proxy's own response, then the TLS session. The proxy's
 * response is never taken for the server's.
 */
#include "tests/integration/http_fixture.h"
#include "tests/lib/ports.h"

#include <sys/socket.h>

#define REFUSES "403 Said So"

static int listener;
static const char *answer; /* to CONNECT */
static _Atomic unsigned tunnels;

/* ---- the proxy ---- */

static bool copy(int from, int to)
{
        char data[65536];
        ssize_t n = read(from, data, sizeof(data));
        return n > 0 && send(to, data, (size_t)n, MSG_NOSIGNAL) == n;
}

/* Every host name resolves to the server of this program. */
static void *tunnel(void *arg)
{
        int ends[2] = {(int)(intptr_t)arg, -1};
        char text[4096] = "";
        size_t n = 0;
        while (strstr(text, "\r\n\r\n") == NULL) {
                ssize_t more = read(ends[0], text + n, sizeof(text) - 1 - n);
                if (more <= 0) { /* a connection that was given up */
                        close(ends[0]);
                        return NULL;
                }
                n += (size_t)more;
        }
        ck_assert_msg(strncmp(text, "CONNECT weights.example:", 24) == 0, "%s", text);
        tunnels++;
        must(write(ends[0], answer, strlen(answer)));
        ends[1] = must(connect_to_loopback(web.https));
        for (bool open = true; open;) {
                struct pollfd both[2] = {{.fd = ends[0], .events = POLLIN}, {.fd = ends[1], .events = POLLIN}};
                must(poll(both, 2, -1));
                for (int i = 0; i < 2 && open; i++)
                        open = both[i].revents == 0 || copy(ends[i], ends[1 - i]);
        }
        close(ends[0]);
        close(ends[1]);
        return NULL;
}

static void *accept_all(void *arg)
{
        for (;;) {
                pthread_t thread;
                int fd = must(accept(listener, NULL, NULL));
                must(pthread_create(&thread, NULL, tunnel, (void *)(intptr_t)fd));
                pthread_detach(thread);
        }
        return NULL;
}

static unsigned start_proxy(void)
{
        pthread_t thread;
        unsigned port;
        listener = listen_on_loopback(64, &port);
        must(pthread_create(&thread, NULL, accept_all, NULL));
        pthread_detach(thread);
        return port;
}

/* ---- fixture ---- */

static void before_tunnel(void)
{
        char *config = suite_file("tunnel.yaml", format_text("http: {ca: %s, backoff: 5ms, tries: 2}\n", web.ca));
        setenv("https_proxy", format_text("http://127.0.0.1:%u", start_proxy()), 1);
        setenv("http_proxy", "http://127.0.0.1:1", 1);
        fixture_begin(
                (const char *const[]){"--device", "host=256MiB", "--block-size", "1MiB", "--config", config, NULL});
        client = client_open(&test_daemon);
}

static void after_tunnel(void)
{
        fixture_disconnect();
        fixture_end();
}

static const char *far_url(void)
{
        return format_text("https://weights.example:%u/m.safetensors", web.https);
}

/* ---- served models ---- */

static const char *const welcomes[] = {
        "HTTP/1.1 200 Connection established\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 17\r\nContent-Range: bytes 0-16/17\r\nETag: \"of-the-proxy\"\r\n\r\n",
};

FIXTURE(.all = {begin_web, end_web}, .each = {before_tunnel, after_tunnel}, .unavailable = nginx_unavailable);

TEST(https_uses_a_proxy, EACH(welcomes))
{
        answer = welcomes[_i];
        serves(far_url());
        ck_assert_uint_gt(tunnels, 0);
}

TEST(loopback_bypasses_the_proxy)
{
        answer = "HTTP/1.1 " REFUSES "\r\n\r\n";
        serves(secure("/m.safetensors"));
        serves(url(web.http, "/m.safetensors"));
        ck_assert_uint_eq(tunnels, 0);
}

TEST(a_proxy_that_refuses)
{
        answer = "HTTP/1.1 " REFUSES "\r\nContent-Length: 0\r\n\r\n";
        assert_fails(far_url(), STREAMER_EFAILED, "given up after 2 tries: the proxy answers 403");
        ck_assert_uint_eq(tunnels, 2);
}
