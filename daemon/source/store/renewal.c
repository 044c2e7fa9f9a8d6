/* SPDX-License-Identifier: Apache-2.0
 *
 * One fetch at a time for all callers:
 *
 *   none > fetching > valid > fetching, the old one still in use > valid
 *             |                        |
 *          failed: returned for a   failed: retried after a pause; returned once the
 *          second, then retried     old one has been expired for PATIENCE
 *
 * A credential is renewed after half of its life, or RENEW_BEFORE seconds before its end, whichever is later. A store's
 * clock may be ahead of ours: if it says that one has expired it is renewed at once, and not used until another one
 * arrives, or the same again, or the fetch has failed for PATIENCE. Another one that is refused as well, within
 * PATIENCE, is refused for another reason: a request is repeated once.
 *
 * Each fetch runs in a thread of its own. Its callers are network threads, which must not block, and workers. As a
 * task for the workers it could be queued behind tasks that all wait for its result.
 */
#include "daemon/source/store/renewal.h"

#include "daemon/base/log/log.h"
#include "daemon/base/thread/threads.h"
#include "daemon/base/util.h"

#include <pthread.h>

#define RENEW_BEFORE 300
#define PATIENCE (30 * SECOND)
#define PAUSE_MIN SECOND
#define PAUSE_MAX (30 * SECOND)

struct renewal {
        const struct renewal_ops *ops;
        void *provider;
        pthread_mutex_t mutex;
        pthread_t thread;
        bool started, fetching;

        struct credential current;    /* origin NULL: none yet */
        time_t renew_at;              /* 0: never */
        uint64_t refused, refused_at; /* number of the one that the store refused; 0: none yet */
        uint64_t replaced_at;         /* when another one has replaced a refused one; 0: never */
        struct error error;           /* of the last fetch */
        uint64_t retry_at, fetch_began;
        unsigned failures; /* in a row */
};

/* ---- fetching ---- */

static void log_credential(const struct credential *c)
{
        const char *session = c->expires != 0 ? ", of a session" : "";
        if (c->kind == CREDENTIAL_KEYS)
                log_info("credentials: from %s, access key %.4s...%s", c->origin, c->access, session);
        else if (c->kind == CREDENTIAL_NONE)
                log_info("credentials: none, %s", c->origin);
        else
                log_info("credentials: from %s%s", c->origin, session);
}

/* With the lock held: takes the credential over, or stores the error of the fetch. */
static void fetch_done(struct renewal *r, struct credential *fetched, const struct error *error)
{
        struct credential *current = &r->current;
        r->fetching = false;
        if (fetched->origin == NULL) {
                r->error = *error;
                r->failures++;
                r->retry_at =
                        now_ns() + (current->origin != NULL ? backoff(PAUSE_MIN, r->failures, PAUSE_MAX) : PAUSE_MIN);
                log_warn("credentials: %s", error->text);
                return;
        }
        /* The same one keeps its number: a request that the store refused with it is not retried. */
        bool same = current->origin != NULL && credential_same(current, fetched);
        if (!same && r->refused != 0 && r->refused == current->number)
                r->replaced_at = now_ns();
        fetched->number = current->number + (same ? 0 : 1);
        credential_deinit(current);
        *current = *fetched;
        *fetched = (struct credential){.origin = NULL};
        r->error = (struct error){.code = 0};
        r->failures = 0;
        r->retry_at = 0;
        time_t half = (current->expires - time(NULL)) / 2;
        r->renew_at = current->expires != 0 ? current->expires - (half < RENEW_BEFORE ? half : RENEW_BEFORE) : 0;
        log_credential(current);
}

static void *fetch_thread(void *arg)
{
        struct renewal *r = arg;
        struct credential fetched = {.origin = NULL};
        struct error error = {.code = 0};
        thread_begin("credentials");
        int found = r->ops->fetch(r->provider, &fetched, &error);
        require((found == CREDENTIAL_FOUND) == (fetched.origin != NULL));
        if (fetched.origin != NULL && fetched.expires != 0 && time(NULL) >= fetched.expires) {
                error_set(&error, STREAMER_EFAILED,
                          "credentials had expired on receipt: is this machine's clock right? (%s)", fetched.origin);
                credential_deinit(&fetched);
        }
        pthread_mutex_lock(&r->mutex);
        fetch_done(r, &fetched, &error);
        pthread_mutex_unlock(&r->mutex);
        credential_deinit(&fetched);
        return NULL;
}

