/* SPDX-License-Identifier: Apache-2.0
 *
 * Many transfers on one thread: libcurl's multi interface, driven by epoll, and the timeouts that libcurl does not
 * watch itself (transfers that wait for credentials, or that move no byte).
 *
 *   a socket is ready, or a time is reached > libcurl reads > asleep
 */
#include "daemon/io/http/transfer.h"

#include "daemon/base/util.h"

#include <curl/curl.h>
#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#define MS UINT64_C(1000000)
#define EVENTS 64
#define NEVER UINT64_MAX

/* ---- what libcurl waits for ---- */

static bool watch(const struct http_loop *loop, curl_socket_t s, int what)
{
        uint32_t in = (what & CURL_POLL_IN) != 0 ? EPOLLIN : 0u, out = (what & CURL_POLL_OUT) != 0 ? EPOLLOUT : 0u;
        struct epoll_event event = {.events = in | out, .data.fd = s};
        /* libcurl removes a socket before it closes it, since its number may be reused at once. A socket without
         * events is removed, too: epoll would report its errors again and again. */
        if (event.events == 0) {
                epoll_ctl(loop->epoll, EPOLL_CTL_DEL, s, NULL);
                return true;
        }
        return epoll_ctl(loop->epoll, EPOLL_CTL_MOD, s, &event) == 0 ||
               (errno == ENOENT && epoll_ctl(loop->epoll, EPOLL_CTL_ADD, s, &event) == 0);
}

static int on_socket(CURL *easy, curl_socket_t s, int what, void *context, void *unused)
{
        struct http_loop *loop = context;
        struct http_transfer *t = NULL;
        bool watched = watch(loop, s, what);
        curl_easy_getinfo(easy, CURLINFO_PRIVATE, (char **)&t);
        if (watched || t == NULL) /* a connection without a transfer is being closed */
                return 0;
        error_set(&t->error, STREAMER_ENOMEM, "no memory to wait for an answer (%s)", t->request.shown);
        http_transfer_set_verdict(t, HTTP_RETRY);
        return 0;
}

static int on_timer(CURLM *multi, long ms, void *context)
{
        struct http_loop *loop = context;
        loop->timer_ns = ms < 0 ? NEVER : now_ns() + (uint64_t)ms * MS;
        return 0;
}

static CURLM *multi_new(struct http_loop *loop)
{
        CURLM *multi = curl_multi_init();
        if (multi == NULL)
                return NULL;
        if (curl_multi_setopt(multi, CURLMOPT_SOCKETFUNCTION, on_socket) == CURLM_OK &&
            curl_multi_setopt(multi, CURLMOPT_SOCKETDATA, loop) == CURLM_OK &&
            curl_multi_setopt(multi, CURLMOPT_TIMERFUNCTION, on_timer) == CURLM_OK &&
            curl_multi_setopt(multi, CURLMOPT_TIMERDATA, loop) == CURLM_OK)
                return multi;
        curl_multi_cleanup(multi);
        return NULL;
}

/* ---- lifecycle ---- */

int http_loop_init(struct http_loop *loop, struct error *error)
{
        struct epoll_event event = {.events = EPOLLIN};
        *loop = (struct http_loop){.timer_ns = NEVER};
        list_init(&loop->transfers);
        loop->epoll = epoll_create1(EPOLL_CLOEXEC);
        loop->event = event.data.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (loop->epoll >= 0 && loop->event >= 0 && epoll_ctl(loop->epoll, EPOLL_CTL_ADD, loop->event, &event) == 0 &&
            (loop->multi = multi_new(loop)) != NULL)
                return 0;
        close_p(&loop->event);
        close_p(&loop->epoll);
        return error_set(error, STREAMER_ELIMIT, "network loop: no memory, or too many open files");
}

void http_loop_deinit(struct http_loop *loop)
{
        if (loop->multi != NULL) {
                require(list_empty(&loop->transfers));
                curl_multi_cleanup(loop->multi);
                close_p(&loop->event);
                close_p(&loop->epoll);
        }
        *loop = (struct http_loop){.event = -1, .epoll = -1};
}

void http_loop_close_idle(struct http_loop *loop)
{
        CURLM *fresh = multi_new(loop);
        require(list_empty(&loop->transfers));
        if (fresh == NULL)
                return;
        curl_multi_cleanup(loop->multi);
        loop->multi = fresh;
        loop->timer_ns = NEVER;
}

