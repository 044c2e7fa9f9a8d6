/* SPDX-License-Identifier: Apache-2.0
 *
 * streamerctl with several models, aliases, -q, lease ids, `run`, and after a refused source.
 */
#include "tests/integration/cli_fixture.h"

static const char *write_model(const char *file, uint64_t seed)
{
        return fixture_write(model_mixed(seed, 1 << 16), file);
}

static bool has(const struct ctl *r, const char *text)
{
        return strstr(r->out, text) != NULL;
}

/* ---- several models ---- */

FIXTURE(.all = {fixture_begin_default, fixture_end});

TEST(several_models_are_loaded_shown_pinned_verified_and_unloaded)
{
        const char *a = write_model("a.safetensors", 1), *b = write_model("b.safetensors", 2);
        struct ctl r = RUN(0, "load", a, b);
        ck_assert(has(&r, "a  generation") && has(&r, "\nb  generation"));
        r = RUN(0, "wait", "a", "b", "--timeout", "20");
        ck_assert(has(&r, "a  ready") && has(&r, "\nb  ready"));
        r = RUN(0, "show", "a", "b");
        ck_assert(has(&r, "name        a\n") && has(&r, "\n\nname        b\n"));
        ck_assert_str_eq(RUN(0, "pin", "a", "b").out, "a  pinned\nb  pinned\n");
        ck_assert_str_eq(RUN(0, "unpin", "a", "b").out, "a  unpinned\nb  unpinned\n");
        r = RUN(0, "verify", "a", "b");
        ck_assert(has(&r, "a  ok") && has(&r, "\nb  ok"));
        ck_assert_str_eq(RUN(0, "unload", "a", "b").out, "a  unloaded\nb  unloaded\n");
}

TEST(json_is_one_object_for_each_model)
{
        const char *a = write_model("a.safetensors", 1), *b = write_model("b.safetensors", 2);
        struct ctl r = RUN(0, "load", a, b, "--json");
        char *second = strchr(r.out, '\n') + 1;
        ck_assert_str_eq(json_text(json_loads(second, 0, NULL), "name"), "b");
        second[-1] = '\0';
        ck_assert_str_eq(json_text(json_loads(r.out, 0, NULL), "name"), "a");
        RUN(0, "rm", "a", "b");
}

TEST(a_failed_verb_sets_the_exit_code_and_the_others_run)
{
        struct ctl r;
        ctl(&r, test_daemon.socket, "verify", "nobody", "witness", NULL);
        ck_assert_int_eq(r.code, 3);
        ck_assert(has(&r, "witness  ok"));
        ck_assert_str_eq(r.err, "streamerctl: nobody: no such model\n");
        ctl(&r, test_daemon.socket, "load", fixture_path("none.safetensors"), write_model("a.safetensors", 1), NULL);
        ck_assert_int_eq(r.code, 3);
        ck_assert(has(&r, "a  generation"));
        RUN(0, "rm", "a");
}

/* ---- names ---- */

TEST(aliases_and_names_only)
{
        const char *a = write_model("a.safetensors", 1);
        ck_assert_str_eq(RUN(0, "-q", "load", a).out, "a\n");
        ck_assert_str_eq(RUN(0, "ls", "-q").out, "a\nwitness\n");
        ck_assert_str_eq(RUN(0, "list", "--quiet").out, "a\nwitness\n");
        ck_assert_str_eq(RUN(0, "show", "-q", "a").out, "a\n");
        SAYS(0, "step\n", "show", "-q", "witness", "--tensors");
        ck_assert_str_eq(RUN(0, "ps", "-q").out, "");
        ck_assert_str_eq(RUN(0, "rm", "a", "-q").out, "a\n");
}

TEST(a_resident_model_is_reported_instead_of_a_rate)
{
        const char *a = write_model("a.safetensors", 1);
        struct ctl r = RUN(0, "load", a);
        ck_assert(has(&r, "/s)") && !has(&r, "already resident"));
        r = RUN(0, "load", a);
        ck_assert(has(&r, "already resident") && !has(&r, "/s)"));
        SAYS(0, "already resident", "load", a, "--name", "alias");
        RUN(0, "rm", "a", "alias");
}

/* It has the form of an id in the Hugging Face cache. */
TEST(a_path_that_exists_takes_precedence_over_the_cache)
{
        must(mkdir(fixture_path("org"), 0755));
        write_model("org/name", 1);
        must(chdir(fixture_root()));
        setenv("HF_HUB_CACHE", fixture_path("no-cache"), 1);
        ck_assert_int_eq(setenv("STREAMERD_SOCKET", test_daemon.socket, 1), 0);
        streamer_client *c = client_open(&test_daemon);
        client_load(c, "org/name", NULL);
        ck_assert_str_eq(client_state(c, "name"), "ready");
        client_unload(c, "name");
        client_load_fails(c, "org/other", NULL, STREAMER_ENOENT, "no-cache");
}

static void no_row(const char *source, const char *name, int code)
{
        SAYS(code, name, "load", source);
        RUN(3, "show", name);
        RUN(3, "wait", name);
        struct ctl r = RUN(0, "list");
        ck_assert(!has(&r, name));
}

