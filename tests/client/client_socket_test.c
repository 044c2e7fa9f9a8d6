/* SPDX-License-Identifier: Apache-2.0
 *
 * The rule by which a client finds its daemon. Each daemon of the rule is a link to the socket of a fake one.
 */
#include "client/socket.h"
#include "client/fault.h"
#include "tests/lib/fake_daemon.h"
#include "tests/lib/suite.h"

#include <sys/socket.h>

#define TIMEOUT_MS 10000

static struct fake_daemon fake;
static struct socket_places places;

/* A folder of this user in the test's own. */
static char *folder(const char *name)
{
        char *path = suite_path("%d-%s", (int)getpid(), name);
        if (mkdir(path, 0700) < 0)
                ck_assert_int_eq(errno, EEXIST);
        return path;
}

static char *in(const char *parent, const char *name)
{
        return format_text("%s/%s", parent, name);
}

static void serve_at(const char *path)
{
        must(symlink(fake.socket, path));
}

/* The user's own daemon in this folder. */
static char *own_in(const char *parent, const char *name)
{
        char *path = in(parent, name);
        must(mkdir(path, 0700));
        serve_at(in(path, "streamerd.sock"));
        return in(path, "streamerd.sock");
}

static char *runtime_of_user(void)
{
        char *path = format_text("%s/%u", places.run_user, (unsigned)places.uid);
        if (mkdir(path, 0700) < 0)
                ck_assert_int_eq(errno, EEXIST);
        return path;
}

static char *tmp_name(void)
{
        return format_text("streamerd-%u", (unsigned)places.uid);
}

static void set_up(const char *text)
{
        places = (struct socket_places){
                .system = in(folder("system"), "streamerd.sock"),
                .run_user = folder("run-user"),
                .tmp = folder("tmp"),
                .uid = geteuid(),
        };
        fake_start(&fake, text);
}

static void finds_with(const char *socket, unsigned flags, const char *path, int rule, const char *skipped)
{
        streamer_client *c;
        streamer_socket_info info = STREAMER_SOCKET_INFO_INIT;
        int rc = socket_connect(&places, socket, flags, TIMEOUT_MS, &c);
        ck_assert_msg(rc == 0, "%s", fault_text(NULL));
        ck_assert_int_eq(streamer_socket(c, &info), 0);
        ck_assert_str_eq(info.path, path);
        ck_assert_int_eq(info.rule, rule);
        ck_assert_msg(skipped[0] ? strstr(info.skipped, skipped) != NULL : info.skipped[0] == '\0', "%s", info.skipped);
        streamer_close(c);
}

static void finds(const char *path, int rule, const char *skipped)
{
        finds_with(NULL, 0, path, rule, skipped);
        fake_finish(&fake);
}

static void fails(int code, const char *text)
{
        streamer_client *c;
        ck_assert_int_eq(socket_connect(&places, NULL, 0, TIMEOUT_MS, &c), code);
        ck_assert_msg(strstr(fault_text(NULL), text) != NULL, "%s", fault_text(NULL));
}

static void set_up_one(void)
{
        set_up("hello\n");
}

/* ---- order ---- */

FIXTURE(.each = {set_up_one, NULL});

TEST(the_callers_socket_is_first)
{
        serve_at(places.system);
        char *given = in(folder("given"), "s");
        serve_at(given);
        places.environment = "/nowhere";
        finds_with(given, 0, given, STREAMER_SOCKET_GIVEN, "");
        fake_finish(&fake);
}

TEST(the_environment_is_next)
{
        serve_at(places.system);
        char *environment = in(folder("environment"), "s");
        serve_at(environment);
        places.environment = environment;
        finds(environment, STREAMER_SOCKET_ENVIRONMENT, "");
}

TEST(a_named_daemon_has_no_substitute)
{
        serve_at(places.system);
        places.environment = in(folder("environment"), "s");
        fails(STREAMER_EUNREACHABLE, places.environment);
        places.environment = "";
        finds(places.system, STREAMER_SOCKET_SYSTEM, "");
}

TEST(the_systems_daemon_is_before_the_users)
{
        serve_at(places.system);
        own_in(places.tmp, tmp_name());
        finds(places.system, STREAMER_SOCKET_SYSTEM, "");
}

TEST(the_users_own_alone_may_be_asked_for)
{
        serve_at(places.system);
        char *own = own_in(places.tmp, tmp_name());
        finds_with(NULL, STREAMER_CONNECT_OWN, own, STREAMER_SOCKET_USER, "");
        fake_finish(&fake);
}

TEST(without_any_the_error_names_all)
{
        fails(STREAMER_EUNREACHABLE, places.system);
        fails(STREAMER_EUNREACHABLE, in(in(places.tmp, tmp_name()), "streamerd.sock"));
        serve_at(places.system);
        finds(places.system, STREAMER_SOCKET_SYSTEM, "");
}

/* ---- the system's is skipped ---- */

