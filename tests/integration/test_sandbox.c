/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon whose kernel has neither openat2 nor descriptors of processes, as in older gVisor and behind older filters
 * of system calls: everything works, by looking.
 */
#include "tests/lib/doctor.h"
#include "tests/lib/kept.h"
#include "tests/lib/person.h"
#include "tests/lib/puppet.h"
#include "tests/lib/refuse.h"
#include "tests/lib/suite.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOBODY 65534

static streamer_client *client;

static void refuse_newer_calls(void)
{
        refuse_openat2(ENOSYS);
        refuse_pidfds(EPERM);
        refuse_fsids(ENOSYS);
}

static void begin(void)
{
        daemon_before = refuse_newer_calls;
        stage_begin(NULL);
}

static void open_client(void)
{
        client = client_open(&stage);
}

static void close_client(void)
{
        streamer_close(client);
}

/* A process of its own that holds the witness. */
static pid_t holder(const struct daemon *d, const char *name)
{
        int ends[2];
        char byte;
        must(pipe(ends));
        pid_t pid = must(fork());
        if (pid == 0) {
                client_attach(client_open(d), name);
                must((int)write(ends[1], "", 1));
                pause();
        }
        ck_assert_int_eq(read(ends[0], &byte, 1), 1);
        close(ends[0]);
        close(ends[1]);
        return pid;
}

/* ---- processes ---- */

START_TEST(models_are_loaded_and_read)
{
        struct model *m = model_mixed(31, 1 << 20);
        client_load(client, stage_write(m, "m.safetensors"), "m");
        client_equals(client, "m", m);
        client_unload(client, "m");
        model_free(m);
        stage_still_serves();
}
END_TEST

START_TEST(a_process_that_was_killed_holds_nothing)
{
        pid_t pid = holder(&stage, "witness");
        ck_assert_uint_eq(client_leases(client), 1);
        must(kill(pid, SIGKILL));
        client_wait_leases(client, 0); /* nobody has waited for it */
        must(waitpid(pid, NULL, 0));
        stage_still_serves();
}
END_TEST

START_TEST(a_process_without_its_connection_holds_until_it_ends)
{
        struct puppet puppet;
        struct puppet_answer answer;
        struct model *m = puppet_model(9);
        client_load(client, stage_write(m, "p.safetensors"), "p");
        puppet_start(&puppet, stage.socket);
        puppet_attach(&puppet, 0, &(struct puppet_wish){.model = "p"}, &answer);
        ck_assert_msg(answer.result == 0 && !answer.wrong, "%s", answer.text);
        puppet_break(&puppet, false, &answer);
        pid_t other = holder(&stage, "witness"); /* when its end is seen the puppet has been looked at, too */
        must(kill(other, SIGKILL));
        must(waitpid(other, NULL, 0));
        client_wait_leases(client, 1);
        ck_assert_int_eq(streamer_unload(client, "p", 0), STREAMER_EBUSY);
        puppet_look(&puppet, &answer); /* it comes back for it */
        ck_assert_msg(answer.result == 0 && !answer.wrong, "%s", answer.text);
        puppet_break(&puppet, false, &answer);
        puppet_kill(&puppet);
        client_wait_leases(client, 0);
        client_unload(client, "p");
        model_free(m);
}
END_TEST

static char *path;

static int load_it(void)
{
        char text[1024];
        streamer_client *c = client_open(&stage);
        int r = client_load_result(c, path, "mine", text);
        streamer_close(c);
        return r;
}

static char *file_of(uid_t uid, const char *name)
{
        struct model *m = model_mixed(uid, 1 << 20);
        char *file = stage_write(m, name);
        must(chown(file, uid, uid));
        must(chmod(file, 0600));
        model_free(m);
        return file;
}

START_TEST(files_are_opened_as_who_asks)
{
        ROOT_ONLY();
        must(chmod(stage.socket, 0666));
        must(chmod(suite_folder(), 0755));
        must(chmod(stage_root(), 0755));
        for (int times = 0; times < 3; times++) { /* whichever thread it comes to */
                path = file_of(0, "roots.safetensors");
                ck_assert_int_eq(person_does(NOBODY, 0, load_it), STREAMER_EPERM);
                path = file_of(NOBODY + 1, "anothers.safetensors");
                ck_assert_int_eq(person_does(NOBODY, 0, load_it), STREAMER_EPERM);
        }
        path = file_of(NOBODY, "nobodys.safetensors");
        ck_assert_int_eq(person_does(NOBODY, 0, load_it), 0);
        client_load(client, file_of(NOBODY + 1, "anothers.safetensors"), "another"); /* root still may */
        client_unload(client, "another");
        client_unload(client, "mine");
        stage_still_serves();
}
END_TEST

START_TEST(doctor_tells_of_it)
{
        doctor_ask();
        ck_assert_int_eq(doctor_code, 0);
        doctor_found("warn", "kernel", "a few times a second");
        doctor_found("warn", "kernel", "openat2 is refused");
        doctor_found("ok", "probe", "attached");
}
END_TEST

/* ---- restarts ---- */

static void begin_kept(void)
{
        daemon_before = refuse_newer_calls;
        kept_begin();
}

/* What stands for a process ends with the daemon: were it stored, each would have died for the next run. */
START_TEST(a_lease_is_claimed_over_a_restart_by_its_row_alone)
{
        ABOUT_HOST_MEMORY();
        kept_load("m");
        streamer_lease *lease = client_attach(kept.client, "m");
        for (int runs = 0; runs < 2; runs++) {
                kept_restart(_i);
                client_ok(kept.client, streamer_lease_check(lease), "check");
                ck_assert_uint_eq(client_leases(kept.client), 1);
                ck_assert_int_eq(streamer_unload(kept.client, "m", 0), STREAMER_EBUSY);
                lease_equals(lease, kept.model);
        }
        ck_assert_uint_eq(manager_count(&kept.m, KEPT_PROCESSES), 0);
        streamer_detach(lease);
        client_unload(kept.client, "m");
        client_wait_used(kept.client, 0);
}
END_TEST

START_TEST(a_lease_that_nobody_claims_holds_nothing_over_a_restart)
{
        ABOUT_HOST_MEMORY();
        kept_load("m");
        pid_t pid = holder(&kept.m.d, "m");
        kept_restart_and_reconnect(_i);
        ck_assert_uint_eq(client_leases(kept.client), 0);
        client_equals(kept.client, "m", kept.model);
        client_unload(kept.client, "m");
        client_wait_used(kept.client, 0);
        must(kill(pid, SIGKILL));
        must(waitpid(pid, NULL, 0));
}
END_TEST

int main(void)
{
        suite_begin("sandbox");
        TCase *t = suite_group("processes", begin, stage_end, 60);
        tcase_add_checked_fixture(t, open_client, close_client);
        tcase_add_test(t, models_are_loaded_and_read);
        tcase_add_test(t, a_process_that_was_killed_holds_nothing);
        tcase_add_test(t, a_process_without_its_connection_holds_until_it_ends);
        tcase_add_test(t, files_are_opened_as_who_asks);
        tcase_add_test(t, doctor_tells_of_it);
        t = suite_group("restarts", NULL, NULL, 60);
        tcase_add_checked_fixture(t, begin_kept, kept_end);
        tcase_add_loop_test(t, a_lease_is_claimed_over_a_restart_by_its_row_alone, 0, 2);
        tcase_add_loop_test(t, a_lease_that_nobody_claims_holds_nothing_over_a_restart, 0, 2);
        return suite_run();
}
