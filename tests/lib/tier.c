/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/tier.h"

#include "tests/lib/suite.h"

uint64_t tier_used(streamer_client *c)
{
        json_t *status = client_call(c, "status", NULL);
        uint64_t used = json_number(json_object_get(status, "host_cache"), "used");
        json_decref(status);
        return used;
}

struct asked {
        streamer_client *client;
        uint64_t bytes;
};

static bool holds(void *arg)
{
        const struct asked *asked = arg;
        return tier_used(asked->client) == asked->bytes;
}

void tier_await(streamer_client *c, uint64_t bytes)
{
        struct asked asked = {c, bytes};
        ck_assert_msg(eventually(holds, &asked, 10000), "the host cache holds %llu", (unsigned long long)tier_used(c));
}
