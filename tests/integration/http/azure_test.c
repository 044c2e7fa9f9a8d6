/* SPDX-License-Identifier: Apache-2.0
 *
 * Models in Azure Blob Storage: lists, names of blobs, ETags, each kind of credential, and errors. The store checks
 * signatures, SAS, tokens and conditions.
 */
#include "tests/integration/remote_fixture.h"
#include "tests/lib/azure_store.h"

#define PAGE 3

static struct azure_store store;
static struct model *model;
static unsigned *n_files; /* shared by the processes of the tests */

static char *settings(void)
{
        char *federated = suite_file("federated", "the.federated.token\n");
        const char *app = "tenant_id: tenant, client_id: client";
        return format_text(
                "http: {backoff: 10ms}\n"
                "azure:\n"
                "  account: " AZURE_ACCOUNT "\n"
                "  endpoint: '%s'\n"
                "  account_key: 'file:%s'\n"
                "  authority_host: '%s'\n"
                "  sources:\n"
                "    - {source: 'az://sas', sas_token: '?%s'}\n"
                "    - {source: 'az://client', %s, client_secret: thesecret, authority_host: '%s'}\n"
                "    - {source: 'az://federated', %s, federated_token_file: '%s', authority_host: '%s'}\n"
                "    - {source: 'az://managed', client_id: client}\n"
                "    - {source: 'az://stranger', client_id: stranger}\n"
                "    - {source: 'az://public-models', anonymous: true}\n"
                "    - {source: 'az://private', anonymous: true}\n"
                "    - {source: 'az://connection', connection_string: "
                "'DefaultEndpointsProtocol=http;AccountName=" AZURE_ACCOUNT ";AccountKey=" AZURE_KEY
                ";BlobEndpoint=%s/;'}\n"
                "    - {source: 'az://wrong-key', account_key: '"
                "c29tZXRoaW5nIGVsc2U="
                "'}\n"
                "    - {source: 'az://odd-key', account_key: 'thesecret'}\n"
                "    - {source: 'az://expired', sas_token: 'sv=1&se=2001-01-01T00%%3A00%%3A00Z&sig=thesecret'}\n"
                "    - {source: 'az://no-client', client_secret: thesecret}\n"
                "    - {source: 'az://wrong-client', %s, client_secret: wrong, authority_host: '%s'}\n"
                "    - {source: 'az://no-token', %s, federated_token_file: /nowhere/token}\n",
                store.endpoint, suite_file("key", AZURE_KEY "\n"), store.url, AZURE_SAS, app, store.url, app, federated,
                store.url, store.endpoint, app, store.url, app);
}

static void begin(void)
{
        n_files = must_share(sizeof(*n_files));
        azure_store_start(&store, PAGE);
        setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", store.url, 1);
        /* Services are contacted directly. */
        setenv("http_proxy", "http://127.0.0.1:1", 1);
        fixture_begin((const char *const[]){"--config", suite_file("config.yaml", settings()), "--device",
                                            "host=256MiB", "--block-size", "1MiB", "--log-level", "debug", NULL});
}

static void end(void)
{
        fixture_end();
        azure_store_stop(&store);
}

static void forget(void)
{
        azure_store_do(&store, "clear");
        fixture_connect();
}

static void no_secret_is_logged(void)
{
        static const char *const secrets[] = {"thesecret", "the%2Fsecret", "the.federated", AZURE_KEY, "Bearer"};
        char *log = file_read(test_daemon.log, NULL);
        for (size_t i = 0; i < sizeof(secrets) / sizeof(secrets[0]); i++)
                ck_assert_msg(strstr(log, secrets[i]) == NULL, "%s", secrets[i]);
        fixture_disconnect();
}

/* ---- filling it ---- */

static void put_file(const char *container, const char *name, const char *path, const char *kind)
{
        azure_store_do(&store, "put\t%s\t%s\t%s\t%s", container, name, path, kind);
}

static void put_text(const char *container, const char *name, const char *text, const char *kind)
{
        put_file(container, name, suite_file(format_text("blob-%u", ++*n_files), text), kind);
}

/* Of one test: a model of a few blocks at this name. */
static void new_model(const char *container, const char *name)
{
        char *path = suite_path("blob-%u", ++*n_files);
        model = model_mixed(1, 5 << 20);
        model_write(model, path);
        put_file(container, name, path, "");
}

static unsigned counted(const char *what)
{
        return (unsigned)atoi(azure_store_do(&store, "count\t%s", what));
}

/* ---- model files ---- */

FIXTURE(.all = {begin, end}, .each = {forget, no_secret_is_logged});

TEST(a_blob_is_a_model)
{
        new_model("models", "one/tiny llama.safetensors");
        load_equals("az://models/one/tiny llama.safetensors", "tiny llama", model);
        load_equals("AZ://models/one/tiny llama.safetensors", "tiny llama", model);
}

