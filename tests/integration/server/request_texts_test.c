/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests that the daemon refuses: the code and the text of the reply. The connection is as good as before.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire.h"

#define DIGEST "00000000000000000000000000000000"
#define SOURCE "/nowhere/model.safetensors"

static char long_path[6000];
static const char *two_devices[] = {"cuda:7", "cuda:8"};

static const struct {
        struct request request;
        const char *code, *text;
} refused[] = {
        {{.verb = VERB_hello, .u.hello = {.min = 1, .max = 1}}, "protocol", "hello: repeated"},
        {{.verb = VERB_attach}, "invalid", "attach: a model or a digest is required"},
        {{.verb = VERB_attach, .u.attach = {.model = "witness", .digest = DIGEST}},
         "digest",
         "witness: its digest is not " DIGEST},
        {{.verb = VERB_attach, .u.attach = {.model = "witness", .device = "cuda:7"}},
         "not-found",
         "witness: not on device cuda:7 (it is on: "},
        {{.verb = VERB_show, .u.show = {.model = "witness", .device = "cuda:7"}},
         "not-found",
         "witness: not on device cuda:7"},
        {{.verb = VERB_reclaim, .u.reclaim = {.token = "12", .generation = 1, .digest = DIGEST}},
         "invalid",
         "reclaim: token: 32 hexadecimal digits are needed"},
        {{.verb = VERB_reclaim, .u.reclaim = {.token = DIGEST, .generation = 1, .digest = DIGEST}},
         "lost",
         "reclaim: the daemon does not hold this lease any more"},
        {{.verb = VERB_load, .u.load = {.source = SOURCE, .name = ""}}, "invalid", "name: empty"},
        {{.verb = VERB_load, .u.load = {.source = SOURCE, .name = "probe:1"}},
         "invalid",
         "name: 'probe:' begins the names of the daemon's own models"},
        {{.verb = VERB_load, .u.load = {.source = "probe:1"}},
         "invalid",
         "probe:1: only the daemon makes models of this kind"},
        {{.verb = VERB_load, .u.load = {.source = long_path}}, "invalid", "longer than a path can be"},
        {{.verb = VERB_load, .u.load = {.source = SOURCE, .layout = "rank", .pattern = "a/{rank}"}},
         "invalid",
         "pattern 'a/{rank}': it is matched with names of files, which have no '/'"},
        {{.verb = VERB_load,
          .u.load = {.source = SOURCE, .watch = true, .attach = true, .devices = {.v = two_devices, .n = 2}}},
         "invalid",
         "load: device: one of the devices must be named to attach to"},
        {{.verb = VERB_load, .u.load = {.source = SOURCE, .attach = true}},
         "invalid",
         "load: attach goes with watch, and not with dry_run"},
        {{.verb = VERB_load, .u.load = {.source = SOURCE, .watch = true, .attach = true, .dry_run = true}},
         "invalid",
         "load: attach goes with watch, and not with dry_run"},
        {{.verb = VERB_fetch, .u.fetch = {.source = SOURCE, .file = "f", .more = 9}},
         "not-found",
         "fetch: this connection has no transfer 9: its time is over"},
        {{.verb = VERB_publish_find, .u.publish_find = {.model = "m", .base = SOURCE, .base_model = "witness"}},
         "invalid",
         "publish_find: base and base_model exclude each other"},
};

static void begin(void)
{
        memset(long_path, 'x', sizeof(long_path) - 1);
        long_path[0] = '/';
        fixture_begin(NULL);
}

FIXTURE(.all = {begin, fixture_end}, .each = {fixture_connect, fixture_disconnect});

static void check_refused(struct wire *w, const struct request *request, const char *code, const char *text)
{
        ck_assert(wire_request(w, request));
        wire_read_error(w, code, text);
}

/* No second reply comes before that of the next request. */
static void answered_once(struct wire *w)
{
        wire_verb(w, "ping", 8, NULL, NULL);
        wire_reply_ok(w);
        ck_assert_uint_eq(wire_number(w, "id"), 8);
}

static void refused_once(struct request request, const char *code, const char *text)
{
        struct wire w;
        request.id = 7;
        wire_connect(&w, &test_daemon);
        check_refused(&w, &request, code, text);
        answered_once(&w);
        wire_close(&w);
}

