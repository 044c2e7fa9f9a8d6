/* SPDX-License-Identifier: Apache-2.0
 *
 * The service on a real systemd hangs, crashes, restarts and stops, while clients hold leases and models are in the
 * manager's fd store.
 */
#include "tests/integration/systemd_fixture.h"

/* ---- watchdog ---- */

/* Once or more often: on a busy machine the watchdog may end the next one, too. */
static bool has_restarted(void)
{
        return !has_property("NRestarts", "0") && has_property("ActiveState", "active");
}

FIXTURE(.all = {begin, end}, .each = {afresh, NULL}, .timeout = 120, .unavailable = systemd_unavailable);

TEST(a_daemon_that_hangs_is_restarted)
{
        drop_in("WatchdogSec=1s\\nTimeoutAbortSec=1s");
        SHELL(0, "systemctl start streamerd; kill -STOP $(systemctl show streamerd.service -p MainPID --value)");
        AWAIT(has_restarted());
        SHELL(0, "streamerctl status");
}

TEST(a_responsive_daemon_is_not_restarted)
{
        drop_in("WatchdogSec=2s"); /* a busy machine may delay its loop */
        SHELL(0, "systemctl start streamerd");
        /* Signs of life over twice that time, in the manager's own count of time since the last one. */
        char *first = property("WatchdogTimestampMonotonic"), *last = NULL;
        for (int seen = 0; seen < 5;) {
                last = property("WatchdogTimestampMonotonic");
                seen += strcmp(last, first) != 0;
                first = format_text("%s", last);
        }
        ck_assert(has_property("NRestarts", "0"));
        ck_assert(has_property("ActiveState", "active"));
}

/* ---- restarting, with clients ---- */

/* In the fd store: the snapshots, the model's segment and its commit record; then the process's pidfd. */
#define A_MODEL "3"
#define A_MODEL_AND_ITS_USER "4"

static void load_tiny(void)
{
        SHELL(0, "systemctl start streamerd && streamerctl load /srv/models/tiny.safetensors");
}

static const char *const ends[] = {"restart", "kill -s KILL"};

TEST(models_and_leases_outlive_a_restart_and_a_crash, EACH(ends))
{
        load_tiny();
        AWAIT(has_property("NFileDescriptorStore", A_MODEL));
        struct attached a = attach();
        /* After more than a second: pidfds of shorter processes are not stored. */
        AWAIT(has_property("NFileDescriptorStore", A_MODEL_AND_ITS_USER));
        SHELL(0, "mv /srv/models/tiny.safetensors /srv/aside; systemctl %s streamerd.service", ends[_i]);
        if (_i == 1)
                AWAIT(has_restarted());
        /* The weights were restored and not read again, because their file is removed. */
        char *out = SHELL(0, "streamerctl verify tiny && streamerctl -o json ps");
        ck_assert_msg(strstr(out, "\"model\"") != NULL, "the lease is not known: %s", out);
        struct attached second = attach();
        is_whole(&second);
        end_client(&second);
        is_whole(&a);
        end_client(&a);
        SHELL(0, "mv /srv/aside /srv/models/tiny.safetensors");
}

/* ---- a start that fails ---- */

static bool serves_tiny(void)
{
        char *out;
        return container_shell(&boot, &out, "streamerctl verify tiny") == 0;
}

/* However many clients connect meanwhile. */
TEST(a_start_that_fails_costs_no_model_and_locks_no_later_start)
{
        load_tiny();
        AWAIT(has_property("NFileDescriptorStore", A_MODEL));
        SHELL(0, "mv /srv/models/tiny.safetensors /srv/aside; echo 'nonsense: 1' >>/etc/streamerd/streamerd.yaml;"
                 "! systemctl restart streamerd.service; for i in $(seq 40); do streamerctl --timeout 1 list "
                 ">/dev/null 2>&1 & done; wait;"
                 "! streamerctl --timeout 1 list");
        ck_assert(has_property("NFileDescriptorStore", A_MODEL));
        SHELL(0, "sed -i /nonsense/d /etc/streamerd/streamerd.yaml");
        AWAIT(serves_tiny());
        SHELL(0, "mv /srv/aside /srv/models/tiny.safetensors");
}

/* ---- stopping ---- */

TEST(stop_keeps_the_models_until_clean_where_the_manager_can)
{
        load_tiny();
        AWAIT(has_property("NFileDescriptorStore", A_MODEL));
        if (!has_property("FileDescriptorStorePreserve", "yes"))
                return skip("preserved", "systemd is older than 254");
        SHELL(0, "systemctl stop streamerd.socket streamerd.service && systemctl start streamerd && "
                 "streamerctl verify tiny");
        SHELL(0, "systemctl stop streamerd.socket streamerd.service && systemctl clean --what=fdstore streamerd && "
                 "systemctl start streamerd && ! streamerctl show tiny");
}

TEST(stop_does_not_wait_for_clients)
{
        load_tiny();
        struct attached a = attach();
        SHELL(0, "systemctl stop streamerd.service streamerd.socket");
        ck_assert(has_property("Result", "success"));
        is_whole(&a);
        end_client(&a);
}
