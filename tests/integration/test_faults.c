/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that fail. Every call of the daemon into the system and its libraries that can fail does, one
 * at a time: the first, the second, ... of each kind while a client goes through the life of a model.
 * A failure may cost one request, which then says why; it never costs the daemon, another model, or
 * the next request.
 *
 * Which calls there are is read off the daemon itself (nm -u). Each must be one that is made to fail
 * here, or stand in tests/fault-exempt.txt with the reason why not.
 */
#include "tests/lib/faults.h"
#include "tests/lib/nginx.h"
#include "tests/lib/stage.h"
#include "tests/lib/suite.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NTH_MAX 100000
/* Short: the first few of each call, then ever wider steps; long (STREAMERD_FAULTS=all): each. */
#define NTH_EACH 6

static struct model *model;
static char *source, *url; /* url: NULL where there is no web server */
static struct nginx nginx;

/* Also what is off by default; the daemon's own user may do all, by a rule that looks it up. */
#define SETTINGS                                                                                                       \
        "devices:\n  - host=64MiB\nio:\n  memory_limit: 16MiB\nmetrics:\n  listen: 127.0.0.1:0\n"                      \
        "access:\n  roles:\n    - role: admin\n      users: [root]\n"

/* SHA256SUMS beside the files, so that a load can hold them against it. */
static void sum_files(const char *folder)
{
        char *command = format_text("cd '%s' && sha256sum *.safetensors >SHA256SUMS", folder);
        ck_assert_int_eq(system(command), 0); /* NOLINT: a command of our own */
        free(command);
}

static void begin(void)
{
        if (suite_short())
                return;
        char *state = suite_path("state"), *config = suite_path("config.yaml");
        file_write(config, SETTINGS, strlen(SETTINGS));
        faults_begin(suite_folder());
        faults_show();
        stage_begin((const char *const[]){"--config", config, "--state", state, NULL});
        faults_hide();
        model = model_mixed(3, 3 << 20);
        source = stage_path("victim");
        model_write_sharded(model, source, 2, false);
        sum_files(source);
        if (nginx_unavailable() != NULL)
                return;
        nginx_start(&nginx, suite_path("nginx"), stage_root());
        url = format_text("http://127.0.0.1:%u/victim/model.safetensors.index.json", nginx.http);
}

static uint64_t next_nth(uint64_t nth)
{
        const char *mode = getenv("STREAMERD_FAULTS");
        if (nth < NTH_EACH || (mode != NULL && strcmp(mode, "all") == 0))
                return nth + 1;
        return nth + nth / 2;
}

/* ---- the life of a model, where anything may fail ---- */

/* A failure must be one of ours, in words. Lost connections count: the next request works. */
static bool named(streamer_client *c, int r)
{
        if (r >= 0)
                return true;
        ck_assert_msg(r >= STREAMER_EOS, "%d is no code of ours", r);
        ck_assert_msg(r != STREAMER_ETIMEOUT, "no answer: %s", streamer_last_error(c));
        ck_assert(strlen(streamer_last_error(c)) > 0);
        return false;
}

static bool load(streamer_client *c, const char *from, const char *verify)
{
        streamer_load_opts opts = {.struct_size = sizeof(opts), .source = from, .name = "victim", .verify = verify};
        streamer_progress progress = {.struct_size = sizeof(progress)};
        streamer_op *op;
        if (!named(c, streamer_load(c, &opts, &op)))
                return false;
        bool ok = named(c, streamer_op_wait(op, 20000, &progress));
        streamer_op_free(op);
        return ok;
}

/* What is handed out is right, whatever has failed. */
static void look(streamer_client *c)
{
        streamer_lease *lease;
        streamer_tensor t;
        if (!named(c, streamer_attach(c, "victim", NULL, &lease)))
                return;
        for (size_t i = 0; i < model->n; i++)
                if (streamer_tensor_find(lease, model->tensors[i].name, &t) == 0)
                        ck_assert_msg(model_check(model, i, t.data), "%s is wrong", model->tensors[i].name);
        streamer_detach(lease);
}

static void call(streamer_client *c, const char *verb, const char *args)
{
        char *reply = NULL;
        if (named(c, streamer_call(c, verb, args, &reply)))
                free(reply);
}

static void live(void)
{
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = stage.socket, .timeout_ms = 20000};
        streamer_client *c;
        if (streamer_connect(&opts, &c) < 0)
                return;
        if (load(c, source, "sha256")) {
                look(c);
                call(c, "show", "{\"model\":\"victim\",\"tensors\":true}");
                call(c, "verify", "{\"model\":\"victim\"}");
        }
        call(c, "ps", "{}");
        call(c, "status", "{}");
        call(c, "pin", "{\"model\":\"victim\"}");
        streamer_unload(c, "victim", 0);
        if (url != NULL && load(c, url, NULL))
                look(c);
        streamer_unload(c, "victim", 0);
        streamer_close(c);
}

