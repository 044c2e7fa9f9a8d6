/* SPDX-License-Identifier: Apache-2.0
 *
 * What streamerctl waits for: one of several models, an unload, a change of the list, and a daemon that is being
 * started.
 */
#include "tests/integration/cli_fixture.h"

#include <sched.h>

static char *text_of(int fd, char *text, size_t size, const char *expected)
{
        size_t n = strlen(text);
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        while (!strstr(text, expected)) {
                ck_assert_msg(must(poll(&ready, 1, PATIENCE_MS)) == 1, "no '%s' in: %s", expected, text);
                ssize_t got = must(read(fd, text + n, size - 1 - n));
                ck_assert_msg(got > 0, "ended without '%s': %s", expected, text);
                text[n += (size_t)got] = '\0';
        }
        return text;
}

static void start(struct ctl_running *running, const char *const *args)
{
        ctl_start(running, test_daemon.socket, args);
}
#define START(running, ...) start((running), (const char *const[]){__VA_ARGS__, NULL})

/* ---- wait ---- */

FIXTURE(.each = {fixture_begin_default, fixture_end}, .timeout = 120);

TEST(wait_any_returns_the_first_that_is_ready)
{
        char *file = fixture_write(model_mixed(1, 1 << 18), "a.safetensors");
        fixture_write(model_mixed(2, 1 << 18), "bad.safetensors");
        must(truncate(fixture_path("bad.safetensors"), 1000));
        RUN(1, "load", fixture_path("bad.safetensors"));
        PRINTS("witness\n", "wait", "--any", "bad", "witness", "-q");
        json_t *o = JSON("wait", "witness", "--any", "--json");
        ck_assert_str_eq(json_text(o, "state"), "ready");
        ck_assert_uint_gt(json_number(o, "generation"), 0);
        SAYS(3, "nobody: no such model", "wait", "--any", "bad", "nobody");
        SAYS(1, "streamerctl: bad: file-size", "wait", "--any", "bad", "bad");
        RUN(2, "wait", "witness", "--for=loaded");
        RUN(0, "load", file);
        RUN(0, "wait", "--for", "ready", "a", "witness");
}

TEST(wait_for_unloaded_ends_with_the_last_lease)
{
        struct ctl_running running;
        struct ctl r;
        streamer_client *c = client_open(&test_daemon);
        streamer_lease *lease = client_attach(c, "witness");
        RUN(0, "wait", "--for=unloaded", "nobody");
        r = RUN(5, "wait", "--for=unloaded", "witness", "--timeout", "0.1");
        ck_assert_ptr_nonnull(strstr(r.err, "witness: not unloaded after 0.1 s"));
        RUN(0, "unload", "witness", "--drain");
        RUN(5, "wait", "--for=unloaded", "witness", "--timeout", "0.1");
        START(&running, "wait", "--for=unloaded", "nobody", "witness", "--json");
        streamer_detach(lease);
        ctl_finish(&running, &r);
        ck_assert_msg(r.code == 0, "%s", r.err);
        ck_assert_str_eq(r.out, "{\"schema\":1,\"name\":\"nobody\",\"state\":\"unloaded\",\"generation\":0}\n"
                                "{\"schema\":1,\"name\":\"witness\",\"state\":\"unloaded\",\"generation\":0}\n");
        RUN(0, "load", fixture_path("witness.safetensors"));
        streamer_close(c);
}

TEST(wait_for_any_unloaded_prints_the_one)
{
        PRINTS("nobody  unloaded\n", "wait", "--any", "--for=unloaded", "witness", "nobody");
        RUN(5, "wait", "--any", "--for=unloaded", "witness", "--timeout", "0.1");
}

/* ---- list --watch ---- */

TEST(list_watch_follows_changes)
{
        char text[65536] = "", *file = fixture_write(model_mixed(1, 1 << 18), "new.safetensors");
        struct ctl_running running;
        START(&running, "list", "--watch");
        text_of(running.out, text, sizeof(text), "witness ");
        RUN(0, "load", file);
        text_of(running.out, text, sizeof(text), "new      ready");
        ck_assert_ptr_nonnull(strstr(text, "\n\nNAME "));
        ck_assert_ptr_null(strchr(text, '\033'));
        must(kill(running.pid, SIGTERM));
        must(waitpid(running.pid, NULL, 0));
}

/* ---- a daemon that is being started ---- */

/* It sleeps between two attempts to connect, or has ended. */
static char state_of(pid_t pid)
{
        const char *end = strrchr(file_read(format_text("/proc/%d/stat", (int)pid), NULL), ')');
        return end ? end[2] : '?';
}

/* The wait is short, and this process may be slower than that: then it is repeated. */
TEST(load_waits_for_a_daemon_that_is_being_started)
{
        struct ctl r = {.code = 4};
        char *socket = suite_path("soon");
        uint64_t end = clock_ns() + PATIENCE_MS * UINT64_C(1000000);
        while (r.code == 4 && clock_ns() < end) {
                struct ctl_running running;
                ctl_start(&running, socket, (const char *const[]){"load", fixture_path("witness.safetensors"), NULL});
                while (strchr("RD", state_of(running.pid)))
                        sched_yield();
                must(symlink(test_daemon.socket, socket));
                ctl_finish(&running, &r);
                must(unlink(socket));
        }
        ck_assert_msg(r.code == 0, "%d: %s", r.code, r.err);
        RUN(0, "list");
        ctl_says(socket, 4, "no daemon serves there", "load", fixture_path("witness.safetensors"), NULL);
}
