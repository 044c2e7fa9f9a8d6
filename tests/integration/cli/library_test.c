/* SPDX-License-Identifier: Apache-2.0
 *
 * The installed files, and the library among them: its exported symbols, and a C++17 program linked with each of its
 * forms.
 */
#include "tests/lib/daemon.h"
#include "tests/lib/suite.h"

#define LIBDIR "/usr/lib/somewhere"

/* Only files that are already built: a test must not build them. */
static void install(const char *variables)
{
        char *said;
        int status = shell(&said, "MAKEFLAGS= make -s install DEPS=0 BUILD=%s DESTDIR=%s %s -o all", build_path(""),
                           suite_path("root"), variables);
        ck_assert_msg(status == 0, "%s", said);
}

/* Runs a shell command, which must print nothing. $R is the installation directory, which pkg-config searches first. */
__attribute__((format(printf, 1, 2))) static void runs(const char *format, ...)
{
        char command[4096], *said;
        FORMAT_ARGS(command, format);
        int status =
                shell(&said, "R=%s; export PKG_CONFIG_PATH=$R" LIBDIR "/pkgconfig LD_LIBRARY_PATH=$R" LIBDIR "; %s",
                      suite_path("root"), command);
        ck_assert_msg(status == 0 && *said == '\0', "%s: %s", command, said);
}

TEST(the_library_exports_only_the_declared_symbols)
{
        install("PREFIX=/usr LIBDIR=" LIBDIR);
        runs("nm -g --defined-only $R" LIBDIR "/libstreamer-client.a | awk 'NF == 3 && $3 !~ /^streamer_/'");
        runs("nm -D --defined-only $R" LIBDIR "/libstreamer-client.so | awk '$3 !~ /^(streamer_|STREAMER_CLIENT_)/'");
        runs("for f in $(tr '\\n' ' ' <include/streamer/client.h | grep -o 'STREAMER_API [^;(]*(' | "
             "grep -o 'streamer_[a-z_0-9]*($' | tr -d '('); do "
             "nm -D --defined-only $R" LIBDIR
             "/libstreamer-client.so | grep -q \" $f@\" || echo \"$f is missing\"; done");
        runs("test \"$(readlink $R" LIBDIR "/libstreamer-client.so)\" = libstreamer-client.so.0");
        runs("test -f $R" LIBDIR "/$(readlink $R" LIBDIR "/libstreamer-client.so.0)");
}

static const char program[] =
        "#include <streamer/client.h>\n"
        "#include <cstring>\n"
        "static streamer_open_opts shared = STREAMER_OPEN_OPTS_INIT;\n"
        "int main()\n"
        "{\n"
        "        streamer_client *client = nullptr;\n"
        "        streamer_tensor tensor = STREAMER_TENSOR_INIT;\n"
        "        streamer_connect_opts opts = STREAMER_CONNECT_OPTS_INIT;\n"
        "        opts.socket = \"/nowhere\";\n"
        "        if (tensor.struct_size != sizeof(tensor) || shared.struct_size != sizeof(shared))\n"
        "                return 1;\n"
        "        if (std::strcmp(streamer_dtype_name(STREAMER_DTYPE_BF16), \"BF16\") != 0)\n"
        "                return 2;\n"
        "        return streamer_connect(&opts, &client) == STREAMER_EUNREACHABLE ? 0 : 3;\n"
        "}\n";

/* Slow, because the library of a sanitizer build needs its run time in the program. */
TEST(a_program_in_cxx17_is_linked_to_it, .slow = true)
{
        install("PREFIX=/usr LIBDIR=" LIBDIR);
        file_write(suite_path("program.cc"), program, strlen(program));
        const char *shared = suite_path("shared"), *bound = suite_path("bound"), *source = suite_path("program.cc");
        runs("c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -I$R/usr/include -o %s %s -L$R" LIBDIR
             " -lstreamer-client && %s",
             shared, source, shared);
        runs("c++ -std=c++17 -I$R/usr/include -o %s %s $R" LIBDIR "/libstreamer-client.a "
             "$(pkg-config --static --libs streamer-client | tr ' ' '\\n' | grep -v -e -lstreamer-client -e ^-L) && %s",
             bound, source, bound);
}

/* ---- the other files ---- */

TEST(all_manual_pages_are_installed)
{
        static const char *const files[] = {
                "bin/streamerctl",
                "bin/streamerd",
                "include/streamer/client.h",
                "lib/libstreamer-client.so.0",
                "lib/systemd/system/streamerd.service",
                "lib/systemd/system/streamerd.socket",
                "lib/sysusers.d/streamerd.conf",
                "lib/tmpfiles.d/streamerd.conf",
                "share/man/man1/streamerctl.1",
                "share/man/man8/streamerd.8",
                "share/man/man5/streamerd.yaml.5",
                "share/man/man3/libstreamer-client.3",
                "share/bash-completion/completions/streamerctl",
                "share/zsh/site-functions/_streamerctl",
                "share/fish/vendor_completions.d/streamerctl.fish",
                "share/bash-completion/completions/streamerd",
                "share/fish/vendor_completions.d/streamerd.fish",
                "share/streamerd/streamerd.yaml",
                "share/doc/streamerd/alerts.yaml",
                "share/doc/streamerd/grafana-dashboard.json",
                "share/doc/streamerd/nginx-slice-cache.conf",
                "share/doc/streamerd/sources.md",
        };
        install("PREFIX=/usr");
        for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
                ck_assert_msg(access(suite_path("root/usr/%s", files[i]), R_OK) == 0, "%s", files[i]);
}

TEST(a_distribution_places_libraries_units_and_settings)
{
        install("PREFIX=/opt/s LIBDIR=/opt/s/lib/aarch64-linux-gnu UNITDIR=/units SYSCONFDIR=/opt/etc");
        ck_assert_int_eq(access(suite_path("root/opt/s/lib/aarch64-linux-gnu/libstreamer-client.so"), R_OK), 0);
        char *unit = file_read(suite_path("root/units/streamerd.service"), NULL);
        ck_assert_ptr_nonnull(
                strstr(unit, "ExecStart=/opt/s/bin/streamerd --config /opt/etc/streamerd/streamerd.yaml"));
        char *tmpfiles = file_read(suite_path("root/opt/s/lib/tmpfiles.d/streamerd.conf"), NULL);
        ck_assert_ptr_nonnull(strstr(tmpfiles, "/opt/etc/streamerd/streamerd.yaml"));
        ck_assert_ptr_nonnull(strstr(tmpfiles, "/opt/s/share/streamerd/streamerd.yaml"));
        ck_assert_ptr_null(strstr(tmpfiles, " /etc"));
}
