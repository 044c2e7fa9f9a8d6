/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/conn/conn.h"

#include "daemon/base/log/log.h"
#include "daemon/base/fallback/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

/* Bytes that a connection receives in one turn, which also has a limit of time (turns.h). */
#define READ_TURN (256 * KiB)

/* Bytes of replies that wait for those to later requests. */
#define CORKED_MAX (64 * KiB)

struct out_frame {
        struct list link;
        size_t len, done, n_fds;
        unsigned char *data; /* after the descriptors */
        int fds[];
};

/* ---- states ---- */

static void conn_set_state(struct conn *conn, enum conn_state state)
{
#define TO(state) (1u << CONN_##state)
        static const unsigned allowed[] = {
                [CONN_OPEN] = TO(PEER_CLOSED) | TO(DRAINING) | TO(ENDED),
                [CONN_PEER_CLOSED] = TO(ENDED),
                [CONN_DRAINING] = TO(ENDED),
        };
#undef TO
        change_state(conn->state, state, allowed);
}

static bool is_closing(const struct conn *conn)
{
        return conn->state >= CONN_DRAINING;
}

static bool conn_reads(const struct conn *conn)
{
        return conn->state <= CONN_PEER_CLOSED && conn->blocked == 0;
}

/* ---- closing ---- */

static void out_frame_free(struct out_frame *frame)
{
        list_remove(&frame->link);
        for (size_t i = 0; i < frame->n_fds; i++)
                close(frame->fds[i]);
        free(frame);
}

/* Something of it is unsent, or has a time limit. */
static void need_tick(struct conn *conn)
{
        if (list_empty(&conn->in_timed))
                list_append(&conn->turns->timed, &conn->in_timed);
}

static void wait_for_frame(struct conn *conn)
{
        conn->waiting_since = now_ns();
        need_tick(conn);
}

static bool is_queued(const struct conn *conn)
{
        return !list_empty(&conn->turn.link);
}

/* It is polled again when it has had its turn. */
static void wait_for_turn(struct conn *conn, uint32_t events)
{
        conn->due |= events;
        if (is_queued(conn))
                return;
        poll_set_watch(conn->polls, &conn->poll, 0);
        turn_wait(conn->turns, &conn->turn, conn->caller.uid);
}

/* Reading resumes in a later turn, with frames that were received before. The time limit of an incomplete frame begins
 * anew. */
static void conn_resume(struct conn *conn)
{
        conn->waiting_since = 0;
        wait_for_turn(conn, EPOLLIN);
}

/* Does not free the connection. */
static void conn_end(struct conn *conn)
{
        if (conn->state == CONN_ENDED)
                return;
        conn_set_state(conn, CONN_ENDED);
        wait_for_turn(conn, 0);
}

void conn_close(struct conn *conn, bool flush)
{
        if (!flush || list_empty(&conn->out))
                conn_end(conn);
        else if (!is_closing(conn))
                conn_set_state(conn, CONN_DRAINING);
}

/* The client sees the connection end without a reason, so the log has it. */
static void conn_fail(struct conn *conn, const char *why)
{
        log_warn("the connection of process %d ends: %s", (int)conn->pid, why);
        conn_end(conn);
}

/* ---- polling ---- */

static void update_poll(struct conn *conn)
{
        uint32_t events = EPOLLRDHUP;
        if (conn_reads(conn))
                events |= EPOLLIN;
        if (!list_empty(&conn->out) && !conn->held)
                events |= EPOLLOUT;
        if (conn->state == CONN_ENDED || is_queued(conn))
                return;
        if (poll_set_watch(conn->polls, &conn->poll, events) < 0)
                conn_fail(conn, strerror(errno));
}

/* ---- blocking ---- */

void conn_block(struct conn *conn, enum conn_block why, bool block)
{
        if (block == ((conn->blocked & why) != 0))
                return;
        conn->blocked ^= why;
        if (conn->blocked == 0 && !is_closing(conn))
                conn_resume(conn);
        update_poll(conn);
}

/* ---- output ---- */

bool conn_output_full(const struct conn *conn)
{
        return conn->output.user != NULL && conn->output.user->held[QUOTA_OUTPUT] > conn->output_share;
}

bool conn_writable(const struct conn *conn)
{
        uint64_t unsent = conn->output.amount;
        return conn->state == CONN_OPEN &&
               (unsent == 0 || (unsent < conn->limits->output / 2 && !conn_output_full(conn)));
}

bool conn_idle(const struct conn *conn)
{
        return conn->state == CONN_OPEN && list_empty(&conn->out);
}

