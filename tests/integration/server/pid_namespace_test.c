/* SPDX-License-Identifier: Apache-2.0
 *
 * Clients without a pid in the daemon's PID namespace, which is below theirs; and clients in containers, whose
 * namespaces are below the daemon's.
 */
#include "tests/lib/run_as.h"
#include "tests/lib/client_process.h"
#include "tests/lib/fixture.h"
#include "tests/lib/streamerctl.h"
#include "tests/lib/wire.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>

#define STRANGER 60201
#define SOCKET_GROUP 0

static bool begin(void)
{
        int ours = must(open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC));
        if (unshare(CLONE_NEWPID) < 0)
                return false;
        must(chmod(suite_folder(), 0755));
        fixture_begin(NULL);
        must(setns(ours, CLONE_NEWPID));
        close(ours);
        client = client_open(&test_daemon);
        return true;
}

static void end(void)
{
        client_wait_leases(client, 0);
        streamer_close(client);
        fixture_end();
}

#define BEGIN()                                                                                                        \
        do {                                                                                                           \
                if (!begin())                                                                                          \
                        SKIP("PID namespaces cannot be made here");                                                    \
        } while (0)

static void hold(struct client_process *process)
{
        struct client_answer answer;
        client_process_start(process, test_daemon.socket);
        client_process_attach(process, 0, &(struct attach_target){.model = "held"}, &answer);
        ck_assert_msg(answer.result == 0, "%s", answer.text);
}

static void load_held(void)
{
        client_load(client, fixture_write(seeded_model(7), "held.safetensors"), "held");
}

/* Attaches and closes the connection: the memory may still be mapped. */
static void create_orphan(void)
{
        struct wire w;
        wire_connect(&w, &test_daemon);
        wire_verb(&w, "attach", 1, "model", "held");
        ck_assert(wire_read(&w));
        wire_close(&w);
}

TEST(the_end_of_one_process_is_not_that_of_another)
{
        struct client_process first;
        BEGIN();
        load_held();
        hold(&first);
        pid_t second = child_start(create_orphan);
        client_process_kill(&first);
        client_wait_leases(client, 1);
        AWAIT(json_is_true(json_at(client_call(client, "ps", NULL), "leases.0.orphan")));
        child_kill(second);
        client_wait_leases(client, 0);
        end();
}

static int do_attach(void)
{
        streamer_client *c = client_open(&test_daemon);
        streamer_lease *lease;
        client_ok(c, streamer_attach(c, "held", NULL, &lease), "attach");
        json_t *ps = client_call(c, "ps", NULL), *row;
        size_t i, mine = 0;
        json_array_foreach(json_object_get(ps, "leases"), i, row)
        {
                mine += json_number(row, "uid") == STRANGER;
        }
        return json_array_size(json_object_get(ps, "leases")) == 2 && mine == 1 ? 0 : STREAMER_EFAILED;
}

TEST(each_process_has_its_own_user)
{
        struct client_process first;
        ROOT_ONLY();
        BEGIN();
        load_held();
        hold(&first);
        ck_assert_int_eq(run_as(STRANGER, SOCKET_GROUP, do_attach), 0);
        client_process_kill(&first);
        end();
}

/* ---- in a container ---- */

#define ID "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define POD "c3a1b2d4-0f1e-4a5b-9c8d-0123456789ab"

static char *group; /* a file with the control group of this process, as the daemon sees it */
static pid_t contained;
static bool mounted;

static void show_group(void)
{
        mounted = unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                  mount(group, format_text("/proc/%d/cgroup", (int)contained), NULL, MS_BIND, NULL) == 0;
        if (!mounted)
                fprintf(stderr, "no mounts\n");
}

TEST(a_client_in_a_container_is_listed_with_it)
{
        struct ctl r;
        ROOT_ONLY();
        contained = getpid();
        group = suite_file("cgroup", "4:memory:/\n0::/kubepods/burstable/pod" POD "/" ID "\n");
        daemon_before = show_group;
        fixture_begin(NULL);
        if (strstr(file_read(test_daemon.log, NULL), "no mounts") != NULL) {
                fixture_end();
                SKIP("nothing can be mounted here");
        }
        client = client_open(&test_daemon);
        load_held();
        ctl(&r, test_daemon.socket, "ps", NULL);
        ck_assert_msg(strstr(r.out, "CONTAINER") == NULL, "%s", r.out);
        streamer_lease *lease = client_attach(client, "held");
        const json_t *row = json_at(client_call(client, "ps", NULL), "leases.0");
        ck_assert_str_eq(json_text(row, "container"), ID);
        ck_assert_str_eq(json_text(row, "pod"), POD);
        ctl(&r, test_daemon.socket, "ps", NULL);
        ck_assert_msg(strstr(r.out, "CONTAINER") != NULL && strstr(r.out, " 0123456789ab ") != NULL &&
                              strstr(r.out, "POD") == NULL,
                      "%s", r.out);
        ctl(&r, test_daemon.socket, "ps", "-o", "wide", NULL);
        ck_assert_msg(strstr(r.out, "  " POD "\n") != NULL, "%s", r.out);
        streamer_detach(lease);
        end();
}

TEST(a_client_in_no_container_has_no_column_of_it)
{
        struct ctl r;
        fixture_begin(NULL);
        client = client_open(&test_daemon);
        load_held();
        streamer_lease *lease = client_attach(client, "held");
        const json_t *row = json_at(client_call(client, "ps", NULL), "leases.0");
        if (json_text(row, "container")[0] == '\0') { /* it may run in one */
                ctl(&r, test_daemon.socket, "ps", "-o", "wide", NULL);
                ck_assert_msg(strstr(r.out, "CONTAINER") == NULL && strstr(r.out, "POD") == NULL, "%s", r.out);
        }
        streamer_detach(lease);
        end();
}
