/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokens for Google Cloud Storage: the order in which credentials are looked for, what each type of document is
 * exchanged for, and what is refused. One server takes the part of all services, and verifies what it is sent.
 */
#include "tests/lib/endpoint.h"
#include "tests/lib/suite.h"

#include "daemon/base/log/log.h"
#include "daemon/base/util.h"
#include "daemon/source/gcs/google_credentials.h"
#include "daemon/source/store/json_values.h"
#include "daemon/source/store/jwt.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>

#define READ_ONLY "https%3A%2F%2Fwww.googleapis.com%2Fauth%2Fdevstorage.read_only"
#define IAM "https%3A%2F%2Fwww.googleapis.com%2Fauth%2Fiam"

static struct endpoint service;
static struct google_opts opts;
static struct renewal *renewal;
static struct credential token;
static struct error error;
static EVP_PKEY *key;
static char *pem; /* of the key, escaped for JSON */

/* The service's answers; changed by tests. */
static _Atomic int status = 200;
static unsigned life = 3600, metadata_fails;
static const char *refusal = "{\"error\":\"invalid_grant\",\"error_description\":\"not you\"}";
static const char *flavor = "Metadata-Flavor: Google\r\n";
static const char *zone = "eu-west-3b", *role = "the-role";
static char seen[8192];       /* methods and paths */
static char last_body[16384]; /* of the last request with one */
static char last_authorization[256];

/* ---- the services ---- */

/* The value of a parameter of a form, as it is sent. */
static char *parameter(const char *form, const char *name)
{
        const char *at = strstr(form, format_text("%s=", name));
        ck_assert_msg(at != NULL && (at == form || at[-1] == '&'), "no %s in %s", name, form);
        at += strlen(name) + 1;
        return format_text("%.*s", (int)strcspn(at, "&"), at);
}

static unsigned char *decode_base64url(const char *text, size_t len, size_t *size)
{
        size_t padded = (len + 3) / 4 * 4;
        char *copy = must_alloc(padded + 1);
        for (size_t i = 0; i < padded; i++)
                copy[i] = i >= len ? '=' : text[i] == '-' ? '+' : text[i] == '_' ? '/' : text[i];
        unsigned char *bytes = must_alloc(padded + 1);
        int n = EVP_DecodeBlock(bytes, (unsigned char *)copy, (int)padded);
        ck_assert_int_gt(n, 0);
        *size = (size_t)n - (padded - len);
        bytes[*size] = '\0';
        return bytes;
}

/* The claims of a JWT, whose signature by the key is verified. */
static char *verified_claims(const char *jwt)
{
        const char *dot = strchr(jwt, '.'), *second = strchr(dot + 1, '.');
        size_t size, n;
        unsigned char *signature = decode_base64url(second + 1, strlen(second + 1), &size);
        EVP_MD_CTX *md = EVP_MD_CTX_new();
        ck_assert_int_eq(EVP_DigestVerifyInit(md, NULL, EVP_sha256(), NULL, key), 1);
        ck_assert_int_eq(EVP_DigestVerify(md, signature, size, (const unsigned char *)jwt, (size_t)(second - jwt)), 1);
        EVP_MD_CTX_free(md);
        ck_assert_str_eq((char *)decode_base64url(jwt, (size_t)(dot - jwt), &n),
                         "{\"typ\":\"JWT\",\"alg\":\"RS256\",\"kid\":\"key-1\"}");
        return (char *)decode_base64url(dot + 1, (size_t)(second - dot - 1), &n);
}

