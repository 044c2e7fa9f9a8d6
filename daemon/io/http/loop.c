/* SPDX-License-Identifier: Apache-2.0
 *
 * Many transfers on one thread: libcurl's multi interface, and the timeouts that libcurl does not watch itself
 * (those that wait for credentials, or move no byte).
 */
#include "daemon/io/http/transfer.h"

#include "daemon/base/util.h"

#include <curl/curl.h>
#include <sys/eventfd.h>

int http_loop_init(struct http_loop *loop, struct error *error)
{
        *loop = (struct http_loop){.multi = curl_multi_init(), .event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
        list_init(&loop->transfers);
        if (loop->multi != NULL && loop->event >= 0)
                return 0;
        http_loop_deinit(loop);
        return error_set(error, STREAMER_ELIMIT, "network loop: no memory, or too many open files");
}

void http_loop_deinit(struct http_loop *loop)
{
        if (loop->transfers.next != NULL) {
                require(list_empty(&loop->transfers));
                curl_multi_cleanup(loop->multi);
                close_p(&loop->event);
        }
        *loop = (struct http_loop){.multi = NULL};
}

void http_loop_close_idle(struct http_loop *loop)
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
        eventfd_write(loop->event, 1); /* fails if it is full: then the loop will wake */
}

/* Starts or ends the first transfer that needs no network for it. Only one, since done() may change the list. */
static bool advance_one(struct http_loop *loop, uint64_t now)
{
        list_each_item (struct http_transfer, t, &loop->transfers, link) {
                if (t->state == HTTP_DECIDED || http_transfer_check_time(t, now)) {
                        http_transfer_finish(t, CURLE_ABORTED_BY_CALLBACK);
                        return true;
                }
                if (t->state == HTTP_WAITING && t->start_ns <= now) {
                        uint64_t since = t->moved_ns;
                        http_transfer_begin(t);
                        t->moved_ns = since;
                        return true;
                }
        }
        return false;
}

void http_loop_run(struct http_loop *loop, unsigned timeout_ms)
{
        /* Bytes may have waited long for this thread: such a transfer is not stalled. */
        uint64_t since = now_ns();
        struct curl_waitfd event = {.fd = loop->event, .events = CURL_WAIT_POLLIN};
        bool ended = false;
        int left;
        curl_multi_perform(loop->multi, &left);
        for (CURLMsg *m; (m = curl_multi_info_read(loop->multi, &left)) != NULL;) {
                struct http_transfer *t;
                CURLcode code = m->data.result; /* m is freed with the transfer */
                curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&t);
                http_transfer_finish(t, (int)code);
                ended = true;
        }
        while (advance_one(loop, since))
                ended = true;
        /* A transfer that ended here may be the last one its caller waits for: it may not sleep. */
        if (ended)
                return;
        curl_multi_poll(loop->multi, &event, 1, (int)timeout_ms, NULL);
        eventfd_read(loop->event, &(eventfd_t){0});
}
