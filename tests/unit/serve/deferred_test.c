/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests that wait for a change: which of them it examines.
 */
#include "daemon/serve/deferred.h"
#include "tests/lib/core.h"

#define OTHERS 1000u

static const struct limits limits = {.requests_per_client = 1 << 20};
static struct server server;
static struct conn conn;
static struct session session;
static char names[OTHERS][16];
static unsigned examined, examined_m; /* all, and of those the ones that wait for "m" */
static bool answers;

static int try_it(struct session *of, const struct request *request, const struct deferred *deferred,
                  struct error *error)
{
        ck_assert_ptr_eq(of, &session);
        ck_assert_int_eq(error->code, 0);
        ck_assert_ptr_eq(request, &deferred->request);
        examined++;
        examined_m += strcmp(deferred->subject, "m") == 0;
        return answers ? 0 : DEFERRED_WAITS;
}

static void begin(void)
{
        server = (struct server){.loop = &core_loop, .limits = &limits};
        quotas_init(&server.users);
        deferred_init(&server);
        session = (struct session){.magic = SESSION_MAGIC, .server = &server, .conn = &conn};
        list_init(&session.deferred);
        examined = examined_m = 0;
        answers = false;
}

static void end(void)
{
        list_each_item_safe (struct deferred, d, &session.deferred, in_session)
                deferred_free(d);
        uv_close((uv_handle_t *)&server.answer.idle, NULL);
}

static struct deferred *request_new(void)
{
        struct error error = {0};
        struct deferred *d = deferred_new(&session, &(struct request){.id = 1}, &error);
        ck_assert_msg(d != NULL, "%s", error.text);
        return d;
}

static void wait_for(const char *subject)
{
        deferred_await_change(request_new(), subject, try_it);
}

static void change(const char *subject)
{
        examined = examined_m = 0;
        deferred_recheck(&server, subject);
        core_settle();
}

CORE_FIXTURE(begin, end);

/* The few that the index cannot tell from it do not count. */
TEST(a_change_examines_what_waits_for_it_and_not_all_the_others)
{
        for (unsigned i = 0; i < OTHERS; i++) {
                snprintf(names[i], sizeof(names[i]), "other-%u", i);
                wait_for(names[i]);
        }
        wait_for("m");
        wait_for("m");
        for (unsigned i = 0; i < 3; i++) { /* while it waits, each change examines it */
                change("m");
                ck_assert_uint_eq(examined_m, 2);
                ck_assert_uint_le(examined, 2 + OTHERS / 50);
        }
        change("nothing waits for this");
        ck_assert_uint_le(examined, 2 + OTHERS / 50);
        answers = true;
        change("m");
        ck_assert_uint_eq(examined_m, 2);
        change("m");
        ck_assert_uint_eq(examined_m, 0);
        ck_assert_uint_ge(list_length(&session.deferred), OTHERS - OTHERS / 50);
}

CORE_FIXTURE(begin, end, .timeout = 10);

/* One by one that would be five thousand million comparisons. */
TEST(a_deadline_finds_its_place_among_very_many)
{
        enum { MANY = 100000 };
        uint64_t last = 0;
        for (uint64_t i = 0; i < MANY; i++)
                deferred_set_deadline(request_new(), "m", "why", (2 * MANY - i) * 1000);
        tree_each_item(const struct deferred, d, &server.timed, in_timed)
        {
                ck_assert_uint_ge(d->deadline_ns, last);
                last = d->deadline_ns;
        }
        ck_assert_uint_eq(server.timed.n, MANY);
        ck_assert_uint_lt(deferred_tick(&server, now_ns()), last);
}