static void answer(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        const char *path = request->path;
        strcat(seen, format_text("%s %s\n", request->method, path));
        if (request->body[0] != '\0')
                snprintf(last_body, sizeof(last_body), "%s", request->body);
        snprintf(last_authorization, sizeof(last_authorization), "%s", endpoint_header(request, "Authorization") ?: "");
        reply->status = status;
        if (status == 302) {
                reply->headers = format_text("Location: %s/elsewhere\r\n", service.url);
        } else if (status != 200) {
                reply->body = format_text("%s", refusal);
        } else if (strcmp(path, "/token") == 0) {
                reply->body = format_text("{\"access_token\":\"ya29.T\",\"expires_in\":%u}", life);
        } else if (strcmp(path, "/sts") == 0) {
                reply->body = format_text("{\"access_token\":\"federated\",\"expires_in\":%u,\"issued_token_type\":"
                                          "\"urn:ietf:params:oauth:token-type:access_token\"}",
                                          life);
        } else if (strcmp(path, "/impersonate") == 0) {
                char until[40];
                time_t when = time(NULL) + life;
                strftime(until, sizeof(until), "%Y-%m-%dT%H:%M:%SZ", gmtime(&when));
                reply->body = format_text("{\"accessToken\":\"impersonated\",\"expireTime\":\"%s\"}", until);
        } else if (strncmp(path, "/computeMetadata/", 17) == 0) {
                const char *asked = endpoint_header(request, "Metadata-Flavor");
                reply->status = asked == NULL ? 403 : metadata_fails > 0 ? 404 : 200;
                metadata_fails -= metadata_fails > 0;
                reply->headers = format_text("%s", flavor);
                reply->body = format_text("{\"access_token\":\"of-the-machine\",\"expires_in\":%u}", life);
        } else if (strcmp(path, "/subject") == 0) {
                reply->body = format_text("{\"value\":\"subject of %s\"}", endpoint_header(request, "X-Who") ?: "");
        } else if (strcmp(path, "/latest/api/token") == 0) {
                reply->body = format_text("imds-session");
        } else if (strcmp(path, "/latest/zone") == 0) {
                reply->body = format_text("%s", zone);
        } else if (strcmp(path, "/latest/keys") == 0) {
                reply->body = format_text("%s", role);
        } else if (strcmp(path, "/latest/keys/the-role") == 0) {
                reply->body =
                        format_text("{\"AccessKeyId\":\"AKI\",\"SecretAccessKey\":\"thesecret\",\"Token\":\"AWST\"}");
        } else {
                reply->status = 404;
        }
}

/* ---- fixture ---- */

static void make_key(void)
{
        BIO *bio = BIO_new(BIO_s_mem());
        char *text;
        key = EVP_RSA_gen(2048);
        if (PEM_write_bio_PKCS8PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL) != 1)
                die("no RSA key");
        long n = BIO_get_mem_data(bio, &text);
        pem = must_alloc(2 * (size_t)n + 1);
        for (long i = 0, k = 0; i < n; i++) {
                if (text[i] == '\n')
                        pem[k++] = '\\';
                pem[k++] = text[i] == '\n' ? 'n' : text[i];
        }
        BIO_free(bio);
}

static void begin(void)
{
        log_set_level(LOG_LEVEL_ERROR);
        setenv("HOME", suite_folder(), 1);
        setenv("NO_GCE_CHECK", "true", 1);
        /* Services are contacted directly. */
        setenv("http_proxy", "http://127.0.0.1:1", 1);
        setenv("ALL_PROXY", "http://127.0.0.1:1", 1);
        service.answer = answer;
        endpoint_start(&service);
}

static void end(void)
{
        credential_deinit(&token);
        renewal_free(renewal);
}

static int get(void)
{
        int r;
        if (renewal == NULL)
                ck_assert_int_eq(google_credentials_new(&renewal, &opts, &error), 0);
        credential_deinit(&token);
        while ((r = renewal_get(renewal, &token, &error)) == RENEWAL_LATER)
                usleep(1000); /* the pause between two questions, no more */
        return r;
}

static void assert_token(const char *text, const char *origin)
{
        ck_assert_msg(get() == 0, "%s", error.text);
        ck_assert_int_eq(token.kind, CREDENTIAL_BEARER);
        ck_assert_str_eq(token.token, text);
        ck_assert_str_eq(token.origin, origin);
        ck_assert_int_gt(token.expires, time(NULL) + life - 600);
}

static void assert_fails(int code, const char *why)
{
        FAILS_WITH(error, get(), code, why);
        ck_assert_ptr_null(strstr(error.text, "thesecret"));
        ck_assert_ptr_null(strstr(error.text, "PRIVATE KEY"));
}

static char *write_file(const char *name, const char *text)
{
        return suite_file(format_text("%s-%d", name, (int)getpid()), text);
}

static void set_credentials(const char *json)
{
        opts.credentials = json;
}

/* ---- documents ---- */

