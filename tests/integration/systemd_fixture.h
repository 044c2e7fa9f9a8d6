/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of systemd_test and systemd_lifecycle_test: a container with systemd and the installed files.
 */
#pragma once

#include "tests/integration/container_fixture.h"

static inline void make_stage(const char *stage)
{
        const char *build = getenv("STREAMERD_BUILD");
        char *command = format_text("env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -s install DEPS=0 BUILD='%s' "
                                    "DESTDIR='%s' PREFIX=/usr >&2",
                                    build != NULL ? build : "build", stage);
        ck_assert_int_eq(system(command), 0); /* NOLINT: a command of our own */
}

/* For FIXTURE(.unavailable), which comes before begin(): the first call boots the container. */
static inline const char *systemd_unavailable(void)
{
        static bool tried;
        if (suite_short())
                return "not in the short set"; /* sanitizers find nothing in a unit */
        if (!tried)
                container_start(&boot, "/", suite_folder());
        tried = true;
        return boot.init == 0 ? "it cannot be booted in a container here" : NULL;
}

static inline void begin(void)
{
        char *stage = suite_path("stage"), *file = suite_path("tiny.safetensors");
        model = model_mixed(1, 1 << 20);
        model_write(model, file);
        make_stage(stage);
        SHELL(0,
              "set -e; cp -a '%s'/. /; systemctl daemon-reload; systemd-sysusers; systemd-tmpfiles --create;"
              "cp '%s' /srv/models/tiny.safetensors; chmod 644 /srv/models/tiny.safetensors",
              stage, file);
}

static inline void end(void)
{
        container_stop(&boot);
}

/* Each test begins with nothing started and the settings as installed. */
static inline void afresh(void)
{
        SHELL(0, "systemctl stop streamerd.socket streamerd.service; "
                 "systemctl reset-failed streamerd.service streamerd.socket 2>/dev/null; "
                 "systemctl clean --what=fdstore streamerd.service 2>/dev/null; "
                 "rm -rf /run/systemd/system/streamerd.service.d /etc/streamerd/streamerd.yaml; "
                 "systemctl daemon-reload; systemd-tmpfiles --create streamerd.conf");
}

static inline void drop_in(const char *lines)
{
        SHELL(0,
              "d=/run/systemd/system/streamerd.service.d; mkdir -p $d; printf '[Service]\\n%s\\n' >$d/test.conf; "
              "systemctl daemon-reload",
              lines);
}

/* Replaces the installed settings. */
static inline void settings(const char *lines)
{
        SHELL(0, "printf 'roots: [/srv/models]\\ndevices: [host=256MiB]\\n%s\\n' >/etc/streamerd/streamerd.yaml",
              lines);
}
