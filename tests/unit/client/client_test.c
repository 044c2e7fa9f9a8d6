/* SPDX-License-Identifier: Apache-2.0
 *
 * The library's connection, against a scripted daemon: connecting, timeouts, threads, forks, invalid replies, and
 * disconnects.
 */
#include "client/channel.h"
#include "tests/unit/client_fixture.h"

static int open_with(int timeout_ms, streamer_client **c)
{
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = fake.socket, .timeout_ms = timeout_ms};
        return streamer_connect(&opts, c);
}

/* ---- connect ---- */

CLIENT_FIXTURE();

TEST(a_path_that_is_too_long_is_refused)
{
        streamer_client *c;
        char path[200];
        memset(path, 'x', sizeof(path));
        path[199] = 0;
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = path};
        ck_assert_int_eq(streamer_connect(&opts, &c), STREAMER_EINVAL);
}

TEST(a_refused_hello_is_the_outcome_of_connect)
{
        streamer_client *c;
        fake_start(&fake, "accept\n> hello\n! limit connections: 8 are open\nend\n");
        FAILS(NULL, open_with(10000, &c), STREAMER_ELIMIT, "cannot connect: connections: 8 are open");
        fake_finish(&fake);
}

/* As many connections as a daemon that restarts may end. The second end is in the middle of the reply. */
TEST(a_connection_that_ends_before_the_reply_is_made_again)
{
        fake_start(&fake, "accept\nclose\naccept\n> hello\nraw #0000\nclose\naccept\n> hello\nclose\n"
                          "hello\n> ping\n<\nend\n");
        ck_assert_int_eq(open_with(10000, &client), 0);
        CALL_GIVES(client, "ping", NULL, "{}");
}

