/* SPDX-License-Identifier: Apache-2.0
 *
 * A budget that is larger than the memory of the daemon's control group: admission knows what the group can still
 * give. Idle models are evicted for a load, a queued load waits, and a dry run says what the load would do.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/streamerctl.h"
#include "tests/lib/suite.h"

#define LIMIT (160 * MIB)
#define SIZE (24 * MIB)
#define MODELS 8 /* more than the group can hold */

static struct model *models[MODELS];

static char *name_of(int i)
{
        return format_text("t%d", i);
}

static char *path_of(int i)
{
        return fixture_path("t%d.safetensors", i);
}

/* NULL, or why it cannot be tested. */
static const char *begin_in_group(const char *device)
{
        if (suite_short())
                return "a sanitizer's own memory is in the group";
        for (int i = 0; i < MODELS; i++) /* charged to the group that this process leaves */
                models[i] = model_mixed((unsigned)i, SIZE);
        if (!memory_limit(LIMIT))
                return "the memory of a control group cannot be limited here";
        fixture_begin(
                (const char *const[]){"--device", device, "--memory-limit", "1MiB", "--block-size", "1MiB", NULL});
        client = client_open(&test_daemon);
        for (int i = 0; i < MODELS; i++)
                fixture_write(models[i], format_text("t%d.safetensors", i));
        return NULL;
}

static void end_in_group(void)
{
        streamer_close(client);
        fixture_end();
        limit_end();
}

/* Loads and pins as many as there is memory for; their number. */
static int fill(void)
{
        char text[1024];
        int n = 0;
        while (n < MODELS && client_load_result(client, path_of(n), name_of(n), text) == 0)
                client_ok(client, streamer_pin(client, name_of(n++), 1), "pin");
        ck_assert_int_gt(n, 1);
        ck_assert_int_lt(n, MODELS);
        ck_assert_msg(strstr(text, "the machine or the control group has no more") != NULL, "%s", text);
        streamer_unload(client, name_of(n), 0); /* the failed one, which is listed */
        return n;
}

static bool waits(streamer_op *op)
{
        streamer_progress progress = STREAMER_PROGRESS_INIT;
        client_fails(client, streamer_op_wait(op, 0, &progress), STREAMER_ETIMEOUT, "");
        return strcmp(progress.state, "queued") == 0;
}

FIXTURE();

TEST(idle_models_are_evicted_where_the_group_has_no_more_memory)
{
        const char *why_not = begin_in_group("host=4GiB");
        if (why_not != NULL)
                SKIP(why_not);
        for (int i = 0; i < MODELS; i++) {
                client_load(client, path_of(i), name_of(i));
                client_equals(client, name_of(i), models[i]);
        }
        ck_assert_str_eq(client_state(client, "t0"), "");
        ck_assert_str_eq(client_state(client, name_of(MODELS - 1)), "ready");
        end_in_group();
}

TEST(a_queued_load_waits_until_the_group_has_memory)
{
        const char *why_not = begin_in_group("host=4GiB");
        if (why_not != NULL)
                SKIP(why_not);
        int n = fill();
        streamer_op *op = client_load_begin_with(
                client, (streamer_load_opts){.source = path_of(n), .name = name_of(n), .flags = STREAMER_LOAD_WAIT});
        AWAIT(waits(op));
        client_unload(client, "t0");
        ck_assert_int_eq(client_load_end(op), 0);
        client_equals(client, name_of(n), models[n]);
        end_in_group();
}

TEST(a_dry_run_says_that_the_group_has_no_memory)
{
        const char *why_not = begin_in_group("host=4GiB");
        if (why_not != NULL)
                SKIP(why_not);
        int n = fill();
        char *args = format_text("{\"source\":\"%s\",\"dry_run\":true}", path_of(n));
        json_t *reply = client_call(client, "load", args);
        ck_assert_str_eq(json_text(reply, "admission"), "blocked");
        ck_assert(json_is_false(json_at(reply, "fits")));
        client_unload(client, "t0");
        AWAIT(strcmp(json_text(client_call(client, "load", args), "admission"), "fits") == 0);
        end_in_group();
}

TEST(a_percentage_is_of_the_groups_memory)
{
        const char *why_not = begin_in_group("host=50%");
        if (why_not != NULL)
                SKIP(why_not);
        ck_assert_uint_eq(client_device_number(client, "budget"), LIMIT / 100 * 50);
        end_in_group();
}
