/* SPDX-License-Identifier: Apache-2.0
 *
 * Between two tries: a pause that doubles, with full jitter, or the server's Retry-After; after each of the first three
 * broken connections a shorter one that doubles. An overloaded or starting server is retried beyond the number of
 * tries, at the last pause, until `patience` is over. After the last try the http_access words the error.
 */
#include "daemon/io/http/transfer.h"

#include "daemon/base/log/log.h"
#include "daemon/base/metric/metric.h"
#include "daemon/base/util.h"
#include "daemon/io/http/policy.h"

#include <inttypes.h>
#include <sys/random.h>

#define MS UINT64_C(1000000)
#define BROKEN_OFTEN 3 /* what breaks off again after that is no accident */

static enum metric_cause cause_of(const struct http_transfer *t)
{
        if (t->stalled)
                return CAUSE_STALLED;
        if (http_status_slow_down(t->answer.status))
                return CAUSE_SLOW_DOWN;
        return t->answer.status >= 300 ? CAUSE_STATUS : CAUSE_BROKEN;
}

bool http_retry(struct http_transfer *t, struct http_retry *retry, unsigned tries)
{
        const struct http_opts *opts = http_opts(t->http);
        unsigned most = tries > 0 ? tries : opts->tries;
        uint64_t draw = 0;
        if (retry->made++ == 0)
                retry->since_ns = now_ns();
        bool temporary = http_status_slow_down(t->answer.status) || (t->unreached && retry->known);
        bool patient = tries == 0 && temporary && now_ns() - retry->since_ns < opts->patience_ns;
        if (retry->made < most || patient) {
                if (getrandom(&draw, sizeof(draw), GRND_NONBLOCK) < 0)
                        draw = now_ns();
                unsigned made = retry->made < most ? retry->made : most;
                bool broken = made <= BROKEN_OFTEN && t->received > 0 && cause_of(t) == CAUSE_BROKEN;
                const char *asked = http_headers_find(&t->answer.headers, "Retry-After");
                uint64_t pause = broken ? http_pause_broken(opts, made, draw) : http_pause(opts, made, asked, draw);
                retry->at_ns = now_ns() + pause;
                metric_add_label(METRIC_RETRIES, cause_of(t), 1);
                log_debug("try %u: %s; the next in %" PRIu64 " ms", retry->made, t->error.text, pause / MS);
                return true;
        }
        if (t->answer.status >= 300)
                http_transfer_refused(t);
        error_set(&t->error, t->error.code, "given up after %u tries: %s", retry->made, t->error.text);
        return false;
}
