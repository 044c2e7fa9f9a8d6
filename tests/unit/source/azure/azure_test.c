/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages of lists and signatures of Azure Blob Storage, and which account, endpoint and credentials a source has.
 */
#include "tests/lib/endpoint.h"
#include "tests/lib/suite.h"

#include "daemon/base/log/log.h"
#include "daemon/base/util.h"
#include "daemon/source/azure/azure.h"
#include "daemon/source/source.h"

static struct error error;

/* ---- lists ---- */

static char *listed;

#define PAGE(blobs, rest)                                                                                              \
        "\xef\xbb\xbf<?xml version=\"1.0\"?><EnumerationResults><Prefix>p/</Prefix><Blobs>" blobs "</Blobs>" rest      \
        "</EnumerationResults>"
#define BLOB(name, more)                                                                                               \
        "<Blob>" name "<Properties><Content-Length>7</Content-Length><Etag>0x8D</Etag>" more "</Properties></Blob>"

static int parse(char **next, const char *text)
{
        struct listing list = {.shown = "a list", .sidecars = true};
        int r = azure_page_parse(next, text, strlen(text), "p/", &list, &error);
        listed = format_text("%s", "");
        for (size_t i = 0; i < list.n; i++)
                listed = format_text("%s%s %" PRIu64 " %s;", listed, list.v[i].name, list.v[i].bytes, list.v[i].tag);
        return r;
}

static const struct {
        const char *text, *listed, *next; /* NULL: the last page */
} pages[] = {
        {PAGE("", "<NextMarker />"), "", NULL},
        {PAGE("", "<NextMarker>m!1</NextMarker>"), "", "m!1"},
        {PAGE(BLOB("<Name>p/a &amp; b</Name>", ""), ""), "a & b 7 \"0x8D\";", NULL},
        {PAGE(BLOB("<Name Encoded=\"true\">p/%C3%BC+</Name>", ""), ""), "\xc3\xbc+ 7 \"0x8D\";", NULL},
        {PAGE(BLOB("<Name>p/%20</Name>", ""), ""), "%20 7 \"0x8D\";", NULL},
        {PAGE("<BlobPrefix><Name>p/sub/</Name></BlobPrefix>" BLOB("<Name>p/a</Name>", ""), ""), "a 7 \"0x8D\";", NULL},
        {PAGE(BLOB("<Name>p/d</Name>", "<ResourceType>directory</ResourceType>") BLOB("<Name>p/a</Name>", ""), ""),
         "a 7 \"0x8D\";", NULL},
        {PAGE("<Blob><Name>p/d</Name><Properties><Content-Length>0</Content-Length></Properties><Metadata>"
              "<Hdi_isfolder>true</Hdi_isfolder></Metadata></Blob>" BLOB("<Name>other</Name>", ""),
              ""),
         "", NULL},
        {PAGE("<Blob><Name>p/a</Name><Properties><Content-Length>1</Content-Length><Etag>\"q\"</Etag></Properties></"
              "Blob>",
              ""),
         "a 1 \"q\";", NULL},
        {PAGE("<Blob><Name>p/a</Name><Properties><Content-Length>1</Content-Length></Properties></Blob>", ""), "a 1 ;",
         NULL},
};

TEST(a_page_is_read, EACH(pages))
{
        char *next;
        ck_assert_msg(parse(&next, pages[_i].text) == 0, "%s", error.text);
        ck_assert_str_eq(listed, pages[_i].listed);
        ck_assert_int_eq(next == NULL, pages[_i].next == NULL);
        if (next != NULL)
                ck_assert_str_eq(next, pages[_i].next);
}

static const struct {
        const char *text, *why;
} wrong_pages[] = {
        {"", "no element found"},
        {"<a/>", "it is something else"},
        {PAGE("<Blob><Name>p/a</Name></Blob>", ""), "a name or its length is missing"},
        {PAGE("<Blob><Properties><Content-Length>1</Content-Length></Properties></Blob>", ""),
         "a name or its length is missing"},
        {PAGE("<Blob><Name>p/a</Name><Properties><Content-Length>x</Content-Length></Properties></Blob>", ""),
         "a length is not a number"},
        {PAGE(BLOB("<Name Encoded=\"true\">p/%zz</Name>", ""), ""), "a name is not percent-encoded as it should be"},
};