/* The client closed its end. What it sent before that is read first. */
static void stop_sending(struct conn *conn)
{
        list_each_item_safe (struct out_frame, frame, &conn->out, link)
                out_frame_free(frame);
        quota_adjust(&conn->output, 0);
        conn_block(conn, CONN_BLOCK_OUTPUT, false);
        if (conn->state == CONN_DRAINING)
                conn_end(conn);
        else
                conn_set_state(conn, CONN_PEER_CLOSED);
}

/* A failure to send to a client that has not closed is the daemon's or the machine's fault. */
static void fail_to_send(struct conn *conn, size_t len)
{
        log_warn("a frame of %zu bytes could not be sent to process %d, whose connection ends: %s", len, (int)conn->pid,
                 strerror(errno));
        conn_end(conn);
}

/* The number of bytes that were sent, and with the first one the descriptors; 0: none can be now; -1: none ever. */
static ssize_t transmit(struct conn *conn, const void *data, size_t len, const int *fds, size_t n_fds)
{
        require(!conn->held);
        ssize_t n = frame_send_fds(conn->fd, data, len, fds, n_fds);
        if (n >= 0) {
                conn->sent += (size_t)n;
                if (n_fds > 0)
                        conn->newer_fds = (struct conn_fds){conn->newer_fds.n + (unsigned)n_fds, conn->sent};
                return n;
        }
        /* Where too many descriptors are in flight, the client receives them, or its connection ends. */
        if (errno == EAGAIN || errno == EINTR || errno == ETOOMANYREFS || errno == ENOBUFS)
                return 0;
        if (errno == EPIPE || errno == ECONNRESET)
                stop_sending(conn);
        else
                fail_to_send(conn, len);
        return -1;
}

static void send_queued(struct conn *conn)
{
        conn->held = false;
        while (!list_empty(&conn->out)) {
                struct out_frame *f = container_of(conn->out.next, struct out_frame, link);
                ssize_t n = transmit(conn, f->data + f->done, f->len - f->done, f->fds, f->done == 0 ? f->n_fds : 0);
                if (n <= 0)
                        return;
                f->done += (size_t)n;
                quota_adjust(&conn->output, conn->output.amount - (size_t)n);
                if (f->done < f->len)
                        return;
                out_frame_free(f);
        }
}

static void flush(struct conn *conn)
{
        require(conn->state != CONN_ENDED);
        send_queued(conn);
        if (is_closing(conn) && list_empty(&conn->out)) {
                conn_end(conn);
                return;
        }
        if (conn_writable(conn))
                conn_block(conn, CONN_BLOCK_OUTPUT, false);
        if (conn_idle(conn))
                conn->ops->drained(conn);
        update_poll(conn);
}

static bool queue(struct conn *conn, const unsigned char *data, size_t len, const int *fds, size_t n_fds)
{
        struct out_frame *f = malloc(sizeof(*f) + n_fds * sizeof(f->fds[0]) + len);
        if (f == NULL)
                return false;
        f->data = (unsigned char *)(f->fds + n_fds);
        f->len = len;
        f->done = f->n_fds = 0;
        memcpy(f->data, data, len);
        list_append(&conn->out, &f->link);
        need_tick(conn);
        quota_adjust(&conn->output, conn->output.amount + len);
        for (size_t i = 0; i < n_fds; i++) {
                f->fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
                if (f->fds[i] < 0)
                        return false;
                f->n_fds++;
        }
        return true;
}

/* Queues it while the connection is corked, or something is queued that could not be sent; else sends what is queued,
 * and it, and queues the rest. False, with errno: it can be neither sent nor queued. */
static bool send_frame(struct conn *conn, const struct writer *writer, const int *fds, size_t n_fds)
{
        unsigned char *data = (unsigned char *)writer->buf.data;
        size_t len = writer->buf.size;
        errno = writer->failed ? ENOMEM : EMSGSIZE;
        if (writer->failed || len <= FRAME_HEADER || len - FRAME_HEADER > FRAME_MAX || n_fds > FRAME_FDS_MAX)
                return false;
        frame_put_header(data, len - FRAME_HEADER);
        if (conn->corked && n_fds == 0) /* descriptors count when they are sent */
                conn->held = conn->held || list_empty(&conn->out);
        else if (conn->held)
                send_queued(conn);
        if (conn->state != CONN_OPEN)
                return true;
        ssize_t n = list_empty(&conn->out) && !conn->held ? transmit(conn, data, len, fds, n_fds) : 0;
        return n < 0 || (size_t)n == len || queue(conn, data + n, len - (size_t)n, fds, n == 0 ? n_fds : 0);
}