void http_loop_wake(struct http_loop *loop)
{
        eventfd_write(loop->event, 1); /* fails if it is full: then the loop will wake */
}

void http_transfer_resume(struct http_transfer *t)
{
        if (!t->paused)
                return;
        t->paused = false;
        t->moved_ns = now_ns();
        /* libcurl passes the stored bytes on at once. A verdict on them is its return value here, and is reported
         * nowhere else: the next turn ends the transfer. */
        curl_easy_pause(t->easy, CURLPAUSE_CONT);
}

/* ---- a turn ---- */

static bool stalled(const struct http_transfer *t, uint64_t now)
{
        return !t->paused && now > t->moved_ns && now - t->moved_ns > t->http->opts.stall_ns;
}

/* Starts or ends the first transfer that needs no network for it. Only one, since done() may change the list. */
static bool advance_one(struct http_loop *loop, uint64_t now)
{
        list_each_item (struct http_transfer, t, &loop->transfers, link) {
                if (!t->in_multi && !t->judged && t->start_ns > 0 && t->start_ns <= now && !stalled(t, now)) {
                        uint64_t since = t->moved_ns;
                        http_transfer_begin(loop, t);
                        t->moved_ns = since;
                        return true;
                }
                if (!t->judged && !stalled(t, now))
                        continue;
                if (!t->judged) {
                        error_set(&t->error, STREAMER_EFAILED, "no byte for %.1f s%s (%s)",
                                  (double)t->http->opts.stall_ns / 1e9, t->in_multi ? "" : ", no credentials yet",
                                  t->request.shown);
                        t->stalled = true;
                        http_transfer_set_verdict(t, HTTP_RETRY);
                }
                http_transfer_finish(loop, t, CURLE_OPERATION_TIMEDOUT);
                return true;
        }
        return false;
}

static CURLMcode socket_action(struct http_loop *loop, int s, int what)
{
        int running;
        return curl_multi_socket_action(loop->multi, s, what, &running);
}

static void serve(struct http_loop *loop, int wait_ms)
{
        struct epoll_event events[EVENTS];
        int n = epoll_wait(loop->epoll, events, EVENTS, wait_ms);
        for (int i = 0; i < n; i++) {
                uint32_t ready = events[i].events;
                eventfd_t count;
                if (events[i].data.fd == loop->event) {
                        eventfd_read(loop->event, &count);
                        loop->woken = true;
                        continue;
                }
                /* Reading a socket reports its error. */
                int in = (ready & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 ? CURL_CSELECT_IN : 0;
                socket_action(loop, events[i].data.fd, in | ((ready & EPOLLOUT) != 0 ? CURL_CSELECT_OUT : 0));
        }
        if (loop->timer_ns <= now_ns()) {
                loop->timer_ns = NEVER; /* libcurl sets it again */
                if (socket_action(loop, CURL_SOCKET_TIMEOUT, 0) != CURLM_OK)
                        loop->timer_ns = now_ns() + MS;
        }
        int left;
        for (CURLMsg *m; (m = curl_multi_info_read(loop->multi, &left)) != NULL;) {
                struct http_transfer *t;
                CURLcode code = m->data.result;
                if (m->msg != CURLMSG_DONE)
                        continue;
                curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&t);
                http_transfer_finish(loop, t, (int)code);
        }
}

void http_loop_run(struct http_loop *loop, unsigned timeout_ms)
{
        /* Bytes may have waited long for this thread: such a transfer has not stalled. */
        uint64_t since = now_ns();
        loop->woken = false;
        serve(loop, 0);
        while (advance_one(loop, since))
                ;
        /* A transfer that ended here may be the last one its caller waits for; a thread that was woken has other
         * work. Neither may sleep. */
        if (loop->woken)
                return;
        uint64_t now = now_ns(), wait_ms = timeout_ms;
        if (loop->timer_ns <= now)
                wait_ms = 0;
        else if (loop->timer_ns != NEVER && (loop->timer_ns - now + MS - 1) / MS < wait_ms)
                wait_ms = (loop->timer_ns - now + MS - 1) / MS;
        serve(loop, (int)wait_ms);
}
