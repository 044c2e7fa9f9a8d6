/* SPDX-License-Identifier: Apache-2.0
 *
 * Between two tries: a pause that doubles, with full jitter, or what the server asks for; a short one that doubles
 * the first three times that an answer broke off. A server that has too much to do, or that is being started, is given
 * time beyond the number of tries, at the pause of the last of them. After the last one whoever knows the server has
 * the words for its refusal.
 */
#include "daemon/io/http_transfer.h"

#include "daemon/base/log.h"
#include "daemon/base/metric.h"
#include "daemon/base/util.h"
#include "daemon/io/http_policy.h"

#include <curl/curl.h>
#include <inttypes.h>
#include <sys/random.h>

#define MS UINT64_C(1000000)
#define BROKEN_OFTEN 3 /* what breaks off again after that is no accident */

/* Certificates and settings do not get better by themselves. */
bool http_code_passes(int code)
{
        switch (code) {
        case CURLE_PEER_FAILED_VERIFICATION:
        case CURLE_SSL_CACERT_BADFILE:
        case CURLE_SSL_ISSUER_ERROR:
        case CURLE_SSL_CERTPROBLEM:
        case CURLE_UNSUPPORTED_PROTOCOL:
        case CURLE_URL_MALFORMAT:
        case CURLE_OUT_OF_MEMORY:
                return false;
        default:
                return true;
        }
}

bool http_code_unreached(int code)
{
        return code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST ||
               code == CURLE_COULDNT_RESOLVE_PROXY || code == CURLE_OPERATION_TIMEDOUT;
}

static enum metric_cause cause_of(const struct http_transfer *t)
{
        if (t->stalled)
                return CAUSE_STALLED;
        if (http_status_slow_down(t->answer.status))
                return CAUSE_SLOW_DOWN;
        return t->answer.status >= 300 ? CAUSE_STATUS : CAUSE_BROKEN;
}

static uint64_t pause_after(const struct http_transfer *t, unsigned made, uint64_t draw)
{
        const struct http_opts *opts = http_opts(t->http);
        if (made <= BROKEN_OFTEN && t->received > 0 && cause_of(t) == CAUSE_BROKEN)
                return http_pause_broken(opts, made, draw);
        return http_pause(opts, made, http_headers_find(&t->answer.headers, "Retry-After"), draw);
}

static bool will_pass(const struct http_transfer *t, const struct http_retry *retry)
{
        return http_status_slow_down(t->answer.status) || (t->unreached && retry->known);
}

bool http_retry(struct http_transfer *t, struct http_retry *retry, unsigned tries)
{
        const struct http_opts *opts = http_opts(t->http);
        unsigned most = tries > 0 ? tries : opts->tries;
        uint64_t draw = 0;
        if (retry->made++ == 0)
                retry->since_ns = now_ns();
        bool patient = tries == 0 && will_pass(t, retry) && now_ns() - retry->since_ns < opts->patience_ns;
        if (retry->made < most || patient) {
                if (getrandom(&draw, sizeof(draw), GRND_NONBLOCK) < 0)
                        draw = now_ns();
                uint64_t pause = pause_after(t, retry->made < most ? retry->made : most, draw);
                retry->at_ns = now_ns() + pause;
                metric_add_cause(METRIC_RETRIES, cause_of(t), 1);
                log_debug("try %u: %s; the next in %" PRIu64 " ms", retry->made, t->error.text, pause / MS);
                return true;
        }
        if (t->answer.status >= 300)
                http_transfer_refused(t);
        error_set(&t->error, t->error.code, "given up after %u tries: %s", retry->made, t->error.text);
        return false;
}
