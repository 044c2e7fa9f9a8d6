/* SPDX-License-Identifier: Apache-2.0
 *
 * One fetch at a time for all callers:
 *
 *   none > fetching > valid > fetching, the old keys still in use > valid
 *             |                        |
 *          failed: returned for a   failed: retried after a pause; returned once the
 *          second, then retried     old keys have been expired for PATIENCE
 *
 * Keys are renewed after half of their life, or RENEW_BEFORE seconds before its end, whichever is later. A store's
 * clock may be ahead of ours: if it says that keys have expired they are renewed at once, and not used until others
 * arrive, or the same again, or the fetch has failed for PATIENCE.
 *
 * Each fetch runs in a thread of its own. Its callers are network threads, which must not block, and workers. As a
 * task for the workers it could be queued behind tasks that all wait for its keys.
 */
#include "daemon/source/aws/credentials.h"

#include "daemon/base/log/log.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/thread/threads.h"
#include "daemon/base/util.h"
#include "daemon/source/aws/providers.h"

#include <pthread.h>

#define RENEW_BEFORE 300
#define PATIENCE (30 * SECOND)
#define PAUSE_MIN SECOND
#define PAUSE_MAX (30 * SECOND)

struct aws_credentials {
        struct aws_credentials_opts opts; /* NULL instead of an empty text */
        struct aws_clients clients;
        pthread_mutex_t mutex;
        pthread_t thread;
        bool started, fetching;

        struct aws_keys keys;         /* access NULL: none yet */
        time_t renew_at;              /* 0: never */
        uint64_t refused, refused_at; /* number of the keys that the store refused; 0: none yet */
        struct error error;           /* of the last fetch */
        uint64_t retry_at, fetch_began;
        unsigned failures; /* in a row */
};

static int from_settings(struct aws_credentials *c, struct aws_keys *keys, struct error *error)
{
        cleanup_with(secret_free_p) char *access = NULL;
        cleanup_with(secret_free_p) char *secret = NULL;
        cleanup_with(secret_free_p) char *token = NULL;
        int r = secret_read(c->opts.access, &access, error) ?: secret_read(c->opts.secret, &secret, error);
        if (r == 0 && c->opts.token != NULL)
                r = secret_read(c->opts.token, &token, error);
        return r ?: aws_keys_init(keys, access, secret, token, "settings", error);
}

/* ---- fetching ---- */

/* With the lock held: takes the keys over, or stores the error of the fetch. */
static void fetch_done(struct aws_credentials *c, struct aws_keys *keys, const struct error *error)
{
        c->fetching = false;
        if (keys->access == NULL) {
                c->error = *error;
                c->failures++;
                c->retry_at =
                        now_ns() + (c->keys.access != NULL ? backoff(PAUSE_MIN, c->failures, PAUSE_MAX) : PAUSE_MIN);
                log_warn("credentials: %s", error->text);
                return;
        }
        /* The same keys keep their number: a request that the store refused with them is not retried. */
        bool same = c->keys.access != NULL && strcmp(c->keys.access, keys->access) == 0 &&
                    strcmp(c->keys.secret, keys->secret) == 0 && strcmp(c->keys.token ?: "", keys->token ?: "") == 0;
        keys->number = c->keys.number + (same ? 0 : 1);
        aws_keys_deinit(&c->keys);
        c->keys = *keys;
        *keys = (struct aws_keys){.access = NULL};
        c->error = (struct error){.code = 0};
        c->failures = 0;
        c->retry_at = 0;
        time_t half = (c->keys.expires - time(NULL)) / 2;
        c->renew_at = c->keys.expires != 0 ? c->keys.expires - (half < RENEW_BEFORE ? half : RENEW_BEFORE) : 0;
        log_info("credentials: from %s, access key %.4s...%s", c->keys.origin, c->keys.access,
                 c->keys.expires != 0 ? ", of a session" : "");
}

static void *fetch_thread(void *arg)
{
        struct aws_credentials *c = arg;
        struct aws_keys keys = {.access = NULL};
        struct error error = {.code = 0};
        thread_begin("credentials");
        if (c->opts.access != NULL)
                from_settings(c, &keys, &error);
        else
                aws_find_keys(&c->clients, &keys, c->opts.profile, &error);
        if (keys.access != NULL && keys.expires != 0 && time(NULL) >= keys.expires) {
                error_set(&error, STREAMER_EFAILED,
                          "credentials had expired on receipt: is this machine's clock right? (%s)", keys.origin);
                aws_keys_deinit(&keys);
        }
        pthread_mutex_lock(&c->mutex);
        fetch_done(c, &keys, &error);
        pthread_mutex_unlock(&c->mutex);
        aws_keys_deinit(&keys);
        return NULL;
}

