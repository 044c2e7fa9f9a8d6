/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/http_exchange.h"

#include "tests/lib/base.h"
#include "tests/lib/ports.h"

#include <sys/socket.h>

int http_exchange_connect(const char *where)
{
        struct sockaddr_un un = {.sun_family = AF_UNIX};
        unsigned port;
        if (strncmp(where, "unix:", 5) == 0) {
                snprintf(un.sun_path, sizeof(un.sun_path), "%s", where + 5);
                int fd = must(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
                must(connect(fd, (struct sockaddr *)&un, sizeof(un)));
                return fd;
        }
        if (sscanf(where, "http://127.0.0.1:%u", &port) != 1)
                die("http_exchange: where is '%s'?", where);
        return must(connect_to_loopback(port));
}

void http_exchange_read_consume_fd(struct http_exchange *exchange, int fd)
{
        size_t len = 0, cap = 1 << 16;
        ssize_t n;
        *exchange = (struct http_exchange){.all = must_alloc(cap + 1)};
        while ((n = recv(fd, exchange->all + len, cap - len, 0)) > 0) {
                len += (size_t)n;
                if (len == cap)
                        exchange->all = must_realloc(exchange->all, (cap *= 2) + 1);
        }
        if (n < 0 && errno != ECONNRESET)
                die_errno("http_exchange: recv");
        close(fd);
        exchange->all[len] = '\0';
        sscanf(exchange->all, "HTTP/1.%*d %d", &exchange->status);
        char *end = strstr(exchange->all, "\r\n\r\n");
        exchange->body = end ? end + 4 : exchange->all + len;
        exchange->size = len - (size_t)(exchange->body - exchange->all);
}

void http_exchange_request(struct http_exchange *exchange, const char *where, const char *method, const char *path)
{
        int fd = http_exchange_connect(where);
        cleanup_free char *request = format_text("%s %s HTTP/1.1\r\nHost: localhost\r\n\r\n", method, path);
        /* A server that closes the connection early has no answer, which the caller sees as status 0. */
        if (send(fd, request, strlen(request), MSG_NOSIGNAL) < 0 && errno != EPIPE && errno != ECONNRESET)
                die_errno("http_exchange: send");
        http_exchange_read_consume_fd(exchange, fd);
}

void http_exchange_free(struct http_exchange *exchange)
{
        free(exchange->all);
        *exchange = (struct http_exchange){0};
}
