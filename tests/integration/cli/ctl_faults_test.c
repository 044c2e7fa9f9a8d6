/* SPDX-License-Identifier: Apache-2.0
 *
 * The first, second, ... call of streamerctl, and of the library in it, into the system fails: the program ends with an
 * exit code of the table and a line that names the failure, or does what it was asked to. The daemon is not affected.
 * A failure that changes nothing is one that tests/fault-silent.txt lists, with the reason.
 */
#include "tests/lib/fake_daemon.h"
#include "tests/lib/fault_injection.h"
#include "tests/lib/fixture.h"
#include "tests/lib/streamerctl.h"
#include "tests/lib/suite.h"

#define NTH_MAX 100000
#define SECONDS "20"

static char *source, *folder, *file;

static const struct {
        const char *args[8];
        bool stable; /* prints the same each time */
} commands[] = {
        {{"load", "SOURCE", "--name", "victim", "--no-progress"}, false},
        {{"load", "SOURCE", "--dry-run"}, true},
        {{"cat", "witness", "TENSOR"}, true},
        {{"list"}, false},
        {{"show", "witness", "--tensors", "--json"}, false},
        {{"wait", "witness", "--json"}, false},
        {{"verify", "witness"}, false},
        {{"export", "witness", "FILE", "-q"}, true},
        {{"fetch", "SOURCE", "--directory", "FOLDER"}, false},
        {{"unload", "nobody"}, false},
        {{"unload", "--all", "--dry-run"}, false},
        {{"diff", "witness", "SOURCE"}, false},
        {{"top", "--once"}, false},
        {{"status", "--json"}, false},
        {{"complete", "--", "cat", "witness", ""}, false},
};

static const char *argument(const char *arg)
{
        if (strcmp(arg, "SOURCE") == 0)
                return source;
        if (strcmp(arg, "FILE") == 0)
                return file;
        if (strcmp(arg, "FOLDER") == 0)
                return folder;
        return strcmp(arg, "TENSOR") == 0 ? fixture_witness->tensors[0].name : arg;
}

static struct ctl run_command(size_t which)
{
        const char *args[12] = {"--timeout", SECONDS};
        size_t n = 2;
        struct ctl r;
        for (const char *const *arg = commands[which].args; *arg != NULL; arg++)
                args[n++] = argument(*arg);
        args[n] = NULL;
        faults_show();
        ctl_v(&r, test_daemon.socket, args);
        faults_hide();
        return r;
}

/* One line, or one object. */
static bool names_failure(const char *err)
{
        const char *newline = strchr(err, '\n');
        return (strncmp(err, "streamerctl: ", 13) == 0 || strncmp(err, "{\"schema\"", 9) == 0) && newline != NULL &&
               newline[1] == '\0' && strlen(err) > 15;
}

/* Output that cannot be written cannot name the failure. */
static bool is_output(enum fault_call call)
{
        return call == FAULT_fwrite || call == FAULT_fflush || call == FAULT_write;
}

static void check_result(size_t which, const struct ctl *reference, const struct ctl *r, enum fault_call call,
                         uint64_t nth)
{
        const char *verb = commands[which].args[0], *name = fault_name(call);
        ck_assert_msg(r->code >= 0 && r->code <= 8, "%s, %s %ju: exit %d: %s", verb, name, (uintmax_t)nth, r->code,
                      r->err);
        /* A limit of time would hide a call that is not answered. connect() fails as if the daemon did not accept. */
        ck_assert_msg(r->code != 5 || call == FAULT_connect, "%s, %s %ju: %s", verb, name, (uintmax_t)nth, r->err);
        if (r->code == 0 && commands[which].stable)
                ck_assert_msg(r->out_size == reference->out_size && memcmp(r->out, reference->out, r->out_size) == 0,
                              "%s, %s %ju: exit 0 with other output: %s%s\nthan\n%s", verb, name, (uintmax_t)nth,
                              r->err, r->out, reference->out);
        if (is_output(call) || strcmp(verb, "complete") == 0) /* completes to nothing, rather than print an error */
                return;
        if (r->code != 0)
                ck_assert_msg(names_failure(r->err), "%s, %s %ju: exit %d: '%s'", verb, name, (uintmax_t)nth, r->code,
                              r->err);
        if (fault_is_named(call, r->err))
                return;
        const char *site = fault_site(build_path("streamerctl"));
        ck_assert_msg(r->code == reference->code && fault_is_silent(call, site),
                      "%s, %s %ju at %s is not named: exit %d: '%s'", verb, name, (uintmax_t)nth, site, r->code,
                      r->err);
}

static void unload_victim(void)
{
        client_call_code(client, "unload", "{\"model\":\"victim\"}");
}

static void start(void)
{
        source = fixture_write(model_mixed(3, 1 << 16), "victim.safetensors");
        folder = suite_path("fetched");
        file = suite_path("exported.safetensors");
        faults_begin(suite_folder());
        fixture_connect();
        unload_victim(); /* after a test that failed: the output depends on free memory */
}

FIXTURE(.all = {fixture_begin_default, fixture_end}, .each = {start, fixture_disconnect}, .timeout = 600);

TEST(a_failed_call_ends_it_with_a_named_error, EACH(commands), .slow = true)
{
        uint64_t before[FAULT_COUNT_ALL], calls[FAULT_COUNT_ALL], struck = 0;
        for (int i = 0; i < FAULT_COUNT_ALL; i++)
                before[i] = fault_seen((enum fault_call)i);
        struct ctl reference = run_command((size_t)_i);
        for (int i = 0; i < FAULT_COUNT_ALL; i++)
                calls[i] = fault_seen((enum fault_call)i) - before[i];
        for (int i = 0; i < FAULT_COUNT_ALL; i++) {
                for (uint64_t nth = 0; nth < NTH_MAX && calls[i] > 0; nth++) {
                        unload_victim();
                        fault_arm((enum fault_call)i, nth);
                        struct ctl r = run_command((size_t)_i);
                        if (!fault_disarm()) {
                                ck_assert_msg(nth > 0, "%s is called, and was not made to fail",
                                              fault_name((enum fault_call)i));
                                break;
                        }
                        struck++;
                        check_result((size_t)_i, &reference, &r, (enum fault_call)i, nth);
                        ctl_free(&r);
                }
        }
        ck_assert_uint_gt(struck, 20);
        unload_victim(); /* which the last run, without a failure, has loaded */
}

TEST(a_daemon_that_does_not_end_is_an_error)
{
        struct fake_daemon fake;
        fake_start(&fake, "hello\n> shutdown\n< leases=0\nend\n");
        ctl_says(fake.socket, 5, "the daemon has not ended after 2 s", "shutdown", "--timeout", "2", NULL);
        fake_finish(&fake);
}

/* The event that follows the reply names the model, too. */
TEST(a_load_without_memory_for_its_name_fails, .slow = true)
{
        struct fake_daemon fake;
        struct ctl r;
        fake_start(&fake, "hello\n> load watch=true\n< op=5 name=m\n* op op=5 name=m state=ready\nend\n");
        faults_show();
        fault_arm(FAULT_strndup, 0);
        ctl(&r, fake.socket, "load", source, "--no-progress", NULL);
        faults_hide();
        ck_assert(fault_disarm());
        fake_finish(&fake);
        ck_assert_int_ne(r.code, 0);
        ck_assert_str_eq(r.err, format_text("streamerctl: %s: no memory for an operation\n", source));
}
