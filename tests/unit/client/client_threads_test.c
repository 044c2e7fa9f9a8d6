/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that share a client begin and end its objects while others read the socket. The scripted daemon sends events
 * of every recent lease and operation after each request, so that one arrives in each moment of an object's life, and
 * now and then closes the connection. It requires that only leases are detached that it holds.
 */
#include "daemon/base/util.h"
#include "tests/unit/client_fixture.h"

#define STEPS (suite_short() ? 150u : 600u) /* of each thread */
#define CONNECTION 900                      /* requests */
#define IDS 100000
#define RECENT 12

CLIENT_FIXTURE();

/* ---- the daemon ---- */

static atomic_bool calm, over; /* the connection stays; the conversation ends */

/* Number n is the n-th lease, whose token is n; a reclaim gives it another id. */
enum hold { FREE, HELD, ORPHAN };
static enum hold holds[IDS];
static unsigned number_of[IDS]; /* by id; 0: none on this connection */
static unsigned n_leases, last_id;
static unsigned recent[RECENT];  /* ids */
static uint64_t opening[RECENT]; /* requests */
static unsigned turn;

static unsigned new_id(unsigned number)
{
        if (++last_id == IDS)
                die("too many leases");
        number_of[last_id] = number;
        holds[number] = HELD;
        recent[turn++ % RECENT] = last_id;
        return last_id;
}

static void attach_reply(struct fake_daemon *f)
{
        char token[33];
        snprintf(token, sizeof(token), "%032u", ++n_leases);
        m.lease = new_id(n_leases);
        m.token = token;
        fake_say(f, "< model\n");
}

static void detach_reply(struct fake_daemon *f)
{
        uint64_t id = 0;
        object_u64(&f->request.unpacked.data, "lease", &id);
        if (id >= IDS || number_of[id] == 0 || holds[number_of[id]] != HELD)
                die("the client detaches the lease %" PRIu64 ", which it does not hold", id);
        holds[number_of[id]] = FREE;
        fake_say(f, "<\n");
}

/* Every third one is lost. */
static void reclaim_reply(struct fake_daemon *f)
{
        char text[64];
        const char *token = "";
        size_t len = 0;
        object_str(&f->request.unpacked.data, "token", &token, &len);
        unsigned number = len == 32 ? (unsigned)strtoul(token + 16, NULL, 10) : 0;
        if (number == 0 || number > n_leases || holds[number] == FREE)
                die("the client claims the lease %.*s", (int)len, token);
        if (number % 3 == 0) {
                holds[number] = FREE;
                fake_say(f, "! lost not held\n");
                return;
        }
        snprintf(text, sizeof(text), "< lease=%u state=loading\n", new_id(number));
        fake_say(f, text);
}

static void send_events(struct fake_daemon *f)
{
        char text[4096] = "";
        for (unsigned i = 0; i < RECENT; i++) {
                const char *state = (turn + i) % 7 == 0 ? "ready digest=" FAKE_DIGEST : "loading";
                if (recent[i] != 0)
                        format_append(text, sizeof(text), "* lease lease=%u state=%s\n", recent[i], state);
                if (opening[i] != 0)
                        format_append(text, sizeof(text),
                                      "* op request=%" PRIu64 " op=1 name=m state=loading bytes=%u\n", opening[i],
                                      turn);
        }
        fake_say(f, text);
}

static void answer(struct fake_daemon *f)
{
        const msgpack_object *request = &f->request.unpacked.data;
        if (object_str_eq(request, "verb", "load")) {
                opening[turn % RECENT] = f->ids[0];
                send_events(f);
                attach_reply(f);
        } else if (object_str_eq(request, "verb", "attach")) {
                attach_reply(f);
        } else if (object_str_eq(request, "verb", "detach")) {
                detach_reply(f);
        } else if (object_str_eq(request, "verb", "reclaim")) {
                reclaim_reply(f);
        } else {
                fake_say(f, "<\n");
        }
        send_events(f);
}