/* In a process of its own: what a lost connection leaves attached goes with it. */
static void live_and_die(void)
{
        int status;
        pid_t pid = must(fork());
        if (pid == 0) {
                live();
                _exit(0);
        }
        must(waitpid(pid, &status, 0));
        ck_assert_msg(status == 0, "the client failed");
}

static bool has_ended(void)
{
        struct pollfd ended = {.fd = stage.pidfd, .events = POLLIN};
        return must(poll(&ended, 1, 0)) > 0;
}

/* Without failures all of it works, and what was there before is there. */
static void works(enum fault_call which, uint64_t nth)
{
        if (has_ended()) {
                char *log = file_read(stage.log, NULL);
                size_t len = strlen(log);
                ck_abort_msg("the daemon ended: %s %lu\n%s", fault_name(which), (unsigned long)nth,
                             len > 1500 ? log + len - 1500 : log);
        }
        stage_still_serves();
}

static void one_by_one(enum fault_call which)
{
        for (uint64_t nth = 0; nth < NTH_MAX; nth = next_nth(nth)) {
                fault_arm(which, nth);
                live_and_die();
                bool struck = fault_disarm();
                works(which, nth);
                if (!struck)
                        return;
        }
}

START_TEST(a_call_that_fails_costs_one_request_at_most)
{
        if (suite_short())
                return;
        one_by_one((enum fault_call)_i);
}
END_TEST

START_TEST(a_call_that_fails_at_the_start_is_said_or_does_without)
{
        struct daemon d;
        if (suite_short())
                return;
        daemon_init(&d, suite_path("start"));
        for (uint64_t nth = 0; nth < NTH_EACH; nth++) {
                fault_arm((enum fault_call)_i, nth);
                faults_show();
                int status = daemon_try(
                        &d, (const char *const[]){"--config", suite_path("config.yaml"), "--root", stage_root(), NULL});
                faults_hide();
                bool struck = fault_disarm();
                ck_assert_msg((status >= 0 && status <= 2) || status == 7, "%s %lu: exit status %d",
                              fault_name((enum fault_call)_i), (unsigned long)nth, status);
                if (!struck)
                        break;
        }
}
END_TEST

/* ---- which calls there are ---- */

static bool is_injected(const char *name)
{
        for (int i = 0; i < FAULT_COUNT; i++)
                if (strcmp(fault_name((enum fault_call)i), name) == 0)
                        return true;
        return false;
}

/* "name name ...: reason" */
static bool is_exempt(const char *list, const char *name)
{
        size_t len = strlen(name);
        for (const char *line = list; line != NULL && *line != '\0'; line = strchr(line, '\n')) {
                line += strspn(line, "\n");
                size_t names = strcspn(line, ":\n");
                if (*line == '#' || line[names] != ':')
                        continue;
                for (const char *at = line; (at = strstr(at, name)) != NULL && at < line + names; at += len)
                        if ((at == line || at[-1] == ' ') && (at[len] == ' ' || at[len] == ':'))
                                return true;
        }
        return false;
}

START_TEST(every_call_is_made_to_fail_or_exempt)
{
        char *command = format_text("nm -D -u '%s' | awk '{ sub(/@.*/, \"\", $2); print $2 }' | sort -u",
                                    build_path("streamerd"));
        char *list = file_read("tests/fault-exempt.txt", NULL), name[256], missing[4096] = "";
        size_t injected = 0, exempt = 0, struck = 0;
        if (suite_short())
                return;
        for (int i = 0; i < FAULT_COUNT; i++)
                struck += fault_failed((enum fault_call)i) > 0;
        FILE *nm = popen(command, "r"); /* NOLINT: a command of our own */
        ck_assert_ptr_nonnull(nm);
        while (fgets(name, sizeof(name), nm) != NULL) {
                name[strcspn(name, "\n")] = '\0';
                bool in = is_injected(name), out = is_exempt(list, name);
                injected += in;
                exempt += out;
                if (!in && !out && strlen(missing) + strlen(name) + 2 < sizeof(missing))
                        strcat(strcat(missing, " "), name);
        }
        ck_assert_int_eq(pclose(nm), 0);
        ck_assert_msg(missing[0] == '\0', "neither made to fail nor exempt:%s", missing);
        ck_assert_uint_gt(injected, 40);
        printf("calls of the daemon: %zu; %zu can be made to fail, %zu of them have; %zu exempt\n", injected + exempt,
               injected, struck, exempt);
        free(list);
        free(command);
}
END_TEST

static void end(void)
{
        if (suite_short())
                return;
        if (!has_ended()) /* then a test has said so */
                stage_end();
        if (url != NULL)
                nginx_stop(&nginx);
}

int main(void)
{
        suite_begin("faults");
        TCase *tests = suite_group("life", begin, end, 300);
        tcase_add_loop_test(tests, a_call_that_fails_costs_one_request_at_most, 0, FAULT_COUNT);
        tcase_add_loop_test(tests, a_call_that_fails_at_the_start_is_said_or_does_without, 0, FAULT_COUNT);
        tcase_add_test(tests, every_call_is_made_to_fail_or_exempt); /* last: it counts */
        return suite_run();
}
