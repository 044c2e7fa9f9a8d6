/* SPDX-License-Identifier: Apache-2.0
 *
 * Models in Google Cloud Storage: lists, names of objects, generations, checksums, tokens that are refused, and errors.
 * A server of the test's own has the JSON API, and checks the tokens and generations of its requests.
 */
#include "tests/integration/remote_fixture.h"
#include "tests/lib/endpoint.h"
#include "tests/lib/streamerctl.h"

#include "daemon/base/crc32c.h"
#include "proto/scope.h"

#include <endian.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <pthread.h>

#define OBJECTS 64
#define PAGE 3
#define SECRET "thesecretrefreshtoken"

enum fault { FAULT_NONE, FAULT_GZIP, FAULT_GZIP_DECODED, FAULT_SUM, FAULT_FORBIDDEN, FAULT_UNPINNED };

/* Shared by the server's process and those of the tests. */
static struct state {
        struct object_file {
                char name[200], path[300];
                uint64_t generation;
                uint32_t crc;
                enum fault fault;
        } objects[OBJECTS];
        unsigned n;
        _Atomic unsigned lists, ranges, unpinned, tokens, refused;
        unsigned valid;                  /* the number of the token that is accepted; 0: each */
        unsigned replace_at;             /* the object is replaced before this range is answered; 0: never */
        unsigned replaced;               /* index of the object */
        char project[40], parameter[40]; /* of the last request */
        char token_path[32];             /* where the last token was asked for */
} * state;

static struct endpoint store;
static struct model *model;

/* ---- the store ---- */

/* Decodes the path's bytes up to `end`. */
static char *decoded(const char *text, const char *end)
{
        char *out = must_alloc((size_t)(end - text) + 1), *to = out;
        for (; text < end; text++) {
                unsigned byte = (unsigned char)*text;
                if (*text == '%') {
                        sscanf(text + 1, "%2x", &byte);
                        text += 2;
                }
                *to++ = (char)byte;
        }
        return out;
}

/* A parameter of the query; NULL: it is not there. */
static char *query_of(const char *path, const char *name)
{
        const char *at = strchr(path, '?');
        size_t len = strlen(name);
        while (at != NULL) {
                at++;
                if (strncmp(at, name, len) == 0 && at[len] == '=')
                        return decoded(at + len + 1, at + len + 1 + strcspn(at + len + 1, "&"));
                at = strchr(at, '&');
        }
        return NULL;
}

static void refuse(struct endpoint_reply *reply, int status, const char *reason, const char *message)
{
        reply->status = status;
        reply->headers = format_text("X-GUploader-UploadID: up1\r\n");
        reply->body = format_text("{\"error\":{\"code\":%d,\"message\":\"%s\",\"errors\":[{\"reason\":\"%s\"}]}}",
                                  status, message, reason);
}

static void give_token(const struct endpoint_request *request, struct endpoint_reply *reply)
{
        unsigned n = ++state->tokens;
        snprintf(state->token_path, sizeof(state->token_path), "%s", request->path);
        if (strstr(request->body, SECRET) == NULL)
                refuse(reply, 400, "invalid_grant", "no such token");
        else
                reply->body = format_text("{\"access_token\":\"T%u\",\"expires_in\":3600}", n);
}

/* The objects below a prefix, PAGE at a time. */
static void list(const struct endpoint_request *request, struct endpoint_reply *reply)
{
        const char *prefix = query_of(request->path, "prefix"), *token = query_of(request->path, "pageToken");
        const char *delimiter = query_of(request->path, "delimiter");
        json_t *items = json_array(), *page = json_pack("{s:s}", "kind", "storage#objects");
        unsigned i = token != NULL ? (unsigned)atoi(token) : 0, n = 0;
        prefix = prefix != NULL ? prefix : "";
        state->lists++;
        for (; i < state->n && n < PAGE; i++) {
                const struct object_file *o = &state->objects[i];
                if (strncmp(o->name, prefix, strlen(prefix)) != 0 ||
                    (delimiter != NULL && strchr(o->name + strlen(prefix), '/') != NULL))
                        continue;
                n++;
                json_array_append_new(items, json_pack("{s:s, s:s, s:s}", "name", o->name, "size",
                                                       format_text("%" PRIu64, file_size(o->path)), "generation",
                                                       format_text("%" PRIu64, o->generation)));
        }
        if (n > 0)
                json_object_set_new(page, "items", items);
        if (i < state->n)
                json_object_set_new(page, "nextPageToken", json_string(format_text("%u", i)));
        reply->body = json_dumps(page, 0);
}

