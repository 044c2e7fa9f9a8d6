/* SPDX-License-Identifier: Apache-2.0
 *
 * Published models over the life of the daemon and of their publishers: what was committed survives, and nothing
 * remains of what was not. Each test has its own service manager. _i 0: SIGTERM, 1: kill -9.
 */
#include "tests/integration/published_fixture.h"

#include "tests/lib/endpoint.h"
#include "tests/lib/managed_daemon.h"

static void setup(void)
{
        managed_begin();
        opts = options("tiny");
        opts.base = managed_file();
}

/* Its segment and its commit record. */
static void await_stored(void)
{
        manager_wait(&managed.m, MANAGED_MODELS, 2);
}

FIXTURE(.each = {setup, managed_end});

TEST(a_published_model_survives_with_key_base_and_pin, .to = 2)
{
        const char *other[] = {"torch=2.7.0"};
        char digest[33];
        streamer_lease *lease = publish_model(client, &opts, 1);
        snprintf(digest, sizeof(digest), "%s", streamer_digest(lease));
        streamer_detach(lease);
        ok(client, streamer_pin(client, "tiny", 1));
        await_stored();
        for (int runs = 0; runs < 2; runs++) {
                managed_restart_and_reconnect(_i);
                lease = attach_model(client, &opts, 1);
                ck_assert_str_eq(streamer_digest(lease), digest);
                ck_assert_str_eq(streamer_metadata(lease, "streamerd.key.torch"), "2.6.0");
                streamer_detach(lease);
                json_decref(client_call(client, "verify", "{\"model\":\"tiny\"}"));
        }
        const json_t *model = client_show(client, "tiny");
        ck_assert(json_is_true(json_at(model, "pinned")));
        ck_assert_str_eq(json_text(model, "published.base"), managed_file());
        ck_assert_uint_eq(json_number(model, "published.uid"), getuid());
        opts.key = other;
        opts.n_key = 1;
        json_decref(find(client, &opts, "mismatch", NULL));
        client_unload(client, "tiny");
        manager_wait(&managed.m, MANAGED_MODELS, 0);
}

static const uint64_t five_floats = 20;

/* A generation that is made of one tensor, of bytes of this value. */
static streamer_lease *put_tensor(const char *state, int value)
{
        static const uint64_t shape[] = {5}, strides[] = {1};
        const streamer_published_tensor t = {.struct_size = sizeof(t),
                                             .name = "t",
                                             .dtype = "F32",
                                             .item = 4,
                                             .kind = STREAMER_PUBLISHED_PARAMETER,
                                             .rank = 1,
                                             .shape = shape,
                                             .strides = strides};
        streamer_lease *lease;
        streamer_publication *p = claim_of(client, &opts, state);
        ok(client, streamer_publish_begin(p, &five_floats, 1));
        memset(storage_of(client, p, 0), value, five_floats);
        ok(client, streamer_publish_tensor(p, &t));
        ok(client, streamer_publish_attribute(p, "step", "7"));
        ok(client, streamer_publish_commit(p, &lease));
        return lease;
}

/* Its memory counts against publish.keep as before. */
TEST(a_model_that_is_made_of_tensors_survives_as_such, .to = 2)
{
        streamer_tensor found = STREAMER_TENSOR_INIT;
        opts.flags = STREAMER_PUBLISH_TENSORS | STREAMER_PUBLISH_REPLACE;
        streamer_detach(put_tensor("absent", 3));
        await_stored();
        managed_restart_and_reconnect(_i);
        streamer_lease *first = client_attach(client, "tiny"), *second;
        ok(client, streamer_tensor_find(first, "t", &found));
        ck_assert_str_eq(found.dtype_name, "F32");
        ck_assert_int_eq(((const unsigned char *)found.data)[19], 3);
        ck_assert_str_eq(streamer_metadata(first, "step"), "7");
        json_decref(client_call(client, "verify", "{\"model\":\"tiny\"}"));
        second = put_tensor("hit", 4);
        streamer_publication *p = claim_of(client, &opts, "hit");
        fails(client, STREAMER_ELIMIT, "2 generations are in memory", streamer_publish_begin(p, &five_floats, 1));
        streamer_publish_abort(p);
        streamer_detach(second);
        streamer_detach(first);
}

/* ---- a base whose URL has a query, which is not persisted ---- */

static char *base_bytes;
static size_t base_size;
static _Atomic bool needs_query, base_has_changed;

static void answer_base(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        if (needs_query && strstr(request->path, "x=1") == NULL) {
                reply->status = 404;
                return;
        }
        reply->headers = format_text("ETag: \"%d\"\r\n", base_has_changed ? 2 : 1);
        endpoint_range(request, reply, base_bytes, base_size);
}

/* The client that does not name the base, and the one that does. */
static streamer_publish_opts unnamed;

static void publish_of_a_url(void)
{
        static struct endpoint web = {.answer = answer_base};
        base_bytes = file_read(managed_file(), &base_size);
        endpoint_start(&web);
        unnamed = opts;
        unnamed.base = NULL;
        opts.base = format_text("%s/base.safetensors?x=1", web.url);
        streamer_detach(publish_model(client, &opts, 1));
        await_stored();
}