static char *service_account(void)
{
        return format_text("{\"type\":\"service_account\",\"client_email\":\"me@p.iam.gserviceaccount.com\","
                           "\"private_key_id\":\"key-1\",\"private_key\":\"%s\",\"token_uri\":\"%s/token\","
                           "\"quota_project_id\":\"payer\"}",
                           pem, service.url);
}

static char *authorized_user(void)
{
        return format_text("{\"type\":\"authorized_user\",\"client_id\":\"id\",\"client_secret\":\"thesecret\","
                           "\"refresh_token\":\"1//thesecret\",\"token_uri\":\"%s/token\"}",
                           service.url);
}

/* `source`: the members of credential_source; `more`: of the document, each with a comma before it. */
static char *external(const char *source, const char *more)
{
        return format_text("{\"type\":\"external_account\",\"audience\":\"//iam.googleapis.com/pool\","
                           "\"subject_token_type\":\"urn:ietf:params:oauth:token-type:jwt\",\"token_url\":\"%s/sts\","
                           "\"credential_source\":{%s}%s}",
                           service.url, source, more);
}

static char *impersonation(void)
{
        return format_text(",\"service_account_impersonation_url\":\"%s/impersonate\"", service.url);
}

/* ---- service accounts ---- */

BEFORE_ALL()
{
        make_key();
}

FIXTURE(.each = {begin, end});

TEST(a_service_account_signs_an_assertion)
{
        set_credentials(service_account());
        assert_token("ya29.T", "settings, service_account");
        ck_assert_str_eq(seen, "POST /token\n");
        ck_assert_str_eq(parameter(last_body, "grant_type"), "urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer");
        char *claims = verified_claims(parameter(last_body, "assertion"));
        struct json_values values;
        ck_assert(json_values_init(&values, claims, strlen(claims)));
        ck_assert_str_eq(json_values_get(&values, "iss"), "me@p.iam.gserviceaccount.com");
        ck_assert_str_eq(json_values_get(&values, "scope"), "https://www.googleapis.com/auth/devstorage.read_only");
        ck_assert_str_eq(json_values_get(&values, "aud"), "https://oauth2.googleapis.com/token");
        ck_assert_uint_le(json_values_number(&values, "iat"), (uint64_t)time(NULL));
        ck_assert_uint_eq(json_values_number(&values, "exp"), json_values_number(&values, "iat") + 3600);
        ck_assert_str_eq(token.project, "payer");
}

TEST(the_project_of_the_settings_pays)
{
        set_credentials(service_account());
        opts.quota_project = "another";
        assert_token("ya29.T", "settings, service_account");
        ck_assert_str_eq(token.project, "another");
}

TEST(a_key_that_is_none_is_named)
{
        set_credentials("{\"type\":\"service_account\",\"client_email\":\"me\",\"private_key\":\"thesecret\","
                        "\"token_uri\":\"https://t\"}");
        assert_fails(STREAMER_EFAILED,
                     "'private_key' of the document is not an RSA key in PEM (settings, service_account)");
}

TEST(a_refused_assertion_is_reported)
{
        set_credentials(service_account());
        status = 400;
        assert_fails(STREAMER_EPERM, "the token endpoint answers 400 invalid_grant: not you (settings, "
                                     "service_account)");
}

TEST(no_redirect_is_followed)
{
        set_credentials(service_account());
        status = 302;
        assert_fails(STREAMER_EFAILED, "the token endpoint answers 302 (settings, service_account)");
        ck_assert_str_eq(seen, "POST /token\n");
}

/* ---- users ---- */

TEST(a_user_has_a_refresh_token)
{
        set_credentials(authorized_user());
        assert_token("ya29.T", "settings, authorized_user");
        ck_assert_str_eq(last_body, "grant_type=refresh_token&client_id=id&client_secret=thesecret&"
                                    "refresh_token=1%2F%2Fthesecret");
}

