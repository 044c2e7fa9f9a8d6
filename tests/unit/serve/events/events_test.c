/* SPDX-License-Identifier: Apache-2.0
 *
 * Which sessions a change makes due: those that subscribe, or watch a load.
 */
#include "tests/unit/resident_fixture.h"

#include "daemon/serve/events/events.h"

#define OTHERS 1000u

static const struct limits limits = {.conn = {.output = MiB}};
static struct server server;
static struct loads loads = {.context = &server};
static struct conn conn;
static struct session subscriber, others[OTHERS];
static struct generation *model;

static void session_init(struct session *session)
{
        *session = (struct session){.magic = SESSION_MAGIC, .server = &server, .conn = &conn};
        list_init(&session->in_events);
        subscriber_init(&session->subscriber);
        list_init(&session->ops);
        list_init(&session->due_ops);
        list_init(&session->due_leases);
}

static void begin_events(void)
{
        begin();
        server = (struct server){.loop = &core_loop, .limits = &limits, .loads = &loads};
        list_init(&server.due);
        list_init(&server.up_to_date);
        list_init(&server.watching);
        changes_init(&server.model_changes);
        loop_task_init(&server.notify, &core_loop, events_send_next);
        conn = (struct conn){.state = CONN_OPEN, .limits = &limits.conn};
        list_init(&conn.out);
        session_init(&subscriber);
        for (unsigned i = 0; i < OTHERS; i++)
                session_init(&others[i]);
        model = ready(loading_with("m", 2 * MiB));
}

static void end_events(void)
{
        subscriber.subscriber.number = server.model_changes.last; /* nothing is sent */
        events_deinit(&subscriber);
        uv_close((uv_handle_t *)&server.notify.idle, NULL);
        end();
}

CORE_FIXTURE(begin_events, end_events);

TEST(a_change_makes_those_due_that_subscribe_and_not_all_the_others)
{
        for (unsigned i = 0; i < OTHERS; i++)
                events_mark(&others[i]); /* each was due for itself before */
        core_settle();
        events_subscribe(&subscriber, NULL);
        events_changed(&server, model, NULL);
        ck_assert_ptr_eq(server.due.next, &subscriber.in_events);
        ck_assert_uint_eq(list_length(&server.due), 1);
        subscriber.subscriber.number = server.model_changes.last;
        core_settle();
        ck_assert(list_empty(&server.due));
        events_load_ended(&loads); /* it listens still */
        ck_assert_uint_eq(list_length(&server.due), 1);
        core_settle();
}

TEST(one_that_subscribes_no_more_is_not_due_for_others)
{
        events_subscribe(&subscriber, NULL);
        changes_unsubscribe(&server.model_changes, &subscriber.subscriber);
        events_load_ended(&loads); /* which notices it */
        core_settle();
        events_load_ended(&loads);
        ck_assert(list_empty(&server.due));
}
