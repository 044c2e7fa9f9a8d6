/* SPDX-License-Identifier: Apache-2.0
 *
 * streamer_call and events, against a scripted daemon: JSON in and out, pages, failures.
 */
#include "tests/lib/fake_daemon.h"
#include "tests/lib/suite.h"

#include <stdlib.h>
#include <string.h>

static struct fake_daemon fake;

/* ---- calls ---- */

static void greet(struct fake_daemon *f)
{
        fake_hello(f);
        ck_assert(fake_ends(f));
}

static void answer_status(struct fake_daemon *f)
{
        fake_hello(f);
        fake_expect(f, VERB_status);
        fake_reply(f, 5);
        writer_kstr(&f->message, "version", "1\n");
        writer_ku64(&f->message, "most", INT64_MAX);
        writer_ku64(&f->message, "more", UINT64_C(1) << 63);
        writer_key(&f->message, "less");
        writer_i64(&f->message, -1);
        writer_key(&f->message, "list");
        writer_array(&f->message, 2);
        writer_bool(&f->message, true);
        writer_str(&f->message, NULL);
        fake_done(f);
        fake_send(f, NULL, 0);
}

TEST(a_reply_becomes_json_with_all_64_bits)
{
        streamer_client *c = fake_connect(&fake, answer_status);
        CALL_GIVES(c, "status", NULL,
                   "{\"version\":\"1\\n\",\"most\":9223372036854775807,\"more\":\"9223372036854775808\",\"less\":-1,"
                   "\"list\":[true,null]}");
        fake_disconnect(&fake, c);
}

static void fail_and_continue(struct fake_daemon *f)
{
        fake_hello(f);
        fake_expect(f, VERB_cancel);
        ck_assert_str_eq(f->request.u.cancel.model, "m");
        fake_error(f, STREAMER_ENOENT, "cancel: no such load (m)");
        fake_expect(f, VERB_ping);
        fake_ok(f);
}

TEST(a_failure_has_code_and_text_and_the_connection_survives)
{
        streamer_client *c = fake_connect(&fake, fail_and_continue);
        ck_assert_str_eq(streamer_last_error(c), "");
        CALL_FAILS(c, "cancel", "{\"model\":\"m\"}", STREAMER_ENOENT, "cancel: no such load (m)");
        CALL_GIVES(c, "ping", NULL, "{}");
        ck_assert_str_eq(streamer_last_error(c), "cancel: no such load (m)");
        fake_disconnect(&fake, c);
}

TEST(an_invalid_request_is_not_sent)
{
        streamer_client *c = fake_connect(&fake, greet);
        CALL_FAILS(c, "lod", NULL, STREAMER_EUNSUPPORTED, "lod: the daemon (0.0.fake) does not support it");
        CALL_FAILS(c, "cancel", "{\"model\":\"m\",\"x\":1}", STREAMER_EUNSUPPORTED,
                   "cancel.x: the daemon (0.0.fake) does not support it");
        CALL_FAILS(c, "cancel", "{\"model\":\"m\",\"id\":1}", STREAMER_EINVAL,
                   "call: the library sets 'verb' and 'id'");
        CALL_FAILS(c, "cancel", "[]", STREAMER_EINVAL, "cancel: the arguments are not a JSON object");
        ck_assert_int_eq(streamer_call(c, "cancel", "{", NULL), STREAMER_EINVAL);
        CALL_FAILS(c, "attach", "{\"model\":\"m\"}", STREAMER_EINVAL, "call: 'attach' has a function of its own");
        CALL_FAILS(c, "load", "{\"source\":\"/m\",\"attach\":true}", STREAMER_EINVAL,
                   "call: a load that attaches has a function of its own");
        fake_disconnect(&fake, c);
}

static void send_lease(struct fake_daemon *f, uint64_t id, uint64_t next)
{
        fake_reply(f, next ? 2 : 1);
        writer_key(&f->message, "leases");
        writer_array(&f->message, 1);
        writer_map(&f->message, 1);
        writer_ku64(&f->message, "id", id);
        if (next)
                writer_ku64(&f->message, "next", next);
        fake_done(f);
        fake_send(f, NULL, 0);
}

static void answer_in_pages(struct fake_daemon *f)
{
        fake_hello(f);
        for (uint64_t page = 0; page < 3; page++) {
                fake_expect(f, VERB_ps);
                ck_assert_uint_eq(f->request.u.ps.after, page * 10);
                send_lease(f, page + 1, page < 2 ? page * 10 + 10 : 0);
        }
        fake_expect(f, VERB_ps);
        ck_assert_uint_eq(f->request.u.ps.limit, 1);
        send_lease(f, 1, 10);
}

TEST(long_lists_are_complete_unless_the_caller_sets_a_limit)
{
        streamer_client *c = fake_connect(&fake, answer_in_pages);
        CALL_GIVES(c, "ps", NULL, "{\"leases\":[{\"id\":1},{\"id\":2},{\"id\":3}]}");
        CALL_GIVES(c, "ps", "{\"limit\":1}", "{\"leases\":[{\"id\":1}],\"next\":10}");
        fake_disconnect(&fake, c);
}

