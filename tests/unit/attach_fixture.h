/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the attach tests: a scripted daemon with the model "m", and a client.
 */
#ifndef TESTS_UNIT_ATTACH_FIXTURE_H
#define TESTS_UNIT_ATTACH_FIXTURE_H

#include "tests/lib/fake_daemon.h"
#include "tests/lib/fake_model.h"
#include "tests/lib/suite.h"

static struct fake_daemon fake;
static struct fake_model m;
static streamer_client *client;

static void begin(void)
{
        fake_model_init(&m);
}

__attribute__((unused)) static void serve(struct fake_daemon *f)
{
        fake_hello(f);
        fake_expect(f, VERB_attach);
        ck_assert_str_eq(f->request.u.attach.model, "m");
        fake_model_attach(f, &m, f->request.id);
        fake_model_detach(f);
}

static streamer_lease *attach(void (*script)(struct fake_daemon *f), unsigned flags)
{
        streamer_lease *lease;
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .flags = flags};
        client = fake_connect(&fake, script);
        int rc = streamer_attach(client, "m", &opts, &lease);
        ck_assert_msg(rc == 0, "%s", streamer_last_error(client));
        return lease;
}

static void finish(streamer_lease *lease)
{
        streamer_detach(lease);
        fake_disconnect(&fake, client);
}

#endif