TEST(a_user_of_a_workforce_pool_has_a_refresh_token, .to = 2)
{
        const char *user =
                format_text("{\"type\":\"external_account_authorized_user\",\"audience\":\"a\",\"token_url\":"
                            "\"%s/sts\",\"refresh_token\":\"the/secret\",\"client_id\":\"id\","
                            "\"client_secret\":\"thesecret\",\"quota_project_id\":\"p\"}",
                            service.url);
        if (_i == 1)
                user = format_text("{\"type\":\"impersonated_service_account\",\"source_credentials\":%s,"
                                   "\"service_account_impersonation_url\":\"%s/impersonate\"}",
                                   user, service.url);
        set_credentials(user);
        if (_i == 1) {
                assert_token("impersonated", "settings, impersonated_service_account");
                return;
        }
        assert_token("federated", "settings, external_account_authorized_user");
        ck_assert_str_eq(last_body, "grant_type=refresh_token&refresh_token=the%2Fsecret");
        ck_assert_str_eq(last_authorization, "Basic aWQ6dGhlc2VjcmV0");
        ck_assert_str_eq(token.project, "p");
}

/* ---- federation ---- */

TEST(the_token_of_a_file_is_exchanged)
{
        char *file = write_file("subject", " sub.ject\n");
        set_credentials(external(format_text("\"file\":\"%s\"", file), ""));
        assert_token("federated", "settings, external_account");
        ck_assert_str_eq(last_body, "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Atoken-exchange&"
                                    "audience=%2F%2Fiam.googleapis.com%2Fpool&scope=" READ_ONLY
                                    "&requested_token_type=urn%3Aietf%3Aparams%3Aoauth%3Atoken-type%3Aaccess_token&"
                                    "subject_token=sub.ject&subject_token_type=urn%3Aietf%3Aparams%3Aoauth%3A"
                                    "token-type%3Ajwt");
        ck_assert_str_eq(last_authorization, "");
}

TEST(the_token_of_a_json_file_is_a_field_of_it)
{
        char *file = write_file("subject", "{\"value\":\"sub\"}");
        set_credentials(
                external(format_text("\"file\":\"%s\",\"format\":{\"type\":\"json\",\"subject_token_field_name\":"
                                     "\"value\"}",
                                     file),
                         ""));
        assert_token("federated", "settings, external_account");
        ck_assert_str_eq(parameter(last_body, "subject_token"), "sub");
}

TEST(the_token_of_a_url_is_requested_with_its_headers)
{
        set_credentials(
                external(format_text("\"url\":\"%s/subject\",\"headers\":{\"X-Who\":\"me\"},\"format\":{\"type\":"
                                     "\"json\",\"subject_token_field_name\":\"value\"}",
                                     service.url),
                         impersonation()));
        assert_token("impersonated", "settings, external_account");
        ck_assert_str_eq(seen, "GET /subject\nPOST /sts\nPOST /impersonate\n");
        ck_assert_str_eq(last_body, "{\"delegates\":null,\"scope\":[\"https://www.googleapis.com/auth/"
                                    "devstorage.read_only\"],\"lifetime\":\"3600s\"}");
        ck_assert_str_eq(last_authorization, "Bearer federated");
}

TEST(an_impersonation_asks_for_the_scope_of_iam)
{
        char *file = write_file("subject", "sub");
        status = 403;
        set_credentials(external(format_text("\"file\":\"%s\"", file), impersonation()));
        assert_fails(STREAMER_EPERM, "the token endpoint answers 403");
        ck_assert_str_eq(parameter(last_body, "scope"), IAM);
}

TEST(the_lifetime_of_an_impersonation_is_the_documents)
{
        char *file = write_file("subject", "sub");
        set_credentials(external(format_text("\"file\":\"%s\"", file),
                                 format_text("%s,\"service_account_impersonation\":{\"token_lifetime_seconds\":2800}",
                                             impersonation())));
        life = 2800;
        assert_token("impersonated", "settings, external_account");
        ck_assert_ptr_nonnull(strstr(last_body, "\"lifetime\":\"2800s\""));
}

TEST(a_workforce_pool_names_its_project)
{
        char *file = write_file("subject", "sub");
        set_credentials(external(format_text("\"file\":\"%s\"", file), ",\"workforce_pool_user_project\":\"p\""));
        assert_token("federated", "settings, external_account");
        ck_assert_str_eq(parameter(last_body, "options"), "%257B%2522userProject%2522%253A%2520%2522p%2522%257D");
}