TEST(a_prefix_is_a_folder)
{
        put_text("models", "folder-2/model.safetensors", "no model", "");
        put_text("models", "folder/below/model.safetensors", "no model", "");
        put_text("models", "folder/extra.safetensors", "no model", "");
        new_model("models", "folder/model.safetensors");
        load_equals("az://models/folder", "folder", model);
        load_equals("az://models/folder/", "folder", model);
}

static const char *const forms[] = {
        "az://models@devacct.blob.core.windows.net/form/",
        "abfs://models@devacct.dfs.core.windows.net/form/",
        "abfss://models@DEVACCT.dfs.core.windows.net/form",
        "abfs://models/form/",
};

TEST(a_source_may_name_its_account, EACH(forms))
{
        new_model("models", "form/model.safetensors");
        load_equals(forms[_i], "form", model);
}

TEST(forms_of_one_account_are_one_source)
{
        new_model("models", "same/model.safetensors");
        client_load(client, "az://models@devacct.blob.core.windows.net/same/", "m");
        uint64_t first = json_number(client_show(client, "m"), "generation");
        ck_assert_str_eq(json_text(client_show(client, "m"), "source"),
                         "az://models@devacct.blob.core.windows.net/same/");
        client_load(client, "abfss://models@devacct.dfs.core.windows.net/same", "m");
        ck_assert_uint_eq(json_number(client_show(client, "m"), "generation"), first);
        client_unload(client, "m");
}

TEST(pages_are_followed_and_may_be_empty)
{
        for (int i = 0; i < 3 * PAGE; i++)
                put_text("models", format_text("paged/a%d", i), "", "");
        new_model("models", "paged/model.safetensors");
        load_equals("az://models/paged/", "paged", model);
        ck_assert_uint_ge(counted("list"), 5);
}

#define ODD "a b+%2F#?&=\xc3\xbc"

TEST(names_are_taken_literally)
{
        new_model("models", "odd/" ODD "/model.safetensors");
        put_text("models", "odd/" ODD "/config.json", "{\"odd\":1}", "");
        load_equals("az://models/odd/" ODD "/", ODD, model);
        assert_fetches_text("az://models/odd/" ODD "/", "config.json", "{\"odd\":1}");
}

TEST(a_list_may_have_encoded_names)
{
        put_text("models", "encoded/\\x01", "", "");
        new_model("models", "encoded/model.safetensors");
        load_equals("az://models/encoded/", "encoded", model);
}

TEST(directories_of_a_hierarchical_namespace_are_no_files)
{
        new_model("models", "tree/model.safetensors");
        put_text("models", "tree/config.json", "{}", "");
        put_text("models", "tree/sub", "", "directory");
        put_text("models", "tree/old", "", "stub");
        put_text("models", "tree/sub/tokenizer.json", "[1]", "");
        assert_lists("az://models/tree/", "{\"files\":[{\"name\":\"config.json\",\"bytes\":2},{\"name\":"
                                          "\"sub/tokenizer.json\",\"bytes\":3}]}");
        load_equals("az://models/tree/", "tree", model);
}

TEST(a_missing_file_beside_the_weights_is_reported)
{
        new_model("models", "files/model.safetensors");
        assert_refuses("az://models/files/", "other.json", STREAMER_ENOENT,
                       "the store answers 404 BlobNotFound: The specified blob does not exist. "
                       "(az://models/files/other.json, request req-1, credentials from settings, account key)");
}

/* ---- ETags ---- */

TEST(each_request_is_for_the_listed_version)
{
        new_model("models", "pinned/model.safetensors");
        load_equals("az://models/pinned/", "pinned", model);
        ck_assert_uint_gt(counted("range"), 2);
        ck_assert_uint_eq(counted("unpinned"), 0);
}

TEST(a_blob_that_is_replaced_during_a_load_fails_it)
{
        new_model("models", "replaced/model.safetensors");
        azure_store_do(&store, "replace\tmodels\treplaced/model.safetensors\t3");
        client_load_fails(client, "az://models/replaced/", "m", STREAMER_EFAILED,
                          "the object was replaced while it was read: another ETag; before, the store answers 412 "
                          "ConditionNotMet");
        client_unload(client, "m");
}

TEST(a_blob_that_is_replaced_after_the_list_is_listed_again)
{
        new_model("models", "early/model.safetensors");
        azure_store_do(&store, "replace\tmodels\tearly/model.safetensors\t1");
        load_equals("az://models/early/", "early", model);
}

TEST(a_list_of_digests_verifies)
{
        char digest[65], *path = suite_path("listed");
        model = model_mixed(2, 1 << 20);
        model_write(model, path);
        file_sha256(path, digest);
        put_file("models", "listed/model.safetensors", path, "");
        assert_not_verified("az://models/listed/", "no published SHA-256: not listed in a SHA256SUMS with its prefix");
        put_text("models", "listed/SHA256SUMS", format_text("%s  model.safetensors\n", digest), "");
        assert_verified("az://models/listed/", model);
}

/* ---- credentials ---- */

static const char *const credentials[] = {"sas", "client", "federated", "managed", "public-models", "connection"};

