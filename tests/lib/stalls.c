/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/stalls.h"

#include <stdio.h>

void stalls_note(struct stalls *stalls, const json_t *status)
{
        const json_t *loop = json_object_get(status, "loop");
        uint64_t longest_ns = json_number(loop, "longest_ns"), own_ns = json_number(loop, "longest_own_ns");

        if (longest_ns == 0)
                die("status says nothing of the loop's stalls");
        if (stalls->longest_ns < longest_ns)
                stalls->longest_ns = longest_ns;
        if (stalls->own_ns < own_ns)
                stalls->own_ns = own_ns;
}

void stalls_ask(struct stalls *stalls, streamer_client *c)
{
        json_t *status = client_call(c, "status", NULL);

        stalls_note(stalls, status);
        json_decref(status);
}

void stalls_print(const struct stalls *stalls, const char *run)
{
        printf("%s: longest stall of the loop %.1f ms, its own %.1f ms; target %d ms: %s\n", run,
               (double)stalls->longest_ns / 1e6, (double)stalls->own_ns / 1e6, STALL_TARGET_MS,
               stalls->longest_ns <= STALL_TARGET_MS * UINT64_C(1000000) ? "met" : "MISSED");
        fflush(stdout);
}

void stalls_print_stage(const char *run)
{
        struct stalls stalls = {0};
        streamer_client *c = client_open(&stage);

        stalls_ask(&stalls, c);
        streamer_close(c);
        stalls_print(&stalls, run);
}
