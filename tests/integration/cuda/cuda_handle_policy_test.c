/* SPDX-License-Identifier: Apache-2.0
 *
 * Which clients receive GPU memory that clients can write to, and when the daemon trusts a detach. Raw clients on fake
 * GPUs, so only the daemon's reply counts.
 */
#include "tests/lib/gpu_fixture.h"
#include "tests/lib/run_as.h"
#include "tests/lib/wire.h"

#include <sched.h>
#include <sys/mount.h>

#define ANNE 60111
#define BERT 60112
#define SOCKET_GROUP 0

static const char *path;

/* cuda:0 hands out cuda-ipc, cuda:1 descriptors. */
static void start_with(const char *settings, const char *more)
{
        const struct gpu_daemon two = {
                .n = 2,
                .cuda = settings,
                .more = more,
                .devices = {"'cuda:0', budget: 64MiB", "'cuda:1', budget: 64MiB, handles: cuda-vmm-fd"}};
        must(chmod(suite_folder(), 0755));
        gpu_begin(&two);
        path = write_model(model_mixed(51, 1 << 20), "m.safetensors");
}

static void start(const char *settings)
{
        start_with(settings, NULL);
}

static void load(const char *device)
{
        client_ok(client, load_to(path, "m", device), device);
}

/* ---- actions ---- */

static bool attach(struct wire *w, uint64_t *lease)
{
        wire_connect(w, &test_daemon);
        wire_verb(w, "attach", 2, "model", "m");
        return wire_read(w) && object_u64(&w->reply.unpacked.data, "lease", lease);
}

/* Ends with the process. */
static int attaches(void)
{
        struct wire w;
        uint64_t lease;
        if (attach(&w, &lease))
                return 0;
        return object_str_eq(&w.reply.unpacked.data, "code", "denied") ? STREAMER_EPERM : STREAMER_EFAILED;
}

/* Only one lease is permitted, and it is on another model. */
static int attaches_one_too_many(void)
{
        struct wire w;
        uint64_t lease;
        wire_connect(&w, &test_daemon);
        wire_verb(&w, "attach", 2, "model", "n");
        if (!wire_read(&w) || !object_u64(&w.reply.unpacked.data, "lease", &lease))
                return STREAMER_EFAILED;
        wire_verb(&w, "attach", 3, "model", "m");
        return wire_read_code(&w, "limit") ? 0 : STREAMER_EFAILED;
}

static int attach_as(uid_t uid)
{
        int r = run_as(uid, SOCKET_GROUP, attaches);
        client_wait_leases(client, 0);
        return r;
}

static void attach_and_detach(void)
{
        struct wire w;
        struct request detach = {.verb = VERB_detach, .id = 3};
        if (!attach(&w, &detach.u.detach.lease) || !wire_request(&w, &detach) || !wire_read(&w))
                _exit(1);
}

/* ---- users ---- */

FIXTURE(.each = {NULL, fixture_stop});

TEST(writable_memory_is_not_shared_between_users)
{
        ROOT_ONLY();
        start(NULL);
        load("cuda:0");
        ck_assert_int_eq(attach_as(ANNE), 0);
        ck_assert_int_eq(attach_as(BERT), STREAMER_EPERM);
        ck_assert_int_eq(attach_as(getuid()), STREAMER_EPERM); /* the daemon's own, too */
        ck_assert_int_eq(attach_as(ANNE), 0);
}

TEST(a_model_being_restored_has_no_owner_yet)
{
        ROOT_ONLY();
        start(NULL);
        load("cuda:0");
        ck_assert_int_eq(attach_as(ANNE), 0);
        client_unload(client, "m");
        load("cuda:0");
        ck_assert_int_eq(attach_as(BERT), 0);
        ck_assert_int_eq(attach_as(ANNE), STREAMER_EPERM);
}

TEST(a_refused_attach_exposes_no_handle)
{
        ROOT_ONLY();
        start_with(NULL, "limits: {leases_per_uid: 1}\n");
        load("cuda:0");
        client_ok(client, load_to(path, "n", "cuda:1"), "n");
        ck_assert_int_eq(run_as(ANNE, SOCKET_GROUP, attaches_one_too_many), 0);
        ck_assert_int_eq(attach_as(BERT), 0);
}

/* Where the settings say so, and memory that clients can only read. */
static const struct {
        const char *settings, *device;
} shared[] = {{"across_uids: true", "cuda:0"}, {NULL, "cuda:1"}};

TEST(memory_may_be_shared_with_every_user, EACH(shared))
{
        ROOT_ONLY();
        start(shared[_i].settings);
        load(shared[_i].device);
        ck_assert_int_eq(attach_as(ANNE), 0);
        ck_assert_int_eq(attach_as(BERT), 0);
}

/* ---- detaching ---- */

/* In a PID namespace below the daemon's, which has this as its first process. */
static int attach_is_refused_with_advice(void)
{
        streamer_client *below = NULL;
        streamer_lease *lease = NULL;
        const streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = test_daemon.socket};
        if (mount("proc", "/proc", "proc", 0, NULL) < 0 || streamer_connect(&opts, &below) < 0)
                return 2;
        int r = streamer_attach(below, "m", NULL, &lease);
        const char *text = streamer_last_error(below);
        if (r < 0 && strstr(text, "daemon's PID namespace") != NULL && strstr(text, "cuda-vmm-fd") != NULL)
                return 0;
        fprintf(stderr, "%d: %s\n", r, text);
        return 1;
}

static int run_below(void)
{
        if (unshare(CLONE_NEWPID | CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
                return 2;
        pid_t pid = must(fork());
        if (pid == 0)
                _exit(attach_is_refused_with_advice());
        return child_wait(pid);
}

TEST(an_attach_in_a_pid_namespace_below_names_the_kind_that_works)
{
        start(NULL);
        load("cuda:0");
        pid_t pid = must(fork());
        if (pid == 0)
                _exit(run_below());
        int status = child_wait(pid);
        if (status == 2)
                SKIP("PID namespaces cannot be made here");
        ck_assert_int_eq(status, 0);
}

/* Memory of cuda-ipc by default, and a descriptor's whatever the settings. */
static const struct {
        const char *settings, *device;
} trusted[] = {{NULL, "cuda:0"}, {"trust_detach: false", "cuda:1"}};

TEST(a_trusted_detach_ends_the_lease, EACH(trusted))
{
        start(trusted[_i].settings);
        load(trusted[_i].device);
        pid_t pid = child_start(attach_and_detach);
        ck_assert_uint_eq(client_leases(client), 0);
        client_unload(client, "m");
        child_kill(pid);
}

TEST(an_untrusted_detach_ends_with_its_process)
{
        start("trust_detach: false");
        load("cuda:0");
        pid_t pid = child_start(attach_and_detach);
        ck_assert_uint_eq(client_leases(client), 1);
        ck_assert_int_eq(streamer_unload(client, "m", 0), STREAMER_EBUSY);
        client_ok(client, streamer_unload(client, "m", STREAMER_UNLOAD_DRAIN), "unload");
        ck_assert_uint_gt(client_used(client), 0);
        child_kill(pid);
        client_wait_leases(client, 0);
        client_wait_used(client, 0);
}