TEST(a_socket_on_which_nobody_listens_is_skipped)
{
        struct sockaddr_un addr = {.sun_family = AF_UNIX};
        int fd = must(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", places.system);
        must(bind(fd, (struct sockaddr *)&addr, sizeof(addr)));
        close(fd);
        finds(own_in(places.tmp, tmp_name()), STREAMER_SOCKET_USER, places.system);
}

TEST(a_socket_that_refuses_the_user_is_skipped)
{
        if (geteuid() == 0) {
                places.uid = 60101;
                must(chmod(suite_folder(), 0755));
                must(chmod(fake.socket, 0777));
                must(chown(places.tmp, places.uid, 0));
        }
        serve_at(places.system);
        char *own = own_in(places.tmp, tmp_name()), *parent = folder("system");
        must(chown(in(places.tmp, tmp_name()), places.uid, 0));
        must(chmod(parent, 0));
        must(seteuid(places.uid));
        finds(own, STREAMER_SOCKET_USER, "Permission denied");
        must(seteuid(getuid()));
        must(chmod(parent, 0700));
}

/* ---- the user's own ---- */

TEST(a_daemon_that_was_started_without_a_runtime_directory_is_found_with_one)
{
        char *own = own_in(places.tmp, tmp_name());
        places.runtime_dir = runtime_of_user();
        finds(own, STREAMER_SOCKET_USER, "");
}

TEST(another_runtime_directory_is_the_only_one)
{
        own_in(places.tmp, tmp_name());
        own_in(runtime_of_user(), "streamerd");
        places.runtime_dir = folder("chosen");
        fails(STREAMER_EUNREACHABLE, in(places.runtime_dir, "streamerd/streamerd.sock"));
        finds(own_in(places.runtime_dir, "streamerd"), STREAMER_SOCKET_USER, "");
}

/* Left in the environment by sudo. */
TEST(the_runtime_directory_of_another_user_is_ignored)
{
        if (geteuid() == 0) {
                places.runtime_dir = folder("others");
                must(chown(places.runtime_dir, 60102, 0));
        } else {
                places.runtime_dir = "/";
        }
        finds(own_in(places.tmp, tmp_name()), STREAMER_SOCKET_USER, "");
}

static const mode_t untrusted[] = {0770, 0707, 0777, 01777, 0755, 0711, 0750};

TEST(a_folder_that_others_can_enter_is_refused, EACH(untrusted))
{
        char *own = own_in(places.tmp, tmp_name());
        must(chmod(in(places.tmp, tmp_name()), untrusted[_i]));
        fails(STREAMER_EUNREACHABLE, "not a folder of this user alone");
        must(chmod(in(places.tmp, tmp_name()), 0700));
        finds(own, STREAMER_SOCKET_USER, "");
}

TEST(a_link_to_a_folder_is_refused)
{
        own_in(places.tmp, "elsewhere");
        must(symlink(in(places.tmp, "elsewhere"), in(places.tmp, tmp_name())));
        fails(STREAMER_EUNREACHABLE, "not a folder of this user alone");
        serve_at(places.system);
        finds(places.system, STREAMER_SOCKET_SYSTEM, "");
}

TEST(a_new_daemon_takes_the_first)
{
        char paths[USER_SOCKETS][PATH_MAX];
        ck_assert_uint_eq(socket_of_user(&places, paths), 1);
        ck_assert_str_eq(paths[0], in(in(places.tmp, tmp_name()), "streamerd.sock"));
        char *runtime = runtime_of_user();
        ck_assert_uint_eq(socket_of_user(&places, paths), 2);
        ck_assert_str_eq(paths[0], in(runtime, "streamerd/streamerd.sock"));
        serve_at(places.system);
        finds(places.system, STREAMER_SOCKET_SYSTEM, "");
}

/* ---- several connections, or none ---- */

FIXTURE();

TEST(a_daemon_that_gives_the_user_no_role_is_skipped)
{
        set_up("accept\n> hello\n! denied no role\nclose\nhello\n");
        serve_at(places.system);
        finds(own_in(places.tmp, tmp_name()), STREAMER_SOCKET_USER, "no role");
}

TEST(a_lazy_client_skips_it_too)
{
        set_up("accept\n> hello\n! denied no role\nclose\naccept\nend\n");
        serve_at(places.system);
        finds_with(NULL, STREAMER_CONNECT_LAZY, own_in(places.tmp, tmp_name()), STREAMER_SOCKET_USER, "no role");
        fake_finish(&fake);
}

TEST(a_lazy_client_says_nothing_to_the_only_daemon)
{
        set_up("accept\nend\n");
        serve_at(places.system);
        finds_with(NULL, STREAMER_CONNECT_LAZY, places.system, STREAMER_SOCKET_SYSTEM, "");
        fake_finish(&fake);
}

TEST(sessions_with_and_without_a_runtime_directory_find_one_daemon)
{
        set_up("hello\nclose\nhello\n");
        char *own = own_in(runtime_of_user(), "streamerd");
        finds_with(NULL, 0, own, STREAMER_SOCKET_USER, "");
        places.runtime_dir = runtime_of_user();
        finds(own, STREAMER_SOCKET_USER, "");
}

TEST(a_daemon_that_does_not_answer_is_named)
{
        streamer_client *c;
        set_up("accept\npause\n");
        serve_at(places.system);
        ck_assert_int_eq(socket_connect(&places, NULL, 0, 20, &c), STREAMER_ETIMEOUT);
        char *text = format_text("(pid %d, %s)", (int)getpid(), places.system);
        ck_assert_msg(strstr(fault_text(NULL), text) != NULL, "%s", fault_text(NULL));
        fake_resume(&fake);
        fake_finish(&fake);
}
