/* SPDX-License-Identifier: Apache-2.0
 *
 * The programs of docs/bindings.md compile, print a model's tensors, and print the text of an error.
 */
#include "tests/lib/daemon.h"
#include "tests/lib/model.h"
#include "tests/lib/suite.h"

static struct daemon d;

static void start(void)
{
        struct model *m = model_new(1);
        model_add(m, "a", "F32", (uint64_t[]){4}, 1);
        model_add(m, "b", "BF16", (uint64_t[]){2, 3}, 2);
        model_add(m, "empty", "F32", (uint64_t[]){0}, 1);
        model_write(m, suite_path("m.safetensors"));
        daemon_start_simple(&d, suite_path("d"), suite_folder(), "64MiB");
}

static void stop(void)
{
        ck_assert_int_eq(daemon_stop(&d), 0);
}

/* Runs a shell command and returns its exit status, with its output in the order of lines. */
static int run(const char *command, char **text)
{
        return shell(text, "bash -c 'set -o pipefail; { %s; } 2>&1 | sort'", command);
}

static void succeeds(const char *command, const char *expected)
{
        char *text;
        ck_assert_msg(run(command, &text) == 0, "%s: %s", command, text);
        if (expected)
                ck_assert_str_eq(text, expected);
}

/* The first block of this language in docs/bindings.md. */
static void extract(const char *language, const char *file)
{
        succeeds(format_text(
                         "sed -n \"/^\\`\\`\\`%s\\$/,/^\\`\\`\\`\\$/p\" docs/bindings.md | sed \"/^\\`\\`\\`/d\" >%s",
                         language, file),
                 "");
}

static bool works(const char *compiler)
{
        char *text;
        return run(format_text("HOME=${HOME:-%s} %s", suite_folder(), compiler), &text) == 0;
}

static void fails(const char *command, const char *expected)
{
        char *text;
        ck_assert_int_ne(run(command, &text), 0);
        ck_assert_str_eq(text, expected);
}

static void prints_tensors_and_errors(const char *program)
{
        char *begin = format_text("LD_LIBRARY_PATH=%s %s", build_path(""), suite_path("%s", program));
        char *served = format_text("STREAMERD_SOCKET=%s %s", d.socket, begin);
        succeeds(format_text("%s %s", served, suite_path("m.safetensors")),
                 "a F32: 16 bytes\nb BF16: 12 bytes\nempty F32: 0 bytes\n");
        fails(format_text("%s /etc/passwd", served),
              "outside the roots: the daemon opens files below its configured roots only (/etc/passwd)\n");
        fails(format_text("STREAMERD_SOCKET=/nowhere %s m", begin),
              "cannot connect: no daemon serves there: No such file or directory (/nowhere)\n");
}

FIXTURE(.all = {start, stop}, .timeout = 300);

/* Not in the short set: the library of a sanitizer build needs its run time in the program. */
TEST(the_rust_program_prints_the_tensors, .slow = true)
{
        if (!works("rustc --version"))
                SKIP("rustc is not installed");
        extract("rust", suite_path("print_tensors.rs"));
        succeeds(format_text("rustc -D warnings -o %s %s -L native=%s -l streamer-client", suite_path("in_rust"),
                             suite_path("print_tensors.rs"), build_path("")),
                 NULL);
        prints_tensors_and_errors("in_rust");
}

TEST(the_go_program_prints_the_tensors, .slow = true)
{
        if (!works("go version"))
                SKIP("go is not installed");
        extract("go", suite_path("print_tensors.go"));
        succeeds(format_text("export GOCACHE=%s GOPATH=%s GO111MODULE=off GOFLAGS= CGO_ENABLED=1 "
                             "CGO_CFLAGS=-I$PWD/include CGO_LDFLAGS=-L$(realpath %s); go build -o %s %s",
                             suite_path("go-cache"), suite_path("go"), build_path(""), suite_path("in_go"),
                             suite_path("print_tensors.go")),
                 NULL);
        prints_tensors_and_errors("in_go");
}
