/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of a client's last failure, for callers that change threads between two calls; the text of a connect.
 */
#include "tests/unit/client_fixture.h"

#define FORKS 50
#define GREET "hello\nend\n"

static struct fake_daemon other;

static const char *copied(const streamer_client *c)
{
        static char text[1024];
        memset(text, 'x', sizeof(text));
        streamer_error_copy(c, text, sizeof(text));
        return text;
}

static void *fail_once(void *c)
{
        ck_assert_int_eq(streamer_call(c, "", NULL, NULL), STREAMER_EINVAL);
        return NULL;
}

CLIENT_FIXTURE();

TEST(a_clients_last_failure_can_be_read_in_any_thread)
{
        pthread_t thread;
        client = fake_connect(&fake, GREET);
        ck_assert_str_eq(copied(client), "");
        ck_assert_int_eq(pthread_create(&thread, NULL, fail_once, client), 0);
        pthread_join(thread, NULL);
        ck_assert_str_eq(copied(client), "call: 'verb' is empty");
        ck_assert_str_eq(streamer_last_error(client), "");
}

TEST(clients_have_texts_of_their_own)
{
        streamer_client *second = fake_connect(&other, GREET);
        client = fake_connect(&fake, GREET);
        fail_once(client);
        ck_assert_int_eq(streamer_wait(second, "", 0), STREAMER_EINVAL);
        ck_assert_str_eq(copied(client), "call: 'verb' is empty");
        ck_assert_str_eq(copied(second), "wait: 'model' is empty");
        fake_disconnect(&other, second);
}

TEST(a_text_that_does_not_fit_is_cut)
{
        char text[7] = "xxxxxx", untouched = 'x';
        client = fake_connect(&fake, GREET);
        fail_once(client);
        streamer_error_copy(client, text, sizeof(text) - 1);
        ck_assert_mem_eq(text, "call:\0", sizeof(text) - 1);
        streamer_error_copy(client, &untouched, 0);
        ck_assert_int_eq(untouched, 'x');
        streamer_error_copy(client, NULL, 8);
        streamer_error_copy(NULL, text, sizeof(text));
        ck_assert_str_eq(text, "");
}

static void *fail_until_stopped(void *arg)
{
        void *const *client_and_stop = arg;
        const atomic_bool *stop = client_and_stop[1];
        while (!atomic_load(stop))
                fail_once(client_and_stop[0]);
        return NULL;
}

/* A fork may happen while another thread stores a text. */
TEST(a_forked_child_can_fail_at_any_time)
{
        pthread_t thread;
        atomic_bool stop = false;
        client = fake_connect(&fake, GREET);
        void *client_and_stop[] = {client, &stop};
        ck_assert_int_eq(pthread_create(&thread, NULL, fail_until_stopped, client_and_stop), 0);
        for (int i = 0; i < FORKS; i++) {
                pid_t pid = must(fork());
                if (pid == 0)
                        _exit(streamer_call(client, "ping", NULL, NULL) == STREAMER_EFORK &&
                                              streamer_last_error(client)[0] && copied(client)[0] == 0
                                      ? 0
                                      : 1);
                ck_assert_int_eq(child_wait(pid), 0);
        }
        atomic_store(&stop, true);
        pthread_join(thread, NULL);
}

TEST(a_connect_that_fails_stores_its_text_in_its_options)
{
        streamer_client *c;
        char text[128] = "x";
        streamer_connect_opts opts = STREAMER_CONNECT_OPTS_INIT;
        opts.socket = "/nowhere/sock";
        opts.error = text;
        opts.error_size = sizeof(text);
        ck_assert_int_eq(streamer_connect(&opts, &c), STREAMER_EUNREACHABLE);
        ck_assert_str_eq(text, "cannot connect: no daemon serves there: No such file or directory (/nowhere/sock)");
        opts.error_size = 7;
        ck_assert_int_eq(streamer_connect(&opts, &c), STREAMER_EUNREACHABLE);
        ck_assert_str_eq(text, "cannot");
        opts.flags = 1u << 31;
        opts.error_size = sizeof(text);
        ck_assert_int_eq(streamer_connect(&opts, &c), STREAMER_EINVAL);
        ck_assert_str_eq(text, "connect: unknown flags 0x80000000");
}

TEST(a_connect_that_succeeds_stores_no_text)
{
        char text[128] = "x";
        streamer_connect_opts opts = STREAMER_CONNECT_OPTS_INIT;
        fake_start(&fake, GREET);
        opts.socket = fake.socket;
        opts.error = text;
        opts.error_size = sizeof(text);
        ck_assert_int_eq(streamer_connect(&opts, &client), 0);
        ck_assert_str_eq(text, "");
}

TEST(the_version_has_the_numbers_of_the_header)
{
        char text[64];
        snprintf(text, sizeof(text), "%d.%d.%d", STREAMER_VERSION_MAJOR, STREAMER_VERSION_MINOR,
                 STREAMER_VERSION_PATCH);
        ck_assert_str_eq(text, STREAMER_VERSION);
        ck_assert_str_eq(streamer_version(), STREAMER_VERSION);
        ck_assert_str_eq(STREAMERD_VERSION, STREAMER_VERSION);
        ck_assert_uint_eq(streamer_abi_version(), STREAMER_ABI_VERSION);
}
