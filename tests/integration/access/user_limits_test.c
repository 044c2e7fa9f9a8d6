/* SPDX-License-Identifier: Apache-2.0
 *
 * What a user may leave unanswered, on its way or unread, and how many loads it may watch. roles_limits_test has the
 * limits of a rule, isolation_test what another user notices of such a user. Needs root.
 */
#include "tests/lib/run_as.h"
#include "tests/lib/fixture.h"
#include "tests/lib/wire.h"

#define GREEDY 60201 /* a user that no system gives out, in the socket's group */
#define SOCKET_GROUP 0
#define UNANSWERED 64
#define WATCHERS 16  /* connections */
#define WATCHED 256  /* by each */
#define FLOODED 24   /* connections whose replies are not read */
#define ATTACHES 126 /* of two descriptors each, for which there must be place for three */

static char *large;

/* Of the descriptors a user may have as many as one reply. */
static void begin(void)
{
        char *text = format_text("devices:\n  - host=64MiB\naccess:\n  roles:\n    - {role: load, users: %d}\n"
                                 "limits: {requests_per_client: 1, fds_in_flight: 506, output_per_client: 1MiB}\n",
                                 GREEDY);
        char *config = suite_file("users.yaml", text);
        must(chmod(suite_folder(), 0755));
        fixture_begin((const char *const[]){"--config", config, NULL});
        large = fixture_write(model_mixed(3, 8 << 20), "large.safetensors");
}

/* One on each connection: as many as may wait, and one that is refused. */
static int wait_on_all_connections(void)
{
        static struct wire wires[UNANSWERED + 1];
        struct pollfd fds[UNANSWERED + 1];
        const struct request wait = {.verb = VERB_wait, .id = 2, .u.wait = {.model = "pending"}};
        size_t i = 0;
        for (size_t k = 0; k <= UNANSWERED; k++) {
                wire_connect(&wires[k], &test_daemon);
                if (!wire_request(&wires[k], &wait))
                        die("a request was not sent");
                fds[k] = (struct pollfd){.fd = wires[k].fd, .events = POLLIN};
        }
        if (must(poll(fds, UNANSWERED + 1, PATIENCE_MS)) != 1)
                die("not one reply");
        while (fds[i].revents == 0)
                i++;
        wire_read_whole_error(
                &wires[i], "limit",
                format_text("uid %d has 64 unanswered requests, the most that it may (limits.requests_per_client)",
                            GREEDY));
        return 0;
}

#define LIMITS_MET "streamerd_request_errors_total{code=\"limit\"}"

/* It receives none of them before all requests have been read. */
static int leave_descriptors_on_their_way(void)
{
        struct wire w;
        const struct request attach = {.verb = VERB_attach, .id = 2, .u.attach = {.model = "witness"}};
        streamer_client *c = client_open(&test_daemon);
        double before = client_metric(c, LIMITS_MET);
        wire_connect(&w, &test_daemon);
        for (int i = 0; i < ATTACHES + 1; i++)
                if (!wire_request(&w, &attach))
                        die("a request was not sent");
        AWAIT(client_metric(c, LIMITS_MET) > before);
        for (int i = 0; i < ATTACHES; i++)
                wire_read_ok(&w);
        wire_read_whole_error(
                &w, "limit",
                format_text("attach: uid %d has 252 of 253 descriptors on their way to its clients (half of "
                            "limits.fds_in_flight)",
                            GREEDY));
        return 0;
}

/* All of the same load, which waits for memory. */
static int watch_loads(void)
{
        static struct wire wires[WATCHERS + 1];
        const struct request load = {
                .verb = VERB_load, .id = 2, .u.load = {.source = large, .name = "m", .wait = true, .watch = true}};
        const struct request cancel = {.verb = VERB_cancel, .id = 3, .u.cancel = {.model = "m"}};
        struct wire *last = &wires[WATCHERS];

        for (struct wire *w = wires; w <= last; w++) {
                wire_connect(w, &test_daemon);
                for (int i = 0; i < WATCHED && w < last; i++) {
                        wire_request(w, &load);
                        wire_reply_ok(w);
                }
        }
        wire_request(last, &load);
        wire_read_whole_error(last, "limit",
                              format_text("load: uid %d watches 4096 loads, the most that a user may", GREEDY));
        wire_request(last, &cancel);
        wire_reply_ok(last);
        return 0;
}

static bool is_refused(struct wire *w)
{
        return wire_request(w, &(struct request){.verb = VERB_ping, .id = 4}) && wire_read_code(w, "limit");
}