static void send_model(struct fake_daemon *f, const char *name, const char *next)
{
        fake_reply(f, next ? 2 : 1);
        writer_key(&f->message, "models");
        writer_array(&f->message, 1);
        writer_map(&f->message, 3);
        writer_kstr(&f->message, "name", name);
        writer_kstr(&f->message, "state", "ready");
        writer_ku64(&f->message, "bytes", UINT64_MAX);
        if (next)
                writer_kstr(&f->message, "next", next);
        fake_done(f);
        fake_send(f, NULL, 0);
}

static void answer_models(struct fake_daemon *f)
{
        fake_hello(f);
        fake_expect(f, VERB_list);
        send_model(f, "a", "a");
        fake_expect(f, VERB_list);
        ck_assert_str_eq(f->request.u.list.after, "a");
        send_model(f, "b", NULL);
}

TEST(the_list_of_models_is_put_together_from_its_pages)
{
        streamer_model_list *list;
        streamer_model m = STREAMER_MODEL_INIT;
        streamer_client *c = fake_connect(&fake, answer_models);
        ck_assert_int_eq(streamer_list(c, &list), 0);
        ck_assert_uint_eq(streamer_model_list_count(list), 2);
        ck_assert_int_eq(streamer_model_list_get(list, 1, &m), 0);
        ck_assert_str_eq(m.name, "b");
        ck_assert_str_eq(m.digest, "");
        ck_assert_uint_eq(m.bytes, UINT64_MAX);
        ck_assert_int_eq(streamer_model_list_get(list, 2, &m), STREAMER_ENOENT);
        streamer_model_list_free(list);
        fake_disconnect(&fake, c);
}

static void answer_unload(struct fake_daemon *f)
{
        fake_hello(f);
        fake_expect(f, VERB_unload);
        ck_assert(!f->request.u.unload.drain);
        fake_error(f, STREAMER_EBUSY, "unload: leased");
        fake_expect(f, VERB_unload);
        ck_assert(f->request.u.unload.drain);
        fake_ok(f);
}

TEST(unload_takes_the_drain_flag_and_no_other)
{
        streamer_client *c = fake_connect(&fake, answer_unload);
        ck_assert_int_eq(streamer_unload(c, "m", 0), STREAMER_EBUSY);
        ck_assert_int_eq(streamer_unload(c, "m", STREAMER_UNLOAD_DRAIN), 0);
        ck_assert_int_eq(streamer_unload(c, "m", 1u << 31), STREAMER_EINVAL);
        fake_disconnect(&fake, c);
}

/* ---- events ---- */

static void send_events(struct fake_daemon *f, size_t n)
{
        for (size_t i = 0; i < n; i++) {
                fake_event(f, "model", 1);
                writer_ku64(&f->message, "generation", i);
                fake_done(f);
        }
}

static void answer_subscribe(struct fake_daemon *f)
{
        fake_hello(f);
        fake_expect(f, VERB_subscribe);
        fake_reply(f, 0);
        fake_done(f);
        send_events(f, 2);
        fake_send(f, NULL, 0);
        fake_close(f);
}

TEST(events_right_after_the_subscription_are_queued)
{
        char *event;
        streamer_client *c = fake_connect(&fake, answer_subscribe);
        ck_assert_int_eq(streamer_event_next(c, 0, &event), STREAMER_EINVAL);
        CALL_GIVES(c, "subscribe", NULL, "{}");
        ck_assert_int_eq(streamer_event_next(c, 20000, &event), 0);
        ck_assert_str_eq(event, "{\"event\":\"model\",\"generation\":0}");
        free(event);
        ck_assert_int_eq(streamer_event_next(c, 20000, &event), 0);
        free(event);
        ck_assert_int_eq(streamer_event_next(c, 20000, &event), STREAMER_EUNREACHABLE);
        fake_disconnect(&fake, c);
}

static void flood(struct fake_daemon *f)
{
        fake_hello(f);
        fake_expect(f, VERB_subscribe);
        fake_ok(f);
        fake_expect(f, VERB_ping);
        send_events(f, 1500);
        fake_reply(f, 0);
        fake_done(f);
        fake_send(f, NULL, 0);
        ck_assert(fake_ends(f));
}

TEST(unread_events_are_counted_as_lost)
{
        char *event;
        streamer_client *c = fake_connect(&fake, flood);
        CALL_GIVES(c, "subscribe", NULL, "{}");
        CALL_GIVES(c, "ping", NULL, "{}");
        for (int i = 0; i < 1024; i++) {
                ck_assert_int_eq(streamer_event_next(c, 0, &event), 0);
                free(event);
        }
        ck_assert_int_eq(streamer_event_next(c, 0, &event), 0);
        ck_assert_str_eq(event, "{\"event\":\"lost\",\"count\":476}");
        free(event);
        ck_assert_int_eq(streamer_event_next(c, 0, &event), STREAMER_ETIMEOUT);
        fake_disconnect(&fake, c);
}
