/* SPDX-License-Identifier: Apache-2.0
 *
 * Storing behind a load with each of its calls made to fail, or the daemon killed before it: the load serves the
 * right bytes, and there is a whole entry or none, without leftovers after the next start.
 */
#include "tests/integration/disk_fixture.h"
#include "tests/lib/fault_injection.h"

static struct model *model;

#define ONE "s3://b/one/model.safetensors"

static void begin(void)
{
        begin_store();
        model = model_mixed(91, 9 << 20);
        put(model, "one/model.safetensors");
        must(mkdir(suite_path("faults-%d", (int)getpid()), 0755));
        faults_begin(suite_path("faults-%d", (int)getpid()));
}

FIXTURE(.each = {begin, NULL}, .timeout = 300);

static void empty_cache(void)
{
        char command[4200];
        snprintf(command, sizeof(command), "rm -rf %s", cache_path());
        ck_assert_int_eq(system(command), 0);
}

static double not_stored(void)
{
        return client_metric(client, "streamerd_disk_cache_not_stored_total{reason=\"io\"}");
}

/* A daemon of the next run: what it finds is whole. */
static void check_what_is_left(void)
{
        faults_hide();
        start();
        ck_assert(log_wait_for(disk_daemon.log, "entries, "));
        uint64_t entries = disk_number("entries");
        check_entries(entries);
        ck_assert_str_eq(load_from(ONE, model), entries > 0 ? "disk" : "store");
        stop();
}

static const enum fault_call calls[] = {FAULT_pwrite, FAULT_fsync, FAULT_renameat, FAULT_mkdirat, FAULT_unlinkat};

TEST(a_call_that_fails_costs_the_entry_and_not_the_load, EACH(calls), .slow = true)
{
        bool struck = true;
        for (uint64_t n = 0; struck; n++) {
                empty_cache();
                faults_show();
                start();
                fault_arm(calls[_i], n);
                client_load(client, ONE, "m");
                AWAIT(disk_number("entries") == 1 || not_stored() > 0);
                struck = fault_disarm();
                /* Else it was a call of the note of the source. */
                ck_assert((disk_number("entries") == 1) == (not_stored() == 0));
                client_equals(client, "m", model);
                stop();
                check_what_is_left();
        }
}

static const enum fault_call lacks[] = {FAULT_strdup, FAULT_malloc, FAULT_openat};

/* Whatever it does to the load. */
TEST(a_copy_that_there_is_no_memory_or_descriptor_for_stays, EACH(lacks), .slow = true)
{
        bool struck = true;
        faults_show();
        start();
        store_behind(ONE, model, 1);
        for (uint64_t n = 0; struck; n++) {
                fault_arm(lacks[_i], n);
                client_load_with(client, (streamer_load_opts){.source = ONE, .name = "m"});
                struck = fault_disarm();
                ck_assert_uint_eq(disk_number("entries"), 1);
                ck_assert(client_metric(client, "streamerd_disk_cache_damaged_total") == 0);
                streamer_unload(client, "m", 0);
                client_wait_used(client, 0);
        }
        ck_assert_str_eq(load_from(ONE, model), "disk");
        stop();
}

static const enum fault_call writes[] = {FAULT_pwrite, FAULT_fsync, FAULT_renameat};

/* It was killed, or has stored the entry. */
static bool is_over(void)
{
        char *reply = NULL;
        bool over = streamer_call(client, "status", "{}", &reply) != 0 || strstr(reply, "\"entries\": 1") != NULL ||
                    strstr(reply, "\"entries\":1") != NULL;
        free(reply);
        return over;
}

TEST(a_daemon_that_is_killed_before_a_call_leaves_a_whole_entry_or_none, EACH(writes), .slow = true)
{
        bool struck = true;
        for (uint64_t n = 0; struck; n++) {
                empty_cache();
                faults_show();
                start();
                fault_arm_kill(writes[_i], n);
                client_load_end(client_load_begin(client, ONE, "m"));
                while (!is_over())
                        ;
                struck = fault_disarm();
                streamer_close(client);
                if (struck)
                        daemon_kill(&disk_daemon);
                else
                        ck_assert_int_eq(daemon_stop(&disk_daemon), 0);
                check_what_is_left();
        }
}
