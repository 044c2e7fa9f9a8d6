/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/loop_time.h"

void loop_time_note(struct loop_time *time, const json_t *status)
{
        uint64_t longest_ns = json_number(json_object_get(status, "loop"), "longest_cpu_ns");

        if (longest_ns == 0)
                die("status has no loop times");
        if (time->longest_ns < longest_ns)
                time->longest_ns = longest_ns;
}

void loop_time_ask(struct loop_time *time, streamer_client *c)
{
        json_t *status = client_call(c, "status", NULL);

        loop_time_note(time, status);
        json_decref(status);
}

void loop_time_print(const struct loop_time *time, const char *run)
{
        printf("%s: longest loop iteration %.1f ms of processor time; target %d ms: %s\n", run,
               (double)time->longest_ns / 1e6, LOOP_TARGET_MS,
               time->longest_ns <= LOOP_TARGET_MS * UINT64_C(1000000) ? "met" : "MISSED");
        fflush(stdout);
}

void loop_time_print_fixture(const char *run)
{
        struct loop_time time = {0};
        streamer_client *c = client_open(&test_daemon);

        loop_time_ask(&time, c);
        streamer_close(c);
        loop_time_print(&time, run);
}