TEST(a_client_authenticates_itself)
{
        char *file = write_file("subject", "sub");
        set_credentials(external(format_text("\"file\":\"%s\"", file),
                                 ",\"client_id\":\"id\",\"client_secret\":\"thesecret\""));
        assert_token("federated", "settings, external_account");
        ck_assert_str_eq(last_authorization, "Basic aWQ6dGhlc2VjcmV0");
}

TEST(an_expired_token_of_another_provider_is_named)
{
        char *file = write_file("subject", "e30.eyJleHAiOjE3MDAwMDAwMDB9.x"); /* {"exp": 1700000000} */
        status = 400;
        set_credentials(external(format_text("\"file\":\"%s\"", file), ""));
        assert_fails(STREAMER_EPERM, "not you (the token expired ");
        ck_assert_ptr_nonnull(strstr(error.text, " s ago, by this machine's clock) (settings, external_account)"));
}

#define AWS_SOURCE                                                                                                     \
        "\"environment_id\":\"aws1\",\"region_url\":\"%s/latest/zone\",\"url\":\"%s/latest/keys\","                    \
        "\"imdsv2_session_token_url\":\"%s/latest/api/token\",\"regional_cred_verification_url\":"                     \
        "\"https://sts.{region}.amazonaws.com?Action=GetCallerIdentity&Version=2011-06-15\""

static char *decoded(char *text)
{
        size_t k = 0;
        for (size_t i = 0; text[i] != '\0'; i++) {
                unsigned byte = (unsigned char)text[i];
                if (text[i] == '%') {
                        ck_assert_int_eq(sscanf(text + i + 1, "%2x", &byte), 1);
                        i += 2;
                }
                text[k++] = (char)byte;
        }
        text[k] = '\0';
        return text;
}

TEST(an_instance_of_aws_signs_a_request)
{
        set_credentials(external(format_text(AWS_SOURCE, service.url, service.url, service.url), ""));
        assert_token("federated", "settings, external_account");
        ck_assert_str_eq(seen, "PUT /latest/api/token\nGET /latest/zone\nGET /latest/keys\nGET /latest/keys/the-role\n"
                               "POST /sts\n");
        char *json = decoded(decoded(parameter(last_body, "subject_token")));
        struct json_values values;
        ck_assert_ptr_null(strstr(json, "thesecret"));
        ck_assert(json_values_init(&values, json, strlen(json)));
        ck_assert_str_eq(json_values_get(&values, "method"), "POST");
        ck_assert_str_eq(json_values_get(&values, "url"),
                         "https://sts.eu-west-3.amazonaws.com?Action=GetCallerIdentity&Version=2011-06-15");
        ck_assert_str_eq(json_values_get(&values, "headers.0.value"), "sts.eu-west-3.amazonaws.com");
        ck_assert_str_eq(json_values_get(&values, "headers.1.key"), "x-goog-cloud-target-resource");
        ck_assert_str_eq(json_values_get(&values, "headers.1.value"), "//iam.googleapis.com/pool");
        const char *authorization = json_values_get(&values, "headers.2.value");
        ck_assert_ptr_nonnull(strstr(authorization, "/eu-west-3/sts/aws4_request, SignedHeaders=host;x-amz-date;"
                                                    "x-amz-security-token, Signature="));
        ck_assert_str_eq(json_values_get(&values, "headers.4.value"), "AWST");
}

static const struct {
        const char *zone, *role, *why;
} instances[] = {
        {"x/y", "r", "AWS's region is not a name (settings, external_account)"},
        {"", "r", "AWS's region is not a name"},
        {"eu-west-3b", "a/b", "the AWS instance's role has no valid name (settings, external_account)"},
};

TEST(an_instance_of_aws_with_invalid_metadata_is_refused, EACH(instances))
{
        zone = instances[_i].zone;
        role = instances[_i].role;
        set_credentials(external(format_text(AWS_SOURCE, service.url, service.url, service.url), ""));
        assert_fails(STREAMER_EFAILED, instances[_i].why);
}

