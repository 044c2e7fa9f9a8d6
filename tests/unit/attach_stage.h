/* SPDX-License-Identifier: Apache-2.0
 *
 * The stage of the tests that attach: a scripted daemon with the model "m", and a client. Each test is a
 * process of its own, so all of it is static.
 */
#ifndef TESTS_UNIT_ATTACH_STAGE_H
#define TESTS_UNIT_ATTACH_STAGE_H

#include "tests/lib/fake_client.h"
#include "tests/lib/fake_model.h"
#include "tests/lib/suite.h"

static struct fake fake;
static struct fake_model m;
static streamer_client *client;

static void begin(void)
{
        fake_model_init(&m);
}

static TCase *group(const char *name)
{
        TCase *tests = suite_group(name, NULL, NULL, 20);
        tcase_add_checked_fixture(tests, begin, NULL);
        return tests;
}

static void serve(struct fake *f)
{
        fake_hello(f);
        fake_expect(f, VERB_attach);
        ck_assert_str_eq(f->request.u.attach.model, "m");
        fake_model_attach(f, &m, f->request.id);
        fake_model_detach(f);
}

static streamer_lease *attach(void (*script)(struct fake *f), unsigned flags)
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