TEST(a_request_is_refused_with_its_reason, EACH(refused))
{
        refused_once(refused[_i].request, refused[_i].code, refused[_i].text);
}

/* A worker finds out, after the request was deferred. */
TEST(a_later_failure_is_answered_once, .to = 8)
{
        char *absent = fixture_path("absent.safetensors");
        const struct request requests[] = {
                {.verb = VERB_load, .u.load = {.source = absent, .watch = true, .attach = true}},
                {.verb = VERB_load, .u.load = {.source = absent, .dry_run = true}},
                {.verb = VERB_fetch, .u.fetch = {.source = absent, .file = "config.json"}},
                {.verb = VERB_diff, .u.diff = {.model = "witness", .source = absent}},
                {.verb = VERB_publish_find, .u.publish_find = {.model = "m", .base = absent}},
                {.verb = VERB_doctor, .u.doctor = {.root = absent}},
                {.verb = VERB_wait, .u.wait = {.model = "absent.safetensors", .timeout_ms = 1}},
                {.verb = VERB_attach, .u.attach = {.model = "absent.safetensors", .timeout_ms = 1}},
        };
        struct request request = requests[_i];
        struct wire w;
        request.id = 7;
        wire_connect(&w, &test_daemon);
        ck_assert(wire_request(&w, &request));
        wire_reply(&w);
        ck_assert_uint_eq(wire_number(&w, "id"), 7);
        wire_told(&w, "absent.safetensors");
        answered_once(&w);
        wire_close(&w);
}

TEST(a_lease_is_on_a_device_of_its_load)
{
        struct request request = {.verb = VERB_load,
                                  .u.load = {.source = SOURCE,
                                             .watch = true,
                                             .attach = true,
                                             .device = fixture_device(),
                                             .devices = {.v = two_devices, .n = 1}}};
        refused_once(request, "invalid", format_text("load: device: the model is not loaded to %s", fixture_device()));
}

TEST(a_tensor_whose_name_exceeds_a_reply_is_not_shown)
{
        enum { LENGTH = 1000000 };
        char *name = must_alloc(LENGTH + 1);
        struct model *m = model_new(1);
        memset(name, 'x', LENGTH);
        name[LENGTH] = '\0';
        model_add(m, name, "U8", (uint64_t[]){4}, 1);
        client_load(client, fixture_write(m, "long.safetensors"), "long");
        struct request request = {.verb = VERB_show, .u.show = {.model = "long", .tensors = true}};
        refused_once(request, "unsupported", "tensor 0: its name does not fit a reply");
        client_unload(client, "long");
}

TEST(the_first_request_must_be_hello)
{
        struct wire w;
        struct request request = {.verb = VERB_ping, .id = 7};
        wire_open(&w, &test_daemon);
        check_refused(&w, &request, "protocol", "ping: the first request must be hello");
        wire_close(&w);
}

/* ---- what another connection holds, and what one holds already ---- */

TEST(a_lease_is_detached_by_its_own_connection_only)
{
        struct wire own, other;
        struct request attach = {.verb = VERB_attach, .id = 2, .u.attach = {.model = "witness"}};
        struct request detach = {.verb = VERB_detach, .id = 3};
        wire_connect(&own, &test_daemon);
        wire_connect(&other, &test_daemon);
        ck_assert(wire_request(&own, &attach));
        wire_read_ok(&own);
        detach.u.detach.lease = wire_number(&own, "lease");
        check_refused(&other, &detach, "not-found",
                      format_text("lease %ju: not held by this connection", (uintmax_t)detach.u.detach.lease));
        ck_assert_uint_eq(client_leases(client), 1);
        ck_assert(wire_request(&own, &detach));
        ck_assert(wire_read(&own));
        ck_assert_uint_eq(client_leases(client), 0);
        detach.id++;
        check_refused(&own, &detach, "not-found", "not held by this connection"); /* it has ended */
        wire_close(&own);
        wire_close(&other);
}

TEST(a_connection_has_one_probe_at_a_time)
{
        struct wire w;
        struct request probe = {.verb = VERB_probe, .id = 2};
        wire_connect(&w, &test_daemon);
        ck_assert(wire_request(&w, &probe));
        wire_read_ok(&w);
        probe.id++;
        check_refused(&w, &probe, "in-use", "probe: this connection has one already");
        wire_close(&w);
}