/* The socket has no listener for a moment. */
static void restart(struct fake_daemon *f)
{
        struct sockaddr_un addr = {.sun_family = AF_UNIX};
        snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", f->socket);
        fake_say(f, "accept\n> hello\nvanish\n");
        must(unlink(f->socket));
        f->listener = must(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        must(bind(f->listener, (struct sockaddr *)&addr, sizeof(addr)));
        must(listen(f->listener, 8));
        fake_say(f, "hello\nend\n");
}

TEST(a_daemon_that_restarts_meanwhile_is_found)
{
        fake_start_script(&fake, restart);
        ck_assert_int_eq(open_with(10000, &client), 0);
}

/* The patience of the library, which is less than the time limit. */
TEST(a_daemon_that_ends_for_good_is_unreachable)
{
        streamer_client *c;
        fake_start(&fake, "accept\n> hello\nvanish\n");
        FAILS(NULL, open_with(30000, &c), STREAMER_EUNREACHABLE,
              format_text("cannot connect: no daemon serves there: Connection refused (%s)", fake.socket));
        fake_finish(&fake);
}

TEST(a_silent_daemon_times_out)
{
        streamer_client *c;
        fake_start(&fake, "accept\npause\n");
        ck_assert_int_eq(open_with(20, &c), STREAMER_ETIMEOUT);
        fake_resume(&fake);
        fake_finish(&fake);
}

TEST(options_of_older_and_newer_callers_are_read_as_far_as_they_are_known)
{
        struct {
                streamer_connect_opts opts;
                uint64_t later;
        } newer = {.opts = {.struct_size = sizeof(newer)}};
        fake_start(&fake, "hello\nend\n");
        newer.opts.socket = fake.socket;
        newer.later = 1;
        ck_assert_int_eq(streamer_connect(&newer.opts, &client), STREAMER_EINVAL);
        newer.later = 0;
        ck_assert_int_eq(streamer_connect(&newer.opts, &client), 0);
        disconnect();
        newer.opts.struct_size = 0;
        ck_assert_int_eq(streamer_connect(&newer.opts, &client), STREAMER_EINVAL);
}

/* ---- time and threads ---- */

TEST(a_late_reply_is_dropped)
{
        fake_start(&fake, "hello\n> status\n> version\n<1 version=late\n< version=right\n");
        ck_assert_int_eq(open_with(20000, &client), 0);
        client->timeout_ms = 20; /* for the call that has no reply */
        char *text = format_text("no reply in time: the daemon is stopped or overloaded (pid %d, %s)", (int)getpid(),
                                 fake.socket);
        CALL_FAILS(client, "status", NULL, STREAMER_ETIMEOUT, text);
        client->timeout_ms = 20000;
        CALL_GIVES(client, "version", NULL, "{\"version\":\"right\"}");
}

TEST(a_request_that_takes_long_says_nothing_of_the_daemon)
{
        fake_start(&fake, "hello\n> verify\n> fetch\nend\n");
        ck_assert_int_eq(open_with(20, &client), 0);
        CALL_FAILS(client, "verify", "{\"model\":\"m\"}", STREAMER_ETIMEOUT, "verify: not done in the given time");
        void *data;
        uint64_t size;
        FAILS(client, streamer_fetch(client, "s3://b/m", "f", &data, &size), STREAMER_ETIMEOUT,
              "fetch: not done in the given time");
}

static void *remove_entries(void *arg)
{
        return (void *)(intptr_t)streamer_call(client, "cache_remove", "{\"of\":\"s3://b\"}", NULL);
}

static uint64_t last_request(void)
{
        lock_scope(&client->lock);
        return client->last_id;
}

/* Of the two requests the first one has no time limit of its own. */
TEST(a_removal_may_take_longer_than_other_replies)
{
        pthread_t thread;
        void *result;
        client =
                fake_connect(&fake, "hello\n> cache_remove\n> status\n> version\n<2 removed=9\n< version=right\nend\n");
        client->timeout_ms = 20;
        client->timeout_given = false;
        uint64_t before = last_request();
        ck_assert_int_eq(pthread_create(&thread, NULL, remove_entries, NULL), 0);
        AWAIT(last_request() > before);
        ck_assert_int_eq(streamer_call(client, "status", NULL, NULL), STREAMER_ETIMEOUT);
        client->timeout_ms = 20000;
        CALL_GIVES(client, "version", NULL, "{\"version\":\"right\"}");
        pthread_join(thread, &result);
        ck_assert_int_eq((int)(intptr_t)result, 0);
}

/* The kernel names the process that called listen() last. */
static pid_t listen_elsewhere(void)
{
        int status;
        pid_t pid = must(fork());
        if (pid == 0) {
                if (listen(fake.listener, 8) == 0)
                        raise(SIGSTOP);
                _exit(1);
        }
        ck_assert_int_eq(must(waitpid(pid, &status, WUNTRACED)), pid);
        ck_assert(WIFSTOPPED(status));
        return pid;
}

TEST(a_late_reply_names_the_daemon_of_the_new_connection)
{
        client = fake_connect(&fake, "hello\n> ping\nclose\nhello\n> ping\n<\n> status\nend\n");
        CALL_FAILS(client, "ping", NULL, STREAMER_EUNREACHABLE, "the daemon closed the connection");
        pid_t pid = listen_elsewhere();
        CALL_GIVES(client, "ping", NULL, "{}");
        client->timeout_ms = 20;
        CALL_FAILS(client, "status", NULL, STREAMER_ETIMEOUT,
                   format_text("no reply in time: the daemon is stopped or overloaded (pid %d, %s)", (int)pid,
                               fake.socket));
        kill(pid, SIGKILL);
}

static void answer_in_reverse(struct fake_daemon *f)
{
        char *names[8];
        fake_say(f, "hello\n");
        for (size_t i = 0; i < 8; i++) {
                const char *name;
                size_t length;
                fake_say(f, "> verify\n");
                object_str(&f->request.unpacked.data, "model", &name, &length);
                names[i] = format_text("%.*s", (int)length, name);
        }
        for (size_t i = 8; i-- > 0;)
                fake_say(f, format_text("<%zu model=%s\n", 7 - i, names[i]));
}

struct caller {
        streamer_client *c;
        int number;
};

static void *call_verify(void *arg)
{
        struct caller *caller = arg;
        char *args = format_text("{\"model\":\"m%d\"}", caller->number);
        CALL_GIVES(caller->c, "verify", args, args);
        return NULL;
}

/* Loop: the hello is sent by streamer_connect(); by the first of the calls. */
TEST(threads_get_each_its_own_reply, .to = 2)
{
        pthread_t threads[8];
        struct caller callers[8];
        fake_start_script(&fake, answer_in_reverse);
        streamer_connect_opts opts = {
                .struct_size = sizeof(opts), .socket = fake.socket, .flags = _i == 1 ? STREAMER_CONNECT_LAZY : 0};
        ck_assert_int_eq(streamer_connect(&opts, &client), 0);
        for (int i = 0; i < 8; i++) {
                callers[i] = (struct caller){client, i};
                ck_assert_int_eq(pthread_create(&threads[i], NULL, call_verify, &callers[i]), 0);
        }
        for (int i = 0; i < 8; i++)
                pthread_join(threads[i], NULL);
}

TEST(in_a_forked_child_calls_fail_and_the_parent_continues)
{
        client = fake_connect(&fake, "hello\n> ping\n<\nend\n");
        pid_t pid = must(fork());
        if (pid == 0) {
                bool good = streamer_call(client, "ping", NULL, NULL) == STREAMER_EFORK &&
                            streamer_fd(client) == STREAMER_EFORK &&
                            strcmp(streamer_last_error(client), "the client belongs to the parent process") == 0;
                streamer_close(client);
                _exit(good ? 0 : 1);
        }
        ck_assert_int_eq(child_wait(pid), 0);
        CALL_GIVES(client, "ping", NULL, "{}");
}

/* ---- lost or misbehaving daemon ---- */

TEST(a_lost_daemon_fails_calls_and_makes_the_descriptor_readable_once)
{
        client = fake_connect(&fake, "hello\n> ping\nvanish\n");
        CALL_FAILS(client, "ping", NULL, STREAMER_EUNREACHABLE, "the daemon closed the connection");
        CALL_FAILS(client, "ping", NULL, STREAMER_EUNREACHABLE,
                   "the daemon closed the connection, and cannot be reached again");
        struct pollfd p = {.fd = streamer_fd(client), .events = POLLIN};
        ck_assert_int_eq(must(poll(&p, 1, 0)), 1);
        ck_assert_int_eq(streamer_process(client), 1);
        ck_assert_int_eq(streamer_process(client), STREAMER_EUNREACHABLE);
        ck_assert_int_eq(must(poll(&p, 1, 0)), 0);
}

static const struct {
        const char *bytes, *text;
} nonsense[] = {
        {"00000000", "the daemon sent a frame of a forbidden length"},
        {"ffffffff", "the daemon sent a frame of a forbidden length"},
        {"00000001c1", "the daemon sent a message that cannot be read"},
        {"0000000107", "the daemon sent a message that cannot be read"},
        {"0000000180", "the daemon sent neither a reply nor an event"},
};

TEST(nonsense_ends_the_connection, EACH(nonsense))
{
        client = fake_connect(&fake, format_text("hello\n> ping\nraw #%s\n", nonsense[_i].bytes));
        CALL_FAILS(client, "ping", NULL, STREAMER_EPROTO, nonsense[_i].text);
}

TEST(descriptors_that_no_reply_asks_for_end_the_connection)
{
        client = fake_connect(&fake, "hello\n> ping\nwith 0\n<\nend\n");
        CALL_GIVES(client, "ping", NULL, "{}");
        CALL_FAILS(client, "ping", NULL, STREAMER_EPROTO, "the daemon sent descriptors that belong to no reply");
}
