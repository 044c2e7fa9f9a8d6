/* SPDX-License-Identifier: Apache-2.0
 *
 * Who may do what where no rules are given: root all; members of the socket's group attach, load,
 * look, and drop what they loaded; nobody else anything. What a member loads is opened with the member's own rights.
 * Only root can play others.
 */
#include "tests/lib/person.h"
#include "tests/lib/stage.h"
#include "tests/lib/storage.h"
#include "tests/lib/wire.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define USER 65534
#define MEMBER_GROUP 0 /* the socket's: the daemon's own */
#define OTHER_GROUP 65534

static char *secret, *readable;

static void begin(void)
{
        struct model *m = model_mixed(1, 1 << 18);

        if (getuid() != 0)
                return;
        stage_begin(NULL);
        must(chmod(suite_folder(), 0755));
        secret = stage_write(m, "secret.safetensors");
        readable = stage_write(model_mixed(2, 1 << 18), "readable.safetensors");
        must(chmod(secret, 0600));
}

static void end(void)
{
        if (getuid() == 0)
                stage_end();
}

static int as(gid_t group, int (*fn)(void))
{
        return person_does(USER, group, fn);
}

static int do_connect(void)
{
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = stage.socket};
        streamer_client *c;

        return streamer_connect(&opts, &c);
}

static int do_look(void)
{
        streamer_model_list *list;

        return streamer_list(client_open(&stage), &list);
}

static int do_attach(void)
{
        client_equals(client_open(&stage), "witness", stage_witness);
        return 0;
}

static int do_load_readable(void)
{
        char text[1024];

        return client_load_result(client_open(&stage), readable, "readable", text);
}

static int do_load_secret(void)
{
        char text[1024];

        return client_load_result(client_open(&stage), secret, "secret", text);
}

static int do_unload(void)
{
        return streamer_unload(client_open(&stage), "witness", 0);
}

static int do_cancel(void)
{
        return client_call_code(client_open(&stage), "cancel", "{\"model\":\"witness\"}");
}

START_TEST(others_do_not_get_in)
{
        ROOT_ONLY();
        ck_assert_int_ne(as(OTHER_GROUP, do_connect), 0);
}
END_TEST

START_TEST(members_attach_load_and_look)
{
        ROOT_ONLY();
        ck_assert_int_eq(as(MEMBER_GROUP, do_look), 0);
        ck_assert_int_eq(as(MEMBER_GROUP, do_attach), 0);
        ck_assert_int_eq(as(MEMBER_GROUP, do_load_readable), 0);
}
END_TEST

START_TEST(members_may_not_unload_or_cancel_what_others_loaded)
{
        ROOT_ONLY();
        ck_assert_int_eq(as(MEMBER_GROUP, do_unload), STREAMER_EPERM);
        ck_assert_int_eq(as(MEMBER_GROUP, do_cancel), STREAMER_EPERM);
        stage_still_serves();
}
END_TEST

static int do_unload_readable(void)
{
        return streamer_unload(client_open(&stage), "readable", 0);
}

START_TEST(members_unload_what_they_loaded)
{
        ROOT_ONLY();
        ck_assert_int_eq(as(MEMBER_GROUP, do_load_readable), 0);
        ck_assert_int_eq(as(MEMBER_GROUP, do_unload_readable), 0);
}
END_TEST

static int do_load_over_witness(void)
{
        char text[1024];

        return client_load_result(client_open(&stage), readable, "witness", text);
}

START_TEST(members_may_not_put_another_source_under_somebody_elses_name)
{
        ROOT_ONLY();
        ck_assert_int_eq(as(MEMBER_GROUP, do_load_over_witness), STREAMER_EPERM);
        stage_still_serves();
}
END_TEST

START_TEST(a_file_that_the_caller_may_not_read_is_not_loaded_for_him)
{
        streamer_client *c;

        ROOT_ONLY();
        ck_assert_int_eq(as(MEMBER_GROUP, do_load_secret), STREAMER_EPERM);
        c = client_open(&stage);
        ck_assert_str_ne(client_state(c, "secret"), "ready");
        client_load(c, secret, "secret");
        client_unload(c, "secret");
        streamer_close(c);
}
END_TEST

/* ---- too many ---- */

static void begin_small(void)
{
        static const char settings[] = "devices:\n  - host=64MiB\nlimits: {connections: 2}\n";

        if (getuid() != 0)
                return;
        char *config = suite_file("small.yaml", settings);
        must(chmod(suite_folder(), 0755));
        stage_begin((const char *const[]){"--config", config, NULL});
}

START_TEST(who_is_one_too_many_is_told_and_root_gets_in)
{
        ROOT_ONLY();
        struct wire wires[2];

        for (int i = 0; i < 2; i++) {
                wire_open(&wires[i], &stage);
                wire_hello(&wires[i]);
        }
        ck_assert_int_eq(as(MEMBER_GROUP, do_connect), STREAMER_ELIMIT);
        ck_assert_int_eq(do_attach(), 0);
        for (int i = 0; i < 2; i++)
                wire_close(&wires[i]);
}
END_TEST

int main(void)
{
        suite_begin("access");
        TCase *access = suite_group("roles", begin, end, 60);
        tcase_add_test(access, others_do_not_get_in);
        tcase_add_test(access, members_attach_load_and_look);
        tcase_add_test(access, members_may_not_unload_or_cancel_what_others_loaded);
        tcase_add_test(access, members_unload_what_they_loaded);
        tcase_add_test(access, members_may_not_put_another_source_under_somebody_elses_name);
        tcase_add_test(access, a_file_that_the_caller_may_not_read_is_not_loaded_for_him);
        TCase *many = suite_group("too many", begin_small, end, 60);
        tcase_add_test(many, who_is_one_too_many_is_told_and_root_gets_in);
        return suite_run();
}
