/* SPDX-License-Identifier: Apache-2.0
 *
 * The credential chain before it contacts a service: environment, profiles, and the daemon's configuration. No error
 * contains a secret.
 */
#include "tests/unit/aws_fixture.h"

/* ---- the environment and the files ---- */

#define PROFILES "[other]\naws_access_key_id=O\naws_secret_access_key=p\naws_session_token=T\n"

/* The environment and the shared files; the keys and their source, or the error (aws_precedence_test.c: the order). */
static const struct {
        const char *env, *config, *credentials;
        const char *keys, *from;
        int code;
        const char *why;
} chains[] = {
        {"AWS_ACCESS_KEY_ID=A AWS_SECRET_ACCESS_KEY=b AWS_SESSION_TOKEN=T", "", PROFILES, "A b T", "environment", 0,
         NULL},
        {"AWS_SECRET_ACCESS_KEY=thesecret", "", "", NULL, NULL, STREAMER_EPERM, "one is set without the other"},
        {"AWS_PROFILE=other", "", PROFILES, "O p T", "profile 'other'", 0, NULL},
        {"AWS_PROFILE=nobody", "", PROFILES, NULL, NULL, STREAMER_EPERM,
         "profile 'nobody' is in none of the shared files"},
        {"", "[default]\nrole_arn = r\ncredential_process = thesecret\n", "", NULL, NULL, STREAMER_EUNSUPPORTED,
         "which is not supported: keys, and role_arn with source_profile, credential_source"},
        {"", "[default]\nrole_arn = r\nsso_session = thesecret\n", "", NULL, NULL, STREAMER_EUNSUPPORTED,
         "sso_session"},
        {"", "[default]\nrole_arn = r\nsso_start_url = thesecret\n", "", NULL, NULL, STREAMER_EUNSUPPORTED,
         "sso_start_url"},
        {"", "", "[default]\nthesecret\n", NULL, NULL, STREAMER_EFAILED, "neither a section nor 'key = value'"},
        {"", "", "", NULL, NULL, STREAMER_EPERM,
         "no credentials: none in the settings, the environment or profile 'default'"},
};

FIXTURE(.each = {begin, end});

TEST(keys_are_complete_and_errors_name_their_place, EACH(chains))
{
        char *env = format_text("%s", chains[_i].env);
        for (char *entry = strtok(env, " "); entry != NULL; entry = strtok(NULL, " "))
                putenv(entry);
        write_file("AWS_CONFIG_FILE", chains[_i].config);
        write_file("AWS_SHARED_CREDENTIALS_FILE", chains[_i].credentials);
        if (chains[_i].keys == NULL) {
                assert_fails(chains[_i].code, chains[_i].why);
                return;
        }
        ck_assert_msg(get() == 0, "%s", error.text);
        ck_assert_str_eq(format_text("%s %s %s", keys.access, keys.secret, keys.token ?: ""), chains[_i].keys);
        ck_assert_str_eq(keys.origin, chains[_i].from);
}

/* ---- the daemon's settings ---- */

TEST(settings_precede_the_chain_and_may_name_files)
{
        char *id = suite_path("id-%d", (int)getpid());
        setenv("AWS_ACCESS_KEY_ID", "A", 1);
        setenv("AWS_SECRET_ACCESS_KEY", "B", 1);
        file_write(id, "FROMFILE\n", 9);
        setenv("CREDENTIALS_DIRECTORY", suite_folder(), 1);
        file_write(suite_path("key"), "thesecret\r\n", 11);
        open_with(&(struct aws_credentials_opts){.access = format_text("file:%s", id), .secret = "credential:key"});
        assert_keys("FROMFILE", "thesecret", "", "settings");
}

static const struct {
        const char *secret, *why;
} bad_settings[] = {
        {"file:/nonexistent/key", "a secret in /nonexistent/key: No such file"},
        {"credential:line", "no secret in its first line ("},
        {"credential:../key", "not a plain name"},
        {"credential:", "not a plain name"},
        {"credential:absent", "absent"},
};

TEST(a_setting_that_names_no_secret, EACH(bad_settings))
{
        setenv("CREDENTIALS_DIRECTORY", suite_folder(), 1);
        suite_file("line", "\nthesecret\n");
        open_with(&(struct aws_credentials_opts){.access = "A", .secret = bad_settings[_i].secret});
        assert_fails(STREAMER_EFAILED, bad_settings[_i].why);
}

TEST(an_incomplete_key_pair_is_an_error)
{
        const struct aws_credentials_opts opts = {.access = "A"};
        FAILS_SAYING(error, aws_credentials_new(&credentials, &opts, &error), STREAMER_EINVAL,
                     "an access key without its secret key, or the reverse");
        credentials = NULL;
}
