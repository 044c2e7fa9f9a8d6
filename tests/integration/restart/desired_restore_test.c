/* SPDX-License-Identifier: Apache-2.0
 *
 * After a start the daemon loads the pinned models of the state file.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/run_as.h"
#include "tests/lib/snapshots.h"

#include <fcntl.h>

#define NOBODY 65534

static struct daemon d;
static struct model *model;
static struct snapshot state;
static char *host; /* the device's UUID */

static const char *const *own_flags(void)
{
        static const char *flags[] = {"--device", "host=64MiB", "--root", NULL, "--state", NULL, NULL};
        flags[3] = suite_path("root");
        flags[5] = suite_path("state");
        return flags;
}

static void begin(void)
{
        mkdir(suite_path("root"), 0755);
        mkdir(suite_path("state"), 0700);
        model = model_mixed(80, 2 << 20);
        model_write(model, suite_path("root/m.safetensors"));
        ck_assert_int_eq(shell(&host, "tr -d '\\n' </proc/sys/kernel/random/boot_id"), 0);
        state = (struct snapshot){.last_number = 7};
        daemon_init(&d, suite_path("d"));
}

static struct name_row *knew(const char *name, const char *file, bool pinned, uid_t uid)
{
        return snapshot_add(&state,
                            &(struct name_row){.name = (char *)(uintptr_t)name,
                                               .source = suite_path("root/%s", file),
                                               .device = host,
                                               .loadable = true,
                                               .caller = {.uid = uid, .gid = uid},
                                               .settings = {.priority = PROTO_PRIORITY_DEFAULT, .pinned = pinned},
                                               .owner = uid});
}

static void write_state(void)
{
        snapshot_write_file(&state, suite_path("state"));
}

static void end(void)
{
        daemon_kill(&d);
        folder_remove(suite_path("state"));
        folder_remove(suite_path("root"));
}

static void wait_ready(streamer_client *c, const char *name)
{
        char *args = format_text("{\"model\":\"%s\"}", name);
        client_ok(c, streamer_call(c, "wait", args, NULL), name);
}

static bool log_has(const char *text)
{
        return log_wait_for(d.log, text);
}

/* ---- pinned models ---- */

FIXTURE(.each = {begin, end});

TEST(only_pinned_models_are_restored)
{
        knew("pinned", "m.safetensors", true, 0);
        knew("not", "m.safetensors", false, 0);
        write_state();
        daemon_start(&d, own_flags());
        streamer_client *c = client_open(&d);
        ck_assert(log_has("pinned: ready"));
        wait_ready(c, "pinned");
        client_equals(c, "pinned", model);
        ck_assert_uint_eq(json_number(client_show(c, "pinned"), "generation"), 8); /* numbers continue */
        ck_assert_str_eq(client_state(c, "not"), "");
        ck_assert_int_eq(daemon_stop(&d), 0);
        /* And again: pinned models stay pinned. */
        daemon_start(&d, own_flags());
        c = client_open(&d);
        ck_assert(log_has("generation 9"));
        client_equals(c, "pinned", model);
}

TEST(files_are_opened_as_the_loader_of_the_model)
{
        ROOT_ONLY();
        must(chmod(suite_path("root/m.safetensors"), 0600));
        knew("foreign", "m.safetensors", true, NOBODY);
        write_state();
        daemon_start(&d, own_flags());
        ck_assert(log_has("restore: foreign: attempt 1 failed, next in"));
        ck_assert(log_has("ermission denied"));
}

TEST(the_current_rule_decides_the_permitted_sources)
{
        ROOT_ONLY();
        must(chmod(suite_folder(), 0755));
        mkdir(suite_path("root/theirs"), 0755);
        model_write(model, suite_path("root/theirs/in.safetensors"));
        must(symlink("../m.safetensors", suite_path("root/theirs/out.safetensors")));
        knew("m", "m.safetensors", true, NOBODY);
        knew("in", "theirs/in.safetensors", true, NOBODY);
        knew("out", "theirs/out.safetensors", true, NOBODY);
        write_state();
        char *text = format_text("devices:\n  - host=64MiB\nroots: [%s]\nstate: %s\naccess:\n  roles:\n"
                                 "    - {role: load, users: %d, roots: [%s], bytes: 1MiB}\n",
                                 suite_path("root"), suite_path("state"), NOBODY, suite_path("root/theirs"));
        daemon_start(&d, (const char *const[]){"--config", suite_file("rules.yaml", text), NULL});
        ck_assert(log_has("restore: m: attempt 1 failed, next in 1.0 s: "));
        ck_assert(log_has("outside the roots of access.roles[0], "));
        ck_assert(log_has("restore: out: attempt 1 failed, next in 1.0 s: outside the roots"));
        streamer_client *c = client_open(&d);
        wait_ready(c, "in");
        client_equals(c, "in", model);
}

/* ---- the file ---- */

static bool state_has(const char *name)
{
        struct snapshot now;
        struct error error = {0};
        bool has = snapshot_load(&now, suite_path("state"), &error) == 0 && snapshot_find(&now, name) != NULL;
        snapshot_deinit(&now);
        return has;
}

static void load_pinned(streamer_client *c)
{
        streamer_load_opts opts = {.source = suite_path("root/m.safetensors"), .name = "m", .flags = STREAMER_LOAD_PIN};
        client_ok(c, client_load_with(c, opts), "load");
}

/* The daemon writes the state file when it exits, however recent the change is. */
TEST(a_stop_right_after_a_load_persists_the_pin)
{
        do {
                daemon_init(&d, suite_path("d"));
                daemon_start(&d, own_flags());
                streamer_client *c = client_open(&d);
                load_pinned(c);
                streamer_close(c);
                ck_assert_int_eq(daemon_stop(&d), 0);
        } while (daemon_gave_up(&d));
        ck_assert(state_has("m"));
}

/* Nothing is appended to what another process has written. */
TEST(a_state_file_that_is_replaced_or_removed_is_written_again, .to = 2)
{
        daemon_start(&d, own_flags());
        streamer_client *c = client_open(&d);
        load_pinned(c);
        AWAIT(state_has("m"));
        if (_i)
                file_write(suite_path("state/state"), "", 0);
        else
                must(unlink(suite_path("state/state")));
        client_load(c, suite_path("root/m.safetensors"), "other");
        client_call(c, "pin", "{\"model\":\"other\"}");
        AWAIT(state_has("other"));
        ck_assert(state_has("m"));
        ck_assert(log_has("state: another process has removed or changed the file: it is written again ("));
}

TEST(an_unwritable_snapshot_is_reported_and_loads_continue)
{
        rmdir(suite_path("state"));
        file_write(suite_path("state"), "", 0);
        daemon_start(&d, own_flags());
        ck_assert(log_has("is not persisted"));
        streamer_client *c = client_open(&d);
        client_load(c, suite_path("root/m.safetensors"), "m");
        client_equals(c, "m", model);
        unlink(suite_path("state"));
}