TEST(a_page_that_is_not_valid_is_refused, EACH(wrong_pages))
{
        char *next;
        FAILS_SAYING(error, parse(&next, wrong_pages[_i].text), STREAMER_EFAILED,
                     format_text("the store's list of blobs is not valid: %s (a list)", wrong_pages[_i].why));
        ck_assert_ptr_null(next);
}

/* ---- signatures ---- */

static const struct {
        struct http_request request;
        const char *match, *text;
} signatures[] = {
        {{.url = "https://a.blob.core.windows.net/c/b%20%C3%BC"},
         NULL,
         "GET\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:D\nx-ms-version:V\n/a/c/b%20%C3%BC"},
        {{.url = "https://a.blob.core.windows.net/c/b", .offset = 10, .len = 5},
         "\"0x1\"",
         "GET\n\n\n\n\n\n\n\n\"0x1\"\n\n\nbytes=10-14\nx-ms-date:D\nx-ms-version:V\n/a/c/b"},
        {{.url = "http://127.0.0.1:1/a/c?restype=container&comp=list&prefix=p%2Fq%20&delimiter=%2F"},
         NULL,
         "GET\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:D\nx-ms-version:V\n/a/a/c\ncomp:list\ndelimiter:/\nprefix:p/q \n"
         "restype:container"},
        {{.url = "https://a.blob.core.windows.net/c/b", .method = "HEAD"},
         NULL,
         "HEAD\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:D\nx-ms-version:V\n/a/c/b"},
};

TEST(the_text_that_a_key_signs, EACH(signatures))
{
        struct http_headers headers = {.n = 0};
        ck_assert(http_headers_append(&headers, "x-ms-date: D") && http_headers_append(&headers, "x-ms-version: V"));
        if (signatures[_i].match != NULL)
                ck_assert_int_eq(http_headers_add(&headers, "If-Match", signatures[_i].match, &error), 0);
        ck_assert_str_eq(azure_string_to_sign(&signatures[_i].request, &headers, "a"), signatures[_i].text);
}

/* ---- accounts ---- */

static struct azure_account account;
static const struct azure_opts none;

static int find_account(const struct azure_opts *own, const struct azure_opts *defaults)
{
        struct azure_config config;
        azure_config_init(&config, own, defaults);
        return azure_account_init(&account, &config, &error);
}

static void begin(void)
{
        log_set_level(LOG_LEVEL_ERROR);
}

static struct renewal *renewal;

/* Joins the thread that asked for credentials. */
static void end(void)
{
        renewal = renewal_free(renewal);
}

FIXTURE(.each = {begin, end});

static const struct {
        const char *variables[6], *account, *endpoint;
} accounts[] = {
        {{"AZURE_STORAGE_ACCOUNT_NAME", "one"}, "one", "https://one.blob.core.windows.net"},
        {{"AZURE_STORAGE_ACCOUNT", "one"}, "one", "https://one.blob.core.windows.net"},
        {{"AZURE_STORAGE_ACCOUNT_NAME", "one", "AZURE_STORAGE_ENDPOINT_SUFFIX", "core.chinacloudapi.cn"},
         "one",
         "https://one.blob.core.chinacloudapi.cn"},
        {{"AZURE_STORAGE_ACCOUNT_NAME", "one", "AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:10000/one/"},
         "one",
         "http://127.0.0.1:10000/one"},
        {{"AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:10000/two"}, "two", "http://127.0.0.1:10000/two"},
        {{"AZURE_STORAGE_ENDPOINT", "three.privatelink.blob.core.windows.net"},
         "three",
         "https://three.privatelink.blob.core.windows.net"},
        {{"AZURE_STORAGE_CONNECTION_STRING", "DefaultEndpointsProtocol=http;AccountName=four;AccountKey=a==;"
                                             "EndpointSuffix=core.usgovcloudapi.net"},
         "four",
         "http://four.blob.core.usgovcloudapi.net"},
        {{"AZURE_STORAGE_CONNECTION_STRING", "BlobEndpoint=https://five.blob.core.windows.net/;SharedAccessSignature=s",
          "AZURE_STORAGE_ACCOUNT_NAME", "five"},
         "five",
         "https://five.blob.core.windows.net"},
        {{"AZURE_STORAGE_CONNECTION_STRING", "UseDevelopmentStorage=true"},
         "devstoreaccount1",
         "http://127.0.0.1:10000/devstoreaccount1"},
};

