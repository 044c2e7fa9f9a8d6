/* SPDX-License-Identifier: Apache-2.0
 *
 * The library with daemons of other versions: one that supports less, one that supports more, one with another
 * protocol; and manifests with larger items.
 */
#include "tests/unit/attach_fixture.h"

#include <string.h>
#include <unistd.h>

static void be_older(struct fake_daemon *f)
{
        fake_hello_older(f, "load.attach");
        fake_expect(f, VERB_ping);
        fake_ok(f);
        ck_assert(fake_ends(f));
}

FIXTURE(.each = {begin, NULL});

TEST(an_older_daemon_is_not_sent_what_it_does_not_support)
{
        streamer_lease *lease;
        client = fake_connect(&fake, be_older);
        ck_assert_int_eq(streamer_open(client, "/m", NULL, &lease), STREAMER_EUNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(streamer_last_error(client),
                                     "load.attach: the daemon (0.0.fake) is older than this "
                                     "library"));
        CALL_GIVES(client, "ping", NULL, "{}");
        fake_disconnect(&fake, client);
}

static void lack_a_verb(struct fake_daemon *f)
{
        fake_hello_older(f, "keep_alive");
        ck_assert(fake_ends(f));
}

TEST(an_older_daemon_that_lacks_a_verb_is_named)
{
        client = fake_connect(&fake, lack_a_verb);
        ck_assert_int_eq(streamer_keep_alive(client, "m", 1000), STREAMER_EUNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(streamer_last_error(client), "keep_alive: the daemon (0.0.fake) is older"));
        fake_disconnect(&fake, client);
}

/* A verb unknown to this library: its request is sent as it is. */
static void be_newer(struct fake_daemon *f)
{
        static const char reply[] = "\x83\xa2id\x01\xa2ok\xc3\xa5"
                                    "later\xa3yes";
        unsigned char header[FRAME_HEADER];
        const void *data;
        size_t len, room;
        fake_hello_newer(f, "levitate");
        while (frame_reader_next(&f->in, &data, &len) == 0) {
                void *space = frame_reader_space(&f->in, &room);
                frame_reader_added(&f->in, (size_t)must(read(f->fd, space, room)));
        }
        ck_assert_ptr_nonnull(memmem(data, len, "levitate", 8));
        fake_event(f, "tomorrow", 1); /* an event of a kind that does not exist yet */
        writer_ku64(&f->message, "x", 1);
        fake_done(f);
        fake_send(f, NULL, 0);
        frame_put_header(header, sizeof(reply) - 1);
        fake_raw(f, header, sizeof(header));
        struct message sent;
        ck_assert_int_eq(message_decode(&sent, data, len), 0);
        uint64_t id = 0;
        object_u64(&sent.unpacked.data, "id", &id);
        ck_assert_uint_lt(id, 128);
        char copy[sizeof(reply)];
        memcpy(copy, reply, sizeof(reply));
        copy[4] = (char)id;
        fake_raw(f, copy, sizeof(reply) - 1);
        message_deinit(&sent);
        ck_assert(fake_ends(f));
}

TEST(a_verb_of_a_newer_daemon_is_sent_as_it_is)
{
        client = fake_connect(&fake, be_newer);
        CALL_GIVES(client, "levitate", NULL, "{\"later\":\"yes\"}");
        fake_disconnect(&fake, client);
}

static uint64_t protocol;

static void speak(struct fake_daemon *f)
{
        fake_accept(f);
        fake_expect(f, VERB_hello);
        fake_reply(f, 1);
        writer_ku64(&f->message, "protocol", protocol);
        fake_done(f);
        fake_send(f, NULL, 0);
}

TEST(another_protocol_version_names_the_older_side, .to = 2)
{
        streamer_client *c;
        protocol = _i == 0 ? PROTOCOL_MIN - 1 : PROTOCOL_MAX + 1;
        fake_start(&fake, speak);
        streamer_connect_opts opts = STREAMER_CONNECT_OPTS_INIT;
        opts.socket = fake.socket;
        ck_assert_int_eq(streamer_connect(&opts, &c), STREAMER_EPROTO);
        ck_assert_ptr_nonnull(
                strstr(streamer_last_error(NULL), _i == 0 ? "the daemon is older" : "the library is older"));
        fake_finish(&fake);
}

static void attach_in_a_strange_state(struct fake_daemon *f)
{
        fake_hello(f);
        fake_expect(f, VERB_attach);
        m.state = "compacting";
        fake_model_attach(f, &m, f->request.id);
        fake_model_detach(f);
}

TEST(a_lease_in_an_unknown_state_is_refused_and_released)
{
        streamer_lease *lease;
        client = fake_connect(&fake, attach_in_a_strange_state);
        ck_assert_int_eq(streamer_attach(client, "m", NULL, &lease), STREAMER_EUNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(streamer_last_error(client), "it is older than the daemon"));
        fake_disconnect(&fake, client);
}

static void attach_with_a_later_dtype(struct fake_daemon *f)
{
        m.records[0].dtype = 200;
        serve(f);
}

TEST(a_dtype_of_a_newer_daemon_is_named_and_the_others_are_read)
{
        streamer_tensor t = STREAMER_TENSOR_INIT;
        streamer_lease *lease = attach(attach_with_a_later_dtype, 0);
        ck_assert_int_eq(streamer_tensor_get(lease, 0, &t), STREAMER_EUNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(streamer_last_error(client), "dtype number 200"));
        ck_assert_int_eq(streamer_tensor_get(lease, 1, &t), 0);
        finish(lease);
}

static void attach_with_larger_items(struct fake_daemon *f)
{
        fake_model_enlarge(&m);
        m.loading = true;
        fake_model_arrive(&m, 1);
        fake_hello(f);
        fake_expect(f, VERB_attach);
        fake_model_attach(f, &m, f->request.id);
        fake_model_detach(f);
}

TEST(larger_headers_and_items_are_stepped_over)
{
        const char *key, *value;
        streamer_tensor t = STREAMER_TENSOR_INIT;
        streamer_lease *lease = attach(attach_with_larger_items, 0);
        ck_assert_int_eq(streamer_tensor_next(lease, 0, &t), 0);
        ck_assert_str_eq(t.name, "b");
        ck_assert_mem_eq(t.data, "BBBBBBBB", 8);
        ck_assert_int_eq(streamer_tensor_find(lease, "a", &t), STREAMER_EBUSY);
        ck_assert_uint_eq(streamer_metadata_count(lease), 1);
        ck_assert_int_eq(streamer_metadata_get(lease, 0, &key, &value), 0);
        ck_assert_str_eq(key, "format");
        ck_assert_str_eq(value, "pt");
        ck_assert_int_eq(streamer_metadata_get(lease, 1, &key, &value), STREAMER_ENOENT);
        finish(lease);
}
