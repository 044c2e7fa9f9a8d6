/* SPDX-License-Identifier: Apache-2.0
 *
 * A client on the level of frames: see wire.h.
 */
#include "tests/lib/wire.h"

#include "proto/frame.h"

#include <sys/socket.h>

void wire_open(struct wire *w, const struct daemon *d)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        *w = (struct wire){.fd = must(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0))};
        memcpy(address.sun_path, d->socket, strlen(d->socket) + 1);
        must(connect(w->fd, (struct sockaddr *)&address, sizeof(address)));
}

static void forget_reply(struct wire *w)
{
        if (w->has_reply)
                message_deinit(&w->reply);
        w->has_reply = false;
}

void wire_close(struct wire *w)
{
        forget_reply(w);
        close(w->fd);
        w->fd = -1;
}

bool wire_send(struct wire *w, const void *data, size_t size)
{
        const char *p = data;
        while (size > 0) {
                ssize_t n = send(w->fd, p, size, MSG_NOSIGNAL);
                if (n < 0 && (errno == EPIPE || errno == ECONNRESET))
                        return false;
                if (n < 0)
                        die_errno("send");
                p += n;
                size -= (size_t)n;
        }
        return true;
}

bool wire_frame(struct wire *w, const void *body, size_t size)
{
        cleanup_free unsigned char *frame = must_alloc(FRAME_HEADER + size);
        frame_put_header(frame, size);
        memcpy(frame + FRAME_HEADER, body, size);
        return wire_send(w, frame, FRAME_HEADER + size);
}

char *wire_frames(const struct request *request, size_t n, size_t *size)
{
        msgpack_sbuffer buf;
        msgpack_sbuffer_init(&buf);
        if (request_encode(request, &buf))
                die("request_encode");
        size_t one = FRAME_HEADER + buf.size;
        char *frames = must_alloc(*size = n * one);
        for (char *frame = frames; frame < frames + *size; frame += one) {
                frame_put_header((unsigned char *)frame, buf.size);
                memcpy(frame + FRAME_HEADER, buf.data, buf.size);
        }
        msgpack_sbuffer_destroy(&buf);
        return frames;
}

bool wire_request(struct wire *w, const struct request *request)
{
        size_t size;
        cleanup_free char *frame = wire_frames(request, 1, &size);
        return wire_send(w, frame, size);
}

bool wire_verb(struct wire *w, const char *verb, uint64_t id, const char *key, const char *value)
{
        struct writer writer;
        writer_init(&writer);
        writer_map_of(&writer, kstr("verb", verb), ku64("id", id), kif(key, kstr(key, value)));
        bool sent = wire_frame(w, writer.buf.data, writer.buf.size);
        writer_deinit(&writer);
        return sent;
}

void wire_hello(struct wire *w)
{
        struct request hello = {.verb = VERB_hello, .id = 1, .u.hello = {.min = PROTOCOL_MIN, .max = PROTOCOL_MAX}};
        bool ok;
        if (!wire_request(w, &hello) || !wire_read(w) || !object_bool(&w->reply.unpacked.data, "ok", &ok) || !ok)
                die("hello was refused");
}

void wire_connect(struct wire *w, const struct daemon *d)
{
        wire_open(w, d);
        wire_hello(w);
}

/* False at the end of the stream. */
static bool read_exactly(struct wire *w, unsigned char *to, size_t size)
{
        int fds[FRAME_FDS_MAX];
        size_t n_fds = 0;
        bool lost = false;
        while (size > 0) {
                struct pollfd fd = {.fd = w->fd, .events = POLLIN};
                if (must(poll(&fd, 1, PATIENCE_MS)) == 0)
                        die("the daemon does not answer");
                ssize_t n = frame_recv_fds(w->fd, to, size, fds, &n_fds, FRAME_FDS_MAX, &lost);
                if (n == 0 || (n < 0 && errno == ECONNRESET))
                        return false;
                if (n < 0)
                        die_errno("recv");
                to += n;
                size -= (size_t)n;
        }
        while (n_fds > 0)
                close(fds[--n_fds]);
        return true;
}

bool wire_read(struct wire *w)
{
        unsigned char header[FRAME_HEADER];
        forget_reply(w);
        if (!read_exactly(w, header, sizeof(header)))
                return false;
        size_t len = (size_t)header[0] << 24 | (size_t)header[1] << 16 | (size_t)header[2] << 8 | header[3];
        cleanup_free unsigned char *body = must_alloc(len);
        if (len == 0 || len > FRAME_MAX)
                die("a frame of %zu bytes", len);
        if (read_exactly(w, body, len)) {
                if (message_decode(&w->reply, body, len))
                        die("a reply that is no message");
                w->has_reply = true;
        }
        return w->has_reply;
}

const msgpack_object *wire_next(struct wire *w)
{
        if (!wire_read(w))
                die("the daemon closed the connection");
        return &w->reply.unpacked.data;
}

void wire_read_ok(struct wire *w)
{
        bool ok = false;
        if (!object_bool(wire_next(w), "ok", &ok) || !ok)
                die("the request was refused");
}

const msgpack_object *wire_reply(struct wire *w)
{
        const msgpack_object *frame;
        do
                frame = wire_next(w);
        while (object_get(frame, "event") != NULL);
        return frame;
}

const msgpack_object *wire_reply_ok(struct wire *w)
{
        const msgpack_object *reply = wire_reply(w);
        bool ok = false;
        if (!object_bool(reply, "ok", &ok) || !ok)
                die("the request was refused");
        return reply;
}

bool wire_read_code(struct wire *w, const char *code)
{
        return object_str_eq(wire_reply(w), "code", code);
}

void wire_told(const struct wire *w, const char *part)
{
        const char *text = "";
        size_t len = 0;
        object_str(&w->reply.unpacked.data, "text", &text, &len);
        if (memmem(text, len, part, strlen(part)) == NULL)
                die("\"%.*s\" does not say \"%s\"", (int)len, text, part);
}

void wire_read_error(struct wire *w, const char *code, const char *part)
{
        bool has_code = wire_read_code(w, code);
        wire_told(w, part);
        if (!has_code)
                die("\"%s\" without the code '%s'", part, code);
}

void wire_read_whole_error(struct wire *w, const char *code, const char *text)
{
        const char *told;
        size_t len;
        wire_read_error(w, code, text);
        if (!object_str(&w->reply.unpacked.data, "text", &told, &len) || len != strlen(text))
                die("\"%s\" is not the whole text", text);
}

uint64_t wire_number(const struct wire *w, const char *key)
{
        uint64_t number;
        if (!object_u64(&w->reply.unpacked.data, key, &number))
                die("a frame without '%s'", key);
        return number;
}

void wire_read_to_end(struct wire *w)
{
        while (wire_read(w))
                ;
}