TEST(keys_and_region_of_aws_may_be_variables)
{
        setenv("AWS_ACCESS_KEY_ID", "AKI", 1);
        setenv("AWS_SECRET_ACCESS_KEY", "thesecret", 1);
        setenv("AWS_REGION", "us-east-2", 1);
        set_credentials(external(format_text("\"environment_id\":\"aws1\",\"regional_cred_verification_url\":"
                                             "\"https://sts.{region}.amazonaws.com?Action=GetCallerIdentity&"
                                             "Version=2011-06-15\""),
                                 ""));
        assert_token("federated", "settings, external_account");
        ck_assert_str_eq(seen, "POST /sts\n");
}

/* ---- impersonation of a service account ---- */

TEST(an_impersonated_account_has_delegates)
{
        set_credentials(format_text("{\"type\":\"impersonated_service_account\",\"source_credentials\":%s,"
                                    "\"delegates\":[\"a\",\"b\"]%s}",
                                    authorized_user(), impersonation()));
        assert_token("impersonated", "settings, impersonated_service_account");
        ck_assert_str_eq(seen, "POST /token\nPOST /impersonate\n");
        ck_assert_ptr_nonnull(strstr(last_body, "{\"delegates\":[\"a\",\"b\"],"));
        ck_assert_str_eq(last_authorization, "Bearer ya29.T");
}

TEST(a_refused_impersonation_is_reported)
{
        set_credentials(format_text("{\"type\":\"impersonated_service_account\",\"source_credentials\":%s,"
                                    "\"service_account_impersonation_url\":\"%s/nothing\"}",
                                    authorized_user(), service.url));
        assert_fails(STREAMER_EPERM, "the impersonation of a service account answers 404");
}

TEST(impersonations_are_not_chained)
{
        set_credentials(format_text("{\"type\":\"impersonated_service_account\",\"source_credentials\":{\"type\":"
                                    "\"impersonated_service_account\"%s}%s}",
                                    impersonation(), impersonation()));
        assert_fails(STREAMER_EUNSUPPORTED, "source_credentials that impersonate, too, are not supported");
}

/* ---- what is refused ---- */

static const struct {
        const char *json;
        int code;
        const char *why;
} refused[] = {
        {"thesecret", STREAMER_EFAILED, "settings: not a JSON document of Google credentials"},
        {"{\"type\":\"service_account\"", STREAMER_EFAILED, "settings: not a JSON document of Google credentials"},
        {"{\"private_key\":\"thesecret\"}", STREAMER_EFAILED, "the document has no 'type' (settings, no type)"},
        {"{\"type\":\"gdch_service_account\"}", STREAMER_EUNSUPPORTED,
         "credentials of type 'gdch_service_account' are not supported: service_account, authorized_user, "
         "external_account, external_account_authorized_user and impersonated_service_account are"},
        {"{\"type\":\"external_account_authorized_user\",\"refresh_token\":\"thesecret\"}", STREAMER_EFAILED,
         "the document has no 'token_url' (settings, external_account_authorized_user)"},
        {"{\"type\":\"external_account_authorized_user\",\"refresh_token\":\"thesecret\",\"token_url\":"
         "\"https://elsewhere.example/\",\"client_id\":\"id\",\"client_secret\":\"thesecret\"}",
         STREAMER_EPERM, "'token_url' of the document names elsewhere.example, which is not asked"},
        {"{\"type\":\"service_account\",\"client_email\":\"x\"}", STREAMER_EFAILED,
         "the document has no 'private_key' (settings, service_account)"},
};

TEST(a_document_that_cannot_be_used_is_refused, EACH(refused))
{
        set_credentials(refused[_i].json);
        assert_fails(refused[_i].code, refused[_i].why);
        ck_assert_str_eq(seen, "");
}