TEST(a_refused_source_adds_no_row)
{
        no_row("/etc/passwd", "passwd", 1);
        no_row("http://192.0.2.1/remote.safetensors", "remote", 8);
        must(symlink("/etc/passwd", fixture_path("link.safetensors")));
        no_row(fixture_path("link.safetensors"), "link", 1);
}

/* ---- leases ---- */

TEST(ps_takes_models_and_the_ids_that_it_prints)
{
        streamer_client *c = client_open(&test_daemon);
        streamer_lease *first = client_attach(c, "witness"), *second = client_attach(c, "witness");
        char *ids = strdup(RUN(0, "ps", "-q").out), *next = strchr(ids, '\n') + 1;
        next[-1] = next[strlen(next) - 1] = '\0';
        json_t *ps = JSON("ps", next, "--json");
        ck_assert_uint_eq(json_array_size(json_at(ps, "leases")), 1);
        ck_assert_int_eq((int)json_number(ps, "leases.0.id"), atoi(next));
        ck_assert_uint_eq(json_array_size(json_object_get(JSON("ps", "witness", "--json"), "leases")), 2);
        ck_assert_uint_eq(json_array_size(json_object_get(JSON("ps", "nobody", "--json"), "leases")), 0);
        RUN(3, "ps", "999999");
        streamer_detach(first);
        streamer_detach(second);
        client_wait_leases(c, 0);
}

TEST(run_holds_a_lease_and_exits_as_the_command)
{
        char digest[33];
        model_digest(fixture_witness, digest);
        char *script = format_text("test \"$STREAMER_MODEL\" = witness && test \"$STREAMER_DIGEST\" = %s && "
                                   "'%s' --socket '%s' ps -q witness && exit 7",
                                   digest, build_path("streamerctl"), test_daemon.socket);
        struct ctl r;
        ctl(&r, test_daemon.socket, "run", "witness", "--", "sh", "-c", script, NULL);
        ck_assert_msg(r.code == 7, "%d: %s", r.code, r.err);
        ck_assert_ptr_nonnull(strchr(r.out, '\n')); /* one lease */
        ck_assert_ptr_eq(strchr(r.out, '\n'), r.out + r.out_size - 1);
        ctl(&r, test_daemon.socket, "run", "witness", "--", "sh", "-c", "kill -KILL $$", NULL);
        ck_assert_int_eq(r.code, 137);
        streamer_client *c = client_open(&test_daemon);
        client_wait_leases(c, 0);
}

/* SIGTERM to streamerctl alone reaches the command. */
TEST(run_passes_signals_on)
{
        struct ctl_running running;
        struct ctl r;
        char *ready = suite_path("ready"),
             *script = format_text("trap 'exit 9' TERM; : >'%s'; while :; do sleep 0.01; done", ready);
        ctl_start(&running, test_daemon.socket,
                  (const char *const[]){"run", "witness", "--", "sh", "-c", script, NULL});
        while (access(ready, F_OK) != 0)
                poll(NULL, 0, 5);
        kill(running.pid, SIGTERM);
        ctl_finish(&running, &r);
        ck_assert_int_eq(r.code, 9);
}

TEST(keep_alive_unloads_a_model_without_leases)
{
        const char *a = write_model("a.safetensors", 1);
        RUN(0, "load", a);
        ck_assert_str_eq(RUN(0, "keep-alive", "a", "2h").out, "a  keep-alive 2h0m\n");
        struct ctl r = RUN(0, "list");
        ck_assert(has(&r, "1h59m") || has(&r, "2h0m"));
        ck_assert_str_eq(RUN(0, "keep-alive", "a", "default").out, "a  keep-alive none\n");
        RUN(0, "keep-alive", "a", "10ms");
        RUN(0, "wait", "a", "--for=unloaded");
        RUN(3, "keep-alive", "a", "10ms");
}

/* ---- memory ---- */

static void begin_small(void)
{
        fixture_begin((const char *const[]){"--device", "host=16MiB", NULL});
}

FIXTURE(.all = {begin_small, fixture_end});

/* --wait is a synonym. */
TEST(load_waits_for_memory)
{
        streamer_client *c = client_open(&test_daemon);
        const char *b = fixture_write(model_mixed(2, 9 << 20), "b.safetensors");
        client_load(c, fixture_write(model_mixed(1, 9 << 20), "a.safetensors"), "a");
        streamer_lease *lease = client_attach(c, "a");
        RUN(7, "load", b);
        RUN(5, "load", b, "--queue", "--timeout", "0.1");
        AWAIT(strcmp(json_text(client_show(c, "b"), "state"), "queued") == 0);
        ck_assert_str_eq(json_text(client_show(c, "b"), "devices.0.state"), "queued");
        RUN(5, "load", b, "--wait", "--timeout", "0.1");
        streamer_detach(lease);
        RUN(0, "wait", "b", "--timeout", "60"); /* a is evicted */
        RUN(0, "rm", "b");
}

