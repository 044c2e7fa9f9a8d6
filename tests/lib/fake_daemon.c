/* SPDX-License-Identifier: Apache-2.0
 *
 * The socket listens before fake_start() returns, so that a test can connect at once.
 */
#include "tests/lib/fake_daemon.h"

#include "tests/lib/suite.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void *run(void *arg)
{
        struct fake_daemon *f = arg;
        f->script(f);
        return NULL;
}

void fake_start(struct fake_daemon *f, void (*script)(struct fake_daemon *f))
{
        static int n;
        struct sockaddr_un addr = {.sun_family = AF_UNIX};
        *f = (struct fake_daemon){.fd = -1, .script = script};
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

void fake_finish(struct fake_daemon *f)
{
        pthread_join(f->thread, NULL);
        fake_close(f);
        if (f->listener >= 0)
                close(f->listener);
        request_deinit(&f->request);
        msgpack_sbuffer_destroy(&f->out);
        sem_destroy(&f->turn);
}

void fake_resume(struct fake_daemon *f)
{
        sem_post(&f->turn);
}

void fake_pause(struct fake_daemon *f)
{
        while (sem_wait(&f->turn) < 0)
                ;
}

/* ---- connections ---- */

void fake_accept(struct fake_daemon *f)
{
        f->fd = must(accept4(f->listener, NULL, NULL, SOCK_CLOEXEC));
}

/* Sends hello without one of the features, or with an additional unknown one. */
static void reply_hello(struct fake_daemon *f, const char *lacking, const char *more)
{
        struct writer features;
        fake_expect(f, VERB_hello);
        fake_reply(f, 3);
        writer_ku64(&f->message, "protocol", PROTOCOL_MAX);
        writer_kstr(&f->message, "version", "0.0.fake");
        writer_key(&f->message, "features");
        writer_init(&features);
        size_t n = writer_features(&features, lacking);
        if (more)
                writer_str(&features, more);
        writer_array(&f->message, n + (more != NULL));
        writer_append(&f->message, &features);
        writer_deinit(&features);
        fake_done(f);
        fake_send(f, NULL, 0);
}

void fake_hello(struct fake_daemon *f)
{
        fake_accept(f);
        reply_hello(f, NULL, NULL);
}

void fake_hello_older(struct fake_daemon *f, const char *lacking)
{
        fake_accept(f);
        reply_hello(f, lacking, NULL);
}

void fake_hello_newer(struct fake_daemon *f, const char *more)
{
        fake_accept(f);
        reply_hello(f, NULL, more);
}

void fake_vanish(struct fake_daemon *f)
{
        close(f->listener);
        f->listener = -1;
        fake_close(f);
}

void fake_close(struct fake_daemon *f)
{
        if (f->fd >= 0)
                close(f->fd);
        f->fd = -1;
        frame_reader_deinit(&f->in);
}

/* ---- requests ---- */

/* False at the end of the stream. */
static bool more(struct fake_daemon *f)
{
        size_t room;
        void *space = frame_reader_space(&f->in, &room);
        ssize_t n = recv(f->fd, space, room, 0);
        if (n <= 0)
                return false;
        frame_reader_added(&f->in, (size_t)n);
        return true;
}

void fake_expect(struct fake_daemon *f, enum verb verb)
{
        const void *data;
        size_t len;
        char text[256];
        request_deinit(&f->request);
        while (frame_reader_next(&f->in, &data, &len) == 0)
                if (!more(f))
                        die("the client disconnected before '%s'", verb_desc(verb)->name);
        if (request_decode(&f->request, data, len, text, sizeof(text)) != 0)
                die("bad request: %s", text);
        if (f->request.verb != verb)
                die("'%s' came where '%s' was expected", verb_desc(f->request.verb)->name, verb_desc(verb)->name);
}

bool fake_ends(struct fake_daemon *f)
{
        return !more(f);
}

/* ---- messages ---- */

void fake_reply_to(struct fake_daemon *f, uint64_t id, size_t pairs)
{
        writer_init(&f->message);
        writer_reply(&f->message, id, pairs);
}

void fake_reply(struct fake_daemon *f, size_t pairs)
{
        fake_reply_to(f, f->request.id, pairs);
}

void fake_event(struct fake_daemon *f, const char *event, size_t pairs)
{
        writer_init(&f->message);
        writer_map(&f->message, pairs + 1);
        writer_kstr(&f->message, "event", event);
}

void fake_done(struct fake_daemon *f)
{
        unsigned char header[FRAME_HEADER];
        frame_put_header(header, f->message.buf.size);
        msgpack_sbuffer_write(&f->out, (const char *)header, sizeof(header));
        msgpack_sbuffer_write(&f->out, f->message.buf.data, f->message.buf.size);
        writer_deinit(&f->message);
}

void fake_send(struct fake_daemon *f, const int *fds, size_t n_fds)
{
        ssize_t n = must(frame_send_fds(f->fd, f->out.data, f->out.size, fds, n_fds));
        if ((size_t)n != f->out.size)
                die("the fake daemon's socket is full");
        f->out.size = 0;
}

void fake_raw(struct fake_daemon *f, const void *data, size_t size)
{
        must(send(f->fd, data, size, MSG_NOSIGNAL));
}

void fake_ok(struct fake_daemon *f)
{
        fake_reply(f, 0);
        fake_done(f);
        fake_send(f, NULL, 0);
}

void fake_ok_unless_closed(struct fake_daemon *f)
{
        fake_reply(f, 0);
        fake_done(f);
        if (frame_send_fds(f->fd, f->out.data, f->out.size, NULL, 0) < 0 && errno != EPIPE)
                die_errno("send");
        f->out.size = 0;
}

void fake_error(struct fake_daemon *f, int code, const char *text)
{
        writer_init(&f->message);
        writer_error(&f->message, f->request.id, code, text);
        fake_done(f);
        fake_send(f, NULL, 0);
}

/* ---- the client ---- */

streamer_client *fake_connect(struct fake_daemon *f, void (*script)(struct fake_daemon *f))
{
        streamer_client *c;

        fake_start(f, script);
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = f->socket};
        int r = streamer_connect(&opts, &c);
        if (r < 0)
                die("%s", streamer_last_error(c));
        return c;
}

void fake_disconnect(struct fake_daemon *f, streamer_client *c)
{
        streamer_close(c);
        fake_finish(f);
}
