/* SPDX-License-Identifier: Apache-2.0
 *
 * Who may attach to what was decrypted, and who may load only encrypted files.
 */
#include "tests/integration/encrypted_fixture.h"
#include "tests/integration/users_fixture.h"

enum { LOADER = 60102, OTHER = 60103, VIEWER = 60104, CAREFUL = 60105 };

static char *file, *plain;

static void begin_with(const char *encryption)
{
        encrypted_begin_with(encryption,
                             format_text("access:\n  roles:\n    - {role: load, users: [%d, %d]}\n    - {role: attach, "
                                         "users: %d}\n    - {role: load, users: %d, encrypted_only: true}\n",
                                         LOADER, OTHER, VIEWER, CAREFUL));
        file = encrypted_file("m.safetensors", &(struct encrypted_form){.chunk = 65536});
        plain = suite_path("root/plain.safetensors");
        model_write(model, plain);
        must(chmod(plain, 0644));
}

static void begin(void)
{
        begin_with("");
}

static void begin_across(void)
{
        begin_with("  across_uids: true\n");
}

static void begin_required(void)
{
        begin_with("  require: true\n");
}

static char digest[33];
static const char *attach_name = "m";

static int attach_it(void)
{
        streamer_client *c = client_open(&test_daemon);
        const streamer_attach_opts by = {.struct_size = sizeof(by), .digest = attach_name == NULL ? digest : NULL};
        streamer_lease *lease;
        int r = streamer_attach(c, attach_name, &by, &lease);
        if (r == 0) {
                lease_equals(lease, model);
                streamer_detach(lease);
        }
        return expect_error(c, r);
}

FIXTURE(.each = {begin, encrypted_end}, .unavailable = root_unavailable);

TEST(those_who_have_loaded_it_and_root_attach)
{
        ck_assert_int_eq(load_as(LOADER, file, "m", NULL), 0);
        ck_assert_int_eq(do_as(LOADER, attach_it, NULL), 0);
        ck_assert_int_eq(attach_it(), 0);
        ck_assert_int_eq(
                do_as(VIEWER, attach_it,
                      "m: decrypted for uid 60102, and only users who have loaded it and root may attach to it "
                      "(encryption.across_uids allows it to uid 60104, too)"),
                STREAMER_EPERM);
        ck_assert_int_eq(do_as(OTHER, attach_it, "decrypted for uid 60102"), STREAMER_EPERM);
        /* An alias, for a user who may have it decrypted. */
        ck_assert_int_eq(load_as(OTHER, file, "mine", NULL), 0);
        ck_assert_int_eq(do_as(OTHER, attach_it, NULL), 0);
        ck_assert_int_eq(do_as(VIEWER, attach_it, "decrypted for uid 60102"), STREAMER_EPERM);
        /* A plain copy is another model. */
        ck_assert_int_eq(load_as(LOADER, plain, "plain", NULL), 0);
        attach_name = "plain";
        ck_assert_int_eq(do_as(VIEWER, attach_it, NULL), 0);
}

/* The digest of both is the same: it leads to the one that the user may have. */
TEST(a_digest_does_not_lead_to_what_was_decrypted_for_another)
{
        ck_assert_int_eq(load_as(LOADER, file, "m", NULL), 0);
        snprintf(digest, sizeof(digest), "%s", json_text(client_show(client, "m"), "digest"));
        attach_name = NULL;
        ck_assert_int_eq(do_as(VIEWER, attach_it, "decrypted for uid 60102"), STREAMER_EPERM);
        ck_assert_int_eq(load_as(LOADER, plain, "plain", NULL), 0);
        ck_assert_int_eq(do_as(VIEWER, attach_it, NULL), 0);
}

TEST(a_role_may_be_limited_to_encrypted_files)
{
        const char *says = "not encrypted, and only encrypted files are loaded: encrypted_only of the caller's role";
        ck_assert_int_eq(load_as(CAREFUL, plain, "plain", says), STREAMER_EPERM);
        ck_assert_int_eq(load_as(LOADER, plain, "plain", NULL), 0);
        ck_assert_int_eq(load_as(CAREFUL, plain, "alias", says), STREAMER_EPERM);
        ck_assert_int_eq(load_as(CAREFUL, file, "m", NULL), 0);
        ck_assert_int_eq(do_as(CAREFUL, attach_it, NULL), 0);
}

FIXTURE(.each = {begin_across, encrypted_end}, .unavailable = root_unavailable);

TEST(every_role_attaches_where_that_is_configured)
{
        ck_assert_int_eq(load_as(LOADER, file, "m", NULL), 0);
        ck_assert_int_eq(do_as(VIEWER, attach_it, NULL), 0);
}

FIXTURE(.each = {begin_required, encrypted_end}, .unavailable = root_unavailable);

TEST(no_other_file_is_loaded_where_encryption_is_required)
{
        ck_assert_int_eq(load_as(LOADER, plain, "plain", "encryption.require is true"), STREAMER_EPERM);
        client_load_fails(client, plain, "plain", STREAMER_EPERM, "encryption.require is true");
        ck_assert_int_eq(load_as(LOADER, file, "m", NULL), 0);
        /* The daemon's own test model is none. */
        ck_assert_int_eq(client_call_code(client, "probe", "{}"), 0);
}
