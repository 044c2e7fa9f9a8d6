/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/endpoint.h"
#include "tests/lib/ports.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <strings.h>
#include <sys/socket.h>

#define REQUEST_MAX (64 * 1024)

struct connection {
        struct endpoint *endpoint;
        int fd;
        char text[REQUEST_MAX + 1];
};

/* ---- requests ---- */

char *endpoint_header(const struct endpoint_request *request, const char *name)
{
        size_t len = strlen(name);

        for (const char *line = request->headers; line && *line; line = strstr(line, "\r\n")) {
                line += strspn(line, "\r\n");
                if (strncasecmp(line, name, len) == 0 && line[len] == ':') {
                        const char *value = line + len + 1 + strspn(line + len + 1, " ");
                        return format_text("%.*s", (int)strcspn(value, "\r\n"), value);
                }
        }
        return NULL;
}

/* Reads the header and the body; false if the client disconnected. */
static bool read_request(struct connection *v, struct endpoint_request *request)
{
        size_t have = 0;
        char *end = NULL;

        for (;;) {
                ssize_t n = read(v->fd, v->text + have, REQUEST_MAX - have);
                if (n <= 0)
                        return false;
                have += (size_t)n;
                v->text[have] = '\0';
                if (!end && (end = strstr(v->text, "\r\n\r\n"))) {
                        *end = '\0';
                        request->headers = v->text + strcspn(v->text, "\r\n");
                        request->body = end + 4;
                }
                const char *length = end ? endpoint_header(request, "Content-Length") : NULL;
                if (end && have - (size_t)(request->body - v->text) >= (length ? strtoul(length, NULL, 10) : 0))
                        return true;
        }
}

static void parse_line(struct connection *v, struct endpoint_request *request)
{
        char *line = format_text("%.*s", (int)strcspn(v->text, "\r\n"), v->text), *save;

        request->method = strtok_r(line, " ", &save);
        request->path = strtok_r(NULL, " ", &save);
        request->host = endpoint_header(request, "Host");
        if (!request->method || !request->path)
                die("an endpoint was sent: %s", v->text);
}

/* ---- replies ---- */

void endpoint_range(const struct endpoint_request *request, struct endpoint_reply *reply, const void *data, size_t size)
{
        const char *range = endpoint_header(request, "Range"), *more = reply->headers ? reply->headers : "";
        unsigned long first = 0, last = size - 1;

        if (range && sscanf(range, "bytes=%lu-%lu", &first, &last) == 2 && first < size) {
                last = last < size ? last : size - 1;
                reply->status = 206;
                reply->headers = format_text("%sContent-Range: bytes %lu-%lu/%zu\r\n", more, first, last, size);
        }
        reply->size = last - first + 1;
        reply->body = must_alloc(reply->size + 1);
        memcpy(reply->body, (const char *)data + first, reply->size);
}

static void send_all(int fd, const char *data, size_t size)
{
        while (size > 0) {
                ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
                if (n <= 0)
                        return;
                data += n;
                size -= (size_t)n;
        }
}

static void send_reply(struct connection *v, const struct endpoint_request *request, const struct endpoint_reply *reply)
{
        size_t size = reply->body && reply->size == 0 ? strlen(reply->body) : reply->size;
        char *head = format_text("HTTP/1.1 %d Some words\r\nConnection: close\r\nContent-Length: %zu\r\n%s\r\n",
                                 reply->status ? reply->status : 200, size, reply->headers ? reply->headers : "");

        send_all(v->fd, head, strlen(head));
        if (strcmp(request->method, "HEAD") != 0 && reply->body)
                send_all(v->fd, reply->body, size);
        free(head);
}

/* ---- forwarding ---- */

/* Copies all headers except those of the connection. */
static char *other_headers(const char *headers)
{
        char *kept = format_text("%s", "");

        for (const char *line = headers; *line; line += strcspn(line, "\r\n")) {
                line += strspn(line, "\r\n");
                int len = (int)strcspn(line, "\r\n");
                if (len > 0 && strncasecmp(line, "Connection:", 11) != 0 &&
                    strncasecmp(line, "Content-Length:", 15) != 0 && strncasecmp(line, "Transfer-Encoding:", 18) != 0)
                        kept = format_text("%s%.*s\r\n", kept, len, line);
        }
        return kept;
}

/* Removes the chunk sizes in place. */
static size_t join_chunks(char *body)
{
        char *to = body, *from = body, *line_end;

        for (unsigned long n; (n = strtoul(from, &line_end, 16)) > 0; from = line_end + 2 + n + 2) {
                memmove(to, line_end + 2, n);
                to += n;
        }
        return (size_t)(to - body);
}

void endpoint_forward(const struct endpoint_request *request, struct endpoint_reply *reply, unsigned port)
{
        struct sockaddr_in address = {
                .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int fd = must(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        size_t size;

        must(connect(fd, (struct sockaddr *)&address, sizeof(address)));
        char *text = format_text("%s %s HTTP/1.1\r\nConnection: close\r\n%s\r\n", request->method, request->path,
                                 other_headers(request->headers));
        send_all(fd, text, strlen(text));
        char *answer = fd_read(fd, &size), *end = strstr(answer, "\r\n\r\n");
        close(fd);
        if (!end || sscanf(answer, "HTTP/1.%*d %d", &reply->status) != 1)
                die("no answer to forward: %.200s", answer);
        *end = '\0';
        reply->headers = other_headers(answer + strcspn(answer, "\r\n"));
        reply->size = size - (size_t)(end + 4 - answer);
        reply->body = must_alloc(reply->size + 1);
        memcpy(reply->body, end + 4, reply->size);
        if (strcasestr(answer, "\r\nTransfer-Encoding: chunked"))
                reply->size = join_chunks(reply->body);
}

/* ---- threads ---- */

static void *serve(void *arg)
{
        struct connection *v = arg;
        struct endpoint_request request = {0};
        struct endpoint_reply reply = {0};
        char byte;

        if (read_request(v, &request)) {
                parse_line(v, &request);
                v->endpoint->requests++;
                v->endpoint->answer(v->endpoint, &request, &reply);
                if (reply.hang)
                        (void)!read(v->endpoint->stop[0], &byte, 1); /* never written to */
                else if (!reply.close)
                        send_reply(v, &request, &reply);
        }
        shutdown(v->fd, SHUT_RDWR);
        close(v->fd);
        free(reply.body);
        free(v);
        return NULL;
}

static void *accept_all(void *arg)
{
        struct endpoint *endpoint = arg;
        pthread_t thread;

        for (;;) {
                struct connection *v = must_alloc(sizeof(*v));
                v->endpoint = endpoint;
                v->fd = must(accept(endpoint->fd, NULL, NULL));
                if (pthread_create(&thread, NULL, serve, v) != 0)
                        die("no thread for an endpoint");
                pthread_detach(thread);
        }
        return NULL;
}

void endpoint_start(struct endpoint *endpoint)
{
        pthread_t thread;
        unsigned port;

        endpoint->fd = listen_on_loopback(64, &port);
        must(pipe(endpoint->stop));
        snprintf(endpoint->url, sizeof(endpoint->url), "http://127.0.0.1:%u", port);
        if (pthread_create(&thread, NULL, accept_all, endpoint) != 0)
                die("no thread for an endpoint");
        pthread_detach(thread);
}
