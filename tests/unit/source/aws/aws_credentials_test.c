/* SPDX-License-Identifier: Apache-2.0
 *
 * The credential chain before it contacts a service: environment, profiles, and the daemon's configuration. No error
 * contains a secret.
 */
#include "tests/unit/aws_fixture.h"

/* ---- the environment and the files ---- */

FIXTURE(.each = {begin, end});

TEST(the_environment_is_first)
{
        setenv("AWS_ACCESS_KEY_ID", "A", 1);
        setenv("AWS_SECRET_ACCESS_KEY", "thesecret", 1);
        setenv("AWS_SESSION_TOKEN", "T", 1);
        write_file("AWS_SHARED_CREDENTIALS_FILE", "[default]\naws_access_key_id=F\naws_secret_access_key=G\n");
        assert_keys("A", "thesecret", "T", "environment");
}

TEST(an_incomplete_key_in_the_environment_is_an_error)
{
        setenv("AWS_SECRET_ACCESS_KEY", "thesecret", 1);
        assert_fails(STREAMER_EPERM, "one is set without the other");
}

TEST(a_profile_of_the_files)
{
        write_file("AWS_SHARED_CREDENTIALS_FILE", "[default]\naws_access_key_id=F\naws_secret_access_key=thesecret\n"
                                                  "[other]\naws_access_key_id=O\naws_secret_access_key=p\n"
                                                  "aws_session_token=T\n");
        assert_keys("F", "thesecret", "", "profile 'default'");
        credentials = aws_credentials_free(credentials);
        setenv("AWS_PROFILE", "other", 1);
        assert_keys("O", "p", "T", "profile 'other'");
}

/* AWS_PROFILE is in the environment, where the keys of the environment take precedence. */
TEST(a_configured_profile_precedes_the_environment)
{
        setenv("AWS_ACCESS_KEY_ID", "A", 1);
        setenv("AWS_SECRET_ACCESS_KEY", "b", 1);
        setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/nonexistent", 1);
        setenv("AWS_PROFILE", "other", 1);
        write_file("AWS_CONFIG_FILE", "[profile none]\nregion=x\n");
        write_file("AWS_SHARED_CREDENTIALS_FILE", "[team]\naws_access_key_id=F\naws_secret_access_key=thesecret\n"
                                                  "[other]\naws_access_key_id=O\naws_secret_access_key=p\n");
        open_with(&(struct aws_credentials_opts){.profile = "team"});
        assert_keys("F", "thesecret", "", "profile 'team'");
        credentials = aws_credentials_free(credentials);
        open_with(&(struct aws_credentials_opts){.profile = "none"});
        assert_fails(STREAMER_EPERM, "no credentials");
        credentials = aws_credentials_free(credentials);
        assert_keys("A", "b", "", "environment");
}

TEST(a_requested_profile_must_exist)
{
        setenv("AWS_PROFILE", "nobody", 1);
        assert_fails(STREAMER_EPERM, "profile 'nobody' is in none of the shared files");
}

static const char *const ways[] = {"credential_process", "sso_session", "sso_start_url"};

TEST(an_unsupported_credential_type_is_named, EACH(ways))
{
        write_file("AWS_CONFIG_FILE", format_text("[default]\nrole_arn = r\n%s = thesecret\n", ways[_i]));
        assert_fails(STREAMER_EUNSUPPORTED, ways[_i]);
}

TEST(a_file_with_an_error_stops_the_chain)
{
        write_file("AWS_SHARED_CREDENTIALS_FILE", "[default]\nthesecret\n");
        assert_fails(STREAMER_EFAILED, "neither a section nor 'key = value'");
}

TEST(without_credentials_the_error_lists_the_places_searched)
{
        assert_fails(STREAMER_EPERM, "no credentials: none in the settings, the environment or profile 'default'");
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
        ck_assert_int_eq(aws_credentials_new(&credentials, &opts, &error), STREAMER_EINVAL);
        ck_assert_str_eq(error.text, "an access key without its secret key, or the reverse");
        credentials = NULL;
}
