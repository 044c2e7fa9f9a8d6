/* SPDX-License-Identifier: Apache-2.0
 *
 * Many transfers on one thread: libcurl's multi interface, an event that wakes it, and what it does not
 * watch itself (transfers that wait for credentials, or that move no byte).
 */
#include "daemon/io/http_transfer.h"

#include "daemon/base/util.h"

#include <curl/curl.h>
#include <sys/eventfd.h>

int http_loop_init(struct http_loop *loop, struct error *error)
{
        *loop = (struct http_loop){.multi = curl_multi_init(), .event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
        list_init(&loop->transfers);
        if (loop->multi == NULL || loop->event < 0) {
                http_loop_deinit(loop);
                return error_set(error, STREAMER_ELIMIT, "network loop: no memory, or too many open files");
        }
        return 0;
}

void http_loop_deinit(struct http_loop *loop)
{
        if (loop->multi != NULL) {
                require(list_empty(&loop->transfers));
                curl_multi_cleanup(loop->multi);
                close_p(&loop->event);
        }
        *loop = (struct http_loop){.event = -1};
}

void http_loop_forget(struct http_loop *loop)
{
        CURLM *fresh = curl_multi_init();
        require(list_empty(&loop->transfers));
        if (fresh == NULL)
                return;
        curl_multi_cleanup(loop->multi);
        loop->multi = fresh;
}

void http_loop_wake(struct http_loop *loop)
{
        uint64_t one = 1;
        if (write(loop->event, &one, sizeof(one)) < 0)
                return; /* it is full: the loop will wake */
}

void http_transfer_go_on(struct http_transfer *t)
{
        if (!t->paused)
                return;
        t->paused = false;
        t->moved_ns = now_ns();
        /* What was kept comes at once. A verdict on it is libcurl's answer here, and is told to nobody else: the
         * next turn ends it. */
        curl_easy_pause(t->easy, CURLPAUSE_CONT);
}

static void read_messages(struct http_loop *loop)
{
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

static bool stalled(const struct http_transfer *t, uint64_t now)
{
        return !t->paused && now > t->moved_ns && now - t->moved_ns > http_opts(t->http)->stall_ns;
}

/* The first that has something to be done without the network; the others are looked at again, since
 * done() may change the list. */
static bool tend_one(struct http_loop *loop, uint64_t now)
{
        list_each (pos, &loop->transfers) {
                struct http_transfer *t = container_of(pos, struct http_transfer, link);
                if (!t->in_multi && !t->judged && t->start_ns > 0 && t->start_ns <= now && !stalled(t, now)) {
                        uint64_t since = t->moved_ns;
                        http_transfer_begin(loop, t);
                        t->moved_ns = since;
                        return true;
                }
                bool over = t->judged || t->enough;
                if (!over && !stalled(t, now))
                        continue;
                if (!over) {
                        error_set(&t->error, STREAMER_EFAILED, "no byte for %.1f s%s (%s)",
                                  (double)http_opts(t->http)->stall_ns / 1e9, t->in_multi ? "" : ", no credentials yet",
                                  t->request.shown);
                        t->stalled = true;
                        http_transfer_judge(t, HTTP_AGAIN);
                }
                http_transfer_finish(loop, t, CURLE_OPERATION_TIMEDOUT);
                return true;
        }
        return false;
}

static void drain_event(struct http_loop *loop)
{
        uint64_t n;
        if (read(loop->event, &n, sizeof(n)) < 0)
                return;
}

void http_loop_run(struct http_loop *loop, unsigned timeout_ms)
{
        struct curl_waitfd event = {.fd = loop->event, .events = CURL_WAIT_POLLIN};
        int running;
        /* What waits for this thread, which may have been kept from it for long, has not stalled. */
        uint64_t since = now_ns();
        curl_multi_perform(loop->multi, &running);
        read_messages(loop);
        while (tend_one(loop, since))
                ;
        curl_multi_poll(loop->multi, &event, 1, (int)timeout_ms, NULL);
        drain_event(loop);
        curl_multi_perform(loop->multi, &running);
        read_messages(loop);
}
