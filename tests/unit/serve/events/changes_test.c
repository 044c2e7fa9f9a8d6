/* SPDX-License-Identifier: Apache-2.0
 *
 * States of models for subscribers: each receives the latest one of each model, in the order of the changes, and the
 * number of removals that it has lost.
 */
#include "tests/unit/resident_fixture.h"

#include "daemon/serve/events/changes.h"

static struct changes stored;
static struct subscriber a, b;

static void begin_changes(void)
{
        begin();
        changes_init(&stored);
        subscriber_init(&a);
        subscriber_init(&b);
}

static void end_changes(void)
{
        changes_unsubscribe(&stored, &a);
        changes_unsubscribe(&stored, &b);
        ck_assert(list_empty(&stored.all));
        changes_deinit(&stored);
        end();
}

static void subscribe(struct subscriber *subscriber, const char *subject)
{
        changes_subscribe(&stored, subscriber, subject != NULL ? format_text("%s", subject) : NULL);
}

static void change(struct generation *g, uint64_t bytes)
{
        g->data_bytes = bytes; /* identifies this change */
        changes_add(&stored, g, NULL);
}

static void unload(struct generation *g)
{
        enum generation_state state = g->state;
        g->state = GENERATION_UNLOADED;
        changes_add(&stored, g, NULL);
        g->state = state;
}

static struct change peek(struct subscriber *subscriber)
{
        struct change next;
        ck_assert(changes_peek(&stored, subscriber, &next));
        return next;
}

/* What the subscriber has not received: "m:loading:1 n:ready:2 ". */
static const char *receive(struct subscriber *subscriber)
{
        static char text[1024];
        struct change next;
        size_t used = 0;
        text[0] = '\0';
        while (changes_peek(&stored, subscriber, &next)) {
                used += (size_t)snprintf(text + used, sizeof(text) - used, "%s:%s:%u ", next.name, next.state,
                                         (unsigned)next.bytes);
                subscriber->number = next.number;
        }
        return text;
}

CORE_FIXTURE(begin_changes, end_changes);

TEST(only_the_latest_state_of_a_model_is_received)
{
        struct generation *m = loading("m"), *n = loading("n");
        subscribe(&a, NULL);
        subscribe(&b, NULL);
        change(m, 1);
        ck_assert_str_eq(receive(&a), "m:loading:1 ");
        change(n, 2);
        change(m, 3);
        ck_assert_str_eq(receive(&a), "n:loading:2 m:loading:3 ");
        ck_assert_str_eq(receive(&a), "");
        ready(m);
        change(m, 4);
        ck_assert_str_eq(receive(&b), "n:loading:2 m:ready:4 ");
        ck_assert_uint_eq(list_length(&stored.all), 2);
        ck_assert_uint_eq(a.lost + b.lost, 0);
}

/* Between two calls of changes_peek() anything may change. */
TEST(a_model_that_changes_while_others_are_received_is_received_last)
{
        struct generation *m = ready(loading("m")), *n = ready(loading("n"));
        subscribe(&a, NULL);
        change(m, 1);
        change(n, 2);
        struct change next = peek(&a);
        ck_assert_uint_eq(next.bytes, 1);
        ck_assert_uint_eq(peek(&a).bytes, 1);
        a.number = next.number;
        change(m, 3);
        ck_assert_str_eq(receive(&a), "n:ready:2 m:ready:3 ");
}

TEST(a_new_subscriber_receives_later_changes_only)
{
        struct generation *m = ready(loading("m"));
        change(m, 1);
        ck_assert_uint_eq(list_length(&stored.all), 0); /* no client subscribes */
        ck_assert_str_eq(receive(&a), "");
        subscribe(&a, NULL);
        change(m, 2);
        subscribe(&b, NULL);
        ck_assert_str_eq(receive(&b), "");
        change(m, 3);
        ck_assert_str_eq(receive(&b), "m:ready:3 ");
        subscribe(&a, NULL); /* again */
        ck_assert_str_eq(receive(&a), "");
        changes_unsubscribe(&stored, &a);
        changes_unsubscribe(&stored, &a);
        ck_assert_uint_eq(list_length(&stored.all), 1);
        changes_unsubscribe(&stored, &b);
        ck_assert_uint_eq(list_length(&stored.all), 0);
}

TEST(a_subscriber_to_one_name_receives_its_models_only)
{
        struct generation *m = loading("m"), *n = ready(loading("n"));
        ck_assert_int_eq(generation_add_name(m, "alias", m->source, NULL, 0, NULL), 0);
        ready(m);
        subscribe(&a, "alias");
        subscribe(&b, "alia");
        change(m, 1);
        change(n, 2);
        change(m, 3);
        change(n, 4);
        ck_assert_str_eq(receive(&a), "m:ready:3 ");
        ck_assert_str_eq(receive(&b), "");
        changes_add(&stored, m, "m");
        ck_assert_str_eq(receive(&a), "");
        changes_add(&stored, m, "alias");
        ck_assert_str_eq(receive(&a), "alias:unloaded:3 ");
        ck_assert_uint_eq(a.lost + b.lost, 0);
}

TEST(a_failure_has_its_error_also_when_it_is_removed)
{
        struct generation *m = loading("m");
        subscribe(&a, NULL);
        uint64_t number = m->number;
        failed(m, "why");
        change(m, 1);
        struct change next = peek(&a);
        ck_assert_str_eq(next.state, "failed");
        ck_assert_int_eq(next.code, STREAMER_EFAILED);
        ck_assert_str_eq(next.text, "why");
        unload(m);
        next = peek(&a);
        ck_assert_str_eq(next.state, "unloaded");
        ck_assert_uint_eq(next.generation, number);
        ck_assert_str_eq(next.device, "first");
        ck_assert_int_eq(next.code, STREAMER_EFAILED);
        ck_assert_str_eq(next.text, "why");
        ck_assert_str_eq(receive(&a), "m:unloaded:1 ");
}

TEST(removals_beyond_the_limit_are_lost_and_counted)
{
        struct generation *m = ready(loading_with("m", 4096)), *n = ready(loading("n"));
        subscribe(&a, NULL);
        subscribe(&b, "n");
        change(n, 1);
        ck_assert_str_eq(receive(&b), "n:ready:1 ");
        for (unsigned i = 0; i < CHANGES_REMOVALS + 10; i++)
                changes_add(&stored, m, "m");
        ck_assert_uint_eq(list_length(&stored.all), CHANGES_REMOVALS + 1); /* n's state is not a removal */
        ck_assert_uint_eq(a.lost, 10);
        struct change next = peek(&a);
        ck_assert_uint_eq(next.bytes, 1);
        a.number = next.number;
        for (unsigned i = 0; i < CHANGES_REMOVALS; i++) {
                next = peek(&a);
                a.number = next.number;
        }
        ck_assert_str_eq(receive(&a), "");
        ck_assert_uint_eq(a.lost, 10);
        changes_add(&stored, m, "m");
        ck_assert_str_eq(receive(&a), "m:unloaded:0 ");
        ck_assert_uint_eq(a.lost, 10);
        change(n, 2);
        ck_assert_str_eq(receive(&b), "n:ready:2 ");
        ck_assert_uint_eq(b.lost, 11); /* their names are not known any more */
}
