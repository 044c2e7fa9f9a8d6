/* SPDX-License-Identifier: Apache-2.0
 *
 * Published models over the life of the daemon and of their publishers: what was committed survives, and nothing
 * remains of what was not. Each test has its own service manager. _i 0: SIGTERM, 1: kill -9.
 */
#include "tests/integration/published_fixture.h"

#include "tests/lib/managed_daemon.h"

static streamer_publish_opts opts;

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

TEST(a_published_model_survives, .to = 2)
{
        char digest[33];
        streamer_lease *lease = publish_model(managed.client, &opts, 1);
        snprintf(digest, sizeof(digest), "%s", streamer_digest(lease));
        streamer_detach(lease);
        await_stored();
        for (int runs = 0; runs < 2; runs++) {
                managed_restart_and_reconnect(_i);
                lease = attach_model(managed.client, &opts, 1);
                ck_assert_str_eq(streamer_digest(lease), digest);
                ck_assert_str_eq(streamer_metadata(lease, "streamerd.key.torch"), "2.6.0");
                streamer_detach(lease);
                json_decref(client_call(managed.client, "verify", "{\"model\":\"tiny\"}"));
        }
        client_unload(managed.client, "tiny");
        manager_wait(&managed.m, MANAGED_MODELS, 0);
}

static bool is_unloaded(void *name)
{
        return client_state(managed.client, name)[0] == '\0';
}

/* "witness" is unloaded because its base was replaced: the daemon has looked for such models. */
TEST(an_older_generation_of_the_base_may_survive_beside_it, .to = 2)
{
        char *other = suite_path("root/other.safetensors");
        streamer_publish_opts witness = options("witness");
        witness.base = other;
        model_write(model_mixed(3, 1 << 16), other);
        managed_load("m");
        model_write(model_mixed(9, 1 << 20), managed_file());
        streamer_detach(publish_model(managed.client, &opts, 1));
        streamer_detach(publish_model(managed.client, &witness, 1));
        manager_wait(&managed.m, MANAGED_MODELS, 6);
        managed_restart_and_reconnect(_i);
        model_write(model_mixed(4, 1 << 16), other);
        client_load(managed.client, other, "other");
        ck_assert(eventually(is_unloaded, (void *)(uintptr_t) "witness", 10000));
        ck_assert_str_eq(client_state(managed.client, "m"), "ready");
        json_decref(find(managed.client, &opts, "hit", NULL));
}

TEST(key_and_base_survive, .to = 2)
{
        const char *other[] = {"torch=2.7.0"};
        streamer_detach(publish_model(managed.client, &opts, 1));
        await_stored();
        managed_restart_and_reconnect(_i);
        opts.key = other;
        opts.n_key = 1;
        json_decref(find(managed.client, &opts, "mismatch", NULL));
        json_t *shown = client_call(managed.client, "show", "{\"model\":\"tiny\"}");
        json_t *published = json_object_get(json_array_get(json_object_get(shown, "models"), 0), "published");
        ck_assert_str_eq(json_text(published, "base"), managed_file());
        ck_assert_uint_eq(json_number(published, "uid"), getuid());
        json_decref(shown);
        model_write(model_mixed(9, 1 << 20), managed_file());
        json_decref(find(managed.client, &opts, "stale", NULL));
}

/* The publisher's own lease, which is writable for it alone. */
TEST(the_publisher_keeps_its_memory, .to = 2)
{
        streamer_tensor storage = STREAMER_TENSOR_INIT;
        streamer_lease *lease = publish_model(managed.client, &opts, 1);
        await_stored();
        manager_wait(&managed.m, MANAGED_PROCESSES, 1);
        managed_restart(_i);
        ok(managed.client, streamer_lease_check(lease));
        check_model(managed.client, lease, 1);
        ok(managed.client, streamer_published_storage(lease, 0, &storage));
        ((unsigned char *)(uintptr_t)storage.data)[0] ^= 1;
        json_decref(client_call(managed.client, "verify", "{\"model\":\"tiny\"}"));
        ck_assert_uint_eq(client_leases(managed.client), 1);
        streamer_detach(lease);
        client_wait_leases(managed.client, 0);
}

/* The bytes stay readable for the process that made them. */
TEST(what_was_not_committed_is_lost, .to = 2)
{
        streamer_lease *lease;
        streamer_publication *p = claim_of(managed.client, &opts, "absent");
        fill_storages(managed.client, p, 1);
        describe_tensors(managed.client, p);
        const unsigned char *weight = storage_of(managed.client, p, 0);
        managed_restart(_i);
        fails(managed.client, STREAMER_ELOST, "connection was lost", streamer_publish_commit(p, &lease));
        for (size_t i = 0; i < WEIGHT; i++)
                ck_assert_int_eq(weight[i], storage_byte(1, 0, i));
        streamer_publish_abort(p);
        ck_assert_str_eq(client_state(managed.client, "tiny"), "");
        ck_assert_uint_eq(client_used(managed.client), 0);
        manager_wait(&managed.m, MANAGED_MODELS, 0);
        streamer_detach(publish_model(managed.client, &opts, 1));
}

TEST(a_pinned_model_stays_pinned, .to = 2)
{
        streamer_detach(publish_model(managed.client, &opts, 1));
        ok(managed.client, streamer_pin(managed.client, "tiny", 1));
        await_stored();
        managed_restart_and_reconnect(_i);
        json_t *shown = client_call(managed.client, "show", "{\"model\":\"tiny\"}");
        ck_assert(json_is_true(json_object_get(json_array_get(json_object_get(shown, "models"), 0), "pinned")));
}

/* ---- publishers that die ---- */

