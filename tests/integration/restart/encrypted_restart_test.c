/* SPDX-License-Identifier: Apache-2.0
 *
 * An encrypted model survives a restart and a crash as what it is: its bytes, leases, what is shown of it, who may
 * attach, and who may load it. Its keys are not needed for that. _i 0: over a restart; 1: over a crash.
 */
#include "tests/integration/users_fixture.h"
#include "tests/lib/encrypted_model.h"
#include "tests/lib/managed_daemon.h"
#include "tests/lib/streamerctl.h"

enum { LOADER = 60102, VIEWER = 60104, CAREFUL = 60105 };

static const char *file, *plain;
static struct model *model;

static void begin(void)
{
        mkdir(suite_path("root"), 0755);
        must(chmod(suite_folder(), 0755));
        model = managed.model = model_mixed(70, 4 << 20);
        file = managed_file(), plain = suite_path("root/plain.safetensors");
        encrypted_write(&(struct encrypted_form){.chunk = 65536}, model, file);
        model_write(model, plain);
        encrypted_keys_write(suite_path("keys.json"), encrypted_keys(NULL));
        char *config = suite_file("config.yaml",
                                  format_text("roots: [%s]\nencryption: {keys: [\"file:%s\"]}\naccess:\n  roles:\n"
                                              "    - {role: load, users: [%d]}\n    - {role: attach, users: [%d]}\n"
                                              "    - {role: load, users: [%d], encrypted_only: true}\n",
                                              suite_path("root"), suite_path("keys.json"), LOADER, VIEWER, CAREFUL));
        manager_init(&managed.m, suite_path("d"), MANAGED_STORE,
                     (const char *const[]){"--device", "host=64MiB", "--config", config, NULL});
        manager_start(&managed.m);
        test_daemon = managed.m.d;
        client = client_open(&test_daemon);
}

static void restart(int crash)
{
        managed_restart(crash);
        test_daemon = managed.m.d;
}

static void load_as_loader(void)
{
        ck_assert_int_eq(load_as(LOADER, file, "m", NULL), 0);
        manager_wait(&managed.m, MANAGED_MODELS, 2);
}

static int attach_it(void)
{
        streamer_client *c = client_open(&test_daemon);
        streamer_lease *lease;
        int r = streamer_attach(c, "m", NULL, &lease);
        if (r == 0) {
                lease_equals(lease, model);
                streamer_detach(lease);
        }
        return expect_error(c, r);
}

static const char refusal[] = "m: decrypted for uid 60102, and only users who have loaded it and root may attach to it";

FIXTURE(.each = {begin, managed_end}, .unavailable = root_unavailable);

TEST(an_encrypted_model_is_shown_as_such_after_a_restart, .to = 2)
{
        load_as_loader();
        char *before = json_dumps(json_at(client_show(client, "m"), "encryption"), JSON_SORT_KEYS);
        for (int runs = 0; runs < 2; runs++) {
                restart(_i);
                managed_reconnect();
                ck_assert_str_eq(json_dumps(json_at(client_show(client, "m"), "encryption"), JSON_SORT_KEYS), before);
                ctl_says(test_daemon.socket, 0, "encryption  aes256gcm, key aes256gcm, signed by signer\n", "show", "m",
                         NULL);
                client_equals(client, "m", model);
                ck_assert_int_eq(client_call_code(client, "verify", "{\"model\":\"m\"}"), 0);
        }
}

TEST(its_users_are_the_same_after_a_restart, .to = 2)
{
        load_as_loader();
        restart(_i);
        managed_reconnect();
        ck_assert_int_eq(do_as(LOADER, attach_it, NULL), 0);
        ck_assert_int_eq(do_as(VIEWER, attach_it, refusal), STREAMER_EPERM);
        /* It is an encrypted file to the role that may load no other one. */
        ck_assert_int_eq(do_as(CAREFUL, attach_it, refusal), STREAMER_EPERM);
        ck_assert_int_eq(load_as(CAREFUL, plain, "plain", "not encrypted, and only encrypted files are loaded"),
                         STREAMER_EPERM);
        ck_assert_int_eq(load_as(CAREFUL, file, "mine", NULL), 0);
        ck_assert_int_eq(do_as(CAREFUL, attach_it, NULL), 0);
        ck_assert_uint_eq(json_number(client_show(client, "mine"), "generation"), 1); /* the restored one */
        restart(_i);
        ck_assert_int_eq(do_as(CAREFUL, attach_it, NULL), 0);
        ck_assert_int_eq(do_as(VIEWER, attach_it, refusal), STREAMER_EPERM);
}

TEST(a_lease_of_it_lasts_over_a_restart, .to = 2)
{
        load_as_loader();
        streamer_lease *lease = managed_attach();
        restart(_i);
        lease_equals(lease, model);
        AWAIT(client_leases(client) == 1);
        client_ok(client, streamer_unload(client, "m", STREAMER_UNLOAD_DRAIN), "unload");
        lease_equals(lease, model);
        ck_assert_uint_gt(client_used(client), 0);
        streamer_detach(lease);
        client_wait_used(client, 0);
}

/* What is resident needs no key, and what has to be read does. */
TEST(it_stays_without_its_keys, .to = 2)
{
        char *copy = suite_path("root/copy.safetensors");
        load_as_loader();
        encrypted_write(&(struct encrypted_form){.chunk = 65536}, model, copy);
        encrypted_keys_write(suite_path("keys.json"), encrypted_keys("aes128gcm signer"));
        restart(_i);
        managed_reconnect();
        client_equals(client, "m", model);
        client_load_fails(client, copy, "copy", STREAMER_EFAILED, "which is not among encryption.keys");
        encrypted_keys_write(suite_path("keys.json"), encrypted_keys(NULL));
        ck_assert_int_eq(client_call_code(client, "reload", NULL), 0);
        client_load_equals(client, copy, "copy", model);
}
