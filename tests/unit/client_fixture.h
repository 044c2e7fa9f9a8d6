/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the library's tests: a fake daemon with the model "m", a client and a lease, which end with the test.
 */
#pragma once

#include "tests/lib/fake_daemon.h"
#include "tests/lib/fake_model.h"
#include "tests/lib/suite.h"

static struct fake_daemon fake;
static struct fake_model m;
static streamer_client *client;
static streamer_lease *lease; /* of attach() */
static streamer_tensor t;

#define SERVE "hello\n" FAKE_ATTACH FAKE_DETACH

static void begin(void)
{
        t = (streamer_tensor)STREAMER_TENSOR_INIT;
        fake_model_init(&m);
        fake.model = &m;
}

static void disconnect(void)
{
        fake_disconnect(&fake, client);
        client = NULL;
}

static void end(void)
{
        streamer_detach(lease);
        if (client != NULL)
                disconnect();
}

#define CLIENT_FIXTURE() FIXTURE(.each = {begin, end})

static inline void attach(const char *text, unsigned flags)
{
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .flags = flags};
        client = fake_connect(&fake, text);
        int rc = streamer_attach(client, "m", &opts, &lease);
        ck_assert_msg(rc == 0, "%s", streamer_last_error(client));
}
