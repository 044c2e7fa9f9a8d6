/* SPDX-License-Identifier: Apache-2.0
 *
 * The program of docs/publish.md compiles, publishes, and the next time reads what it published.
 */
#include "tests/integration/published_fixture.h"

static struct daemon d;

static void start(void)
{
        daemon_start_simple(&d, suite_path("d"), suite_folder(), "64MiB");
}

static void stop(void)
{
        ck_assert_int_eq(daemon_stop(&d), 0);
}

/* Runs a shell command; its output, which the caller frees. */
static char *output_of(const char *command)
{
        char *text = must_alloc(4096);
        FILE *f = popen(command, "r");
        ck_assert_ptr_nonnull(f);
        size_t n = fread(text, 1, 4095, f);
        text[n] = '\0';
        ck_assert_msg(pclose(f) == 0, "%s: %s", command, text);
        return text;
}

FIXTURE(.all = {start, stop});

/* Not in the short set: the library of a sanitizer build needs its run time in the program. */
TEST(the_program_publishes_and_then_attaches, .slow = true)
{
        static const char weights[] = "weight: 1024 x 256, element 1 of row 0 is 1\n"
                                      "weight.T: 256 x 1024, element 1 of row 0 is 256\n";
        static const char *const states[] = {"absent", "hit"};
        const char *build = getenv("STREAMERD_BUILD") ?: "build";
        char *compile = format_text("awk '/^```c$/ {on = 1; next} /^```$/ {on = 0} on' docs/publish.md >%s && "
                                    "cc -Wall -Werror -Iinclude -o %s %s %s/libstreamer-client.so.0 2>&1",
                                    suite_path("example.c"), suite_path("example"), suite_path("example.c"), build);
        free(output_of(compile));
        free(compile);
        for (int i = 0; i < 2; i++) {
                char *run = format_text("LD_LIBRARY_PATH=%s STREAMERD_SOCKET=%s %s my-model 2>%s", build, d.socket,
                                        suite_path("example"), suite_path("example.err"));
                char *printed = output_of(run), *state = file_read(suite_path("example.err"), NULL);
                ck_assert_str_eq(printed, weights);
                ck_assert_msg(strncmp(state, states[i], strlen(states[i])) == 0, "%s", state);
                free(printed);
                free(state);
                free(run);
        }
}