/* A process that publishes "tiny" and stops at each step until it is told to go on. */
struct publisher {
        pid_t pid;
        int from, to;
};

static void step(const struct publisher *p)
{
        char byte = 0;
        if (write(p->from, &byte, 1) != 1 || read(p->to, &byte, 1) != 1)
                _exit(1);
}

static void publisher_run(const struct publisher *p)
{
        streamer_lease *lease;
        streamer_client *c = client_open(&managed.m.d);
        streamer_publication *publication = claim_of(c, &opts, "absent");
        step(p); /* claimed */
        fill_storages(c, publication, 1);
        describe_tensors(c, publication);
        step(p); /* filled */
        ok(c, streamer_publish_commit(publication, &lease));
        step(p); /* committed */
        _exit(0);
}

static void publisher_start(struct publisher *p)
{
        int up[2], down[2];
        must(pipe(up));
        must(pipe(down));
        *p = (struct publisher){.pid = must(fork()), .from = up[1], .to = down[0]};
        if (p->pid == 0)
                publisher_run(p);
        close(up[1]);
        close(down[0]);
        p->from = up[0];
        p->to = down[1];
}

/* It has made another step. */
static void publisher_await(const struct publisher *p)
{
        char byte;
        ck_assert_int_eq(read(p->from, &byte, 1), 1);
}

static void publisher_go(const struct publisher *p)
{
        char byte = 0;
        ck_assert_int_eq(write(p->to, &byte, 1), 1);
}

static void publisher_kill(struct publisher *p)
{
        must(kill(p->pid, SIGKILL));
        must(waitpid(p->pid, NULL, 0));
        close(p->from);
        close(p->to);
}

static bool is_claimable(void *arg)
{
        streamer_client *c = arg;
        streamer_found found = STREAMER_FOUND_INIT;
        ok(c, streamer_publish_find(c, &opts, &found, NULL));
        return strcmp(found.state, "absent") == 0;
}

/* _i: how many steps it has made. */
TEST(nothing_remains_of_a_publisher_that_dies_before_the_commit, .to = 2)
{
        struct publisher p;
        publisher_start(&p);
        publisher_await(&p);
        for (int i = 0; i < _i; i++) {
                publisher_go(&p);
                publisher_await(&p);
        }
        opts.flags = STREAMER_PUBLISH_NO_WAIT;
        json_decref(find(managed.client, &opts, "claimed", NULL));
        publisher_kill(&p);
        ck_assert(eventually(is_claimable, managed.client, 10000));
        client_wait_leases(managed.client, 0);
        client_wait_used(managed.client, 0);
        ck_assert_str_eq(client_state(managed.client, "tiny"), "");
        manager_wait(&managed.m, MANAGED_MODELS, 0);
        opts.flags = 0;
        streamer_detach(publish_model(managed.client, &opts, 2));
}

/* Either it exists and is whole, or it does not exist. */
TEST(a_publisher_that_dies_during_the_commit_leaves_all_or_nothing, .to = 2)
{
        struct publisher p;
        streamer_found found = STREAMER_FOUND_INIT;
        streamer_publication *claim = NULL;
        publisher_start(&p);
        publisher_await(&p);
        publisher_go(&p);
        publisher_await(&p);
        publisher_go(&p);
        while (_i == 1 && strcmp(client_state(managed.client, "tiny"), "ready") != 0)
                ; /* the reply is on its way */
        publisher_kill(&p);
        opts.timeout_ms = -1;
        ok(managed.client, streamer_publish_find(managed.client, &opts, &found, &claim));
        if (claim == NULL)
                streamer_detach(attach_model(managed.client, &opts, 1));
        else
                streamer_detach(commit_model(managed.client, claim, 1));
        streamer_detach(attach_model(managed.client, &opts, 1));
        client_wait_leases(managed.client, 0);
        client_wait_used(managed.client, CHARGED);
}

TEST(the_model_outlives_its_publisher)
{
        struct publisher p;
        publisher_start(&p);
        for (int i = 0; i < 3; i++) {
                publisher_await(&p);
                if (i < 2)
                        publisher_go(&p);
        }
        publisher_kill(&p);
        client_wait_leases(managed.client, 0);
        streamer_detach(attach_model(managed.client, &opts, 1));
        await_stored();
        managed_restart_and_reconnect(0);
        streamer_detach(attach_model(managed.client, &opts, 1));
}

static void race(void)
{
        streamer_client *c = client_open(&managed.m.d);
        streamer_found found = STREAMER_FOUND_INIT;
        streamer_publication *claim = NULL;
        opts.timeout_ms = -1;
        ok(c, streamer_publish_find(c, &opts, &found, &claim));
        streamer_lease *lease = claim != NULL ? commit_model(c, claim, 1) : attach_model(c, &opts, 1);
        check_model(c, lease, 1);
        _exit(claim != NULL ? 10 : 11);
}

/* One publishes, the others attach to what it made. */
TEST(of_several_publishers_one_wins)
{
        enum { RACERS = 5 };
        pid_t pids[RACERS];
        int publishers = 0, status;
        for (int i = 0; i < RACERS; i++)
                if ((pids[i] = must(fork())) == 0)
                        race();
        for (int i = 0; i < RACERS; i++) {
                must(waitpid(pids[i], &status, 0));
                ck_assert(WIFEXITED(status) && (WEXITSTATUS(status) == 10 || WEXITSTATUS(status) == 11));
                publishers += WEXITSTATUS(status) == 10;
        }
        ck_assert_int_eq(publishers, 1);
        client_wait_leases(managed.client, 0);
        client_wait_used(managed.client, CHARGED);
}