TEST(each_credential_is_accepted, EACH(credentials))
{
        const char *container = credentials[_i];
        new_model(container, format_text("x%d/model.safetensors", _i));
        load_equals(format_text("az://%s/x%d/", container, _i), format_text("x%d", _i), model);
        ck_assert_uint_eq(counted("refused"), 1); /* the index, which does not exist */
}

TEST(the_sas_is_no_part_of_a_model)
{
        new_model("sas", "shown/model.safetensors");
        client_load(client, "az://sas/shown/", "m");
        ck_assert_ptr_null(strstr(json_dumps(client_show(client, "m"), 0), "sig="));
        client_unload(client, "m");
}

TEST(a_refused_token_is_replaced_and_the_request_repeated)
{
        new_model("client", "renewed/model.safetensors");
        client_load(client, "az://client/renewed/", "m");
        client_unload(client, "m");
        unsigned before = counted("token");
        azure_store_do(&store, "valid\tT%u", before + 1);
        client_load(client, "az://client/renewed/", "m");
        client_equals(client, "m", model);
        ck_assert_uint_eq(counted("token"), before + 1);
        client_unload(client, "m");
}

TEST(a_request_is_repeated_once)
{
        new_model("federated", "never/model.safetensors");
        azure_store_do(&store, "valid\tnothing");
        client_load_fails(client, "az://federated/never/", "m", STREAMER_EPERM,
                          "the store answers 401 InvalidAuthenticationInfo: Server failed to authenticate the request. "
                          "(az://federated/never/, request req-1, credentials from settings, federated token)");
        ck_assert_uint_le(counted("refused"), 4); /* a list and an index, each at most twice */
}

/* ---- errors ---- */

static const struct {
        const char *source;
        int code;
        const char *why;
} errors[] = {
        {"az://models/nothing/", STREAMER_ENOENT, "no safetensors files with this prefix (az://models/nothing/)"},
        {"az://models/nothing.safetensors", STREAMER_ENOENT, "404 BlobNotFound: The specified blob does not exist."},
        {"az://other/x/", STREAMER_ENOENT, "404 ContainerNotFound"},
        {"az://models/forbidden.safetensors", STREAMER_EPERM,
         "403 AuthorizationPermissionMismatch: This request is not authorized to perform this operation using this "
         "permission.; the role 'Storage Blob Data Reader' is needed (az://models/forbidden.safetensors"},
        {"az://models/archived.safetensors", STREAMER_EFAILED,
         "409 BlobArchived: This operation is not permitted on an archived blob.; the blob is in the archive tier, and "
         "has to be rehydrated"},
        {"az://private/x/", STREAMER_EPERM,
         "the account permits no anonymous access (az://private/x/, request req-1, "
         "anonymous)"},
        {"az://wrong-key/x/", STREAMER_EPERM, "403 AuthenticationFailed: Server failed to authenticate the request"},
        {"az://odd-key/x/", STREAMER_EFAILED, "the account key is not Base64 (settings, account key)"},
        {"az://expired/x/", STREAMER_EFAILED,
         "credentials had expired on receipt: is this machine's clock right? (settings, SAS)"},
        {"az://no-client/x/", STREAMER_EFAILED, "a client of Azure without its tenant_id (AZURE_TENANT_ID) (settings)"},
        {"az://wrong-client/x/", STREAMER_EPERM,
         "the token endpoint answers 401 invalid_client: AADSTS7000215: no such "
         "client (settings, client secret)"},
        {"az://no-token/x/", STREAMER_EFAILED,
         "federated_token_file (AZURE_FEDERATED_TOKEN_FILE): a secret in /nowhere/token: No such file"},
        {"az://stranger/x/", STREAMER_EPERM, "the metadata service answers 400 invalid_request: Identity not found"},
        {"az://models@other.blob.core.windows.net/x/", STREAMER_EPERM,
         "a SAS and a key are of one account, which is not other: azure.sources has those of others"},
        {"az://models@evil.example.com/x/", STREAMER_EINVAL, "az://models@...: not a host of Azure's"},
        {"az://Models/x/", STREAMER_EINVAL, "az://Models/x/: not the name of a container"},
        {"az://", STREAMER_EINVAL, "az://: not the name of a container"},
};

TEST(an_error_says_what_and_where, EACH(errors))
{
        put_text("models", "forbidden.safetensors", "", "forbidden");
        put_text("models", "archived.safetensors", "", "archive");
        client_load_fails(client, errors[_i].source, "fails", errors[_i].code, errors[_i].why);
        streamer_unload(client, "fails", 0); /* most are not listed */
}

TEST(a_metadata_service_that_is_not_ready_is_waited_for)
{
        new_model("managed", "late/model.safetensors");
        azure_store_do(&store, "valid\tnone-of-these");
        azure_store_do(&store, "fail\t2");
        unsigned next = counted("token") + 1;
        azure_store_do(&store, "valid\tT%u", next);
        load_equals("az://managed/late/", "late", model);
}
