/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the attach tests: a fake daemon with the model "m", and a client.
 */
#pragma once

#include "tests/lib/fake_daemon.h"
#include "tests/lib/fake_model.h"
#include "tests/lib/suite.h"

static struct fake_daemon fake;
static struct fake_model m;
static streamer_client *client;
static streamer_tensor t = STREAMER_TENSOR_INIT;

#define SERVE "hello\n" FAKE_ATTACH FAKE_DETACH

static void begin(void)
{
        fake_model_init(&m);
        fake.model = &m;
}

static streamer_lease *attach_to(streamer_client *c, unsigned flags)
{
        streamer_lease *lease;
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .flags = flags};
        client = c;
        int rc = streamer_attach(client, "m", &opts, &lease);
        ck_assert_msg(rc == 0, "%s", streamer_last_error(client));
        return lease;
}

static streamer_lease *attach(const char *text, unsigned flags)
{
        return attach_to(fake_connect(&fake, text), flags);
}

static void finish(streamer_lease *lease)
{
        streamer_detach(lease);
        fake_disconnect(&fake, client);
}
