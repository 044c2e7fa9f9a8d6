/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/visit.h"

#include "tests/lib/base.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int visit_connect(const char *where)
{
        struct sockaddr_un un = {.sun_family = AF_UNIX};
        struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        unsigned port;
        if (strncmp(where, "unix:", 5) == 0) {
                snprintf(un.sun_path, sizeof(un.sun_path), "%s", where + 5);
                int fd = must(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
                must(connect(fd, (struct sockaddr *)&un, sizeof(un)));
                return fd;
        }
        if (sscanf(where, "http://127.0.0.1:%u", &port) != 1)
                die("visit: where is '%s'?", where);
        in.sin_port = htons((uint16_t)port);
        int fd = must(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        must(connect(fd, (struct sockaddr *)&in, sizeof(in)));
        return fd;
}

void visit_read_consume_fd(struct visit *visit, int fd)
{
        size_t len = 0, cap = 1 << 16;
        ssize_t n;
        *visit = (struct visit){.all = must_alloc(cap + 1)};
        while ((n = recv(fd, visit->all + len, cap - len, 0)) > 0) {
                len += (size_t)n;
                if (len == cap)
                        visit->all = must_realloc(visit->all, (cap *= 2) + 1);
        }
        if (n < 0 && errno != ECONNRESET)
                die_errno("visit: recv");
        close(fd);
        visit->all[len] = '\0';
        sscanf(visit->all, "HTTP/1.1 %d", &visit->status);
        char *end = strstr(visit->all, "\r\n\r\n");
        visit->body = end ? end + 4 : visit->all + len;
}

void visit_ask(struct visit *visit, const char *where, const char *method, const char *path)
{
        int fd = visit_connect(where);
        char *request = format_text("%s %s HTTP/1.1\r\nHost: localhost\r\n\r\n", method, path);
        must(send(fd, request, strlen(request), MSG_NOSIGNAL));
        free(request);
        visit_read_consume_fd(visit, fd);
}

void visit_free(struct visit *visit)
{
        free(visit->all);
        *visit = (struct visit){0};
}
