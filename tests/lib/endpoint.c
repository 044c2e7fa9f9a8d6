/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/endpoint.h"

#include "tests/lib/http_exchange.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/ports.h"

#include <microhttpd.h>
#include <strings.h>
#include <sys/socket.h>

/* A request that is being received. */
struct receiving {
        char *path, *body;
        size_t size;
        bool begun;
};

/* ---- requests ---- */

char *endpoint_header(const struct endpoint_request *request, const char *name)
{
        const char *value = MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
        return value ? format_text("%s", value) : NULL;
}

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

/* ---- forwarding ---- */

static enum MHD_Result append_header(void *text, enum MHD_ValueKind kind, const char *name, const char *value)
{
        *(char **)text = format_text("%s%s: %s\r\n", *(char **)text, name, value);
        return MHD_YES;
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
        struct http_exchange answer;
        int fd = http_exchange_connect(format_text("http://127.0.0.1:%u", port));
        char *text = format_text("%s %s HTTP/1.1\r\nConnection: close\r\n", request->method, request->path);
        MHD_get_connection_values(request->connection, MHD_HEADER_KIND, append_header, &text);
        text = format_text("%s\r\n", text);
        must(send(fd, text, strlen(text), MSG_NOSIGNAL));
        http_exchange_read_consume_fd(&answer, fd);
        if (answer.status == 0)
                die("no answer to forward: %.200s", answer.all);
        const char *headers = answer.all + strcspn(answer.all, "\r");
        reply->status = answer.status;
        reply->headers = format_text("%.*s", (int)(answer.body - headers), headers);
        reply->size = answer.size;
        reply->body = must_alloc(answer.size + 1);
        memcpy(reply->body, answer.body, answer.size);
        if (strcasestr(reply->headers, "\r\nTransfer-Encoding: chunked"))
                reply->size = join_chunks(reply->body);
        http_exchange_free(&answer);
}

/* ---- replies ---- */

/* All headers except those of the connection. */
static void add_headers(struct MHD_Response *response, char *headers)
{
        char *save;
        for (char *line = strtok_r(headers, "\r\n", &save); line; line = strtok_r(NULL, "\r\n", &save)) {
                char *colon = strchr(line, ':');
                if (!colon)
                        die("no header: %s", line);
                *colon = '\0';
                if (strcasecmp(line, "Connection") != 0 && strcasecmp(line, "Content-Length") != 0 &&
                    strcasecmp(line, "Transfer-Encoding") != 0)
                        MHD_add_response_header(response, line, colon + 1 + strspn(colon + 1, " "));
        }
        MHD_add_response_header(response, "Connection", "close");
}

static enum MHD_Result send_reply(struct MHD_Connection *connection, const struct endpoint_reply *reply)
{
        size_t size = reply->body && reply->size == 0 ? strlen(reply->body) : reply->size;
        struct MHD_Response *response = MHD_create_response_from_buffer(size, reply->body, MHD_RESPMEM_MUST_FREE);
        if (reply->headers)
                add_headers(response, reply->headers);
        enum MHD_Result r = MHD_queue_response(connection, reply->status ? (unsigned)reply->status : 200, response);
        MHD_destroy_response(response);
        return r;
}

/* ---- the server ---- */

static void *on_line(void *context, const char *path, struct MHD_Connection *connection)
{
        struct receiving *receiving = must_alloc(sizeof(*receiving));
        receiving->path = format_text("%s", path);
        receiving->body = format_text("%s", "");
        return receiving;
}

/* Called when the headers have arrived, for each piece of the body, and at its end. */
static enum MHD_Result on_request(void *context, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *piece, size_t *size,
                                  void **request_context)
{
        struct endpoint *endpoint = context;
        struct receiving *receiving = *request_context;
        if (!receiving->begun || *size > 0) {
                receiving->begun = true;
                receiving->body = must_realloc(receiving->body, receiving->size + *size + 1);
                memcpy(receiving->body + receiving->size, piece ? piece : "", *size);
                receiving->body[receiving->size += *size] = '\0';
                *size = 0;
                return MHD_YES;
        }
        const struct endpoint_request request = {
                .method = method, .path = receiving->path, .body = receiving->body, .connection = connection};
        struct endpoint_reply reply = {0};
        endpoint->requests++;
        endpoint->answer(endpoint, &request, &reply);
        while (reply.hang)
                pause();
        return send_reply(connection, &reply);
}

/* libmicrohttpd joins a connection's thread when the next one arrives. The last ones end with the process. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
        return "thread:libmicrohttpd\n";
}

void endpoint_start(struct endpoint *endpoint)
{
        unsigned port;
        int fd = listen_on_loopback(64, &port);
        snprintf(endpoint->url, sizeof(endpoint->url), "http://127.0.0.1:%u", port);
        if (!MHD_start_daemon(MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD, 0, NULL, NULL,
                              on_request, endpoint, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_URI_LOG_CALLBACK, on_line,
                              NULL, MHD_OPTION_END))
                die("no server for an endpoint");
        /* A process that is forked while another thread allocates finds the address sanitizer's lock locked. */
        unsigned asleep;
        AWAIT(process_threads_named(getpid(), NULL, &asleep) == asleep);
}