TEST(the_account_and_its_endpoint, EACH(accounts))
{
        for (int i = 0; accounts[_i].variables[i] != NULL; i += 2)
                setenv(accounts[_i].variables[i], accounts[_i].variables[i + 1], 1);
        ck_assert_msg(find_account(&none, &none) == 0, "%s", error.text);
        ck_assert_str_eq(account.name, accounts[_i].account);
        ck_assert_str_eq(account.endpoint, accounts[_i].endpoint);
        azure_account_deinit(&account);
}

static const struct {
        const char *variable, *value;
        int code;
        const char *why;
} wrong_accounts[] = {
        {"UNUSED", "", STREAMER_EFAILED, "no Azure account: azure.account, AZURE_STORAGE_ACCOUNT_NAME or the source"},
        {"AZURE_STORAGE_ACCOUNT_NAME", "Not/One", STREAMER_EINVAL,
         "the name of the Azure account is not 1 to 24 small letters and digits"},
        {"AZURE_STORAGE_ENDPOINT", "ftp://one/x", STREAMER_EINVAL, "the Azure endpoint is not http(s)://host[:port]"},
        {"AZURE_STORAGE_CONNECTION_STRING", "thesecret", STREAMER_EFAILED,
         "the connection string has neither AccountName nor BlobEndpoint (environment)"},
};

TEST(a_wrong_account_is_an_error_of_loads, EACH(wrong_accounts))
{
        setenv(wrong_accounts[_i].variable, wrong_accounts[_i].value, 1);
        FAILS_WITH(error, find_account(&none, &none), wrong_accounts[_i].code, wrong_accounts[_i].why);
        ck_assert_ptr_null(strstr(error.text, "thesecret"));
        azure_account_deinit(&account);
}

TEST(a_sources_own_settings_come_before_variables_and_these_before_defaults)
{
        static const struct azure_opts own = {.source = (char *)(uintptr_t) "az://own",
                                              .account = (char *)(uintptr_t) "own"};
        static const struct azure_opts rest = {.account = (char *)(uintptr_t) "rest"};
        ck_assert_int_eq(find_account(&rest, &rest), 0);
        ck_assert_str_eq(account.name, "rest");
        setenv("AZURE_STORAGE_ACCOUNT_NAME", "variable", 1);
        ck_assert_int_eq(find_account(&rest, &rest), 0);
        ck_assert_str_eq(account.name, "variable");
        ck_assert_int_eq(find_account(&own, &rest), 0);
        ck_assert_str_eq(account.name, "own");
}

/* ---- credentials ---- */

static struct credential credential;
static struct endpoint service;
static char seen[4096];
static const char *identity_answer = "{\"access_token\":\"T\",\"expires_on\":\"4102444800\"}";

static void answer(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        const char *header = endpoint_header(request, "X-IDENTITY-HEADER");
        header = header != NULL ? header : endpoint_header(request, "secret");
        strcat(seen, format_text("%s %s %s\n", request->method, request->path, header != NULL ? header : "-"));
        if (strncmp(request->path, "/arc", 4) == 0) {
                reply->status = 401;
                reply->headers = format_text("WWW-Authenticate: Basic realm=/etc/passwd\r\n");
        } else {
                reply->body = format_text("%s", identity_answer);
        }
}

static int get(void)
{
        static struct azure_config config;
        int r;
        if (renewal == NULL) {
                azure_config_init(&config, &none, &none);
                ck_assert_int_eq(azure_credentials_new(&renewal, &config, NULL, &error), 0);
        }
        while ((r = renewal_get(renewal, &credential, &error)) == RENEWAL_LATER)
                usleep(1000); /* the pause between two questions, no more */
        return r;
}

static void serve(void)
{
        service.answer = answer;
        endpoint_start(&service);
        setenv("http_proxy", "http://127.0.0.1:1", 1);
}

static const struct {
        const char *variables[8];
        enum credential_kind kind;
        const char *origin;
} chosen[] = {
        {{"AZURE_STORAGE_CONNECTION_STRING", "AccountName=a;AccountKey=a2V5", "AZURE_STORAGE_SAS_TOKEN", "sig=x"},
         CREDENTIAL_KEYS,
         "environment, connection string"},
        {{"AZURE_STORAGE_CONNECTION_STRING", "AccountName=a;SharedAccessSignature=?sv=1&sig=a%3D"},
         CREDENTIAL_QUERY,
         "environment, connection string"},
        {{"AZURE_STORAGE_SAS_TOKEN", "sig=x", "AZURE_STORAGE_ACCOUNT_KEY", "a2V5"},
         CREDENTIAL_QUERY,
         "environment, SAS"},
        {{"AZURE_STORAGE_SAS_KEY", "sig=x"}, CREDENTIAL_QUERY, "environment, SAS"},
        {{"AZURE_STORAGE_ACCOUNT_NAME", "a", "AZURE_STORAGE_ACCOUNT_KEY", "a2V5", "AZURE_CLIENT_SECRET", "x"},
         CREDENTIAL_KEYS,
         "environment, account key"},
        {{"AZURE_STORAGE_ACCOUNT_NAME", "a", "AZURE_STORAGE_ACCESS_KEY", "a2V5"},
         CREDENTIAL_KEYS,
         "environment, account key"},
        {{"AZURE_STORAGE_TOKEN", "thetoken"}, CREDENTIAL_BEARER, "environment, token"},
};