/* With the lock held. */
static void fetch(struct renewal *r)
{
        if (r->fetching || now_ns() < r->retry_at)
                return;
        if (r->started)
                pthread_join(r->thread, NULL); /* it has ended, or is about to */
        r->started = thread_start(&r->thread, NULL, fetch_thread, r) == 0;
        r->fetching = r->started;
        r->fetch_began = now_ns();
        if (!r->started)
                error_set(&r->error, STREAMER_EOS, "credentials: no thread could be started");
}

/* ---- use ---- */

enum usability {
        USE_NONE,
        USE_VALID,
        USE_EXPIRED,
        USE_REFUSED, /* by the store, and another one may be provided: it is being fetched, or has been tried to be
                        recently */
};

static enum usability usability(const struct renewal *r, time_t now)
{
        bool fetch_failed = r->error.code != 0 && now_ns() - r->refused_at < PATIENCE;
        if (r->current.origin == NULL)
                return USE_NONE;
        if (r->refused == r->current.number && (r->fetching || fetch_failed))
                return USE_REFUSED;
        return r->current.expires == 0 || now < r->current.expires ? USE_VALID : USE_EXPIRED;
}

/* RENEWAL_LATER, or an error. */
static int wait_for_another(const struct renewal *r, enum usability state, time_t now, struct error *error)
{
        require(state != USE_VALID);
        if (r->fetching && now_ns() - r->fetch_began > PATIENCE) {
                error_set(error, STREAMER_EFAILED, "credentials: the provider does not answer");
                error->unreachable = true;
                return error->code;
        }
        bool expired_recently = state == USE_EXPIRED && now - r->current.expires < (time_t)(PATIENCE / SECOND);
        if (r->fetching || expired_recently || state == USE_REFUSED)
                return RENEWAL_LATER;
        error_set(error, r->error.code, "%s%s", state == USE_EXPIRED ? "credentials have expired, and " : "",
                  r->error.text);
        error->unreachable = r->error.unreachable;
        return error->code;
}

int renewal_get(struct renewal *r, struct credential *credential, struct error *error)
{
        lock_scope(&r->mutex);
        time_t now = time(NULL);
        enum usability state = usability(r, now);
        if (state != USE_VALID || (r->renew_at != 0 && now >= r->renew_at))
                fetch(r);
        if (state != USE_VALID)
                return wait_for_another(r, state, now, error);
        return credential_copy(credential, &r->current, error) < 0 ? error->code : RENEWAL_READY;
}

void renewal_describe(struct renewal *r, char *text, size_t size)
{
        lock_scope(&r->mutex);
        if (r->current.origin == NULL)
                snprintf(text, size, "no credentials");
        else if (r->current.kind == CREDENTIAL_NONE)
                snprintf(text, size, "anonymous");
        else
                snprintf(text, size, "credentials from %s", r->current.origin);
}

/* Requests in flight with older ones are refused after the first. */
bool renewal_refused(struct renewal *r, uint64_t number)
{
        lock_scope(&r->mutex);
        bool again = number != r->current.number || usability(r, time(NULL)) == USE_REFUSED;
        bool replacement = r->replaced_at != 0 && now_ns() - r->replaced_at < PATIENCE;
        if (number == r->current.number && r->refused != number && !replacement) {
                r->refused = number;
                r->refused_at = now_ns();
                r->renew_at = 1;
                r->retry_at = r->failures = 0;
                again = true;
                fetch(r);
        }
        return again;
}

/* ---- lifecycle ---- */

int renewal_new(struct renewal **renewal, const struct renewal_ops *ops, void *provider, struct error *error)
{
        struct renewal *r = calloc(1, sizeof(*r));
        if (r == NULL)
                return error_no_memory(error);
        r->ops = ops;
        r->provider = provider;
        pthread_mutex_init(&r->mutex, NULL);
        *renewal = r;
        return 0;
}

struct renewal *renewal_free(struct renewal *r)
{
        if (r == NULL)
                return NULL;
        r->ops->stop(r->provider);
        if (r->started)
                pthread_join(r->thread, NULL);
        r->ops->free(r->provider);
        credential_deinit(&r->current);
        pthread_mutex_destroy(&r->mutex);
        free(r);
        return NULL;
}
