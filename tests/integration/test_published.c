/* SPDX-License-Identifier: Apache-2.0
 *
 * Publishing: a client's model becomes resident, is found by its key, and is read by others.
 */
#include "tests/integration/published_fixture.h"
#include "tests/lib/daemon.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static struct daemon d;
static streamer_client *client;
static const char *key[] = {"torch=2.6.0", "arch=Llama"};
static streamer_publish_opts opts = {sizeof(opts), "tiny", NULL, key, 2, NULL, 0, 0};

static void setup(void)
{
        daemon_start_simple(&d, suite_path("d"), suite_folder(), "64MiB");
        client = connect_to(d.socket);
}

static void teardown(void)
{
        streamer_close(client);
        ck_assert_int_eq(daemon_stop(&d), 0);
}

START_TEST(a_published_model_is_found_and_read)
{
        streamer_found found = STREAMER_FOUND_INIT;
        streamer_attach_opts attach = STREAMER_ATTACH_OPTS_INIT;
        streamer_lease *lease = publish_model(client, &opts, 1), *other;
        check_model(client, lease, 1);
        streamer_client *reader = connect_to(d.socket);
        ok(reader, streamer_publish_find(reader, &opts, &found, NULL));
        ck_assert_str_eq(found.state, "hit");
        ck_assert_str_eq(found.digest, streamer_digest(lease));
        attach.generation = found.generation;
        ok(reader, streamer_attach(reader, "tiny", &attach, &other));
        check_model(reader, other, 1);
        streamer_detach(lease);
        streamer_detach(other);
        streamer_close(reader);
}
END_TEST

int main(void)
{
        suite_begin("publish");
        TCase *tests = suite_group("publish", NULL, NULL, 30);
        tcase_add_checked_fixture(tests, setup, teardown);
        tcase_add_test(tests, a_published_model_is_found_and_read);
        return suite_run();
}