TEST(the_first_configured_credential_is_used, EACH(chosen))
{
        for (int i = 0; chosen[_i].variables[i] != NULL; i += 2)
                setenv(chosen[_i].variables[i], chosen[_i].variables[i + 1], 1);
        ck_assert_msg(get() == 0, "%s", error.text);
        ck_assert_int_eq(credential.kind, chosen[_i].kind);
        ck_assert_str_eq(credential.origin, chosen[_i].origin);
        if (credential.kind == CREDENTIAL_QUERY)
                ck_assert_int_eq(credential.token[0], 's');
}

TEST(a_connection_string_without_a_secret_is_refused)
{
        setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=a", 1);
        FAILS_SAYING(error, get(), STREAMER_EFAILED,
                     "the connection string has neither AccountKey nor SharedAccessSignature (environment)");
}

TEST(a_variable_makes_requests_anonymous)
{
        struct azure_config config;
        setenv("AZURE_SKIP_SIGNATURE", "true", 1);
        azure_config_init(&config, &none, &none);
        ck_assert(config.opts.is_anonymous);
}

TEST(an_identity_of_app_service)
{
        serve();
        setenv("IDENTITY_ENDPOINT", format_text("%s/msi", service.url), 1);
        setenv("IDENTITY_HEADER", "the-header", 1);
        setenv("AZURE_CLIENT_ID", "me", 1);
        ck_assert_msg(get() == 0, "%s", error.text);
        ck_assert_str_eq(credential.token, "T");
        ck_assert_int_eq(credential.expires, 4102444800);
        ck_assert_str_eq(seen, "GET /msi?api-version=2019-08-01&resource=https%3A%2F%2Fstorage.azure.com&client_id=me "
                               "the-header\n");
}

TEST(an_identity_without_a_token_is_refused)
{
        serve();
        identity_answer = "{}";
        setenv("IDENTITY_ENDPOINT", format_text("%s/msi", service.url), 1);
        setenv("IDENTITY_HEADER", "the-header", 1);
        FAILS_SAYING(error, get(), STREAMER_EFAILED,
                     "IDENTITY_ENDPOINT: the answer holds no access_token (managed identity of App Service)");
}

#define NO_KEY "Azure Arc names a secret that is no small .key file of its agent's (/var/opt/azcmagent/tokens/)"

TEST(arc_may_name_no_other_file)
{
        serve();
        setenv("IDENTITY_ENDPOINT", format_text("%s/arc", service.url), 1);
        setenv("IMDS_ENDPOINT", service.url, 1);
        FAILS_SAYING(error, get(), STREAMER_EPERM, NO_KEY);
}

TEST(arc_that_answers_at_once_is_none)
{
        serve();
        setenv("IDENTITY_ENDPOINT", service.url, 1);
        setenv("IMDS_ENDPOINT", service.url, 1);
        FAILS_WITH(error, get(), STREAMER_EFAILED, "Azure Arc answers 200 instead of a challenge");
}

static const char *const challenges[] = {
        "",
        "Bearer x",
        "Basic realm=",
        "Basic realm=/etc/shadow.key",
        "Basic realm=/var/opt/azcmagent/tokens/.key",
        "Basic realm=/var/opt/azcmagent/tokens/../x.key",
        "Basic realm=/var/opt/azcmagent/tokens/x.txt",
};

TEST(a_secret_of_arc_elsewhere_is_refused, EACH(challenges))
{
        char *path = NULL;
        FAILS_SAYING(error, azure_arc_secret(challenges[_i], &path, &error), STREAMER_EPERM, NO_KEY);
        ck_assert_ptr_null(path);
}

