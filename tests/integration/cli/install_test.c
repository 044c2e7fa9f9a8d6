/* SPDX-License-Identifier: Apache-2.0
 *
 * `make install` and `make uninstall` below a directory, and the build's commit in the programs.
 */
#include "tests/lib/streamerctl.h"
#include "tests/lib/daemon.h"
#include "tests/lib/suite.h"

static const char *stage;

/* Runs make for this build, with its output. */
static char *make(const char *target)
{
        char *out;
        const char *build = getenv("STREAMERD_BUILD");
        int status = shell(
                &out, "env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -s %s DEPS=0 BUILD='%s' DESTDIR='%s' PREFIX=/usr",
                target, build ? build : "build", stage);
        ck_assert_msg(status == 0, "%s", out);
        return out;
}

static void begin(void)
{
        stage = suite_path("stage");
}

FIXTURE(.all = {begin, NULL}, .timeout = 120);

static const char *const steps[] = {"ldconfig", "systemd-sysusers", "systemd-tmpfiles --create", "daemon-reload"};

TEST(install_says_what_remains_and_uninstall_leaves_no_file)
{
        char *left, *said = make("install");
        for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
                ck_assert_msg(strstr(said, steps[i]) != NULL, "%s", said);
        file_write(suite_path("stage/usr/lib/other"), "", 0);
        make("uninstall");
        shell(&left, "find '%s' ! -type d", stage);
        ck_assert_str_eq(left, format_text("%s/usr/lib/other\n", stage));
        ck_assert_int_ne(access(suite_path("stage/usr/share/doc"), F_OK), 0);
}

/* Whoever installs, with whatever umask; and without the source tree. */
TEST(installed_documents_are_readable_and_refer_to_installed_files)
{
        char *out;
        umask(077);
        make("install");
        shell(&out, "find '%s' -type f ! -perm -444", stage);
        ck_assert_str_eq(out, "");
        shell(&out,
              "cd '%s/usr/share/doc/streamerd' && grep -oE '\\]\\([^)#]*' *.md | grep -v '://' | sed 's/](//' | sort "
              "-u | "
              "while IFS=: read -r page file; do [ -z \"$file\" ] || [ -e \"$file\" ] || echo \"$page: $file\"; done",
              stage);
        ck_assert_str_eq(out, "");
        shell(&out, "cd '%s' && grep -rnE '(^|[^/.a-z])docs/[a-z]+\\.md' usr/include usr/share usr/lib/systemd", stage);
        ck_assert_str_eq(out, "");
        shell(&out, "grep -c '/usr/share/doc/streamerd/restart.md' '%s/usr/share/streamerd/streamerd.yaml'", stage);
        ck_assert_int_ge(atoi(out), 1);
        /* Paths in commands, too. */
        shell(&out, "cd '%s/usr/share/doc/streamerd' && grep -nE 'config/(kubernetes|alerts|nginx|Containerfile)' *.md",
              stage);
        ck_assert_str_eq(out, "");
        shell(&out,
              "cd '%s' && grep -ohE 'usr/share/doc/streamerd/[A-Za-z0-9/_.-]*[A-Za-z0-9]' usr/share/doc/streamerd/*.md "
              "| "
              "sort -u | while read -r path; do [ -e \"$path\" ] || echo \"$path\"; done",
              stage);
        ck_assert_str_eq(out, "");
}

/* Where only this library's file is known, as on a machine without the packages to build it. */
TEST(pkg_config_needs_no_other_package)
{
        char *out;
        make("install");
        int status = shell(&out, "PKG_CONFIG_LIBDIR='%s/usr/lib/pkgconfig' pkg-config --cflags --libs streamer-client",
                           stage);
        ck_assert_msg(status == 0 && strstr(out, "-lstreamer-client") && !strstr(out, "msgpack"), "%s", out);
        status = shell(&out, "PKG_CONFIG_LIBDIR='%s/usr/lib/pkgconfig' pkg-config --static --libs streamer-client",
                       stage);
        ck_assert_msg(status == 0 && strstr(out, "-ljansson") && strstr(out, "msgpack"), "%s", out);
}

TEST(both_programs_name_one_commit)
{
        char *daemon, *out = ctl_says(NULL, 0, "streamerctl " STREAMERD_VERSION " (commit ", "--version", NULL);
        ck_assert_int_eq(shell(&daemon, "'%s' --version", build_path("streamerd")), 0);
        ck_assert_str_eq(strchr(daemon, ' '), strchr(out, ' '));
}

/* So that an installed file follows later defaults, and `config` says what was changed. */
TEST(the_installed_configuration_sets_only_what_has_no_default)
{
        char *out;
        make("install");
        const char *file = suite_path("stage/usr/share/streamerd/streamerd.yaml");
        ck_assert_int_eq(shell(&out, "grep -v '^ *#' '%s' | grep .", file), 0);
        ck_assert_str_eq(out, "roots:\n  - /srv/models\ndevices:\n  - device: host\n    budget: 90%\n");
        ck_assert_int_eq(shell(&out, "'%s' --config '%s' --check-config", build_path("streamerd"), file), 0);
}
