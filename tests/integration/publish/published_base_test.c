/* SPDX-License-Identifier: Apache-2.0
 *
 * A published model and the model that it was made from: it is never found once the files of the base have changed.
 */
#include "tests/integration/published_fixture.h"

#include "tests/lib/endpoint.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/wire.h"

#include <fcntl.h>

static char *base;

static void connect_with_base(void)
{
        connect_client();
        base = suite_path("base-%d.safetensors", (int)getpid());
        write_base(base, 1);
        opts.base = base;
}

FIXTURE(.all = {daemon_begin_default, daemon_end}, .each = {connect_with_base, disconnect_client});

TEST(the_base_is_recorded)
{
        client_load(client, base, "base");
        streamer_lease *lease = publish_model(client, &opts, 1), *loaded = client_attach(client, "base");
        const json_t *model = client_show(client, "tiny");
        ck_assert_str_eq(json_text(model, "published.base"), base);
        ck_assert_str_eq(json_text(model, "published.base_digest"), streamer_digest(loaded));
        ck_assert_str_eq(streamer_metadata(lease, "streamerd.base"), base);
        streamer_detach(loaded);
        streamer_detach(lease);
        streamer_detach(attach_model(client, &opts, 1));
}

static char *base_bytes;
static size_t base_size;

static void answer_base(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        reply->headers = format_text("ETag: \"1\"\r\n");
        endpoint_range(request, reply, base_bytes, base_size);
}

/* The query may be a signature. */
TEST(clients_see_the_base_without_its_query)
{
        static struct endpoint web = {.answer = answer_base};
        base_bytes = file_read(base, &base_size);
        endpoint_start(&web);
        opts.base = format_text("%s/base.safetensors?X-Signature=s", web.url);
        streamer_lease *lease = publish_model(client, &opts, 1);
        ck_assert_str_eq(streamer_metadata(lease, "streamerd.base"), format_text("%s/base.safetensors", web.url));
        streamer_detach(lease);
        json_decref(find(client, &opts, "hit", NULL));
}

TEST(a_search_reads_nothing_from_the_base)
{
        streamer_detach(publish_model(client, &opts, 1));
        uint64_t before = process_read_bytes(test_daemon.pid);
        streamer_detach(attach_model(client, &opts, 1));
        ck_assert(process_read_no_model(test_daemon.pid, before));
}

/* Also by its name, and without naming it. */
TEST(the_base_may_be_named_by_a_resident_model)
{
        client_load(client, base, "base");
        opts.base = "base";
        streamer_detach(publish_model(client, &opts, 1));
        json_decref(find(client, &opts, "hit", NULL));
        opts.base = base;
        json_decref(find(client, &opts, "hit", NULL));
        opts.base = NULL;
        json_decref(find(client, &opts, "hit", NULL));
}

static void change_content(void)
{
        write_base(base, 2);
}

static void change_time(void)
{
        struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
        must(utimensat(AT_FDCWD, base, times, 0));
}

static void remove_it(void)
{
        must(unlink(base));
}

static void replace_it(void)
{
        char *other = suite_path("other.safetensors");
        write_base(other, 1);
        must(rename(other, base));
}

static void (*const changes[])(void) = {change_content, change_time, remove_it, replace_it};
#define CHANGES (sizeof(changes) / sizeof(changes[0]))

/* Its leases stay. */
TEST(a_changed_base_makes_it_stale, .to = CHANGES)
{
        streamer_lease *lease = publish_model(client, &opts, 1);
        changes[_i]();
        opts.base = NULL;
        json_decref(find(client, &opts, "stale", NULL));
        ck_assert_int_eq(streamer_attach(client, "tiny", NULL, &(streamer_lease *){NULL}), STREAMER_ENOENT);
        json_decref(find(client, &opts, "absent", NULL));
        streamer_detach(publish_model(client, &opts, 2));
        check_model(client, lease, 1);
        streamer_detach(lease);
}

TEST(a_base_that_changes_meanwhile_refuses_the_commit, .to = CHANGES)
{
        streamer_lease *lease;
        streamer_publication *p = filled(client, &opts);
        changes[_i]();
        const char *text =
                changes[_i] == remove_it ? "tiny: its base cannot be checked: " : "tiny: its base has changed since (";
        fails(client, STREAMER_EFAILED, text, streamer_publish_commit(p, &lease));
        ck_assert_str_eq(client_state(client, "tiny"), "");
        streamer_publish_abort(p);
        client_wait_used(client, 0);
}

/* Same headers, other weights; and another key is another field. */
TEST(another_base_does_not_match)
{
        static const char *other_key[] = {"torch=2.7.0"};
        char *other = suite_path("other-%d.safetensors", (int)getpid());
        write_base(other, 2);
        streamer_detach(publish_model(client, &opts, 1));
        opts.base = other;
        opts.key = other_key;
        opts.n_key = 1;
        json_t *differs = find(client, &opts, "mismatch", NULL);
        ck_assert_uint_eq(json_array_size(differs), 3);
        ck_assert_str_eq(json_text(differs, "0.field"), "base");
        ck_assert_str_eq(json_text(differs, "0.have"), base);
        ck_assert_str_eq(json_text(differs, "0.want"), other);
        opts = options("tiny");
        opts.base = other;
        json_decref(find(client, &opts, "mismatch", NULL));
}

