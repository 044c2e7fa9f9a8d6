/* SPDX-License-Identifier: Apache-2.0
 *
 * The chain of credentials before it asks anybody: the environment, the files of profiles, and the daemon's settings.
 * No secret shows in an error.
 */
#include "tests/unit/aws_stage.h"

/* ---- the environment and the files ---- */

START_TEST(the_environment_goes_first)
{
        setenv("AWS_ACCESS_KEY_ID", "A", 1);
        setenv("AWS_SECRET_ACCESS_KEY", "thesecret", 1);
        setenv("AWS_SESSION_TOKEN", "T", 1);
        write_file("AWS_SHARED_CREDENTIALS_FILE", "[default]\naws_access_key_id=F\naws_secret_access_key=G\n");
        assert_keys("A", "thesecret", "T", "environment");
}
END_TEST

START_TEST(half_of_the_environment_is_an_error)
{
        setenv("AWS_SECRET_ACCESS_KEY", "thesecret", 1);
        assert_fails(STREAMER_EPERM, "one is set without the other");
}
END_TEST

START_TEST(a_profile_of_the_files)
{
        write_file("AWS_SHARED_CREDENTIALS_FILE", "[default]\naws_access_key_id=F\naws_secret_access_key=thesecret\n"
                                                  "[other]\naws_access_key_id=O\naws_secret_access_key=p\n"
                                                  "aws_session_token=T\n");
        assert_keys("F", "thesecret", "", "profile 'default'");
        credentials = aws_credentials_free(credentials);
        setenv("AWS_PROFILE", "other", 1);
        assert_keys("O", "p", "T", "profile 'other'");
}
END_TEST

/* AWS_PROFILE is of the environment itself: there its keys go first. */
START_TEST(a_profile_of_the_settings_goes_before_the_environment)
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
END_TEST

START_TEST(a_profile_that_is_asked_for_must_be_there)
{
        setenv("AWS_PROFILE", "nobody", 1);
        assert_fails(STREAMER_EPERM, "profile 'nobody' is in none of the shared files");
}
END_TEST

static const char *const ways[] = {"credential_process", "sso_session", "sso_start_url"};

START_TEST(a_way_that_is_not_supported_is_named)
{
        write_file("AWS_CONFIG_FILE", format_text("[default]\nrole_arn = r\n%s = thesecret\n", ways[_i]));
        assert_fails(STREAMER_EUNSUPPORTED, ways[_i]);
}
END_TEST

START_TEST(a_file_with_an_error_stops_the_chain)
{
        write_file("AWS_SHARED_CREDENTIALS_FILE", "[default]\nthesecret\n");
        assert_fails(STREAMER_EFAILED, "neither a section nor 'key = value'");
}
END_TEST

START_TEST(without_any_the_reason_says_where_was_looked)
{
        assert_fails(STREAMER_EPERM, "no credentials: none in the settings, the environment or profile 'default'");
}
END_TEST

/* ---- the daemon's settings ---- */

START_TEST(settings_go_before_the_chain_and_may_name_files)
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
END_TEST

static const struct {
        const char *secret, *why;
} bad_settings[] = {
        {"file:/nonexistent/key", "/nonexistent/key"},
        {"credential:../key", "not a plain name"},
        {"credential:", "not a plain name"},
        {"credential:absent", "absent"},
};

START_TEST(a_setting_that_leads_nowhere)
{
        setenv("CREDENTIALS_DIRECTORY", suite_folder(), 1);
        open_with(&(struct aws_credentials_opts){.access = "A", .secret = bad_settings[_i].secret});
        assert_fails(STREAMER_EFAILED, bad_settings[_i].why);
}
END_TEST

START_TEST(a_key_without_its_other_half_is_no_setting)
{
        const struct aws_credentials_opts opts = {.access = "A"};
        ck_assert_int_eq(aws_credentials_new(&credentials, &opts, &error), STREAMER_EINVAL);
        credentials = NULL;
}
END_TEST

int main(void)
{
        suite_begin("aws_credentials");
        TCase *files = group("environment, files, settings");
        tcase_add_test(files, the_environment_goes_first);
        tcase_add_test(files, half_of_the_environment_is_an_error);
        tcase_add_test(files, a_profile_of_the_files);
        tcase_add_test(files, a_profile_of_the_settings_goes_before_the_environment);
        tcase_add_test(files, a_profile_that_is_asked_for_must_be_there);
        LOOP(files, a_way_that_is_not_supported_is_named, ways);
        tcase_add_test(files, a_file_with_an_error_stops_the_chain);
        tcase_add_test(files, without_any_the_reason_says_where_was_looked);
        tcase_add_test(files, settings_go_before_the_chain_and_may_name_files);
        LOOP(files, a_setting_that_leads_nowhere, bad_settings);
        tcase_add_test(files, a_key_without_its_other_half_is_no_setting);
        return suite_run();
}
