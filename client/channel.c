/* SPDX-License-Identifier: Apache-2.0
 *
 * A request is appended to the output buffer and sent without blocking; then its thread waits for
 * the reply:
 *
 *   done? > return      no thread reads? > read the socket, dispatch, wake all      else > sleep
 *
 * Bytes that the socket does not accept stay in the buffer and are sent later, so a timeout never leaves
 * a partial frame. The connection ends at the end of the stream, with invalid bytes, or with
 * streamer_close(); all waiting threads then receive the reason.
 */
#include "client/channel.h"

#include "client/features.h"
#include "client/util.h"
#include "proto/require.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define OUT_MAX (2u * FRAME_MAX) /* of unsent requests; a daemon that takes none is stuck */
#define LOOKS_MAX 64
#define REASON_NS (1000 * INT64_C(1000000))
#define OUT_RETRY_NS (20 * INT64_C(1000000)) /* while another thread sits in poll() for input alone */

bool channel_forked(const struct streamer_client *c)
{
        return c->pid != getpid();
}

int channel_check(const struct streamer_client *c)
{
        return channel_forked(c) ? fail(c, STREAMER_EFORK, "the client belongs to the parent process") : 0;
}

int64_t channel_deadline(const struct streamer_client *c)
{
        return deadline_in_ms(c->timeout_ms);
}

int64_t channel_deadline_after(int timeout_ms)
{
        return timeout_ms < 0 ? NEVER : deadline_in_ms(timeout_ms) + REASON_NS;
}

/* ---- lifecycle ---- */

struct streamer_client *channel_new(struct fault *fault)
{
        struct streamer_client *c = calloc(1, sizeof(*c));
        if (!c || !(c->fault = fault ? fault_ref(fault) : fault_new())) {
                free(c);
                return NULL;
        }
        pthread_condattr_t attr;
        pthread_condattr_init(&attr);
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        pthread_cond_init(&c->changed, &attr);
        pthread_condattr_destroy(&attr);
        pthread_mutex_init(&c->lock, NULL);
        atomic_init(&c->refs, 1);
        c->pid = getpid();
        c->fd = -1;
        c->events_end = &c->events;
        readiness_init(&c->readiness);
        frame_reader_init(&c->in);
        c->in.ahead = true;
        msgpack_sbuffer_init(&c->out);
        return c;
}

struct streamer_client *channel_ref(struct streamer_client *c)
{
        atomic_fetch_add(&c->refs, 1);
        return c;
}

static void close_fds(int *fds, size_t n)
{
        for (size_t i = 0; i < n; i++)
                if (fds[i] >= 0)
                        close(fds[i]);
}

static void free_events(struct event *events)
{
        for (struct event *e = events, *next; e; e = next) {
                next = e->next;
                message_deinit(&e->message);
                free(e);
        }
}

void channel_unref(struct streamer_client *c)
{
        if (atomic_fetch_sub(&c->refs, 1) != 1)
                return;
        if (channel_forked(c)) {
                /* What the lock protects is a copy that may be half changed, and to destroy what threads of the parent
                 * wait for would wait for them. */
                readiness_close(&c->readiness);
                close(c->fd);
                return;
        }
        free_events(c->events);
        free_events(c->early);
        while (c->detaching)
                detaching_free(c, c->detaching);
        table_deinit(&c->calls);
        table_deinit(&c->ops);
        table_deinit(&c->lease_ids);
        table_deinit(&c->detach_ids);
        readiness_close(&c->readiness);
        close_fds(c->fds, c->n_fds);
        if (c->fd >= 0)
                close(c->fd);
        frame_reader_deinit(&c->in);
        msgpack_sbuffer_destroy(&c->out);
        pthread_cond_destroy(&c->changed);
        pthread_mutex_destroy(&c->lock);
        free(c->dead_text);
        call_deinit(&c->hello);
        free(c->subject);
        free(c->skipped);
        free(c->path);
        fault_unref(c->fault);
        free(c);
}

void channel_fail(struct streamer_client *c, int code, const char *text)
{
        if (c->dead)
                return;
        c->dead = code;
        c->dead_text = strdup(text);
        readiness_add(c, &c->readiness.loss);
        pthread_cond_broadcast(&c->changed);
}