/* Its other connections have more unread replies than a user may have. */
static int give_back_while_others_do_not_read(void)
{
        static struct wire wires[FLOODED], w;
        struct request detach = {.verb = VERB_detach, .id = 5}, abort = {.verb = VERB_publish_abort, .id = 6};
        wire_connect(&w, &test_daemon);
        wire_request(&w, &(struct request){.verb = VERB_attach, .id = 2, .u.attach = {.model = "witness"}});
        wire_reply_ok(&w);
        detach.u.detach.lease = wire_number(&w, "lease");
        wire_request(&w, &(struct request){.verb = VERB_publish_find,
                                           .id = 3,
                                           .u.publish_find = {.model = "claimed", .claim = true}});
        wire_reply_ok(&w);
        abort.u.publish_abort.claim = wire_number(&w, "claim");
        for (size_t i = 0; i < FLOODED; i++) {
                wire_connect(&wires[i], &test_daemon);
                for (uint64_t k = 0; k < 100; k++) /* so few that no send waits for the daemon */
                        wire_request(&wires[i], &(struct request){.verb = VERB_metrics, .id = 2 + k});
        }
        AWAIT(is_refused(&w));
        wire_request(&w, &detach);
        wire_reply_ok(&w);
        wire_request(&w, &abort);
        wire_reply_ok(&w);
        if (!is_refused(&w))
                die("the replies were read");
        return 0;
}

#define CLAIMERS 16 /* connections */
#define CLAIMED 64  /* by each */

static int claim_names(void)
{
        static struct wire wires[CLAIMERS + 1];
        struct request find = {.verb = VERB_publish_find, .id = 2, .u.publish_find.claim = true};
        struct wire *last = &wires[CLAIMERS];
        for (struct wire *w = wires; w <= last; w++) {
                wire_connect(w, &test_daemon);
                for (int i = 0; i < CLAIMED && w < last; i++) {
                        find.u.publish_find.model = format_text("claimed-%d-%d", (int)(w - wires), i);
                        wire_request(w, &find);
                        wire_reply_ok(w);
                }
        }
        find.u.publish_find.model = "one more";
        wire_request(last, &find);
        wire_read_whole_error(last, "limit",
                              format_text("publish_find: uid %d has 1024 claims, the most that a user may", GREEDY));
        return 0;
}

/* A model that is not complete before this publication is aborted. */
static streamer_publication *begin_publication(streamer_client *c, uint64_t bytes)
{
        streamer_publication *claim;
        streamer_found found = STREAMER_FOUND_INIT;
        streamer_publish_opts opts = STREAMER_PUBLISH_OPTS_INIT;
        opts.name = "pending";
        client_ok(c, streamer_publish_find(c, &opts, &found, &claim), "find");
        client_ok(c, streamer_publish_begin(claim, &bytes, 1), "begin");
        return claim;
}

FIXTURE(.all = {begin, fixture_end}, .each = {NULL, fixture_still_serves}, .unavailable = root_unavailable);

TEST(a_users_unanswered_requests_are_limited)
{
        streamer_client *c = client_open(&test_daemon);
        streamer_publication *claim = begin_publication(c, 1);
        ck_assert_int_eq(run_as(GREEDY, SOCKET_GROUP, wait_on_all_connections), 0);
        streamer_publish_abort(claim);
        streamer_close(c);
}

TEST(a_users_descriptors_on_their_way_are_limited)
{
        ck_assert_int_eq(run_as(GREEDY, SOCKET_GROUP, leave_descriptors_on_their_way), 0);
}

TEST(what_a_user_gives_back_is_taken_while_replies_are_unread)
{
        ck_assert_int_eq(run_as(GREEDY, SOCKET_GROUP, give_back_while_others_do_not_read), 0);
}

TEST(a_users_claims_are_limited)
{
        for (int i = 0; i < 2; i++) /* the second time none is left */
                ck_assert_int_eq(run_as(GREEDY, SOCKET_GROUP, claim_names), 0);
}

TEST(a_users_watched_loads_are_limited)
{
        streamer_client *c = client_open(&test_daemon);
        streamer_publication *claim = begin_publication(c, UINT64_C(56) << 20);
        for (int i = 0; i < 2; i++) /* the second time none is left */
                ck_assert_int_eq(run_as(GREEDY, SOCKET_GROUP, watch_loads), 0);
        streamer_publish_abort(claim);
        streamer_close(c);
}
