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

/* The daemon says first where the next page is, so that it is requested while this one is read. */
static const struct {
        const char *verb, *pages, *json;
} paged[] = {
        {"ps",
         "> ps after=0\n< next=10 leases=[{id=1}]\n"
         "> ps after=10\n< next=20 leases=[{id=2}]\n"
         "> ps after=20\n< leases=[{id=3}]\n",
         "{\"leases\":[{\"id\":1},{\"id\":2},{\"id\":3}]}"},
        /* A page without items is the last. The reply to what was requested beyond it is dropped. */
        {"ps",
         "> ps after=0\n< next=10 leases=[{id=1}]\n"
         "> ps after=10\n< next=20 leases=[]\n"
         "> ps after=20\n< next=30 leases=[{id=3}]\n",
         "{\"leases\":[{\"id\":1}]}"},
        {"ps",
         "> ps after=0\n< leases=[{id=1}] next=10\n"
         "> ps after=10\n< leases=[] next=20\n"
         "> ps after=20\n< leases=[{id=3}]\n",
         "{\"leases\":[{\"id\":1}]}"},
        {"list",
         "> list\n< next=a models=[{name=a}]\n"
         "> list after=a\n< models=[{name=b}]\n",
         "{\"models\":[{\"name\":\"a\"},{\"name\":\"b\"}]}"},
        {"status",
         "> status\n< next=1 pid=7 loads=[{model=a}] preload=[]\n"
         "> status after=1\n< pid=8 loads=[{model=b}] preload=[{model=c}]\n",
         "{\"pid\":7,\"loads\":[{\"model\":\"a\"},{\"model\":\"b\"}],\"preload\":[{\"model\":\"c\"}]}"},
};

TEST(pages_are_requested_ahead_and_put_together, EACH(paged))
{
        client = fake_connect(&fake, format_text("hello\n%s> ping\n< n=1\n", paged[_i].pages));
        CALL_GIVES(client, paged[_i].verb, NULL, paged[_i].json);
        CALL_GIVES(client, "ping", NULL, "{\"n\":1}");
}

/* Text that is not UTF-8 has no JSON. */
TEST(a_page_that_cannot_be_read_ends_the_call_and_not_the_connection)
{
        client = fake_connect(&fake, "hello\n"
                                     "> ps after=0\n< next=10 leases=[{comm='\xff'}]\n"
                                     "> ps after=10\n< next=20 leases=[{id=2}]\n"
                                     "> ping\n< n=1\n");
        CALL_FAILS(client, "ps", NULL, STREAMER_EPROTO, "ps: the daemon's reply cannot be written as JSON");
        CALL_GIVES(client, "ping", NULL, "{\"n\":1}");
}

TEST(an_error_of_a_later_page_is_that_of_the_call)
{
        client = fake_connect(&fake, "hello\n"
                                     "> ps after=0\n< next=10 leases=[{id=1}]\n"
                                     "> ps after=10\n! limit one page is enough\n"
                                     "> ping\n< n=1\n");
        CALL_FAILS(client, "ps", NULL, STREAMER_ELIMIT, "one page is enough");
        CALL_GIVES(client, "ping", NULL, "{\"n\":1}");
}

TEST(pages_of_two_generations_are_not_put_together)
{
        client = fake_connect(&fake, "hello\n"
                                     "> show model=m tensors=true\n"
                                     "< next=1 models=[{name=m generation=1}] tensor_list=[{name=t}]\n"
                                     "> show model=m tensors=true offset=1\n"
                                     "< next=2 models=[{name=m generation=2}] tensor_list=[{name=t}]\n"
                                     "> show model=m tensors=true offset=2\n< models=[]\n"
                                     "> ping\n< n=1\n");
        CALL_FAILS(client, "show", "{\"model\":\"m\",\"tensors\":true}", STREAMER_EFAILED,
                   "show: the model was replaced while it was listed");
        CALL_GIVES(client, "ping", NULL, "{\"n\":1}");
}

TEST(a_connection_that_is_lost_between_pages_fails_the_call)
{
        client = fake_connect(&fake, "hello\n"
                                     "> ps after=0\n< next=10 leases=[{id=1}]\n"
                                     "> ps after=10\nclose\n");
        CALL_FAILS(client, "ps", NULL, STREAMER_EUNREACHABLE, "the daemon closed the connection");
}

#define LAST_PAGE 20

/* Each page has the number of the one before. */
static void serve_pages(struct fake_daemon *f)
{
        fake_say(f, "hello\n");
        while (fake_next(f)) {
                char text[64];
                uint64_t after = 0;
                object_u64(&f->request.unpacked.data, "after", &after);
                if (after < LAST_PAGE)
                        snprintf(text, sizeof(text), "< next=%" PRIu64 " leases=[%" PRIu64 "]\n", after + 1, after);
                else
                        snprintf(text, sizeof(text), "< leases=[%" PRIu64 "]\n", after);
                fake_say(f, text);
        }
}

static void *list_often(void *want)
{
        for (unsigned i = 0; i < 50; i++)
                CALL_GIVES(client, "ps", NULL, want);
        return NULL;
}

/* Any of them reads the pages of the others. */
TEST(threads_list_at_once_on_one_connection)
{
        enum { THREADS = 4 };
        pthread_t threads[THREADS];
        char want[256] = "{\"leases\":[0";
        for (unsigned i = 1; i <= LAST_PAGE; i++)
                snprintf(want + strlen(want), sizeof(want) - strlen(want), ",%u", i);
        strcat(want, "]}");
        client = fake_connect_script(&fake, serve_pages);
        for (size_t i = 0; i < THREADS; i++)
                must(-pthread_create(&threads[i], NULL, list_often, want));
        for (size_t i = 0; i < THREADS; i++)
                pthread_join(threads[i], NULL);
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
