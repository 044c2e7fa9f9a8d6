/* SPDX-License-Identifier: Apache-2.0
 *
 * The socket is listening before fake_start() returns, so a test may connect at once.
 */
#include "tests/lib/fake.h"

#include "tests/lib/suite.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void *run(void *arg)
{
        struct fake *f = arg;
        f->script(f);
        return NULL;
}

void fake_start(struct fake *f, void (*script)(struct fake *f))
{
        static int n;
        struct sockaddr_un addr = {.sun_family = AF_UNIX};
        *f = (struct fake){.fd = -1, .script = script};
        snprintf(f->socket, sizeof(f->socket), "%s/fake%d", suite_folder(), n++);
        memcpy(addr.sun_path, f->socket, sizeof(addr.sun_path));
        unlink(f->socket);
        f->listener = must(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        must(bind(f->listener, (struct sockaddr *)&addr, sizeof(addr)));
        must(listen(f->listener, 8));
        must(sem_init(&f->turn, 0, 0));
        frame_reader_init(&f->in);
        msgpack_sbuffer_init(&f->out);
        if (pthread_create(&f->thread, NULL, run, f) != 0)
                die("no thread");
}

void fake_finish(struct fake *f)
{
        pthread_join(f->thread, NULL);
        fake_close(f);
        if (f->listener >= 0)
                close(f->listener);
        request_deinit(&f->request);
        msgpack_sbuffer_destroy(&f->out);
        sem_destroy(&f->turn);
}

void fake_go(struct fake *f)
{
        sem_post(&f->turn);
}

void fake_pause(struct fake *f)
{
        while (sem_wait(&f->turn) < 0)
                ;
}

/* ---- connections ---- */

void fake_accept(struct fake *f)
{
        f->fd = must(accept4(f->listener, NULL, NULL, SOCK_CLOEXEC));
}

void fake_hello(struct fake *f)
{
        fake_accept(f);
        fake_expect(f, VERB_hello);
        fake_reply(f, 2);
        writer_ku64(&f->message, "protocol", PROTOCOL_MAX);
        writer_kstr(&f->message, "version", "fake");
        fake_done(f);
        fake_send(f, NULL, 0);
}

void fake_vanish(struct fake *f)
{
        close(f->listener);
        f->listener = -1;
        fake_close(f);
}

void fake_close(struct fake *f)
{
        if (f->fd >= 0)
                close(f->fd);
        f->fd = -1;
        frame_reader_deinit(&f->in);
}

/* ---- requests ---- */

/* False at the end of the stream. */
static bool more(struct fake *f)
{
        size_t room;
        void *space = frame_reader_space(&f->in, &room);
        ssize_t n = recv(f->fd, space, room, 0);
        if (n <= 0)
                return false;
        frame_reader_added(&f->in, (size_t)n);
        return true;
}

void fake_expect(struct fake *f, enum verb verb)
{
        const void *data;
        size_t len;
        char text[256];
        request_deinit(&f->request);
        while (frame_reader_next(&f->in, &data, &len) == 0)
                if (!more(f))
                        die("the client left where '%s' was expected", verb_desc(verb)->name);
        if (request_decode(&f->request, data, len, text, sizeof(text)) != 0)
                die("bad request: %s", text);
        if (f->request.verb != verb)
                die("'%s' came where '%s' was expected", verb_desc(f->request.verb)->name, verb_desc(verb)->name);
}

bool fake_ends(struct fake *f)
{
        return !more(f);
}

/* ---- messages ---- */

void fake_reply_to(struct fake *f, uint64_t id, size_t pairs)
{
        writer_init(&f->message);
        writer_reply(&f->message, id, pairs);
}

void fake_reply(struct fake *f, size_t pairs)
{
        fake_reply_to(f, f->request.id, pairs);
}

void fake_event(struct fake *f, const char *event, size_t pairs)
{
        writer_init(&f->message);
        writer_map(&f->message, pairs + 1);
        writer_kstr(&f->message, "event", event);
}

void fake_done(struct fake *f)
{
        unsigned char header[FRAME_HEADER];
        frame_put_header(header, f->message.buf.size);
        msgpack_sbuffer_write(&f->out, (const char *)header, sizeof(header));
        msgpack_sbuffer_write(&f->out, f->message.buf.data, f->message.buf.size);
        writer_deinit(&f->message);
}

void fake_send(struct fake *f, const int *fds, size_t n_fds)
{
        ssize_t n = must(frame_send_fds(f->fd, f->out.data, f->out.size, fds, n_fds));
        if ((size_t)n != f->out.size)
                die("the fake daemon's socket is full");
        f->out.size = 0;
}

void fake_raw(struct fake *f, const void *data, size_t size)
{
        must(send(f->fd, data, size, MSG_NOSIGNAL));
}

void fake_ok(struct fake *f)
{
        fake_reply(f, 0);
        fake_done(f);
        fake_send(f, NULL, 0);
}

void fake_error(struct fake *f, int code, const char *text)
{
        writer_init(&f->message);
        writer_error(&f->message, f->request.id, code, text);
        fake_done(f);
        fake_send(f, NULL, 0);
}
