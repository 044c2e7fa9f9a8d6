/* SPDX-License-Identifier: Apache-2.0
 *
 * streamer_call and events, against a scripted daemon: JSON in and out, pages, failures.
 */
#include "tests/unit/client_fixture.h"

/* ---- calls ---- */

CLIENT_FIXTURE();

TEST(a_reply_becomes_json_with_all_64_bits)
{
        client = fake_connect(&fake, "hello\n> status\n"
                                     "< version='1\x01' most=9223372036854775807 "
                                     "more=9223372036854775808 less=-1 list=[true null]\n");
        CALL_GIVES(
                client, "status", NULL,
                "{\"version\":\"1\\u0001\",\"most\":9223372036854775807,\"more\":\"9223372036854775808\",\"less\":-1,"
                "\"list\":[true,null]}");
}

TEST(a_failure_has_code_and_text_and_the_connection_survives)
{
        client = fake_connect(&fake, "hello\n> cancel model=m\n! not-found cancel: no such load (m)\n> ping\n<\n");
        ck_assert_str_eq(streamer_last_error(client), "");
        CALL_FAILS(client, "cancel", "{\"model\":\"m\"}", STREAMER_ENOENT, "cancel: no such load (m)");
        CALL_GIVES(client, "ping", NULL, "{}");
        ck_assert_str_eq(streamer_last_error(client), "cancel: no such load (m)");
}

#define UNKNOWN "! not-found witnes: no such model\n"
#define LIST                                                                                                           \
        "> list limit=500\n< models=[{name=other state=ready} {name=witnez state=failed} {name=witness "               \
        "state=ready}]\n"

static int call_show(void)
{
        return streamer_call(client, "show", "{\"model\":\"witnes\"}", NULL);
}

static int call_wait(void)
{
        return streamer_wait(client, "witnes", 10000);
}

static int call_unload(void)
{
        return streamer_unload(client, "witnes", 0);
}

static int call_pin(void)
{
        return streamer_pin(client, "witnes", 1);
}

static int call_keep_alive(void)
{
        return streamer_keep_alive(client, "witnes", 1000);
}

static int call_cancel(void)
{
        return streamer_cancel(client, "witnes");
}

static int call_attach(void)
{
        return streamer_attach(client, "witnes", NULL, &lease);
}

static const struct {
        const char *request;
        int (*call)(void);
} about_a_model[] = {
        {"> show model=witnes\n", call_show},     {"> wait model=witnes\n", call_wait},
        {"> unload model=witnes\n", call_unload}, {"> pin model=witnes\n", call_pin},
        {"> cancel model=witnes\n", call_cancel}, {"> keep_alive model=witnes\n", call_keep_alive},
        {"> attach model=witnes\n", call_attach},
};

TEST(an_unknown_model_has_the_nearest_one, EACH(about_a_model))
{
        client = fake_connect(&fake, format_text("hello\n%s" UNKNOWN LIST "end\n", about_a_model[_i].request));
        FAILS(client, about_a_model[_i].call(), STREAMER_ENOENT, "witnes: no such model; the nearest is 'witness'");
}

static const struct {
        const char *conversation, *text;
} without_hint[] = {
        {UNKNOWN "> list limit=500\n< models=[{name=unlike state=ready}]\n", "witnes: no such model"},
        {UNKNOWN "> list limit=500\n! denied requires role 'status'\n", "witnes: no such model"},
        {UNKNOWN "> list limit=500\n< models=7\n", "witnes: no such model"},
        {"! not-found witnes: no such model (unloaded: by uid 0)\n", "witnes: no such model (unloaded: by uid 0)"},
        {"! not-found witnes: no such model; the nearest is 'x'\n", "witnes: no such model; the nearest is 'x'"},
        {"! not-found witness: no such model\n", "witness: no such model"},
        {"! failed witnes: no such model\n", "witnes: no such model"},
};

TEST(the_daemons_text_is_kept_where_nothing_is_added, EACH(without_hint))
{
        client = fake_connect(&fake, format_text("hello\n> wait model=witnes\n%send\n", without_hint[_i].conversation));
        ck_assert_int_ne(call_wait(), 0);
        ck_assert_str_eq(streamer_last_error(client), without_hint[_i].text);
}

