/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the preload and reload tests: one daemon and `client` per test, configured by a file.
 */
#pragma once

#include "tests/lib/streamerctl.h"
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

#include <sys/socket.h>

/* A small ring: daemons that live for a moment must not be touching it when they end. */
#define COMMON                                                                                                         \
        "devices:\n  - host=64MiB\nio: {concurrency: 2, block_size: 1MiB}\nlimits:\n  preload_retry: 20ms\n  "         \
        "connections_per_uid: 40\n"

static char root[PATH_SIZE], *config;
static struct model *model;

__attribute__((format(printf, 1, 2))) static void configure(const char *format, ...)
{
        char rest[4096];
        FORMAT_ARGS(rest, format);
        char *text = format_text("roots: [%s]\n" COMMON "%s\n", root, rest);
        file_write(config, text, strlen(text));
}

/* A daemon for each test, in its process. */
static void begin(const char *rest)
{
        snprintf(root, sizeof(root), "%s", suite_path("root-%d", (int)getpid()));
        mkdir(root, 0755);
        must(chmod(suite_folder(), 0755));
        config = suite_path("config-%d.yaml", (int)getpid());
        configure("%s", rest);
        DAEMON_START(&test_daemon, suite_path("d-%d", (int)getpid()), "--config", config);
        client = client_open(&test_daemon);
        model = model_mixed(5, 1 << 18);
}

static void begin_default(void)
{
        begin("");
}

static char *write_model(const char *name)
{
        char *path = format_text("%s/%s", root, name);
        model_write(model, path);
        return path;
}

/* ---- requests ---- */

static bool row_is(size_t i, const char *state, uint64_t tries)
{
        const json_t *row = json_at(client_call(client, "status", NULL), format_text("preload.%zu", i));
        return strcmp(json_text(row, "state"), state) == 0 && json_number(row, "tries") >= tries;
}

static void await_row(size_t i, const char *state, uint64_t tries)
{
        ck_assert_msg(WITHIN(PATIENCE_MS, row_is(i, state, tries)), "preload[%zu] does not become %s", i, state);
}

static void await_log(const char *text)
{
        if (!log_wait_for(test_daemon.log, text))
                die("the log does not say \"%s\":\n%s", text, file_read(test_daemon.log, NULL));
}

/* The next message to the service manager that has this word. */
static void await_notify(const char *word)
{
        char text[4096];
        do {
                struct pollfd fd = {.fd = test_daemon.notify, .events = POLLIN};
                ck_assert_msg(must(poll(&fd, 1, PATIENCE_MS)) == 1, "no %s", word);
                ssize_t n = must(recv(test_daemon.notify, text, sizeof(text) - 1, 0));
                text[n] = '\0';
        } while (!strstr(text, word));
}

static void hangup(void)
{
        must(kill(test_daemon.pid, SIGHUP));
}

static void reload(int code, const char *text)
{
        ctl_says(test_daemon.socket, code, text, "reload", NULL);
}

static void is_served(const char *name)
{
        client_equals(client, name, model);
}
