/* SPDX-License-Identifier: Apache-2.0
 *
 * The Debian packages in a booted system that never had them: installed, used, upgraded, removed, purged. Each test
 * boots the system of $STREAMERD_PACKAGES anew; tests/packages.sh, which makes it, says what is in its /packages.
 */
#include "tests/integration/container_fixture.h"

static const char *packages_unavailable(void)
{
        return getenv("STREAMERD_PACKAGES") == NULL ? "no packages: make check-packages" : NULL;
}

static void write_model(void)
{
        model = model_mixed(1, 1 << 20);
        model_write(model, suite_path("tiny.safetensors"));
}

static void start_system(void)
{
        if (!container_start(&boot, getenv("STREAMERD_PACKAGES"), suite_folder()))
                die("the system at %s does not boot", getenv("STREAMERD_PACKAGES"));
}

static void stop_system(void)
{
        container_stop(&boot);
}

/* A command of apt, with its output if it fails. It has the other packages in its cache. */
#define APT(arguments)                                                                                                 \
        "{ DEBIAN_FRONTEND=noninteractive apt-get -qq -y " arguments                                                   \
        " >/run/apt.log 2>&1 || { tail -n 30 /run/apt.log; false; }; }"
#define INSTALL(version) APT("--allow-downgrades install /packages/" version "/*.deb")

static void copy_model(void)
{
        char *path = format_text("/proc/%d/root/srv/models/tiny.safetensors", (int)boot.init), *out;
        int status = shell(&out, "install -m 644 '%s' '%s'", suite_path("tiny.safetensors"), path);
        ck_assert_msg(status == 0, "%s", out);
}

static void install_and_load(const char *version)
{
        SHELL(0, INSTALL("%s"), version);
        copy_model();
        SHELL(0, "streamerctl load /srv/models/tiny.safetensors");
}

FIXTURE(.all = {write_model, NULL}, .each = {start_system, stop_system}, .timeout = 600,
        .unavailable = packages_unavailable);

/* ---- installed ---- */

TEST(installed_the_service_runs_and_is_enabled)
{
        SHELL(0, INSTALL("new"));
        SHELL(0, "systemctl is-active streamerd.service streamerd.socket && "
                 "systemctl is-enabled streamerd.service streamerd.socket");
        ck_assert_str_eq(SHELL(0, "stat -c '%%U %%G %%a' /run/streamerd/streamerd.sock /etc/streamerd "
                                  "/etc/streamerd/streamerd.yaml"),
                         "streamerd streamerd 660\nroot streamerd 750\nroot streamerd 640\n");
        ck_assert_str_eq(SHELL(0, "stat -c %%U /proc/$(systemctl show streamerd.service -p MainPID --value)"),
                         "streamerd\n");
        SHELL(0, "dpkg --audit && dpkg --verify");
}

/* As docs/packages.md says. */
TEST(four_commands_lead_from_the_packages_to_a_loaded_model)
{
        SHELL(0, "useradd --create-home ada && mkdir /home/ada/packages && cp /packages/new/*.deb /home/ada/packages");
        char *path = format_text("/proc/%d/root/home/ada/tiny.safetensors", (int)boot.init), *out;
        ck_assert_int_eq(shell(&out, "install -m 644 '%s' '%s'", suite_path("tiny.safetensors"), path), 0);
        SHELL(0, "cd /home/ada/packages && " APT("install ./streamerd_*.deb"));
        SHELL(0, "cp /home/ada/tiny.safetensors /srv/models/");
        SHELL(0, "usermod --append --groups streamerd ada");
        SAYS("tiny  generation 1", "su ada -c 'streamerctl load /srv/models/tiny.safetensors'");
}

TEST(only_members_of_the_group_use_the_service)
{
        install_and_load("new");
        SHELL(0, "setpriv --reuid=nobody --regid=streamerd --clear-groups streamerctl verify tiny");
        SHELL(8, "setpriv --reuid=nobody --regid=nogroup --clear-groups streamerctl list");
        SHELL(1, "setpriv --reuid=nobody --regid=nogroup --clear-groups cat /etc/streamerd/streamerd.yaml");
}

TEST(a_policy_vetoes_the_start_and_the_restart)
{
        SHELL(0, "printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d");
        SHELL(0, INSTALL("previous"));
        SHELL(3, "systemctl is-active streamerd.service streamerd.socket");
        SHELL(0, "systemctl is-enabled streamerd.service streamerd.socket");
        SHELL(0, "systemctl start streamerd.service");
        char *before = property("MainPID");
        SHELL(0, INSTALL("new"));
        ck_assert(has_property("MainPID", before));
        ck_assert(has_property("ActiveState", "active"));
}