TEST(an_unchanged_base_is_recognised_without_its_query, .to = 2)
{
        publish_of_a_url();
        for (int runs = 0; runs < 2; runs++) {
                managed_restart_and_reconnect(_i);
                json_decref(find(client, &unnamed, "hit", NULL));
                json_decref(find(client, &opts, "hit", NULL));
        }
}

/* That the server has nothing of this name does not say that the base is gone. */
TEST(a_base_that_needs_its_query_is_checked_by_those_who_name_it, .to = 2)
{
        streamer_found found = STREAMER_FOUND_INIT;
        needs_query = true;
        publish_of_a_url();
        managed_restart_and_reconnect(_i);
        fails(client, STREAMER_ENOENT,
              "tiny: its base cannot be checked: the query of its URL is not persisted, and without it: ",
              streamer_publish_find(client, &unnamed, &found, NULL));
        json_decref(find(client, &opts, "hit", NULL));
        ck_assert_str_eq(client_state(client, "tiny"), "ready");
}

/* A claim for the base as it is now replaces it. */
TEST(a_base_that_has_changed_does_not_match_without_its_query, .to = 2)
{
        streamer_found found = STREAMER_FOUND_INIT;
        publish_of_a_url();
        managed_restart_and_reconnect(_i);
        base_has_changed = true;
        fails(client, STREAMER_EFAILED,
              "tiny: its base cannot be checked: the query of its URL is not persisted, and without it the server "
              "gives "
              "another version (",
              streamer_publish_find(client, &unnamed, &found, NULL));
        json_decref(find(client, &opts, "mismatch", NULL));
        streamer_detach(commit_model(client, claim_of(client, &opts, "mismatch"), 2));
        json_decref(find(client, &opts, "hit", NULL));
        json_decref(find(client, &unnamed, "hit", NULL));
}

/* The publisher's own lease, which is writable for it alone. */
TEST(the_publisher_keeps_its_memory, .to = 2)
{
        streamer_tensor storage = STREAMER_TENSOR_INIT;
        streamer_lease *lease = publish_model(client, &opts, 1);
        await_stored();
        manager_wait(&managed.m, MANAGED_PROCESSES, 1);
        managed_restart(_i);
        ok(client, streamer_lease_check(lease));
        check_model(client, lease, 1);
        ok(client, streamer_published_storage(lease, 0, &storage));
        ((unsigned char *)(uintptr_t)storage.data)[0] ^= 1;
        json_decref(client_call(client, "verify", "{\"model\":\"tiny\"}"));
        ck_assert_uint_eq(client_leases(client), 1);
        streamer_detach(lease);
        client_wait_leases(client, 0);
}

/* The bytes stay readable for the process that made them. */
TEST(what_was_not_committed_is_lost, .to = 2)
{
        streamer_lease *lease;
        streamer_publication *p = filled(client, &opts);
        const unsigned char *weight = storage_of(client, p, 0);
        managed_restart(_i);
        fails(client, STREAMER_ELOST, "connection was lost", streamer_publish_commit(p, &lease));
        for (size_t i = 0; i < WEIGHT; i++)
                ck_assert_int_eq(weight[i], storage_byte(1, 0, i));
        streamer_publish_abort(p);
        ck_assert_str_eq(client_state(client, "tiny"), "");
        ck_assert_uint_eq(client_used(client), 0);
        manager_wait(&managed.m, MANAGED_MODELS, 0);
        streamer_detach(publish_model(client, &opts, 1));
}

/* ---- publishers that die ---- */

/* A process that writes a byte before its commit. */
static pid_t publisher_start(void)
{
        int ready[2];
        char byte = 0;
        streamer_lease *lease;
        must(pipe(ready));
        pid_t pid = must(fork());
        if (pid == 0) {
                streamer_client *c = client_open(&managed.m.d);
                streamer_publication *publication = filled(c, &opts);
                must(write(ready[1], &byte, 1));
                ok(c, streamer_publish_commit(publication, &lease));
                pause();
        }
        ck_assert_int_eq(read(ready[0], &byte, 1), 1);
        return pid;
}

/* Either it exists and is whole, or it does not exist. _i 1: it is ready, and the reply on its way. */
TEST(a_publisher_that_dies_during_the_commit_leaves_all_or_nothing, .to = 2)
{
        streamer_found found = STREAMER_FOUND_INIT;
        streamer_publication *claim = NULL;
        pid_t pid = publisher_start();
        while (_i == 1 && strcmp(client_state(client, "tiny"), "ready") != 0)
                ;
        child_kill(pid);
        opts.timeout_ms = -1;
        ok(client, streamer_publish_find(client, &opts, &found, &claim));
        ck_assert(_i == 0 || claim == NULL);
        if (claim != NULL)
                streamer_detach(commit_model(client, claim, 1));
        streamer_detach(attach_model(client, &opts, 1));
        client_wait_leases(client, 0);
        client_wait_used(client, CHARGED);
}
