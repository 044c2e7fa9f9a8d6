/* SPDX-License-Identifier: Apache-2.0
 *
 * `systemctl start streamerd` on a real systemd in a container, with the installed files: the units, the sandbox, the
 * order of start. systemd_lifecycle_test tests restarts; other programs test the messages to a service manager
 * without systemd.
 */
#include "tests/integration/systemd_fixture.h"
#include "tests/lib/daemon.h"
#include "tests/lib/nginx.h"
#include "tests/lib/ports.h"

/* ---- the files ---- */

FIXTURE(.all = {begin, end}, .each = {afresh, NULL}, .timeout = 120, .unavailable = systemd_unavailable);

TEST(the_units_are_valid)
{
        SHELL(0, "systemd-analyze verify --recursive-errors=yes --man=yes streamerd.service streamerd.socket");
}

TEST(systemd_analyze_rates_the_exposure_as_low)
{
        SHELL(0, "systemd-analyze security --offline=true --threshold=25 --no-pager "
                 "/usr/lib/systemd/system/streamerd.service");
}

TEST(no_privilege_is_requested)
{
        char *out = SHELL(0, "systemctl show streamerd.service -p OOMScoreAdjust -p LimitRTPRIO -p LimitNICE "
                             "-p AmbientCapabilities -p CapabilityBoundingSet");
        ck_assert_ptr_nonnull(strstr(out, "OOMScoreAdjust=0\n"));
        ck_assert_ptr_nonnull(strstr(out, "LimitRTPRIO=0\n"));
        ck_assert_ptr_nonnull(strstr(out, "LimitNICE=0\n"));
        ck_assert_ptr_nonnull(strstr(out, "AmbientCapabilities=\n"));
        ck_assert_ptr_nonnull(strstr(out, "CapabilityBoundingSet=\n"));
}

TEST(start_is_done_when_the_socket_serves)
{
        char *out = SHELL(0, "systemctl start streamerd && streamerctl load /srv/models/tiny.safetensors && "
                             "streamerctl verify tiny && stat -c '%%U %%G %%a' /run/streamerd/streamerd.sock");
        ck_assert_msg(strstr(out, "streamerd streamerd 660") != NULL, "%s", out);
        AWAIT(has_property("StatusText", "1 model resident, 0 leases"));
        out = SHELL(0, "stat -c %%U /proc/$(systemctl show streamerd.service -p MainPID --value)");
        ck_assert_str_eq(out, "streamerd\n");
}

TEST(an_early_client_is_served_when_the_daemon_is_ready)
{
        SHELL(0, "systemctl start streamerd.socket");
        ck_assert(has_property("ActiveState", "inactive"));
        SHELL(0, "streamerctl load /srv/models/tiny.safetensors");
        ck_assert(has_property("ActiveState", "active"));
}

TEST(a_member_of_the_group_loads_and_a_stranger_does_not)
{
        SHELL(0, "systemctl start streamerd; setpriv --reuid=nobody --regid=streamerd --clear-groups "
                 "streamerctl load /srv/models/tiny.safetensors");
        SHELL(8, "setpriv --reuid=nobody --regid=nogroup --clear-groups streamerctl list");
}

static bool answers(void)
{
        char *out;
        return container_shell(&boot, &out, "streamerctl status") == 0;
}

TEST(a_wrong_setting_fails_the_start_and_the_corrected_one_needs_no_command)
{
        SHELL(0, "echo 'nonsense: 1' >>/etc/streamerd/streamerd.yaml; ! systemctl start streamerd.service");
        ck_assert(has_property("ExecMainStatus", "2"));
        char *out = SHELL(0, "journalctl -b -u streamerd --no-pager -o cat | tail -20");
        ck_assert_msg(strstr(out, "nonsense") != NULL, "%s", out);
        SHELL(0, "sed -i /nonsense/d /etc/streamerd/streamerd.yaml");
        AWAIT(answers());
        ck_assert(has_property("ActiveState", "active"));
}

/* ---- reload ---- */

static bool serves(const char *name)
{
        char *out;
        return container_shell(&boot, &out, "streamerctl wait %s", name) == 0;
}

TEST(reload_applies_settings_and_drops_no_model)
{
        settings("");
        SHELL(0, "systemctl start streamerd && streamerctl load /srv/models/tiny.safetensors");
        char *before = property("MainPID");
        settings("preload: [{source: /srv/models/tiny.safetensors, name: second}]");
        SHELL(0, "systemctl reload streamerd && streamerctl show tiny");
        AWAIT(serves("second"));
        ck_assert(has_property("MainPID", before));
        ck_assert(has_property("ActiveState", "active"));
}

TEST(a_refused_reload_fails_with_the_reason)
{
        SHELL(0, "systemctl start streamerd && echo 'nonsense: 1' >>/etc/streamerd/streamerd.yaml && "
                 "! systemctl reload streamerd && streamerctl status");
        ck_assert(has_property("ActiveState", "active"));
        SAYS("nonsense: unknown key", "journalctl -b -u streamerd -o cat --no-pager | tail -5");
}