/* With the lock held. */
static void fetch(struct aws_credentials *c)
{
        if (c->fetching || now_ns() < c->retry_at)
                return;
        if (c->started)
                pthread_join(c->thread, NULL); /* it has ended, or is about to */
        c->started = thread_start(&c->thread, NULL, fetch_thread, c) == 0;
        c->fetching = c->started;
        c->fetch_began = now_ns();
        if (!c->started)
                error_set(&c->error, STREAMER_EOS, "credentials: no thread could be started");
}

/* ---- use ---- */

enum keys_state {
        KEYS_NONE,
        KEYS_USABLE,
        KEYS_EXPIRED,
        KEYS_REFUSED, /* by the store, and others may be provided: they are being fetched, or have been tried to be
                         recently */
};

static enum keys_state keys_state(const struct aws_credentials *c, time_t now)
{
        bool fetch_failed = c->error.code != 0 && now_ns() - c->refused_at < PATIENCE;
        if (c->keys.access == NULL)
                return KEYS_NONE;
        if (c->refused == c->keys.number && (c->fetching || fetch_failed))
                return KEYS_REFUSED;
        return c->keys.expires == 0 || now < c->keys.expires ? KEYS_USABLE : KEYS_EXPIRED;
}

/* AWS_CREDENTIALS_LATER, or an error. */
static int wait_for_keys(const struct aws_credentials *c, enum keys_state state, time_t now, struct error *error)
{
        require(state != KEYS_USABLE);
        if (c->fetching && now_ns() - c->fetch_began > PATIENCE)
                return error_set(error, STREAMER_EFAILED, "credentials: the provider does not answer");
        bool expired_recently = state == KEYS_EXPIRED && now - c->keys.expires < (time_t)(PATIENCE / SECOND);
        if (c->fetching || expired_recently || state == KEYS_REFUSED)
                return AWS_CREDENTIALS_LATER;
        return error_set(error, c->error.code, "%s%s", state == KEYS_EXPIRED ? "credentials have expired, and " : "",
                         c->error.text);
}

int aws_credentials_get(struct aws_credentials *c, struct aws_keys *keys, struct error *error)
{
        lock_scope(&c->mutex);
        time_t now = time(NULL);
        enum keys_state state = keys_state(c, now);
        if (state != KEYS_USABLE || (c->renew_at != 0 && now >= c->renew_at))
                fetch(c);
        if (state != KEYS_USABLE)
                return wait_for_keys(c, state, now, error);
        int r = aws_keys_init(keys, c->keys.access, c->keys.secret, c->keys.token, c->keys.origin, error);
        if (r < 0)
                return r;
        keys->expires = c->keys.expires;
        keys->number = c->keys.number;
        return AWS_CREDENTIALS_READY;
}

void aws_credentials_origin(struct aws_credentials *c, char *origin, size_t size)
{
        lock_scope(&c->mutex);
        snprintf(origin, size, "%s", c->keys.origin ?: "");
}

/* Requests in flight with older keys are refused after the first. */
bool aws_credentials_refused(struct aws_credentials *c, uint64_t number)
{
        lock_scope(&c->mutex);
        bool again = number != c->keys.number || keys_state(c, time(NULL)) == KEYS_REFUSED;
        if (number == c->keys.number && c->refused != number) {
                c->refused = number;
                c->refused_at = now_ns();
                c->renew_at = 1;
                c->retry_at = c->failures = 0;
                again = true;
                fetch(c);
        }
        return again;
}

/* ---- lifecycle ---- */

int aws_credentials_new(struct aws_credentials **credentials, const struct aws_credentials_opts *opts,
                        struct error *error)
{
        const char *access = filled(opts->access), *secret = filled(opts->secret), *token = filled(opts->token);
        if ((access == NULL) != (secret == NULL) || (token != NULL && access == NULL))
                return error_set(error, STREAMER_EINVAL, "an access key without its secret key, or the reverse");
        struct aws_credentials *c = calloc(1, sizeof(*c));
        if (c == NULL)
                return error_no_memory(error);
        int r = aws_clients_init(&c->clients, opts->http, error);
        if (r < 0) {
                free(c);
                return r;
        }
        c->opts = (struct aws_credentials_opts){filled(opts->profile), access, secret, token, NULL};
        pthread_mutex_init(&c->mutex, NULL);
        *credentials = c;
        return 0;
}

struct aws_credentials *aws_credentials_free(struct aws_credentials *c)
{
        if (c == NULL)
                return NULL;
        aws_clients_stop(&c->clients);
        if (c->started)
                pthread_join(c->thread, NULL);
        aws_clients_deinit(&c->clients);
        aws_keys_deinit(&c->keys);
        pthread_mutex_destroy(&c->mutex);
        free(c);
        return NULL;
}