/* What was held is to be claimed, and no id of this connection means anything on the next one. */
static void forget_connection(void)
{
        for (unsigned number = 1; number <= n_leases; number++)
                if (holds[number] == HELD)
                        holds[number] = ORPHAN;
        memset(number_of, 0, sizeof(number_of));
        memset(recent, 0, sizeof(recent));
        memset(opening, 0, sizeof(opening));
}

static void serve(struct fake_daemon *f)
{
        while (!over) {
                fake_say(f, "hello\n");
                for (unsigned i = 0; (i < CONNECTION || calm) && fake_next(f); i++)
                        answer(f);
                if (!over) {
                        fake_say(f, "close\n");
                        forget_connection();
                }
        }
}

static unsigned held(void)
{
        unsigned n = 0;
        for (unsigned number = 1; number <= n_leases; number++)
                n += holds[number] == HELD;
        return n;
}

/* ---- the threads ---- */

static void may(int code)
{
        if (code == 0 || code == STREAMER_EUNREACHABLE || code == STREAMER_ELOST || code == STREAMER_ETIMEOUT ||
            code == STREAMER_EEND || code == STREAMER_EREVOKED || code == STREAMER_EBUSY)
                return;
        die("%s: %s", streamer_error_name(code), streamer_last_error(client));
}

static void *attach_and_detach(void *arg)
{
        streamer_tensor tensor = STREAMER_TENSOR_INIT;
        for (unsigned i = 0; i < STEPS; i++) {
                streamer_lease *one = NULL;
                int code = streamer_attach(client, "m", NULL, &one);
                may(code);
                if (code == 0 && i % 2 == 0)
                        may(streamer_tensor_next(one, 0, &tensor));
                if (code == 0 && i % 5 == 0)
                        (void)streamer_digest(one);
                streamer_detach(one);
        }
        return NULL;
}

static void *open_and_free(void *arg)
{
        streamer_open_opts opts = STREAMER_OPEN_OPTS_INIT;
        for (unsigned i = 0; i < STEPS; i++) {
                streamer_op *op = NULL;
                streamer_lease *one = NULL;
                int code = streamer_open_start(client, "/models/m", &opts, &op);
                may(code);
                if (code == 0 && i % 3 == 0)
                        may(streamer_op_lease(op, (int)(i % 2), &one));
                if (code == 0 && i % 4 == 0)
                        may(streamer_op_wait(op, 0, NULL));
                streamer_op_free(op);
                streamer_detach(one);
        }
        return NULL;
}

static void *process(void *arg)
{
        (void)streamer_fd(client);
        for (unsigned i = 0; i < 20 * STEPS; i++) {
                int code = streamer_process(client);
                if (code != 1)
                        may(code);
        }
        return NULL;
}

TEST(objects_end_while_other_threads_dispatch_their_events)
{
        void *(*const roles[8])(void *) = {attach_and_detach, attach_and_detach, attach_and_detach, open_and_free,
                                           open_and_free,     open_and_free,     process,           process};
        pthread_t threads[8];
        struct streamer_connect_opts opts = STREAMER_CONNECT_OPTS_INIT;
        m.loading = true;
        fake_model_arrive(&m, 0);
        fake_start_script(&fake, serve);
        opts.socket = fake.socket;
        opts.timeout_ms = 60000;
        ck_assert_int_eq(streamer_connect(&opts, &client), 0);
        for (unsigned i = 0; i < 8; i++)
                must(-pthread_create(&threads[i], NULL, roles[i], NULL));
        for (unsigned i = 0; i < 8; i++)
                must(-pthread_join(threads[i], NULL));

        calm = true;
        /* A late reply may have a lease, which is given back; nothing stays to be reported. */
        streamer_attach_opts attach_opts = STREAMER_ATTACH_OPTS_INIT;
        AWAIT(streamer_attach(client, "m", &attach_opts, &lease) == 0);
        streamer_detach(lease);
        lease = NULL;
        AWAIT(streamer_process(client) == 0);
        over = true;
        disconnect();
        ck_assert_uint_eq(held(), 0);
}