static void give_bytes(const struct endpoint_request *request, struct endpoint_reply *reply, struct object_file *o)
{
        const char *wanted = query_of(request->path, "ifGenerationMatch");
        uint32_t sum = htobe32(o->crc);
        unsigned char text[16];
        size_t size;
        bool gzip = o->fault == FAULT_GZIP || o->fault == FAULT_GZIP_DECODED;
        if (++state->ranges == state->replace_at)
                state->objects[state->replaced].generation++;
        state->unpinned += wanted == NULL;
        if (o->fault == FAULT_FORBIDDEN) {
                refuse(reply, 403, "forbidden", "no");
                return;
        }
        if (wanted != NULL && strtoull(wanted, NULL, 10) != o->generation) {
                refuse(reply, 412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.");
                return;
        }
        EVP_EncodeBlock(text, (const unsigned char *)&sum, sizeof(sum));
        reply->headers =
                format_text("x-goog-generation: %" PRIu64 "\r\nx-goog-hash: md5=AAAAAAAAAAAAAAAAAAAAAA==\r\n"
                            "x-goog-hash: crc32c=%s\r\nx-goog-stored-content-encoding: %s\r\nETag: \"x\"\r\n%s",
                            o->generation, text, gzip ? "gzip" : "identity",
                            o->fault == FAULT_GZIP ? "Content-Encoding: gzip\r\n" : "");
        char *data = file_read(o->path, &size);
        if (o->fault == FAULT_GZIP_DECODED) {
                reply->body = data;
                reply->size = size;
                return;
        }
        endpoint_range(request, reply, data, size);
        free(data);
}

/* One request after the other: each connection has a thread. */
static void answer(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
        lock_scope(&one);
        const char *bucket = "/storage/v1/b/models/o", *path = request->path;
        const char *authorization = endpoint_header(request, "Authorization");
        size_t len = strlen(bucket);
        if (strcmp(path, "/token") == 0) {
                give_token(request, reply);
                return;
        }
        snprintf(state->project, sizeof(state->project), "%s", endpoint_header(request, "x-goog-user-project") ?: "");
        snprintf(state->parameter, sizeof(state->parameter), "%s", query_of(path, "userProject") ?: "");
        bool named = authorization != NULL && sscanf(authorization, "Bearer T%u", &(unsigned){0}) == 1;
        bool open = strstr(path, "public") != NULL;
        unsigned number = named ? (unsigned)atoi(authorization + strlen("Bearer T")) : 0;
        if (open ? authorization != NULL : !named || (state->valid != 0 && number != state->valid)) {
                state->refused++;
                refuse(reply, 401, "authError", "Invalid Credentials");
                return;
        }
        if (strncmp(path, bucket, len) != 0) {
                refuse(reply, 404, "notFound", "The specified bucket does not exist.");
                return;
        }
        if (path[len] == '?') {
                list(request, reply);
                return;
        }
        /* An object is one segment. */
        char *name = decoded(path + len + 1, path + len + 1 + strcspn(path + len + 1, "?/"));
        for (unsigned i = 0; i < state->n; i++)
                if (strcmp(state->objects[i].name, name) == 0) {
                        give_bytes(request, reply, &state->objects[i]);
                        return;
                }
        refuse(reply, 404, "notFound", "No such object");
}

/* ---- filling it ---- */

static struct object_file *put_file(const char *name, const char *path)
{
        struct object_file *o = &state->objects[state->n];
        size_t size;
        ck_assert_uint_lt(state->n, OBJECTS);
        snprintf(o->name, sizeof(o->name), "%s", name);
        snprintf(o->path, sizeof(o->path), "%s", path);
        char *data = file_read(path, &size);
        o->crc = crc32c(0, data, size);
        o->generation = 1700000000000000 + state->n;
        free(data);
        state->n++;
        return o;
}

static struct object_file *put_model(const struct model *m, const char *name)
{
        char *path = suite_path("object-%u", state->n);
        model_write(m, path);
        return put_file(name, path);
}

static struct object_file *put_text(const char *name, const char *text)
{
        return put_file(name, suite_file(format_text("object-%u", state->n), text));
}

/* Of one test: a model of a few blocks at this name. */
static struct object_file *new_model(const char *name)
{
        model = model_mixed(1, 5 << 20);
        return put_model(model, name);
}

/* ---- fixture ---- */

static char *user(void)
{
        return format_text("{\"type\":\"authorized_user\",\"client_id\":\"id\",\"client_secret\":\"s\","
                           "\"refresh_token\":\"" SECRET "\",\"token_uri\":\"%s/token\"}",
                           store.url);
}

static void begin(void)
{
        state = must_share(sizeof(*state));
        store.answer = answer;
        endpoint_start(&store);
        setenv("GOOGLE_APPLICATION_CREDENTIALS", suite_file("adc.json", user()), 1);
        setenv("STORAGE_EMULATOR_HOST", store.url, 1);
        char *config =
                suite_file("config.yaml",
                           format_text("http: {backoff: 10ms}\n"
                                       "gcs:\n"
                                       "  sources:\n"
                                       "    - {source: 'gs://models/public/', anonymous: true}\n"
                                       "    - {source: 'gs://models/paid/', quota_project: payer}\n"
                                       "    - {source: 'gs://models/wrong/', credentials: '{\"type\":\"unknown\"}'}\n"
                                       "    - {source: 'gs://models/gone/', credentials: 'file:/nowhere/key.json'}\n"
                                       "    - {source: 'gs://elsewhere', endpoint: 'http://127.0.0.1:1'}\n"));
        fixture_begin((const char *const[]){"--config", config, "--device", "host=256MiB", "--block-size", "1MiB",
                                            "--log-level", "debug", NULL});
}

static void forget(void)
{
        unsigned tokens = state->tokens; /* the daemon has the last one */
        memset(state, 0, sizeof(*state));
        state->tokens = tokens;
        fixture_connect();
}

static void no_secret_is_logged(void)
{
        char *log = file_read(test_daemon.log, NULL);
        ck_assert_ptr_null(strstr(log, SECRET));
        ck_assert_ptr_null(strstr(log, "Bearer"));
        fixture_disconnect();
}

/* ---- model files ---- */

FIXTURE(.all = {begin, fixture_end}, .each = {forget, no_secret_is_logged});

TEST(an_object_is_a_model)
{
        new_model("one/tiny llama.safetensors");
        load_equals("gs://models/one/tiny llama.safetensors", "tiny llama", model);
        load_equals("GS://models/one/tiny llama.safetensors", "tiny llama", model);
}

TEST(a_prefix_is_a_folder)
{
        put_text("folder-2/model.safetensors", "no model");
        put_text("folder/below/model.safetensors", "no model");
        put_text("folder/config.json", "{}");
        put_text("folder/extra.safetensors", "no model");
        new_model("folder/model.safetensors");
        load_equals("gs://models/folder", "folder", model);
        load_equals("gs://models/folder/", "folder", model);
}

TEST(pages_are_followed)
{
        for (int i = 0; i < 3 * PAGE; i++)
                put_text(format_text("paged/a%d", i), "");
        new_model("paged/model.safetensors");
        load_equals("gs://models/paged/", "paged", model);
        ck_assert_uint_ge(state->lists, 4);
}

TEST(a_bucket_may_be_a_folder)
{
        new_model("model.safetensors");
        load_equals("gs://models", "models", model);
}

#define ODD "a b+%2F#?&=\xc3\xbc"

TEST(names_are_taken_literally)
{
        new_model("odd/" ODD "/model.safetensors");
        put_text("odd/" ODD "/config.json", "{\"odd\":1}");
        load_equals("gs://models/odd/" ODD "/", ODD, model);
        assert_fetches_text("gs://models/odd/" ODD "/", "config.json", "{\"odd\":1}");
}

TEST(an_index_decides)
{
        model = model_mixed(3, 6 << 20);
        char *folder = fixture_path("shards");
        model_write_sharded(model, folder, 3, true);
        put_file("sharded/model.safetensors.index.json", format_text("%s/model.safetensors.index.json", folder));
        for (int i = 1; i <= 3; i++) {
                char *name = format_text("model-%05d-of-%05d.safetensors", i, 3);
                put_file(format_text("sharded/%s", name), format_text("%s/%s", folder, name));
        }
        load_equals("gs://models/sharded/", "sharded", model);
        load_equals("gs://models/sharded/model.safetensors.index.json", "sharded", model);
}

TEST(files_beside_the_weights_are_fetched)
{
        new_model("files/model.safetensors");
        put_text("files/config.json", "{}");
        put_text("files/sub/tokenizer.json", "[1]");
        assert_lists("gs://models/files/", "{\"files\":[{\"name\":\"config.json\",\"bytes\":2},{\"name\":"
                                           "\"sub/tokenizer.json\",\"bytes\":3}]}");
        assert_fetches_text("gs://models/files/", "sub/tokenizer.json", "[1]");
        assert_refuses("gs://models/files/", "other.json", STREAMER_ENOENT,
                       "the store answers 404 notFound: No such "
                       "object (gs://models/files/other.json, "
                       "request up1, credentials from "
                       "GOOGLE_APPLICATION_CREDENTIALS, "
                       "authorized_user)");
}

TEST(an_unchanged_model_is_already_resident)
{
        struct object_file *o = new_model("same/model.safetensors");
        client_load(client, "gs://models/same/", "m");
        uint64_t first = json_number(client_show(client, "m"), "generation");
        client_load(client, "gs://models/same/", "m");
        ck_assert_uint_eq(json_number(client_show(client, "m"), "generation"), first);
        o->generation++;
        client_load(client, "gs://models/same/", "m");
        ck_assert_uint_ne(json_number(client_show(client, "m"), "generation"), first);
        client_unload(client, "m");
}

/* ---- generations ---- */

TEST(each_request_is_for_the_listed_generation)
{
        new_model("pinned/model.safetensors");
        load_equals("gs://models/pinned/", "pinned", model);
        ck_assert_uint_gt(state->ranges, 2);
        /* The index, which is requested together with the list, is not there to have one. */
        ck_assert_uint_eq(state->unpinned, 0);
}

TEST(an_object_that_is_replaced_during_a_load_fails_it)
{
        new_model("replaced/model.safetensors");
        state->replace_at = 3;
        client_load_fails(
                client, "gs://models/replaced/", "m", STREAMER_EFAILED,
                "the object was replaced while it was read: another generation; before, the store answers 412 "
                "conditionNotMet");
        client_unload(client, "m");
}

TEST(an_object_that_is_replaced_after_the_list_is_listed_again)
{
        new_model("early/model.safetensors");
        state->replace_at = 1;
        load_equals("gs://models/early/", "early", model);
}

/* ---- encodings ---- */

static const enum fault encodings[] = {FAULT_GZIP, FAULT_GZIP_DECODED};

TEST(an_object_that_is_stored_with_gzip_is_refused_by_name, EACH(encodings))
{
        new_model("zipped/model.safetensors")->fault = encodings[_i];
        client_load_fails(client, "gs://models/zipped/", "m", STREAMER_EUNSUPPORTED,
                          "the object is stored with Content-Encoding gzip, of which no range can be read: store it "
                          "without (gs://models/zipped/model.safetensors)");
        client_unload(client, "m");
}

/* ---- checksums ---- */

TEST(a_load_is_verified_by_the_stores_crc32c)
{
        new_model("sum/model.safetensors");
        assert_verified("gs://models/sum/", model);
}

TEST(another_crc32c_fails_the_load)
{
        new_model("sum/model.safetensors")->crc ^= 0x100;
        assert_not_verified("gs://models/sum/", "crc32c differs: ");
}

TEST(a_list_of_digests_comes_before_the_crc32c)
{
        struct object_file *o = new_model("listed/model.safetensors");
        char digest[65];
        file_sha256(o->path, digest);
        o->crc ^= 1;
        put_text("listed/SHA256SUMS", format_text("%s  model.safetensors\n", digest));
        assert_verified("gs://models/listed/", model);
}

/* ---- tokens ---- */

TEST(a_refused_token_is_replaced_and_the_request_repeated)
{
        new_model("renewed/model.safetensors");
        client_load(client, "gs://models/renewed/", "m");
        client_unload(client, "m");
        unsigned before = state->tokens;
        /* The next one is valid, and not the present one. */
        state->valid = before + 1;
        client_load(client, "gs://models/renewed/", "m");
        client_equals(client, "m", model);
        ck_assert_uint_eq(state->tokens, before + 1);
        client_unload(client, "m");
}

TEST(a_request_is_repeated_once)
{
        new_model("never/model.safetensors");
        state->valid = 1000;
        client_load_fails(client, "gs://models/never/", "m", STREAMER_EPERM,
                          "the store answers 401 authError: Invalid Credentials (gs://models/never/, request up1, "
                          "credentials from GOOGLE_APPLICATION_CREDENTIALS, authorized_user)");
        /* A list and an index, each at most twice. */
        ck_assert_uint_le(state->refused, 4);
}

TEST(a_public_bucket_is_read_without_a_token)
{
        new_model("public/model.safetensors");
        load_equals("gs://models/public/model.safetensors", "model", model);
        ck_assert_uint_eq(state->refused, 0);
}

TEST(the_project_that_pays_is_named)
{
        new_model("paid/model.safetensors");
        load_equals("gs://models/paid/", "paid", model);
        ck_assert_str_eq(state->project, "payer");
        ck_assert_str_eq(state->parameter, "payer");
}

/* ---- errors ---- */

static const struct {
        const char *source;
        int code;
        const char *why;
} errors[] = {
        {"gs://models/nothing/", STREAMER_ENOENT, "no safetensors files with this prefix (gs://models/nothing/)"},
        {"gs://models/nothing.safetensors", STREAMER_ENOENT, "the store answers 404 notFound: No such object"},
        {"gs://other/x/", STREAMER_ENOENT,
         "404 notFound: The specified bucket does not exist. (gs://other/x/, request"},
        {"gs://models/forbidden/model.safetensors", STREAMER_EPERM,
         "403 forbidden: no; the permission storage.objects.get is needed (gs://models/forbidden/model.safetensors"},
        {"gs://models/wrong/", STREAMER_EUNSUPPORTED, "credentials of type 'unknown' are not supported"},
        {"gs://models/gone/", STREAMER_EFAILED, "settings: a secret in /nowhere/key.json: No such file"},
        {"gs://Bad/", STREAMER_EINVAL, "gs://Bad/: not the name of a bucket of Google's"},
        {"gs://", STREAMER_EINVAL, "gs://: not the name of a bucket of Google's"},
};

TEST(an_error_says_what_and_where, EACH(errors))
{
        put_text("forbidden/model.safetensors", "")->fault = FAULT_FORBIDDEN;
        client_load_fails(client, errors[_i].source, "fails", errors[_i].code, errors[_i].why);
        streamer_unload(client, "fails", 0); /* most are not listed */
}