void conn_send(struct conn *conn, const struct fds *fds, const struct pair *pairs, size_t n)
{
        static const char header[FRAME_HEADER];
        struct writer w;
        if (conn->state != CONN_OPEN)
                return;
        writer_init(&w);
        w.failed = msgpack_sbuffer_write(&w.buf, header, sizeof(header)) != 0;
        writer_pairs(&w, pairs, n);
        if (!send_frame(conn, &w, fds != NULL ? fds->v : NULL, fds != NULL ? fds->n : 0))
                fail_to_send(conn, w.buf.size);
        if (conn->output.amount > conn->limits->output || (conn->output.amount > 0 && conn_output_full(conn)))
                conn_block(conn, CONN_BLOCK_OUTPUT, true);
        if (!conn->corked) /* else later: the client waits for the replies */
                update_poll(conn);
        writer_deinit(&w);
}

unsigned conn_fds_in_flight(struct conn *conn)
{
        struct conn_fds *older = &conn->older_fds, *newer = &conn->newer_fds;
        int unread;
        if (older->n + newer->n == 0 || ioctl(conn->fd, SIOCOUTQ, &unread) < 0)
                return older->n + newer->n;
        /* The kernel counts the memory of what is unread, which is no less than its bytes. A busy client reads without
         * ever having read everything. */
        uint64_t read = (uint64_t)unread < conn->sent ? conn->sent - (uint64_t)unread : 0;
        for (int i = 0; i < 2 && older->end <= read; i++) {
                *older = *newer;
                *newer = (struct conn_fds){0};
        }
        return older->n + newer->n;
}

/* ---- input ---- */

static void break_framing(struct conn *conn, int code, const char *why)
{
        conn_send(conn, NULL, ERROR_PAIRS(0, code, why, false));
        conn_close(conn, true);
}

/* A frame that is longer than the first buffer is charged while it is incomplete. False: the user has too many. */
static bool charge_input(struct conn *conn)
{
        char why[160];
        uint64_t held;
        quota_adjust(&conn->input, conn->in.cap > FRAME_FIRST_CAP ? conn->in.cap : 0);
        held = conn->input.user != NULL ? conn->input.user->held[QUOTA_INPUT] : 0;
        if (conn->input.amount == 0 || held <= conn->input_share)
                return true;
        snprintf(why, sizeof(why), "uid %u has %" PRIu64 " of %" PRIu64 " bytes of incomplete requests",
                 (unsigned)conn->caller.uid, held, conn->input_share);
        break_framing(conn, STREAMER_ELIMIT, why);
        return false;
}

/* Sends the replies that were held back, unless the connection has ended meanwhile. */
static void uncork(struct conn *conn)
{
        conn->corked = false;
        if (conn->held && conn->state != CONN_ENDED)
                flush(conn);
}

/* Passes complete frames to the session until `until`, and one at least. False: no more is to be read now. */
static bool conn_process(struct conn *conn, uint64_t until)
{
        for (bool first = true; conn_reads(conn); first = false) {
                if (!first && now_ns() >= until) {
                        wait_for_turn(conn, EPOLLIN);
                        break;
                }
                const void *data;
                size_t len;
                int r = frame_reader_next(&conn->in, &data, &len);
                if (r < 0) {
                        char why[96];
                        snprintf(why, sizeof(why), "frame: length %zu is not between 1 and %zu", len, conn->in.max);
                        break_framing(conn, STREAMER_EPROTO, why);
                }
                if (r <= 0)
                        break;
                conn->waiting_since = 0;
                conn->corked = frame_reader_whole(&conn->in) && conn->output.amount < CORKED_MAX;
                conn->ops->frame(conn, data, len);
        }
        uncork(conn);
        if (is_queued(conn))
                return false;
        if (conn->waiting_since == 0 && frame_reader_partial(&conn->in))
                wait_for_frame(conn);
        return conn_reads(conn);
}

/* The kernel passes the sender's credentials with the first bytes. */
static ssize_t receive_first(struct conn *conn, void *space, size_t size)
{
        struct ucred cred;
        ssize_t n = peer_cred_receive(conn->fd, space, size, &cred);
        if (n <= 0)
                return n;
        conn->pid = cred.pid;
        conn->caller.uid = cred.uid;
        conn->caller.gid = cred.gid;
        conn->caller_unknown = false;
        return n;
}

/* Frames that were left over, then new input. */
static void on_readable(struct conn *conn, uint64_t until)
{
        size_t got = 0, size;
        while (conn_process(conn, until) && got < READ_TURN && (got == 0 || now_ns() < until)) {
                void *space = frame_reader_space(&conn->in, &size);
                if (space == NULL) {
                        conn_fail(conn, "no memory for a request");
                        return;
                }
                if (!charge_input(conn))
                        return;
                ssize_t n = conn->caller_unknown ? receive_first(conn, space, size) : recv(conn->fd, space, size, 0);
                if (n < 0 && (errno == EAGAIN || errno == EINTR))
                        return;
                if (n <= 0) {
                        conn_end(conn);
                        return;
                }
                frame_reader_added(&conn->in, (size_t)n);
                got += (size_t)n;
                if ((size_t)n < size) {
                        conn_process(conn, until);
                        return;
                }
        }
}