TEST(an_invalid_request_is_not_sent)
{
        client = fake_connect(&fake, "hello\nend\n");
        CALL_FAILS(client, "lod", NULL, STREAMER_EUNSUPPORTED, "lod: the daemon (0.0.fake) does not support it");
        CALL_FAILS(client, "cancel", "{\"model\":\"m\",\"x\":1}", STREAMER_EUNSUPPORTED,
                   "cancel.x: the daemon (0.0.fake) does not support it");
        CALL_FAILS(client, "cancel", "{\"model\":\"m\",\"id\":1}", STREAMER_EINVAL,
                   "call: the library sets 'verb' and 'id'");
        CALL_FAILS(client, "cancel", "[]", STREAMER_EINVAL, "cancel: the arguments are not a JSON object");
        ck_assert_int_eq(streamer_call(client, "cancel", "{", NULL), STREAMER_EINVAL);
        ck_assert_ptr_nonnull(strstr(streamer_last_error(client), "cancel: the arguments are not JSON: "));
        CALL_FAILS(client, "fetch", "{\"source\":\"/m\",\"file\":\"f\"}", STREAMER_EINVAL,
                   "call: to fetch a file has a function of its own");
        CALL_FAILS(client, "attach", "{\"model\":\"m\"}", STREAMER_EINVAL, "call: 'attach' has a function of its own");
        CALL_FAILS(client, "load", "{\"source\":\"/m\",\"attach\":true}", STREAMER_EINVAL,
                   "call: a load that attaches has a function of its own");
}

TEST(long_lists_are_complete_unless_the_caller_sets_a_limit)
{
        client = fake_connect(&fake, "hello\n"
                                     "> ps after=0\n< leases=[{id=1}] next=10\n"
                                     "> ps after=10\n< leases=[{id=2}] next=20\n"
                                     "> ps after=20\n< leases=[{id=3}]\n"
                                     "> ps limit=1\n< leases=[{id=1}] next=10\n");
        CALL_GIVES(client, "ps", NULL, "{\"leases\":[{\"id\":1},{\"id\":2},{\"id\":3}]}");
        CALL_GIVES(client, "ps", "{\"limit\":1}", "{\"leases\":[{\"id\":1}],\"next\":10}");
}

TEST(the_list_of_models_is_put_together_from_its_pages)
{
        streamer_model_list *list;
        streamer_model model = STREAMER_MODEL_INIT;
        client = fake_connect(&fake, "hello\n"
                                     "> list\n< models=[{name=a state=ready bytes=18446744073709551615}] next=a\n"
                                     "> list after=a\n< models=[{name=b state=ready bytes=18446744073709551615}]\n");
        ck_assert_int_eq(streamer_list(client, &list), 0);
        ck_assert_uint_eq(streamer_model_list_count(list), 2);
        ck_assert_int_eq(streamer_model_list_get(list, 1, &model), 0);
        ck_assert_str_eq(model.name, "b");
        ck_assert_str_eq(model.digest, "");
        ck_assert_uint_eq(model.bytes, UINT64_MAX);
        ck_assert_int_eq(streamer_model_list_get(list, 2, &model), STREAMER_ENOENT);
}

/* ---- events ---- */

TEST(events_right_after_the_subscription_are_queued)
{
        char *event;
        client = fake_connect(&fake, "hello\n> subscribe\n<\n"
                                     "* model generation=0\n* model generation=1\nclose\n");
        FAILS(client, streamer_event_next(client, 0, &event), STREAMER_EINVAL,
              "event_next: the client has not subscribed");
        CALL_GIVES(client, "subscribe", NULL, "{}");
        ck_assert_int_eq(streamer_event_next(client, 20000, &event), 0);
        ck_assert_str_eq(event, "{\"event\":\"model\",\"generation\":0}");
        ck_assert_int_eq(streamer_event_next(client, 20000, &event), 0);
        ck_assert_int_eq(streamer_event_next(client, 20000, &event), STREAMER_EUNREACHABLE);
}

TEST(unread_events_are_counted_as_lost)
{
        char *event, text[32 * 1500], *at = text + sprintf(text, "hello\n> subscribe\n<\n> ping\n");
        for (int i = 0; i < 1500; i++)
                at += sprintf(at, "* model generation=%d\n", i);
        strcpy(at, "<\nend\n");
        client = fake_connect(&fake, text);
        CALL_GIVES(client, "subscribe", NULL, "{}");
        CALL_GIVES(client, "ping", NULL, "{}");
        for (int i = 0; i < 1024; i++)
                ck_assert_int_eq(streamer_event_next(client, 0, &event), 0);
        ck_assert_int_eq(streamer_event_next(client, 0, &event), 0);
        ck_assert_str_eq(event, "{\"event\":\"lost\",\"count\":476}");
        FAILS(client, streamer_event_next(client, 0, &event), STREAMER_ETIMEOUT, "no event in time");
}