/* The daemon has loaded both, and knows their digests. */
TEST(a_copy_of_the_base_matches_by_its_digest)
{
        char *copy = suite_path("copy-%d.safetensors", (int)getpid());
        write_base(copy, 1);
        client_load(client, base, "base");
        streamer_detach(publish_model(client, &opts, 1));
        opts.base = copy;
        json_decref(find(client, &opts, "mismatch", NULL));
        client_load(client, copy, "copy");
        json_decref(find(client, &opts, "hit", NULL));
}

/* Nobody has to search for it. */
TEST(a_new_generation_of_the_base_makes_it_stale)
{
        client_load(client, base, "base");
        streamer_lease *lease = publish_model(client, &opts, 1), *old = client_attach(client, "base");
        write_base(base, 2);
        client_load(client, base, "base");
        streamer_detach(old);
        ck_assert(WITHIN(10000, client_state(client, "tiny")[0] == '\0') ||
                  strcmp(client_state(client, "tiny"), "draining") == 0);
        check_model(client, lease, 1);
        streamer_detach(lease);
}

/* Waits until the daemon has looked for bases that were replaced: one that was, "witness", is unloaded. */
static void await_search(void)
{
        char *other = suite_path("witness-%d.safetensors", (int)getpid());
        streamer_publish_opts witness = options("witness");
        witness.base = other;
        write_base(other, 3);
        streamer_detach(publish_model(client, &witness, 3));
        write_base(other, 4);
        client_load(client, other, "witness's base");
        AWAIT(client_state(client, "witness")[0] == '\0');
}

/* It was loaded before the files were replaced that the published model was made from. */
TEST(an_older_generation_of_the_base_may_stay_resident)
{
        client_load(client, base, "base");
        streamer_lease *old = client_attach(client, "base");
        write_base(base, 2);
        streamer_detach(publish_model(client, &opts, 1));
        await_search();
        json_decref(find(client, &opts, "hit", NULL));
        client_load(client, base, "base");
        await_search();
        json_decref(find(client, &opts, "hit", NULL));
        streamer_detach(old);
}

/* What is resident was made from files that have changed since. */
TEST(a_resident_base_whose_files_have_changed_is_refused)
{
        streamer_found found = STREAMER_FOUND_INIT;
        client_load(client, base, "base");
        write_base(base, 2);
        opts.base = "base";
        fails(client, STREAMER_EFAILED, "have changed", streamer_publish_find(client, &opts, &found, NULL));
}

static void answer_nothing(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        reply->hang = true;
}

/* Its time includes the examination. _i 1: the connection ends first. */
TEST(a_search_that_ends_while_its_base_is_examined_claims_nothing, .to = 2)
{
        static struct endpoint silent = {.answer = answer_nothing};
        streamer_publication *claim = NULL;
        streamer_found found = STREAMER_FOUND_INIT;
        struct wire wire;
        endpoint_start(&silent);
        char *url = format_text("%s/m.safetensors", silent.url);
        unsigned before = process_fds(test_daemon.pid);
        if (_i == 0) {
                opts.base = url;
                opts.timeout_ms = 50;
                ck_assert_int_eq(streamer_publish_find(client, &opts, &found, &claim), STREAMER_ETIMEOUT);
        } else {
                wire_connect(&wire, &test_daemon);
                ck_assert(wire_request(
                        &wire, &(struct request){.verb = VERB_publish_find,
                                                 .id = 2,
                                                 .u.publish_find = {.model = "tiny", .base = url, .claim = true}}));
                AWAIT(silent.requests > 0);
                wire_close(&wire);
        }
        opts = options("tiny");
        opts.flags = STREAMER_PUBLISH_NO_WAIT;
        streamer_publish_abort(claim_of(client, &opts, "absent"));
        ck_assert(process_wait_fds(test_daemon.pid, before)); /* the daemon has ended its requests */
}

static const struct {
        const char *base;
        int code;
        const char *text;
} wrong_bases[] = {
        {"no such model", STREAMER_ENOENT, "no such model"},
        {"/no/such/file.safetensors", STREAMER_EFAILED, ""},
        {"https://example.com:0/x.safetensors", STREAMER_EINVAL, ""},
        {"tiny", STREAMER_ENOENT, "published itself"},
};

TEST(a_base_that_cannot_be_opened_is_refused, EACH(wrong_bases))
{
        streamer_found found = STREAMER_FOUND_INIT;
        opts.base = NULL;
        streamer_detach(publish_model(client, &opts, 1));
        opts.base = wrong_bases[_i].base;
        fails(client, wrong_bases[_i].code, wrong_bases[_i].text, streamer_publish_find(client, &opts, &found, NULL));
        json_decref(find(client,
                         &(streamer_publish_opts){.struct_size = sizeof(opts), .name = "tiny", .key = key, .n_key = 2},
                         "hit", NULL));
}