/* May free the connection. */
static void serve_or_finish(struct conn *conn, uint32_t events, uint64_t until)
{
        require(conn->magic == CONN_MAGIC);
        if (conn->state != CONN_ENDED) {
                if (events & EPOLLOUT)
                        flush(conn);
                if ((events & EPOLLIN) && !is_closing(conn))
                        on_readable(conn, until);
                else if (events & EPOLLRDHUP)
                        conn_end(conn);
                update_poll(conn);
        }
        if (conn->state != CONN_ENDED)
                return;
        list_remove(&conn->turn.link);
        list_remove(&conn->in_timed);
        conn->magic = 0;
        conn->ops->closed(conn);
        list_each_item_safe (struct out_frame, frame, &conn->out, link)
                out_frame_free(frame);
        frame_reader_deinit(&conn->in);
        poll_set_watch(conn->polls, &conn->poll, 0);
        close(conn->fd);
        free(conn);
}

/* A client that closes with replies unread is an error: what it sent is read first. */
static void on_ready(struct polled *poll, uint32_t events)
{
        struct conn *conn = container_of(poll, struct conn, poll);
        uint64_t until;
        if (events & EPOLLERR)
                events = conn_reads(conn) ? EPOLLIN : EPOLLRDHUP;
        else if (events & EPOLLHUP)
                events |= poll->events;
        if (turns_are_free(conn->turns, &until))
                serve_or_finish(conn, events, until);
        else
                wait_for_turn(conn, events);
}

/* ---- turns ---- */

void conn_serve(struct turn *turn, uint64_t until_ns)
{
        struct conn *conn = container_of(turn, struct conn, turn);
        uint32_t due = conn->due;
        conn->due = 0;
        serve_or_finish(conn, due, until_ns);
}

/* False: nothing of it has a time limit. */
static bool conn_tick(struct conn *conn, uint64_t now)
{
        require(conn->magic == CONN_MAGIC);
        if (!list_empty(&conn->out) && conn->state != CONN_ENDED)
                flush(conn); /* what the kernel refused for too many descriptors */
        if (conn_reads(conn) && conn->waiting_since != 0 && now > conn->waiting_since &&
            now - conn->waiting_since > conn->limits->frame_timeout_ns)
                break_framing(conn, STREAMER_EPROTO, "frame: the rest of it did not come in time");
        return conn->waiting_since != 0 || !list_empty(&conn->out);
}

bool conns_tick(struct turns *turns, uint64_t now)
{
        list_each_item_safe (struct conn, conn, &turns->timed, in_timed)
                if (!conn_tick(conn, now))
                        list_remove(&conn->in_timed);
        return !list_empty(&turns->timed);
}

/* ---- life ---- */

void conn_accept_long_frames(struct conn *conn)
{
        conn->in.max = FRAME_MAX;
}

struct conn *conn_new_consume_fd(struct poll_set *polls, int fd, const struct conn_ops *ops,
                                 const struct conn_limits *limits, struct turns *turns)
{
        struct conn *conn = calloc(1, sizeof(*conn));
        if (conn == NULL) {
                close(fd);
                return NULL;
        }
        conn->magic = CONN_MAGIC;
        conn->fd = fd;
        conn->ops = ops;
        conn->limits = limits;
        conn->turns = turns;
        list_init(&conn->turn.link);
        list_init(&conn->in_timed);
        conn->polls = polls;
        conn->poll = (struct polled){.fd = fd, .ready = on_ready};
        wait_for_frame(conn); /* the first one */
        list_init(&conn->out);
        frame_reader_init(&conn->in);
        conn->in.max = CONN_SHORT_FRAME;
        conn->since_boot_ns = read_clock_ns(CLOCK_BOOTTIME);
        struct ucred cred;
        if (peer_cred_get(fd, &cred)) {
                conn->pid = cred.pid;
                conn->caller.uid = cred.uid;
                conn->caller.gid = cred.gid;
                socklen_t len = sizeof(conn->caller.groups);
                /* A user in more groups than fit counts as a member of the primary group alone. */
                if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, conn->caller.groups, &len) == 0)
                        conn->caller.n_groups = len / sizeof(gid_t);
        } else {
                conn->caller_unknown = true;
                conn->caller.uid = conn->caller.gid = (uid_t)-1;
                peer_cred_enable(fd);
        }
        return conn;
}

void conn_begin(struct conn *conn)
{
        uint64_t until;
        if (turns_are_free(conn->turns, &until))
                serve_or_finish(conn, EPOLLIN, until);
        else
                update_poll(conn);
}