static const struct {
        const char *source;
        int code;
        const char *why;
} sources[] = {
        {"\"executable\":{\"command\":\"/bin/thesecret\"}", STREAMER_EUNSUPPORTED,
         "credential_source.executable is not supported: file, url and AWS are"},
        {"\"certificate\":{\"use_default_certificate_config\":true}", STREAMER_EUNSUPPORTED,
         "credential_source.certificate is not supported"},
        {"\"environment_id\":\"azure1\"", STREAMER_EUNSUPPORTED, "credential_source: an unknown environment_id"},
        {"", STREAMER_EFAILED, "credential_source has neither file, url nor environment_id"},
        {"\"file\":\"/nowhere/token\"", STREAMER_EFAILED,
         "credential_source: a secret in /nowhere/token: No such file or directory"},
        {"\"file\":\"/dev/null\"", STREAMER_EFAILED, "not a regular file (/dev/null)"},
        {"\"url\":\"http://169.254.169.254/x\"", STREAMER_EPERM,
         "'credential_source.url' of the document names 169.254.169.254, which is not asked: it is neither Google's by "
         "https nor in gcs.token_hosts"},
        {"\"url\":\"http://iam.googleapis.com/x\"", STREAMER_EPERM, "names iam.googleapis.com, which is not asked"},
        {"\"url\":\"https://evilgoogleapis.com/x\"", STREAMER_EPERM, "names evilgoogleapis.com, which is not asked"},
        {"\"url\":\"ftp://x\"", STREAMER_EFAILED, "'credential_source.url' of the document is no URL"},
        {"\"environment_id\":\"aws1\",\"regional_cred_verification_url\":\"https://sts\",\"imdsv2_session_token_url\":"
         "\"http://10.0.0.1/\"",
         STREAMER_EPERM, "'imdsv2_session_token_url' of the document names 10.0.0.1"},
};

TEST(a_source_of_tokens_that_is_not_allowed_is_refused, EACH(sources))
{
        set_credentials(external(sources[_i].source, ""));
        assert_fails(sources[_i].code, sources[_i].why);
        ck_assert_str_eq(seen, "");
}

static const char *const foreign[] = {
        ",\"service_account_impersonation_url\":\"https://example.com/impersonate\"",
        ",\"service_account_impersonation_url\":\"http://iamcredentials.googleapis.com/x\"",
};

TEST(a_foreign_impersonation_is_refused, EACH(foreign))
{
        set_credentials(external(format_text("\"file\":\"%s\"", write_file("subject", "x")), foreign[_i]));
        assert_fails(STREAMER_EPERM, "'service_account_impersonation_url' of the document names ");
        ck_assert_str_eq(seen, "");
}

static const struct {
        const char *content, *format, *why;
} contents[] = {
        {" \n", "", "credential_source holds no token"},
        {"{\"a\":1}", ",\"format\":{\"type\":\"json\",\"subject_token_field_name\":\"b\"}", "holds no token"},
        {"{\"a\":1}", ",\"format\":{\"type\":\"json\"}", "holds no token"},
        {"x", ",\"format\":{\"type\":\"xml\"}", "credential_source.format is neither text nor json"},
};

TEST(a_file_without_a_token_is_refused, EACH(contents))
{
        char *file = write_file("subject", contents[_i].content);
        set_credentials(external(format_text("\"file\":\"%s\"%s", file, contents[_i].format), ""));
        ck_assert_int_lt(get(), 0);
        ck_assert_msg(strstr(error.text, contents[_i].why) != NULL, "%s", error.text);
}

/* A host that the settings name is asked, here for its name to be resolved. */
TEST(a_host_of_the_settings_is_asked)
{
        static const char *const hosts[] = {"tokens.invalid"};
        opts.token_hosts = hosts;
        opts.n_token_hosts = 1;
        set_credentials(external("\"url\":\"https://tokens.invalid/x\"", ""));
        assert_fails(STREAMER_EFAILED, "cannot resolve host tokens.invalid (credential_source)");
}

static const char *const answers[] = {"[]", "{}", "{\"access_token\":\"\"}", "no JSON"};

TEST(an_answer_without_a_token_is_refused, EACH(answers))
{
        refusal = answers[_i];
        status = 201; /* which has the body of the refusal */
        set_credentials(authorized_user());
        assert_fails(STREAMER_EFAILED, "the token endpoint answers 201");
}

/* ---- the order ---- */

TEST(a_variable_names_a_file)
{
        setenv("GOOGLE_APPLICATION_CREDENTIALS", write_file("adc", service_account()), 1);
        assert_token("ya29.T", "GOOGLE_APPLICATION_CREDENTIALS, service_account");
}

TEST(the_variable_of_runai_comes_before_it)
{
        setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere", 1);
        setenv("RUNAI_STREAMER_GCS_CREDENTIAL_FILE", write_file("runai", authorized_user()), 1);
        assert_token("ya29.T", "RUNAI_STREAMER_GCS_CREDENTIAL_FILE, authorized_user");
}