pid_t channel_daemon(const struct streamer_client *c)
{
        struct ucred peer;
        socklen_t len = sizeof(peer);
        return getsockopt(c->fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 ? peer.pid : 0;
}

int channel_timed_out(const struct streamer_client *c)
{
        return fail(c, STREAMER_ETIMEOUT, "no reply in time: the daemon is stopped or overloaded (pid %d%s%s)",
                    (int)channel_daemon(c), c->path ? ", " : "", c->path ? c->path : "");
}

int channel_error(const struct streamer_client *c)
{
        return fail(c, c->dead, "%s", c->dead_text ? c->dead_text : "the connection was lost");
}

void channel_close(struct streamer_client *c)
{
        /* The parent still uses the connection: a shutdown would end it there. */
        if (channel_forked(c)) {
                channel_unref(c);
                return;
        }
        pthread_mutex_lock(&c->lock);
        c->closed = true;
        channel_fail(c, STREAMER_EUNREACHABLE, "the connection was closed");
        shutdown(c->fd, SHUT_RDWR); /* ends the poll() of a thread that waits for a lease */
        while (c->pumping || c->reviving)
                pthread_cond_wait(&c->changed, &c->lock);
        close(c->fd);
        c->fd = -1;
        readiness_close(&c->readiness);
        pthread_mutex_unlock(&c->lock);
        channel_unref(c);
}

/* ---- output ---- */

/* A kernel that does not tell the daemon whose connection it is (gVisor) still vouches for who is named in a message.
 * Others take no notice. */
static ssize_t send_introduced(const struct streamer_client *c)
{
        union {
                struct cmsghdr header;
                char bytes[CMSG_SPACE(sizeof(struct ucred))];
        } control = {.bytes = {0}};
        struct ucred me = {.pid = getpid(), .uid = geteuid(), .gid = getegid()};
        struct iovec all = {.iov_base = c->out.data, .iov_len = c->out.size};
        struct msghdr message = {
                .msg_iov = &all, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
        control.header = (struct cmsghdr){CMSG_LEN(sizeof(me)), SOL_SOCKET, SCM_CREDENTIALS};
        memcpy(CMSG_DATA(&control.header), &me, sizeof(me));
        return sendmsg(c->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static ssize_t send_out(struct streamer_client *c)
{
        if (c->introduced)
                return send(c->fd, c->out.data, c->out.size, MSG_DONTWAIT | MSG_NOSIGNAL);
        ssize_t n = send_introduced(c);
        bool refused = n < 0 && (errno == EPERM || errno == EINVAL); /* by a sandbox: then without */
        c->introduced = n > 0 || refused;
        return refused ? send_out(c) : n;
}

static void flush(struct streamer_client *c)
{
        while (c->out.size > 0 && !c->dead) {
                ssize_t n = send_out(c);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0 && errno == EPIPE) {
                        c->out.size = 0; /* the reason may precede the end of the stream: the reader finds both */
                        return;
                }
                if (n < 0) {
                        if (errno != EAGAIN && errno != EWOULDBLOCK)
                                channel_fail(c, STREAMER_EUNREACHABLE, "the daemon closed the connection");
                        return;
                }
                memmove(c->out.data, c->out.data + n, c->out.size - (size_t)n);
                c->out.size -= (size_t)n;
        }
}

static void push(struct streamer_client *c)
{
        flush(c);
        readiness_update(c);
}

static int append(struct streamer_client *c, const void *body, size_t len)
{
        unsigned char header[FRAME_HEADER];
        if (c->dead)
                return channel_error(c);
        if (len > FRAME_MAX)
                return fail(c, STREAMER_EINVAL, "the request is too long: %zu bytes", len);
        if (c->out.size + FRAME_HEADER + len > OUT_MAX)
                return fail(c, STREAMER_ETIMEOUT, "the daemon takes no more requests: too many are unanswered");
        size_t before = c->out.size;
        frame_put_header(header, len);
        if (msgpack_sbuffer_write(&c->out, (const char *)header, sizeof(header)) == 0 &&
            msgpack_sbuffer_write(&c->out, body, len) == 0)
                return 0;
        c->out.size = before;
        return fail(c, STREAMER_ENOMEM, "no memory for a request");
}

void channel_post(struct streamer_client *c, struct request *request)
{
        msgpack_sbuffer body;
        msgpack_sbuffer_init(&body);
        request->id = ++c->last_id;
        if (!c->dead && request_encode(request, &body) == 0 && append(c, body.data, body.size) == 0)
                push(c);
        msgpack_sbuffer_destroy(&body);
}

void detaching_free(struct streamer_client *c, struct detaching *d)
{
        table_remove(&c->detach_ids, &d->by_request);
        list_remove(c->detaching, d);
        free(d);
}

void channel_post_detach(struct streamer_client *c, struct detaching *d)
{
        struct request request = {.verb = VERB_detach, .u.detach = {.lease = d->lease}};
        channel_post(c, &request);
        d->state = DETACH_SENT;
        table_remove(&c->detach_ids, &d->by_request);
        table_add(&c->detach_ids, &d->by_request, request.id);
}

/* ---- input ---- */

static void take_frames(struct streamer_client *c)
{
        const void *data;
        size_t len;
        int rc;
        while (!c->dead && (rc = frame_reader_next(&c->in, &data, &len)) != 0) {
                struct message message;
                if (rc < 0) {
                        channel_fail(c, STREAMER_EPROTO, "the daemon sent a frame of a forbidden length");
                        return;
                }
                if (channel_take(c, data, len))
                        continue;
                rc = message_decode(&message, data, len);
                if (rc != 0) {
                        channel_fail(c, rc,
                                     rc == STREAMER_ENOMEM ? "no memory for a reply"
                                                           : "the daemon sent a message that cannot be read");
                        return;
                }
                channel_dispatch(c, &message);
        }
        if (c->dead || frame_reader_partial(&c->in))
                return;
        /* Descriptors come with the first byte of their frame: a whole frame has claimed its own. */
        if (c->n_fds > 0)
                channel_fail(c, STREAMER_EPROTO, "the daemon sent descriptors that belong to no reply");
        c->fds_lost = false;
}

static void received(struct streamer_client *c, ssize_t n, int error)
{
        if (n > 0) {
                frame_reader_added(&c->in, (size_t)n);
                take_frames(c);
        } else if (n == 0) {
                channel_fail(c, STREAMER_EUNREACHABLE, "the daemon closed the connection");
        } else if (error != EINTR && error != EAGAIN) {
                channel_fail(c, STREAMER_EUNREACHABLE, "the connection to the daemon broke");
        }
}

/* Lock held; given up while the socket is waited for. */
static void pump(struct streamer_client *c, int64_t deadline)
{
        struct pollfd p = {.fd = c->fd, .events = (short)(POLLIN | (c->out.size > 0 ? POLLOUT : 0))};
        size_t room;
        void *space = frame_reader_space(&c->in, &room);
        if (!space) {
                channel_fail(c, STREAMER_ENOMEM, "no memory for a reply");
                return;
        }
        c->pumping = true;
        pthread_mutex_unlock(&c->lock);

        ssize_t n = -1;
        int error = EAGAIN;
        bool lost = false;
        int ready = poll(&p, 1, ms_until(deadline));
        if (ready > 0 && (p.revents & (POLLIN | POLLHUP | POLLERR))) {
                n = frame_recv_fds(c->fd, space, room, c->fds, &c->n_fds, FRAME_FDS_MAX, &lost);
                error = errno;
        }

        pthread_mutex_lock(&c->lock);
        c->pumping = false;
        c->fds_lost = c->fds_lost || lost;
        received(c, n, error);
        flush(c);
        readiness_update(c);
        pthread_cond_broadcast(&c->changed);
}

void channel_poll(struct streamer_client *c)
{
        struct pollfd p = {.fd = c->fd, .events = POLLIN};
        if (c->introduced) /* else hello waits for the first request */
                flush(c);
        /* The end of the stream follows what was sent before it. */
        for (int i = 0; i < LOOKS_MAX && !c->dead && !c->pumping && poll(&p, 1, 0) > 0; i++)
                pump(c, 0);
}

static void sleep_until(struct streamer_client *c, int64_t deadline)
{
        if (c->out.size > 0) {
                int64_t retry = now_ns() + OUT_RETRY_NS;
                deadline = deadline < retry ? deadline : retry;
        }
        if (deadline == NEVER) {
                pthread_cond_wait(&c->changed, &c->lock);
        } else {
                struct timespec ts = {deadline / 1000000000, deadline % 1000000000};
                pthread_cond_timedwait(&c->changed, &c->lock, &ts);
        }
        flush(c);
        readiness_update(c);
}

/* For what only this connection answers. */
static int wait_on(struct streamer_client *c, uint64_t epoch, bool (*done)(const void *arg), const void *arg,
                   int64_t deadline)
{
        bool has_read = false;
        while (!done(arg)) {
                if (c->epoch != epoch)
                        return fail(c, STREAMER_EUNREACHABLE, "the daemon closed the connection");
                if (c->dead)
                        return channel_error(c);
                if (has_read && deadline != NEVER && now_ns() >= deadline)
                        return STREAMER_ETIMEOUT;
                if (c->pumping)
                        sleep_until(c, deadline);
                else
                        pump(c, deadline);
                has_read = true;
        }
        return 0;
}

/* ---- calls ---- */

void call_deinit(struct call *call)
{
        close_fds(call->fds, call->n_fds);
        call->n_fds = 0;
        message_deinit(&call->reply);
}

static bool call_done(const void *arg)
{
        return ((const struct call *)arg)->done;
}

void channel_end(struct streamer_client *c, struct call *call)
{
        if (call->by_id.linked && call->take) {
                require(c->n_takers > 0);
                c->n_takers--;
        }
        table_remove(&c->calls, &call->by_id);
}

int call_outcome(const struct streamer_client *c, const struct call *call)
{
        const msgpack_object *reply = &call->reply.unpacked.data;
        const char *code = "", *text = "";
        size_t code_len = 0, text_len = 0;
        bool ok;
        require(call->done);
        if (call->taken)
                return 0;
        if (call->code != 0)
                return fail(c, call->code, "%s", CALL_LOST_FDS);
        if (!object_bool(reply, "ok", &ok))
                return fail(c, STREAMER_EPROTO, "the daemon sent a reply without an outcome");
        if (ok)
                return 0;
        object_str(reply, "code", &code, &code_len);
        object_str(reply, "text", &text, &text_len);
        int rc = code_from_wire(code, code_len);
        return text_len == 0 ? fail(c, rc, "%s", code_text(rc)) : fail(c, rc, "%.*s", (int)text_len, text);
}

int channel_queue(struct streamer_client *c, const void *body, size_t len, struct call *call)
{
        int rc = append(c, body, len);
        if (rc != 0)
                return rc;
        call->epoch = c->epoch;
        table_add(&c->calls, &call->by_id, call->id);
        c->n_takers += call->take ? 1 : 0;
        return 0;
}

int channel_send(struct streamer_client *c, const void *body, size_t len, struct call *call)
{
        int rc = channel_queue(c, body, len, call);
        if (rc == 0)
                push(c);
        return rc;
}

int channel_greet(struct streamer_client *c, int64_t deadline)
{
        require(c->hello.by_id.linked);
        push(c);
        int rc = wait_on(c, c->epoch, call_done, &c->hello, deadline);
        return rc == 0 && c->dead ? channel_error(c) : rc;
}

/* Where hello was sent with the first request, its reply has the time of any reply, whatever the caller waits for. */
static int wait_greeted(struct streamer_client *c, uint64_t epoch, bool (*done)(const void *arg), const void *arg,
                        int64_t deadline)
{
        int64_t usual = c->hello.done ? NEVER : channel_deadline(c);
        int rc = c->hello.done ? 0 : wait_on(c, epoch, call_done, &c->hello, deadline < usual ? deadline : usual);
        return rc ?: wait_on(c, epoch, done, arg, deadline);
}

int channel_wait(struct streamer_client *c, bool (*done)(const void *arg), const void *arg, int64_t deadline)
{
        return wait_greeted(c, c->epoch, done, arg, deadline);
}

int channel_await(struct streamer_client *c, struct call *call, int64_t deadline)
{
        require(call->by_id.linked || call->done);
        int rc = wait_greeted(c, call->epoch, call_done, call, deadline);
        if (rc == STREAMER_ETIMEOUT && call->slow)
                fail(c, rc, "%s: not done in the given time", call->slow);
        else if (rc == STREAMER_ETIMEOUT)
                channel_timed_out(c);
        channel_end(c, call);
        if (rc != 0)
                return rc;
        rc = call_outcome(c, call);
        if (rc != 0) {
                object_bool(&call->reply.unpacked.data, "hopeless", &call->hopeless);
                call_deinit(call);
        }
        return rc;
}

int channel_begin(struct streamer_client *c, struct request *request, struct call *call, int64_t deadline)
{
        msgpack_sbuffer body;
        msgpack_sbuffer_init(&body);
        int rc = channel_ensure(c, true, deadline);
        call->id = request->id = ++c->last_id;
        if (rc == 0)
                rc = features_check(c, request);
        if (rc == 0 && request_encode(request, &body) != 0)
                rc = fail(c, STREAMER_ENOMEM, "no memory for a request");
        if (rc == 0)
                rc = channel_send(c, body.data, body.size, call);
        msgpack_sbuffer_destroy(&body);
        return rc;
}

int channel_call(struct streamer_client *c, struct request *request, struct call *call, int64_t deadline)
{
        lock_scope(&c->lock);
        int rc = channel_begin(c, request, call, deadline) ?: channel_await(c, call, deadline);
        if (rc == STREAMER_EUNSUPPORTED) /* maybe of the first request, before the features were known */
                features_check(c, request);
        return rc;
}

int channel_request(struct streamer_client *c, struct request *request, int64_t deadline)
{
        struct call call = {0};
        int rc = channel_call(c, request, &call, deadline);
        if (rc == 0)
                call_deinit(&call);
        return rc;
}
