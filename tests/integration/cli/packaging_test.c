/* SPDX-License-Identifier: Apache-2.0
 *
 * The sources of the Debian packages agree with what is built. Tests of the packages themselves: tests/packages.sh.
 */
#include "tests/lib/daemon.h"
#include "tests/lib/suite.h"

/* A script that must print nothing; $stage has what `make install` installs. */
static void finds_nothing(const char *script)
{
        char *said;
        int status = shell(&said, "stage='%s' build='%s'; %s", suite_path("stage"), build_path(""), script);
        ck_assert_msg(status == 0 && *said == '\0', "%s", said);
}

/* Only files that are already built: a test must not build them. */
static void make_stage(void)
{
        char *said;
        int status =
                shell(&said,
                      "env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -s install -o all DEPS=0 BUILD='%s' DESTDIR='%s' "
                      "PREFIX=/usr LIBDIR=/usr/lib/somewhere UNITDIR=/lib/systemd/system",
                      build_path(""), suite_path("stage"));
        ck_assert_msg(status == 0, "%s", said);
}

FIXTURE(.all = {make_stage, NULL}, .timeout = 120);

/* Or in the list of those that are not packaged. */
TEST(every_installed_file_is_in_one_package)
{
        finds_nothing("patterns=$(sed -e '/^#/d' -e 's| .*||' -e 's|${env:UNITDIR}|lib/systemd/system|' "
                      "-e 's|${DEB_HOST_MULTIARCH}|somewhere|' -e '/python3/d' config/debian/*.install "
                      "config/debian/not-installed); cd \"$stage\"; "
                      "find . ! -type d | sed 's|^[.]/||' | sort >../installed; "
                      "find $patterns ! -type d | sort >../packaged; diff ../installed ../packaged");
}

/* But the name of the version itself, which not every linker makes a symbol, and those of the Python package, for which
 * it has a pattern. */
TEST(the_symbols_file_has_what_the_library_exports)
{
        finds_nothing(
                "nm -D --defined-only --with-symbol-versions $stage/usr/lib/somewhere/libstreamer-client.so.0 | "
                "sed -n 's/.* \\(streamer_.*\\)@@/\\1@/p' | grep -v '^streamer_python_' | sort >$stage/../exported; "
                "sed -n 's/^ \\(streamer_[^ ]*\\) .*/\\1/p' config/debian/libstreamer-client0.symbols | sort | "
                "diff $stage/../exported -");
}

TEST(the_versions_agree)
{
        finds_nothing("head -n 1 config/debian/changelog | grep -vF 'streamerd (" STREAMERD_VERSION ") '; "
                      "grep -qxF '__version__ = \"" STREAMERD_VERSION "\"' client/python/streamerd/__init__.py || "
                      "echo 'the Python package has another one'");
}

TEST(the_packages_are_built_with_the_libraries_that_the_build_needs)
{
        finds_nothing(
                "sed -n '/^        build) echo/,/;;/s/^library:[^ ]* *\\([^ \"]*\\).*/\\1/p' config/build-deps.sh | "
                "while read -r package; do grep -qE \"^ +$package( |,)\" config/debian/control || "
                "echo \"$package\"; done");
}

/* `make deb` installs what the build needs, and dpkg refuses to begin without the rest. */
TEST(the_packages_need_no_library_that_the_build_does_not)
{
        finds_nothing("sed -n '/^Build-Depends/,/^$/s/^ *\\(lib[^ ,]*-dev\\).*/\\1/p' config/debian/control | "
                      "while read -r package; do sed -n '/^        build) echo/,/;;/p' config/build-deps.sh | "
                      "grep -qwF -- \"$package\" || echo \"$package\"; done");
}