TEST(the_settings_come_before_variables)
{
        setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere", 1);
        set_credentials(format_text("file:%s", write_file("own", authorized_user())));
        assert_token("ya29.T", "settings, authorized_user");
}

TEST(a_path_is_a_file_too)
{
        set_credentials(write_file("own", authorized_user()));
        assert_token("ya29.T", "settings, authorized_user");
}

TEST(a_missing_file_of_the_variable_ends_the_order)
{
        unsetenv("NO_GCE_CHECK");
        setenv("GCE_METADATA_HOST", service.url + strlen("http://"), 1);
        setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/adc.json", 1);
        assert_fails(STREAMER_EFAILED,
                     "GOOGLE_APPLICATION_CREDENTIALS: a secret in /nowhere/adc.json: No such file or directory");
        ck_assert_str_eq(seen, "");
}

TEST(the_file_of_gcloud_is_found)
{
        char *folder = suite_path("cloudsdk-%d", (int)getpid());
        must(mkdir(folder, 0700));
        file_put(folder, "application_default_credentials.json", authorized_user());
        setenv("CLOUDSDK_CONFIG", folder, 1);
        assert_token("ya29.T", "application_default_credentials.json, authorized_user");
}

TEST(without_anything_the_error_says_what_was_tried)
{
        assert_fails(STREAMER_EPERM, "no credentials: none in the settings, GOOGLE_APPLICATION_CREDENTIALS or gcloud's "
                                     "application_default_credentials.json, and the metadata server: NO_GCE_CHECK is "
                                     "set. A public bucket is read with gcs.anonymous");
}

TEST(an_emulator_is_asked_without_credentials)
{
        opts.is_emulator = true;
        ck_assert_int_eq(get(), 0);
        ck_assert_int_eq(token.kind, CREDENTIAL_NONE);
}

/* ---- the metadata server ---- */

static void use_metadata(void)
{
        unsetenv("NO_GCE_CHECK");
        setenv("GCE_METADATA_HOST", service.url + strlen("http://"), 1);
}

TEST(the_metadata_server_has_the_token_of_a_machine)
{
        use_metadata();
        assert_token("of-the-machine", "metadata server");
        ck_assert_str_eq(seen,
                         "GET /computeMetadata/v1/instance/service-accounts/default/token?scopes=" READ_ONLY "\n");
}

TEST(a_metadata_server_that_starts_is_waited_for)
{
        use_metadata();
        metadata_fails = 3;
        assert_token("of-the-machine", "metadata server");
}

TEST(another_server_at_its_address_is_refused)
{
        use_metadata();
        flavor = "";
        assert_fails(STREAMER_EFAILED, "what answers is not Google's metadata server: its answer has no "
                                       "Metadata-Flavor: Google");
}

TEST(a_refusal_of_the_metadata_server_is_reported)
{
        use_metadata();
        status = 400;
        assert_fails(STREAMER_EPERM, "the metadata server answers 400 invalid_grant: not you (metadata server)");
}

/* ---- renewal ---- */

TEST(a_token_is_renewed_before_it_expires)
{
        life = 8;
        set_credentials(authorized_user());
        ck_assert_int_eq(get(), 0);
        time_t expires = token.expires;
        AWAIT(get() == 0 && token.expires > expires);
}

TEST(one_request_is_made_for_all)
{
        set_credentials(authorized_user());
        for (int i = 0; i < 50; i++)
                ck_assert_int_eq(get(), 0);
        ck_assert_str_eq(seen, "POST /token\n");
}

/* ---- the domain ---- */

TEST(the_universe_is_that_of_the_credentials)
{
        ck_assert_str_eq(google_universe(&opts), "googleapis.com");
        setenv("GOOGLE_CLOUD_UNIVERSE_DOMAIN", "env.example", 1);
        ck_assert_str_eq(google_universe(&opts), "env.example");
        set_credentials("{\"universe_domain\":\"own.example\"}");
        ck_assert_str_eq(google_universe(&opts), "own.example");
        set_credentials("{\"universe_domain\":\"evil/?\"}");
        ck_assert_str_eq(google_universe(&opts), "googleapis.com");
}
