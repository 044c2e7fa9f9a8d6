/* SPDX-License-Identifier: Apache-2.0
 *
 * Attach to a model that is loading, and inconsistent replies, against a scripted daemon.
 */
#include "tests/unit/attach_fixture.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* ---- while it loads ---- */

static void serve_and_see_it_closed(struct fake_daemon *f)
{
        fake_hello(f);
        fake_expect(f, VERB_attach);
        fake_model_attach(f, &m, f->request.id);
        ck_assert(fake_ends(f));
}

static void serve_loading(struct fake_daemon *f)
{
        fake_hello(f);
        fake_expect(f, VERB_attach);
        fake_model_attach(f, &m, f->request.id);
        fake_pause(f);
        fake_model_arrive(&m, 0);
        fake_model_arrive(&m, 2);
        fake_model_ready(f);
        fake_model_detach(f);
}

FIXTURE(.each = {begin, NULL});

TEST(tensors_are_returned_as_they_arrive)
{
        streamer_tensor t = STREAMER_TENSOR_INIT;
        m.loading = true;
        fake_model_arrive(&m, 1);
        streamer_lease *lease = attach(serve_loading, 0);
        ck_assert_str_eq(streamer_digest(lease), "");
        ck_assert_int_eq(streamer_tensor_get(lease, 0, &t), STREAMER_EBUSY);
        ck_assert_int_eq(streamer_tensor_find(lease, "b", &t), 0);
        ck_assert_int_eq(streamer_tensor_next(lease, 0, &t), 0);
        ck_assert_str_eq(t.name, "b");
        ck_assert_int_eq(streamer_tensor_next(lease, 0, &t), STREAMER_ETIMEOUT);
        fake_resume(&fake);
        ck_assert_int_eq(streamer_tensor_next(lease, -1, &t), 0);
        ck_assert_str_eq(t.name, "a");
        ck_assert_int_eq(streamer_tensor_next(lease, -1, &t), 0);
        ck_assert_str_eq(t.name, "e");
        ck_assert_int_eq(streamer_tensor_next(lease, -1, &t), STREAMER_EEND);
        ck_assert_str_eq(streamer_digest(lease), FAKE_DIGEST);
        ck_assert_int_eq(streamer_tensor_get(lease, 0, &t), 0);
        finish(lease);
}

static void serve_failing(struct fake_daemon *f)
{
        fake_hello(f);
        fake_expect(f, VERB_attach);
        fake_model_attach(f, &m, f->request.id);
        fake_model_failed(f, "failed", "the file changed");
        fake_model_detach(f);
}

TEST(a_failure_after_the_last_tensor_is_reported)
{
        streamer_tensor t = STREAMER_TENSOR_INIT;
        m.loading = true;
        fake_model_arrive(&m, 0);
        fake_model_arrive(&m, 1);
        fake_model_arrive(&m, 2);
        streamer_lease *lease = attach(serve_failing, 0);
        int rc;
        while ((rc = streamer_tensor_next(lease, -1, &t)) == 0)
                ;
        ck_assert_int_eq(rc, STREAMER_EFAILED);
        ck_assert_str_eq(streamer_last_error(client), "the file changed");
        ck_assert_str_eq(streamer_digest(lease), "");
        finish(lease);
}

TEST(a_daemon_lost_during_a_load_is_reported_after_the_arrived_tensors)
{
        streamer_tensor t = STREAMER_TENSOR_INIT;
        m.loading = true;
        fake_model_arrive(&m, 1);
        streamer_lease *lease = attach(serve_and_see_it_closed, 0);
        fake_disconnect(&fake, client);
        ck_assert_int_eq(streamer_tensor_next(lease, -1, &t), 0);
        ck_assert_int_eq(streamer_tensor_next(lease, -1, &t), STREAMER_EUNREACHABLE);
        streamer_detach(lease);
}

/* The next daemon's first lease has the number of the one before. */
static void serve_disconnect_and_serve_again(struct fake_daemon *f)
{
        fake_hello(f);
        fake_expect(f, VERB_attach);
        fake_model_attach(f, &m, f->request.id);
        fake_close(f);
        fake_hello(f);
        fake_expect(f, VERB_reclaim);
        fake_error(f, STREAMER_ELOST, "not held");
        fake_expect(f, VERB_attach);
        fake_model_attach(f, &m, f->request.id);
        fake_model_ready(f);
        fake_model_detach(f);
}

TEST(events_of_an_earlier_daemons_lease_are_ignored)
{
        streamer_tensor t = STREAMER_TENSOR_INIT;
        m.loading = true;
        streamer_lease *lost = attach(serve_disconnect_and_serve_again, 0), *lease;
        ck_assert_int_eq(streamer_tensor_next(lost, -1, &t), STREAMER_ELOST);
        for (uint32_t i = 0; i < 3; i++)
                fake_model_arrive(&m, i);
        ck_assert_int_eq(streamer_attach(client, "m", NULL, &lease), 0);
        for (int i = 0; i < 3; i++)
                ck_assert_int_eq(streamer_tensor_next(lease, -1, &t), 0);
        ck_assert_int_eq(streamer_tensor_next(lease, -1, &t), STREAMER_EEND);
        ck_assert_int_eq(streamer_tensor_next(lost, 0, &t), STREAMER_ELOST);
        ck_assert_str_eq(streamer_digest(lost), "");
        streamer_detach(lost);
        finish(lease);
}