static bool has_applied(void)
{
        char *out;
        return container_shell(&boot, &out,
                               "journalctl -o cat --no-pager _SYSTEMD_INVOCATION_ID=$(systemctl show streamerd.service "
                               "-p InvocationID --value) | grep 'reload: applied'") == 0;
}

/* The manager shows it as reloading until READY=1. */
TEST(sighup_leaves_the_service_active)
{
        settings("");
        SHELL(0, "systemctl start streamerd");
        settings("log: {level: debug}");
        SHELL(0, "kill -HUP $(systemctl show streamerd.service -p MainPID --value)");
        AWAIT(has_applied());
        AWAIT(has_property("ActiveState", "active"));
}

/* ---- preload ---- */

TEST(a_failed_preload_is_reported_and_the_service_stays_up)
{
        settings("preload: [{source: /srv/models/absent.safetensors, name: absent}, "
                 "{source: /srv/models/tiny.safetensors}]");
        SHELL(0, "systemctl start streamerd");
        AWAIT(serves("tiny"));
        AWAIT(has_property("StatusText", "1 model resident, 0 leases; preload: 1 of 2 ready, 1 failed (absent)"));
        SAYS("preload: absent: ", "journalctl -b -u streamerd -o cat --no-pager MODEL=absent CODE=not-found");
        ck_assert(has_property("ActiveState", "active"));
        ck_assert(has_property("NRestarts", "0"));
}

/* ---- the journal ---- */

TEST(the_journal_has_fields)
{
        settings("log: {level: debug}");
        SHELL(0,
              "systemctl start streamerd && streamerctl load /srv/models/tiny.safetensors --name 'a=b c' && "
              "streamerctl cat 'a=b c' '%s' >/dev/null",
              model->tensors[0].name);
        char *said = SHELL(0, "journalctl -b -u streamerd -o json --no-pager 'MODEL=a=b c' "
                              "MESSAGE_ID=f556871bc85f4a2cb3e2fc44114610b9 | tail -1");
        static const char *const fields[] = {"\"GENERATION\":\"", "\"DEVICE\":\"host\"", "\"PRIORITY\":\"6\"",
                                             "\"SOURCE_KIND\":\"file\"", "\"SYSLOG_IDENTIFIER\":\"streamerd\""};
        for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
                ck_assert_msg(strstr(said, fields[i]) != NULL, "no %s in %s", fields[i], said);
        SAYS("\"CLIENT_PID\"", "journalctl -b -u streamerd -o json --no-pager MODEL='a=b c' | grep LEASE");
}

/* ---- inside the sandbox ---- */

TEST(metrics_are_served_from_inside_the_sandbox)
{
        settings("metrics: {listen: \"unix:/run/streamerd/metrics.sock\"}");
        SHELL(0, "systemctl start streamerd && streamerctl load /srv/models/tiny.safetensors");
        SAYS("ready", "curl -sf --unix-socket /run/streamerd/metrics.sock 'http://d/readyz?model=tiny'");
        SAYS("streamerd_models{state=\"ready\"} 1",
             "curl -sf --unix-socket /run/streamerd/metrics.sock http://d/metrics");
        unsigned port = free_port();
        char *listen = format_text("metrics: {listen: \"127.0.0.1:%u\"}", port);
        settings(listen);
        SHELL(0, "systemctl restart streamerd");
        SAYS("ok", "curl -sf http://127.0.0.1:%u/healthz", port);
}

/* LoadCredential= passes it, a setting names it, the web server requires it. */
TEST(a_credential_of_the_service_opens_a_store)
{
        if (nginx_unavailable() != NULL)
                return skip("credential", nginx_unavailable());
        struct nginx nginx;
        must(chmod(suite_folder(), 0755)); /* nginx' workers are another user */
        must(chmod(suite_path("tiny.safetensors"), 0644));
        unsigned port = free_port();
        char *servers = format_text("server { listen 127.0.0.1:%u; root '%s'; "
                                    "if ($http_authorization != 'Bearer s3cret') { return 403; } }",
                                    port, suite_folder());
        nginx_start_with(&nginx, suite_path("nginx"), servers, port);
        char *host = format_text("http: {hosts: [{host: \"http://127.0.0.1:%u\", token_file: hub-token}]}", port);
        settings(host);
        SHELL(0, "systemctl start streamerd");
        SAYS("credential 'hub-token': the service manager has passed none",
             "! streamerctl load http://127.0.0.1:%u/tiny.safetensors", port);
        drop_in("LoadCredential=hub-token:/etc/streamerd/hub-token");
        SHELL(0,
              "umask 077; echo s3cret >/etc/streamerd/hub-token; systemctl restart streamerd && "
              "streamerctl load http://127.0.0.1:%u/tiny.safetensors && streamerctl verify tiny",
              port);
        SHELL(1, "journalctl -b -u streamerd --no-pager | grep s3cret");
        nginx_stop(&nginx);
}
