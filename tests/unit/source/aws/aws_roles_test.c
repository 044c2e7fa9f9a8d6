/* SPDX-License-Identifier: Apache-2.0
 *
 * Profiles with roles, against a fake STS: which keys request which role, and chains that do not end. sigv4_test and
 * radosgw check the signatures.
 */
#include "tests/unit/aws_fixture.h"

#define ROLE "arn:aws:iam::1:role/"

/* Keys of the role that is asked for: "AK-" and its name. */
static void answer_role(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        const char *authorization = endpoint_header(request, "Authorization"), *role = strstr(request->body, "role%2F");
        const char *token = endpoint_header(request, "x-amz-security-token");
        if (!authorization || !role || !strstr(request->body, "Action=AssumeRole&")) {
                reply->status = 400;
                return;
        }
        strcat(requests_seen,
               format_text("%.*s%s%s\n%s\n", (int)strcspn(strstr(authorization, "Credential="), "/"),
                           strstr(authorization, "Credential="), token ? ", " : "", token ? token : "", request->body));
        reply->status = status;
        role += strlen("role%2F");
        role = format_text("%.*s", (int)strcspn(role, "&"), role);
        if (status == 200)
                reply->body = format_text("<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>AK-%s"
                                          "</AccessKeyId><SecretAccessKey>thesecret</SecretAccessKey><SessionToken>T"
                                          "</SessionToken><Expiration>%s</Expiration></Credentials>"
                                          "</AssumeRoleResult></AssumeRoleResponse>",
                                          role, expiration(life));
        else
                reply->body = format_text("<ErrorResponse><Error><Code>AccessDenied</Code><Message>%s is not for you"
                                          "</Message></Error></ErrorResponse>",
                                          role);
}

static void set_roles(const char *config)
{
        serve(answer_role);
        setenv("AWS_ENDPOINT_URL_STS", service.url, 1);
        write_file("AWS_CONFIG_FILE", config);
        write_file("AWS_SHARED_CREDENTIALS_FILE", "[base]\naws_access_key_id=F\naws_secret_access_key=thesecret\n");
}

FIXTURE(.each = {begin, end});

TEST(a_role_by_another_profiles_keys)
{
        set_roles("[default]\nrole_arn=" ROLE "a\nsource_profile=base\n");
        assert_keys("AK-a", "thesecret", "T", "role " ROLE "a, by profile 'base'");
        ck_assert_str_eq(requests_seen, "Credential=F\nAction=AssumeRole&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fa&"
                                        "RoleSessionName=streamerd&Version=2011-06-15\n");
        ck_assert_int_gt(keys.expires, time(NULL) + 3000);
}

TEST(a_role_with_every_key_of_its_profile)
{
        set_roles("[default]\nrole_arn=" ROLE "a\nsource_profile=base\nexternal_id=e+1\nduration_seconds=900\n"
                  "role_session_name=me\n");
        good_keys();
        ck_assert_ptr_nonnull(strstr(requests_seen, "Action=AssumeRole&DurationSeconds=900&ExternalId=e%2B1&RoleArn="));
        ck_assert_ptr_nonnull(strstr(requests_seen, "&RoleSessionName=me&"));
}

TEST(a_role_precedes_the_profiles_own_keys)
{
        set_roles("[default]\nrole_arn=" ROLE "a\nsource_profile=default\naws_access_key_id=OWN\n"
                  "aws_secret_access_key=thesecret\n");
        assert_keys("AK-a", "thesecret", "T", "role " ROLE "a, by profile 'default'");
        ck_assert_ptr_nonnull(strstr(requests_seen, "Credential=OWN\n"));
}

TEST(a_role_by_the_container)
{
        set_container();
        static struct endpoint sts = {.answer = answer_role};
        endpoint_start(&sts);
        setenv("AWS_ENDPOINT_URL_STS", sts.url, 1);
        write_file("AWS_CONFIG_FILE", "[default]\nrole_arn=" ROLE "a\ncredential_source=EcsContainer\n");
        assert_keys("AK-a", "thesecret", "T", "role " ROLE "a, by container endpoint");
        ck_assert_ptr_nonnull(strstr(requests_seen, "Credential=AK1, T1\n"));
}

static const struct {
        const char *config, *why;
        int code;
} bad_roles[] = {
        {"[default]\nrole_arn=r\nsource_profile=gone\n", "source_profile 'gone' of profile 'default' is in none of",
         STREAMER_EPERM},
        {"[default]\nrole_arn=r\nsource_profile=a\n[profile a]\nrole_arn=r\nsource_profile=base\n",
         "source_profile 'a' has no keys (aws_access_key_id), and roles are not chained", STREAMER_EPERM},
        {"[default]\nrole_arn=r\nsource_profile=a\n[profile a]\nrole_arn=r\nweb_identity_token_file=/f\n",
         "source_profile 'a' has no keys", STREAMER_EPERM},
        {"[default]\nrole_arn=r\nsource_profile=default\n", "source_profile 'default' has no keys", STREAMER_EPERM},
        {"[default]\nrole_arn=r\nsource_profile=a\n[profile a]\nregion=x\n", "source_profile 'a' has no keys",
         STREAMER_EPERM},
        {"[default]\nrole_arn=r\nsource_profile=a\n[profile a]\ncredential_process=thesecret\n",
         "profile 'a' has credential_process", STREAMER_EUNSUPPORTED},
        {"[default]\nrole_arn=r\nsource_profile=base\nmfa_serial=thesecret\n", "mfa_serial", STREAMER_EUNSUPPORTED},
        {"[default]\nrole_arn=r\nsource_profile=base\ncredential_source=Environment\n",
         "source_profile and credential_source", STREAMER_EFAILED},
        {"[default]\nrole_arn=r\naws_access_key_id=A\naws_secret_access_key=thesecret\n",
         "has role_arn without source_profile, credential_source or web_identity_token_file", STREAMER_EFAILED},
        {"[default]\nrole_arn=r\ncredential_source=thesecret\n", "credential_source is none of", STREAMER_EFAILED},
        {"[default]\nrole_arn=r\ncredential_source=Environment\n", "credential_source Environment has no credentials",
         STREAMER_EPERM},
        {"[default]\nrole_arn=r\ncredential_source=Ec2InstanceMetadata\n", "Ec2InstanceMetadata has no credentials",
         STREAMER_EPERM},
};

TEST(a_role_without_a_source_is_an_error, EACH(bad_roles))
{
        set_roles(bad_roles[_i].config);
        assert_fails(bad_roles[_i].code, bad_roles[_i].why);
        ck_assert_uint_eq(service.requests, 0);
}

TEST(a_role_that_sts_refuses)
{
        set_roles("[default]\nrole_arn=" ROLE "a\nsource_profile=base\n");
        status = 403;
        assert_fails(STREAMER_EPERM,
                     "STS answers 403 AccessDenied: a is not for you (role " ROLE "a, by profile 'base')");
}

TEST(a_roles_session_is_refreshed_before_it_expires)
{
        life = 4;
        set_roles("[default]\nrole_arn=" ROLE "a\nsource_profile=base\n");
        time_t first = good_keys()->expires;
        AWAIT(good_keys()->expires > first);
        ck_assert_int_gt(first, time(NULL) - 1);
}
