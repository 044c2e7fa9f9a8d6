/* SPDX-License-Identifier: Apache-2.0
 *
 * A model that was published from an encrypted base is for those who may have the base decrypted, too.
 */
#include "tests/integration/published_fixture.h"

#include "tests/integration/users_fixture.h"
#include "tests/lib/encrypted_model.h"

enum { TRAINER = 60102, VIEWER = 60104 };

static char *base, *plain;

static void begin_with(const char *encryption)
{
        char *keys = suite_path("keys");
        struct model *m = model_new(5);
        must(chmod(suite_folder(), 0755));
        model_set_metadata(m, "{}");
        model_add(m, "w", "U8", (uint64_t[]){100000}, 1);
        encrypted_keys_write(keys, encrypted_keys(NULL));
        base = suite_path("base.safetensors");
        plain = suite_path("plain.safetensors");
        encrypted_write(&(struct encrypted_form){.version1 = false}, m, base);
        model_write(m, plain);
        must(chmod(base, 0644));
        must(chmod(plain, 0644));
        daemon_begin("device: host, budget: 64MiB",
                     format_text("publish: {across_uids: true}\nencryption:\n  keys: [\"file:%s\"]\n%saccess:\n  "
                                 "roles:\n    - {role: load, users: %d}\n    - {role: attach, users: %d}\n",
                                 keys, encryption, TRAINER, VIEWER));
}

static void begin(void)
{
        begin_with("");
}

static void begin_across(void)
{
        begin_with("  across_uids: true\n");
}

static const char *name;

/* The base is loaded by the publisher, as an engine does. `by_model`: it is named as a resident model. */
static int publish_from(const char *source, bool by_model)
{
        streamer_client *c = client_open(&test_daemon);
        client_load(c, source, "base");
        opts = options(name);
        opts.base = by_model ? "base" : source;
        streamer_detach(commit_model(c, claim_of(c, &opts, "absent"), 1));
        return 0;
}

static int publish_from_encrypted(void)
{
        return publish_from(base, false);
}

static int publish_from_resident(void)
{
        return publish_from(base, true);
}

/* What it was made from is not resident any more. */
static int publish_without_base(void)
{
        streamer_client *c = client_open(&test_daemon);
        opts = options(name);
        opts.base = base;
        streamer_detach(commit_model(c, claim_of(c, &opts, "absent"), 1));
        return 0;
}

static int publish_from_plain(void)
{
        return publish_from(plain, false);
}

static int attach_it(void)
{
        streamer_client *c = client_open(&test_daemon);
        streamer_lease *lease;
        int r = streamer_attach(c, name, NULL, &lease);
        if (r == 0)
                streamer_detach(lease);
        return expect_error(c, r);
}

FIXTURE(.each = {begin, daemon_end}, .unavailable = root_unavailable);

TEST(the_rules_of_an_encrypted_base_apply, .to = 2)
{
        name = "derived";
        ck_assert_int_eq(do_as(TRAINER, _i == 0 ? publish_from_encrypted : publish_from_resident, NULL), 0);
        ck_assert_int_eq(do_as(TRAINER, attach_it, NULL), 0);
        ck_assert_int_eq(attach_it(), 0);
        ck_assert_int_eq(do_as(VIEWER, attach_it,
                               "derived: made from what was decrypted for uid 60102, and only users who have loaded it "
                               "and root may attach to it (encryption.across_uids"),
                         STREAMER_EPERM);
        const json_t *shown = client_show(client_open(&test_daemon), name);
        ck_assert_str_eq(json_text(shown, "encryption.cipher"), "aes256gcm");
        ck_assert_ptr_nonnull(json_at(shown, "published"));
}

TEST(the_rules_of_an_encrypted_base_apply_when_it_is_not_resident, .to = 2)
{
        name = "derived";
        if (_i == 1) {
                encrypted_keys_write(suite_path("keys"), encrypted_keys("aes128gcm signer"));
                ck_assert_int_eq(client_call_code(client_open(&test_daemon), "reload", NULL), 0);
        }
        ck_assert_int_eq(do_as(TRAINER, publish_without_base, NULL), 0);
        ck_assert_int_eq(do_as(TRAINER, attach_it, NULL), 0);
        ck_assert_int_eq(do_as(VIEWER, attach_it, "derived: made from what was decrypted for uid 60102"),
                         STREAMER_EPERM);
        ck_assert_str_eq(json_text(client_show(client_open(&test_daemon), name), "encryption.cipher"),
                         _i == 0 ? "aes256gcm" : "unknown");
}

TEST(those_of_a_plain_base_do_not)
{
        name = "derived";
        ck_assert_int_eq(do_as(TRAINER, publish_from_plain, NULL), 0);
        ck_assert_int_eq(do_as(VIEWER, attach_it, NULL), 0);
}

FIXTURE(.each = {begin_across, daemon_end}, .unavailable = root_unavailable);

TEST(both_may_be_allowed_to_every_role)
{
        name = "derived";
        ck_assert_int_eq(do_as(TRAINER, publish_from_encrypted, NULL), 0);
        ck_assert_int_eq(do_as(VIEWER, attach_it, NULL), 0);
}
