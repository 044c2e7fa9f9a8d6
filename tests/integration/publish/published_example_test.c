/* SPDX-License-Identifier: Apache-2.0
 *
 * The program of docs/publish.md compiles, publishes, and the next time reads what it published.
 */
#include "tests/integration/published_fixture.h"

FIXTURE(.all = {daemon_begin_default, daemon_end});

/* Not in the short set: the library of a sanitizer build needs its run time in the program. */
TEST(the_program_publishes_and_then_attaches, .slow = true)
{
        static const char weights[] = "weight: 1024 x 256, element 1 of row 0 is 1\n"
                                      "weight.T: 256 x 1024, element 1 of row 0 is 256\n";
        static const char *const states[] = {"absent", "hit"};
        const char *build = getenv("STREAMERD_BUILD") ?: "build";
        char *printed;
        int status = shell(&printed,
                           "awk '/^```c$/ {on = 1; next} /^```$/ {on = 0} on' docs/publish.md >%s && "
                           "cc -Wall -Werror -Iinclude -o %s %s %s/libstreamer-client.so.0",
                           suite_path("example.c"), suite_path("example"), suite_path("example.c"), build);
        ck_assert_msg(status == 0, "%s", printed);
        for (int i = 0; i < 2; i++) {
                status = shell(&printed, "LD_LIBRARY_PATH=%s STREAMERD_SOCKET=%s %s my-model 2>%s", build,
                               test_daemon.socket, suite_path("example"), suite_path("example.err"));
                char *state = file_read(suite_path("example.err"), NULL);
                ck_assert_int_eq(status, 0);
                ck_assert_str_eq(printed, weights);
                ck_assert_msg(strncmp(state, states[i], strlen(states[i])) == 0, "%s", state);
        }
}