/* debian/tests, as autopkgtest runs them. */
TEST(the_packages_pass_their_own_tests)
{
        SHELL(0, APT("install autopkgtest"));
        SHELL(0, "autopkgtest --no-built-binaries --ignore-restrictions=isolation-container /packages/new/*.deb "
                 "/packages/new/*.dsc -- null >/run/tests 2>&1 || { tail -n 60 /run/tests; false; }");
        ck_assert_str_eq(SHELL(0, "grep '^[a-z]* *PASS' /run/tests | sort -u | wc -l"), "3\n");
}

/* ---- upgraded ---- */

static const char *const upgrades[][2] = {{"previous", "new"}, {"new", "previous"}};

/* In either direction. Of clients that connect again and again, one whose request is under way may lose its connection,
 * and none is refused. */
TEST(an_upgrade_and_a_rollback_keep_models_and_leases_and_refuse_no_client, EACH(upgrades))
{
        install_and_load(upgrades[_i][0]);
        struct attached a = attach();
        /* The snapshots, the segment, its record, the client's pidfd. */
        AWAIT(has_property("NFileDescriptorStore", "4"));
        char *before = property("MainPID");
        SHELL(0, "rm /srv/models/tiny.safetensors; echo '# ours' >>/etc/streamerd/streamerd.yaml");
        SHELL(0, "(while [ ! -e /run/over ]; do streamerctl --timeout 60 list; done; touch /run/ended) "
                 "</dev/null >/run/clients 2>&1 &");
        SHELL(0, INSTALL("%s"), upgrades[_i][1]);
        SHELL(0, "touch /run/over; while [ ! -e /run/ended ]; do sleep 0.1; done; "
                 "! grep 'cannot connect' /run/clients");
        SHELL(0, "grep tiny /run/clients");
        ck_assert(!has_property("MainPID", before));
        SHELL(0, "[ /usr/bin/streamerd -ef /proc/$(systemctl show streamerd.service -p MainPID --value)/exe ]");
        SAYS("\"model\"", "streamerctl verify tiny >&2 && streamerctl -o json ps");
        SHELL(0, "tail -n 1 /etc/streamerd/streamerd.yaml | grep '# ours'");
        struct attached second = attach();
        is_whole(&second);
        end_client(&second);
        is_whole(&a);
        end_client(&a);
}

/* The administrator's choice. */
TEST(an_upgrade_starts_no_service_that_is_disabled)
{
        SHELL(0,
              INSTALL("previous") " && systemctl disable --now streamerd.socket streamerd.service && " INSTALL("new"));
        SHELL(3, "systemctl is-active streamerd.service");
        SHELL(1, "systemctl is-enabled streamerd.service");
}

/* ---- removed ---- */

#define REMOVE(verb) APT(verb " streamerd libstreamer-client0 libstreamer-client-dev python3-streamerd")

TEST(removed_nothing_runs_or_holds_memory_and_the_settings_stay)
{
        install_and_load("new");
        struct attached a = attach();
        SHELL(0, REMOVE("remove"));
        SHELL(0, "! systemctl is-active streamerd.service streamerd.socket && ! ls -l /proc/*/exe 2>/dev/null | grep "
                 "streamerd && "
                 "[ ! -e /run/streamerd/streamerd.sock ] && [ -s /etc/streamerd/streamerd.yaml ]");
        /* PID 1 has no segment of a model. */
        SHELL(1, "ls -l /proc/1/fd | grep streamerd");
        is_whole(&a);
        end_client(&a);
        SHELL(0, INSTALL("new") " && systemctl is-active streamerd.service && systemctl is-enabled streamerd.service");
}

TEST(purged_only_the_models_and_the_user_stay)
{
        install_and_load("new");
        SHELL(0, REMOVE("purge"));
        char *left = SHELL(
                0, "find / -xdev -name '*streamer*' ! -path '/proc/*' ! -path '/packages/*' ! -path '/var/log/*'");
        ck_assert_str_eq(left, "");
        SHELL(0,
              "[ -e /srv/models/tiny.safetensors ] && getent passwd streamerd && ! systemctl cat streamerd.service && "
              "[ -z \"$(dpkg -l '*streamer*' 2>/dev/null | grep -v '^un' | grep '^[a-z][a-z] ')\" ]");
}