TEST(an_inconsistent_arrival_log_is_corrupt)
{
        streamer_tensor t = STREAMER_TENSOR_INIT;
        m.loading = true;
        fake_model_arrive(&m, 3);
        streamer_lease *lease = attach(serve, 0);
        ck_assert_int_eq(streamer_tensor_next(lease, 0, &t), STREAMER_ECORRUPT);
        ck_assert_int_eq(streamer_tensor_get(lease, 0, &t), STREAMER_ECORRUPT);
        __atomic_store_n(&m.arrival->count, 4, __ATOMIC_RELEASE);
        ck_assert_int_eq(streamer_tensor_next(lease, 0, &t), STREAMER_ECORRUPT);
        finish(lease);
}

/* ---- an invalid reply ---- */

/* The attach fails, and the lease is given back. */
static void attach_fails(int code, const char *text)
{
        streamer_lease *lease;
        client = fake_connect(&fake, serve);
        ck_assert_int_eq(streamer_attach(client, "m", NULL, &lease), code);
        ck_assert_str_eq(streamer_last_error(client), text);
        fake_finish(&fake);
        streamer_close(client);
}

TEST(an_unknown_kind_of_handle_is_named)
{
        m.kind = "carrier-pigeon";
        attach_fails(STREAMER_EUNSUPPORTED, "attach: this library cannot map handles of kind 'carrier-pigeon'");
}

TEST(a_segment_smaller_than_announced_is_corrupt)
{
        m.segment_size = FAKE_SEGMENT + 4096;
        attach_fails(STREAMER_ECORRUPT, "segment: 8192 bytes were announced, 4096 are there");
}

TEST(a_segment_smaller_than_in_the_manifest_is_corrupt)
{
        m.segment_size = 64;
        attach_fails(STREAMER_ECORRUPT, "attach: a segment is smaller than the manifest says");
}

TEST(segments_that_differ_from_the_manifest_are_corrupt)
{
        m.n_segments = 2;
        attach_fails(STREAMER_ECORRUPT, "attach: the manifest has other segments than the reply");
}

TEST(an_inconsistent_manifest_is_corrupt)
{
        m.manifest->version = 99;
        attach_fails(STREAMER_ECORRUPT, "manifest: unknown version of the manifest");
}

TEST(an_arrival_log_of_another_model_is_corrupt)
{
        m.loading = true;
        m.arrival->capacity = 2;
        attach_fails(STREAMER_ECORRUPT, "arrival log: it does not fit the manifest");
}

TEST(a_corrupt_record_is_an_error_and_never_a_pointer)
{
        streamer_tensor t = STREAMER_TENSOR_INIT;
        m.records[1].offset = UINT64_MAX;
        streamer_lease *lease = attach(serve, 0);
        ck_assert_int_eq(streamer_tensor_get(lease, 0, &t), 0);
        ck_assert_int_eq(streamer_tensor_get(lease, 1, &t), STREAMER_ECORRUPT);
        ck_assert_str_eq(streamer_last_error(client), "tensor 1: a record lies outside its segment");
        finish(lease);
}

TEST(missing_descriptors_end_the_connection)
{
        streamer_lease *lease;
        m.loading = true;
        m.n_fds = 2;
        client = fake_connect(&fake, serve_and_see_it_closed);
        ck_assert_int_eq(streamer_attach(client, "m", NULL, &lease), STREAMER_EPROTO);
        fake_disconnect(&fake, client);
}

static void serve_impatient(struct fake_daemon *f)
{
        static const uint64_t told[] = {40000, 20000, 0};
        fake_hello(f);
        for (int i = 0; i < 3; i++) {
                fake_expect(f, VERB_attach);
                ck_assert_uint_eq(f->request.u.attach.timeout_ms, told[i]);
                fake_error(f, STREAMER_ETIMEOUT, "m: still loading");
        }
}

TEST(attach_sends_its_timeout)
{
        streamer_lease *lease;
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .timeout_ms = 40000};
        fake_start(&fake, serve_impatient);
        streamer_connect_opts options = {.struct_size = sizeof(options), .socket = fake.socket, .timeout_ms = 20000};
        ck_assert_int_eq(streamer_connect(&options, &client), 0);
        ck_assert_int_eq(streamer_attach(client, "m", &opts, &lease), STREAMER_ETIMEOUT);
        ck_assert_str_eq(streamer_last_error(client), "m: still loading");
        ck_assert_int_eq(streamer_attach(client, "m", NULL, &lease), STREAMER_ETIMEOUT);
        opts.timeout_ms = -1;
        ck_assert_int_eq(streamer_attach(client, "m", &opts, &lease), STREAMER_ETIMEOUT);
        fake_disconnect(&fake, client);
}

static void serve_late(struct fake_daemon *f)
{
        fake_hello(f);
        fake_expect(f, VERB_attach);
        uint64_t late = f->request.id;
        fake_expect(f, VERB_ping);
        uint64_t ping = f->request.id;
        fake_model_attach(f, &m, late);
        fake_model_detach(f);
        fake_reply_to(f, ping, 0);
        fake_done(f);
        fake_send(f, NULL, 0);
}

static int lowest_free(void)
{
        int fd = must(open("/dev/null", O_RDONLY));
        close(fd);
        return fd;
}

TEST(a_late_attach_is_released)
{
        streamer_lease *lease;
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .timeout_ms = 1};
        client = fake_connect(&fake, serve_late);
        ck_assert_int_eq(streamer_attach(client, "m", &opts, &lease), STREAMER_ETIMEOUT);
        int before = lowest_free();
        ck_assert_int_eq(streamer_call(client, "ping", NULL, NULL), 0);
        ck_assert_int_eq(lowest_free(), before);
        fake_finish(&fake);
        streamer_close(client);
}
