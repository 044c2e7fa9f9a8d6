/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon on a kernel without openat2 and pidfds, as in older gVisor and behind older system call filters:
 * everything works with the fallbacks.
 */
#include "tests/lib/deny_syscalls.h"
#include "tests/lib/doctor_checks.h"
#include "tests/lib/managed_daemon.h"
#include "tests/lib/run_as.h"
#include "tests/lib/client_process.h"
#include "tests/lib/suite.h"

#define NOBODY 65534

static void refuse_newer_calls(void)
{
        deny_openat2(ENOSYS);
        deny_pidfds(EPERM);
        deny_fsids(ENOSYS);
}

static void begin(void)
{
        daemon_before = refuse_newer_calls;
        fixture_begin(NULL);
}

static void hold_witness(void)
{
        client_attach(client_open(&test_daemon), "witness");
}

static void hold_managed(void)
{
        client_attach(client_open(&managed.m.d), "m");
}

/* ---- processes ---- */

FIXTURE(.all = {begin, fixture_end}, .each = {fixture_connect, fixture_disconnect});

TEST(models_are_loaded_and_read)
{
        struct model *m = model_mixed(31, 1 << 20);
        client_load_equals(client, fixture_write(m, "m.safetensors"), "m", m);
        fixture_serves();
}

TEST(the_leases_of_a_killed_process_are_revoked)
{
        pid_t pid = child_start(hold_witness);
        ck_assert_uint_eq(client_leases(client), 1);
        must(kill(pid, SIGKILL));
        client_wait_leases(client, 0); /* it has not been reaped */
        must(waitpid(pid, NULL, 0));
        fixture_serves();
}

TEST(a_disconnected_process_keeps_its_leases_until_it_exits)
{
        struct client_process process;
        struct client_answer answer;
        struct model *m = seeded_model(9);
        client_load(client, fixture_write(m, "p.safetensors"), "p");
        client_process_start(&process, test_daemon.socket);
        client_process_attach(&process, 0, &(struct attach_target){.model = "p"}, &answer);
        ck_assert_msg(answer.result == 0 && !answer.mismatch, "%s", answer.text);
        client_process_break(&process, false, &answer);
        pid_t other = child_start(hold_witness); /* when its end is seen the process has been looked at, too */
        child_kill(other);
        client_wait_leases(client, 1);
        ck_assert_int_eq(streamer_unload(client, "p", 0), STREAMER_EBUSY);
        client_process_recheck(&process, &answer); /* the client reclaims it */
        ck_assert_msg(answer.result == 0 && !answer.mismatch, "%s", answer.text);
        client_process_break(&process, false, &answer);
        client_process_kill(&process);
        client_wait_leases(client, 0);
        client_unload(client, "p");
}

static char *path;

static int load_it(void)
{
        char text[1024];
        streamer_client *c = client_open(&test_daemon);
        int r = client_load_result(c, path, "mine", text);
        streamer_close(c);
        return r;
}

static char *file_of(uid_t uid, const char *name)
{
        struct model *m = model_mixed(uid, 1 << 20);
        char *file = fixture_write(m, name);
        must(chown(file, uid, uid));
        must(chmod(file, 0600));
        return file;
}

TEST(files_are_opened_as_the_caller)
{
        ROOT_ONLY();
        must(chmod(test_daemon.socket, 0666));
        must(chmod(suite_folder(), 0755));
        must(chmod(fixture_root(), 0755));
        for (int times = 0; times < 3; times++) { /* in every thread */
                path = file_of(0, "roots.safetensors");
                ck_assert_int_eq(run_as(NOBODY, 0, load_it), STREAMER_EPERM);
                path = file_of(NOBODY + 1, "anothers.safetensors");
                ck_assert_int_eq(run_as(NOBODY, 0, load_it), STREAMER_EPERM);
        }
        path = file_of(NOBODY, "nobodys.safetensors");
        ck_assert_int_eq(run_as(NOBODY, 0, load_it), 0);
        client_load(client, file_of(NOBODY + 1, "anothers.safetensors"), "another"); /* root still may */
        client_unload(client, "another");
        client_unload(client, "mine");
        fixture_serves();
}

TEST(doctor_reports_the_old_kernel)
{
        doctor_ask();
        ck_assert_int_eq(doctor_code, 0);
        doctor_found("warn", "kernel", "a few times a second");
        doctor_found("warn", "kernel", "no openat2");
        doctor_found("ok", "probe", "attached");
}

/* ---- restarts ---- */

static void begin_persisted(void)
{
        daemon_before = refuse_newer_calls;
        managed_begin();
}

FIXTURE(.each = {begin_persisted, managed_end});

/* The watch of a process ends with the daemon, so it must not be stored: the next run would take every process for
 * dead. */
TEST(a_lease_is_claimed_over_a_restart_by_its_row_alone, .to = 2)
{
        ABOUT_HOST_MEMORY();
        managed_load("m");
        streamer_lease *lease = client_attach(client, "m");
        for (int runs = 0; runs < 2; runs++) {
                managed_restart(_i);
                client_ok(client, streamer_lease_check(lease), "check");
                ck_assert_uint_eq(client_leases(client), 1);
                ck_assert_int_eq(streamer_unload(client, "m", 0), STREAMER_EBUSY);
                lease_equals(lease, managed.model);
        }
        ck_assert_uint_eq(manager_count(&managed.m, MANAGED_PROCESSES), 0);
        streamer_detach(lease);
        client_unload(client, "m");
        client_wait_used(client, 0);
}

/* It is found by its number, and holds the model until it exits. */
TEST(an_unclaimed_lease_ends_with_its_process_after_a_restart, .to = 2)
{
        ABOUT_HOST_MEMORY();
        managed_load("m");
        pid_t pid = child_start(hold_managed);
        managed_restart_and_reconnect(_i);
        ck_assert_uint_eq(client_leases(client), 1);
        client_equals(client, "m", managed.model);
        client_ok(client, streamer_unload(client, "m", STREAMER_UNLOAD_DRAIN), "unload");
        ck_assert_uint_gt(client_used(client), 0);
        child_kill(pid);
        client_wait_used(client, 0);
}