/* ---- configuration ---- */

/* The row of a key; value and origin must be these. */
static void setting_is(const char *key, const char *value, const char *origin, const char *from)
{
        const json_t *row = json_find(json_at(JSON("config", "--json"), "settings"), "key", key);
        ck_assert_msg(row != NULL, "no row of %s", key);
        ck_assert_str_eq(json_text(row, "value"), value);
        ck_assert_str_eq(json_text(row, "origin"), origin);
        ck_assert_str_eq(json_text(row, "from"), from);
}

FIXTURE();

TEST(config_prints_each_value_with_its_origin)
{
        char *file = suite_path("config.yaml");
        const char *text = "limits: {loads: 7}\nio: {concurrency: 4, block_size: 2MiB}\n"
                           "hf: {token: hidden-secret}\ns3: {access_key: hidden-id, secret_key: \"file:/none\"}\n"
                           "preload: [{source: /none}]\n";
        file_write(file, text, strlen(text));
        setenv("RUNAI_STREAMER_CONCURRENCY", "5", 1);
        DAEMON_START(&test_daemon, suite_path("d-config"), "--config", file, "--device", "host=32MiB", "--root",
                     suite_folder(), "--block-size", "4MiB");
        setting_is("roots", suite_folder(), "flag", "--root");
        setting_is("devices", "host=32MiB", "flag", "--device");
        setting_is("limits.loads", "7", "file", file);
        setting_is("io.concurrency", "5", "environment", "RUNAI_STREAMER_CONCURRENCY");
        setting_is("io.block_size", "4MiB", "flag", "--block-size");
        setting_is("io.stall", "30s", "default", "");
        setting_is("log.level", "info", "default", "");
        setting_is("hf.token", "(redacted)", "file", file);
        setting_is("s3.secret_key", "file:/none", "file", file);
        setting_is("s3.access_key", "(redacted)", "file", file);
        setting_is("preload", "{ source: /none }", "file", file);
        struct ctl r = RUN(0, "config");
        ck_assert(has(&r, "ORIGIN") && has(&r, "flag --root") && !has(&r, "hidden"));
        text = "limits: {loads: 9}\nio: {concurrency: 4}\n";
        file_write(file, text, strlen(text));
        RUN(0, "reload");
        setting_is("limits.loads", "9", "file", file);
        setting_is("preload", "[]", "default", "");
        setting_is("hf.token", "(redacted)", "file", file); /* until a restart */
        ck_assert_int_eq(daemon_stop(&test_daemon), 0);
}

/* The values of a key, one a line. */
static char *settings_of(const char *key)
{
        char *text = "";
        const json_t *rows = json_at(JSON("config", "--json"), "settings");
        for (size_t i = 0; i < json_array_size(rows); i++)
                if (strcmp(json_text(json_array_get(rows, i), "key"), key) == 0)
                        text = format_text("%s%s\n", text, json_text(json_array_get(rows, i), "value"));
        return text;
}

TEST(config_prints_the_entries_of_lists_without_secrets)
{
        char *file = suite_path("lists.yaml");
        char *text = format_text(
                "roots: ['%s']\ndevices: [{device: host, budget: 64MiB, pages: 4k}]\n"
                "access: {roles: [{role: admin, users: [0, '*']},"
                "{role: load, groups: [7], roots: ['%s'], buckets: [], bytes: 3GiB}]}\n"
                "preload: [{source: 'https://h/m.safetensors?sig=hidden', name: n, pin: true, priority: 7, keep_alive: "
                "90s}]\n"
                "http: {allow_plain: [a, b], hosts: [{host: h, token: hidden},"
                "{host: 'http://i', user: u, password_file: /etc/p}]}\n"
                "s3: {sources: [{source: 's3://b/', access_key: hidden, secret_key: 'file:/k', unsigned: false}]}\n",
                suite_folder(), suite_folder());
        file_write(file, text, strlen(text));
        DAEMON_START(&test_daemon, suite_path("d-lists"), "--config", file);
        ck_assert_str_eq(settings_of("devices"), "host=64MiB\n");
        ck_assert_str_eq(settings_of("access.roles"),
                         format_text("{ role: admin, users: [0, \"*\"] }\n"
                                     "{ role: load, groups: [7], roots: [%s], buckets: [], bytes: 3GiB }\n",
                                     suite_folder()));
        ck_assert_str_eq(settings_of("preload"),
                         "{ source: https://h/m.safetensors, name: n, pin: true, priority: 7, keep_alive: 90s }\n");
        ck_assert_str_eq(settings_of("http.allow_plain"), "a\nb\n");
        ck_assert_str_eq(settings_of("http.hosts"), "{ host: h, token: (redacted) }\n"
                                                    "{ host: http://i, user: u, password_file: /etc/p }\n");
        ck_assert_str_eq(settings_of("s3.sources"),
                         "{ source: s3://b/, access_key: (redacted), secret_key: file:/k, unsigned: false }\n");
        ck_assert_int_eq(daemon_stop(&test_daemon), 0);
}