TEST(a_secret_of_arc_is_a_file_of_its_agent)
{
        char *path;
        ck_assert_int_eq(azure_arc_secret("Basic realm=/var/opt/azcmagent/tokens/a-b.key", &path, &error), 0);
        ck_assert_str_eq(path, "/var/opt/azcmagent/tokens/a-b.key");
}

TEST(without_anything_the_error_says_what_was_tried)
{
        setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", "http://127.0.0.1:1", 1);
        FAILS_WITH(
                error, get(), STREAMER_EPERM,
                "no credentials: neither the settings nor the environment have a connection string, a SAS, an account "
                "key, a client or a token, and the metadata service: ");
        ck_assert_ptr_nonnull(strstr(error.text, "A public container is read with azure.anonymous"));
}

TEST(an_identity_of_machine_learning, .to = 2)
{
        serve();
        setenv("MSI_ENDPOINT", format_text("%s/msi", service.url), 1);
        setenv("MSI_SECRET", "the-secret", 1);
        setenv(_i == 0 ? "DEFAULT_IDENTITY_CLIENT_ID" : "AZURE_CLIENT_ID", "me", 1);
        ck_assert_msg(get() == 0, "%s", error.text);
        ck_assert_str_eq(credential.token, "T");
        ck_assert_str_eq(credential.origin, "managed identity of Azure Machine Learning");
        ck_assert_str_eq(seen, "GET /msi?api-version=2017-09-01&resource=https%3A%2F%2Fstorage.azure.com&clientid=me "
                               "the-secret\n");
}

static const struct {
        const char *variables[8];
        const char *what;
} unsupported[] = {
        {{"IDENTITY_ENDPOINT", "https://x", "IDENTITY_SERVER_THUMBPRINT", "ab"},
         "the managed identity of Service Fabric (IDENTITY_SERVER_THUMBPRINT)"},
        {{"MSI_ENDPOINT", "http://127.0.0.1:1/"},
         "the identity of Azure Cloud Shell (MSI_ENDPOINT without MSI_SECRET)"},
        {{"AZURE_TENANT_ID", "t", "AZURE_CLIENT_ID", "c", "AZURE_CLIENT_CERTIFICATE_PATH", "/x.pem"},
         "a client's certificate (AZURE_CLIENT_CERTIFICATE_PATH)"},
        {{"AZURE_TENANT_ID", "t", "AZURE_CLIENT_ID", "c", "AZURE_USERNAME", "u", "AZURE_PASSWORD", "p"},
         "a user's password (AZURE_USERNAME, AZURE_PASSWORD)"},
        {{"AZURE_TENANT_ID", "t", "AZURE_CLIENT_ID", "c", "AZURE_FEDERATED_TOKEN_FILE", "/x",
          "AZURE_KUBERNETES_TOKEN_PROXY", "https://x"},
         "an identity binding of AKS (AZURE_KUBERNETES_TOKEN_PROXY)"},
};

/* Another one would have other rights. */
TEST(an_identity_that_is_not_supported_is_refused_by_name, EACH(unsupported))
{
        for (int i = 0; i < 8 && unsupported[_i].variables[i] != NULL; i += 2)
                setenv(unsupported[_i].variables[i], unsupported[_i].variables[i + 1], 1);
        FAILS_SAYING(error, get(), STREAMER_EUNSUPPORTED, format_text("%s is not supported", unsupported[_i].what));
}

TEST(a_secret_comes_before_a_certificate)
{
        setenv("AZURE_STORAGE_ACCOUNT_NAME", "a", 1);
        setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5", 1);
        setenv("AZURE_TENANT_ID", "t", 1);
        setenv("AZURE_CLIENT_ID", "c", 1);
        setenv("AZURE_CLIENT_CERTIFICATE_PATH", "/x.pem", 1);
        ck_assert_msg(get() == 0, "%s", error.text);
        ck_assert_int_eq(credential.kind, CREDENTIAL_KEYS);
}

static const struct {
        const char *sas;
        time_t expires;
} sas[] = {
        {"sv=1&se=2031-02-28T12%3A00%3A00Z&sig=x", 1930046400},
        {"se=2031-02-28T12:00:00Z", 1930046400},
        {"?se=2031-02-28", 1930003200},
        {"sv=1&sig=x", 0},
        {"use=2031-02-28", 0},
        {"se=never", 0},
};

TEST(the_expiry_of_a_sas, EACH(sas))
{
        ck_assert_int_eq(azure_sas_expires(sas[_i].sas), sas[_i].expires);
}
