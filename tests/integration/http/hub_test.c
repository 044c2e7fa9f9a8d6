/* SPDX-License-Identifier: Apache-2.0
 *
 * Models of the Hugging Face Hub, from an endpoint with the same API: the revision's commit and files, redirects to
 * another host, tokens that are not forwarded, digests of large files.
 */
#include "tests/integration/remote_fixture.h"
#include "tests/lib/endpoint.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"

static struct endpoint hub, cdn;
static struct model *whole, *sharded;
static char *file, digest[65]; /* of the model in one file */

/* The links of the repository "org/expiring" expire after the first range, and the token with them. The token file is
 * updated before the Hub knows the old token no more, and that before a link is refused. */
static pthread_mutex_t expiry = PTHREAD_MUTEX_INITIALIZER;
static unsigned ranges;
static _Atomic bool expired;

/* ---- the endpoints ---- */

static bool fades(const char *path)
{
        return strstr(path, "org/expiring") != NULL;
}

static bool link_serves(const struct endpoint_request *request)
{
        const char *range = endpoint_header(request, "Range");
        if (!fades(request->path) || strstr(request->path, "link=2") || (range && strncmp(range, "bytes=0-", 8) == 0))
                return true;
        pthread_mutex_lock(&expiry);
        bool serves = ranges++ == 0;
        if (!serves && !expired) {
                file_write(suite_path("token"), "hf_thenext\n", 11);
                expired = true;
        }
        pthread_mutex_unlock(&expiry);
        return serves;
}

static void answer_cdn(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        size_t size;
        if (endpoint_header(request, "Authorization"))
                file_write(suite_path("leaked"), "x", 1);
        if (!link_serves(request)) {
                reply->status = 403;
                return;
        }
        char *data = file_read(format_text("%s%.*s", suite_folder(), (int)strcspn(request->path, "?"), request->path),
                               &size);
        reply->headers = format_text("ETag: \"%08zx\"\r\n", size);
        endpoint_range(request, reply, data, size);
        free(data);
}

static char *listing(const char *repository)
{
        bool shards = strcmp(repository, "org/sharded") == 0;
        if (strcmp(repository, "org/parts") == 0)
                return format_text("{\"sha\":\"" COMMIT "\",\"siblings\":[{\"rfilename\":\"model_index.json\"},"
                                   "{\"rfilename\":\"unet/config.json\"},{\"rfilename\":\"unet/model.safetensors\"},"
                                   "{\"rfilename\":\"vae/model.safetensors\"}]}");
        if (shards)
                return format_text("{\"sha\":\"" COMMIT "\",\"siblings\":[{\"rfilename\":\"config.json\"},"
                                   "{\"rfilename\":\"original/model.safetensors\"},"
                                   "{\"rfilename\":\"model.safetensors.index.json\"},"
                                   "{\"rfilename\":\"model-00001-of-00002.safetensors\"},"
                                   "{\"rfilename\":\"model-00002-of-00002.safetensors\",\"lfs\":null}]}");
        return format_text("{\"id\":\"x\",\"sha\":\"" COMMIT
                           "\",\"siblings\":[{\"rfilename\":\"model.safetensors\",\"size\":%zu,"
                           "\"blobId\":\"b\",\"lfs\":{\"sha256\":\"%s\",\"size\":1,\"pointerSize\":134}}]}",
                           strcmp(repository, "org/resized") == 0 ? (size_t)7 : (size_t)file_size(file),
                           strcmp(repository, "org/forged") == 0
                                   ? "00000000000000000000000000000000000000000000000000000000deadbeef"
                                   : digest);
}

/* "/api/models/ORG/NAME/revision/REV?...": the repository, if it exists with this kind and revision. */
static char *repository_of(const char *path)
{
        static const char *const names[] = {"org/tiny",  "org/sharded",  "org/resized", "org/forged",
                                            "org/gated", "org/expiring", "org/parts"};
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
                static const char *const revisions[] = {"main", "v1%2Fb", COMMIT};
                for (size_t r = 0; r < 3; r++)
                        if (strncmp(path, format_text("/api/models/%s/revision/%s?", names[i], revisions[r]),
                                    strlen(names[i]) + strlen(revisions[r]) + 23) == 0)
                                return format_text("%s", names[i]);
        }
        return NULL;
}

static bool knows(const char *token, const char *path)
{
        if (token && strcmp(token, "Bearer hf_thenext") == 0)
                return true;
        return token && !(fades(path) && expired) && strcmp(token, "Bearer hf_thetoken") == 0;
}

/* To the other host. */
static char *location(const char *path, const char *name)
{
        const char *query = fades(path) ? format_text("?link=%d&of=org/expiring", expired ? 2 : 1) : "";
        /* The parts are the whole model, and the first file of the other one. */
        if (strncmp(path, "/org/parts/", 11) == 0 && strncmp(name, "unet/", 5) == 0)
                name += 5;
        return format_text("Location: %s/%s/%s%s\r\nX-Linked-Size: 1\r\n", cdn.url,
                           strncmp(path, "/org/sharded/", 13) == 0 ? "shards" : "whole", name, query);
}

/* The name of a file of an existing revision; no file is named "none". */
static const char *resolved(const char *path)
{
        static const char *const before[] = {"/resolve/" COMMIT "/", "/resolve/main/", "/resolve/v1%2Fb/"};
        for (size_t i = 0; i < sizeof(before) / sizeof(before[0]); i++) {
                const char *at = strstr(path, before[i]);
                if (at && !strstr(path, "/none"))
                        return at + strlen(before[i]);
        }
        return NULL;
}

static void answer_hub(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        const char *token = endpoint_header(request, "Authorization"), *resolve = resolved(request->path);
        const char *repository = repository_of(request->path);
        if (!knows(token, request->path)) {
                reply->status = 401;
        } else if (repository && strcmp(repository, "org/gated") == 0) {
                reply->status = 403;
                reply->headers = format_text("X-Error-Code: GatedRepo\r\nX-Request-Id: r1\r\n");
        } else if (repository) {
                reply->body = listing(repository);
        } else if (resolve && strncmp(request->path, "/org/", 5) == 0) {
                reply->status = 302;
                reply->headers = location(request->path, resolve);
        } else {
                reply->status = 404;
                reply->headers = format_text("X-Error-Code: RepoNotFound\r\n");
        }
}

/* ---- fixture ---- */

static void begin(void)
{
        whole = model_mixed(1, 3 << 20);
        sharded = model_mixed(2, 3 << 20);
        model_write_sharded(sharded, suite_path("shards"), 2, false);
        must(mkdir(suite_path("whole"), 0755));
        file = suite_path("whole/model.safetensors");
        model_write(whole, file);
        file_sha256(file, digest);
        file_write(suite_path("shards/config.json"), "{}", 2);
        hub.answer = answer_hub;
        cdn.answer = answer_cdn;
        endpoint_start(&hub);
        endpoint_start(&cdn);
        file_write(suite_path("token"), "hf_thetoken\n", 12);
        setenv("HF_ENDPOINT", hub.url, 1);
        setenv("HF_TOKEN", format_text("file:%s", suite_path("token")), 1);
        fixture_begin(
                (const char *const[]){"--device", "host=256MiB", "--block-size", "1MiB", "--log-level", "debug", NULL});
}

/* ---- tests ---- */

static const char *const revisions[] = {"", "@main", "@v1/b", ("@" COMMIT)};

BEFORE_ALL()
{
        file_write(suite_path("leaked"), "", 0);
}

FIXTURE(.all = {begin, fixture_end}, .each = {fixture_connect, fixture_disconnect});

TEST(a_model_by_its_name_and_revision, EACH(revisions))
{
        load_equals(format_text("hf://org/tiny%s", revisions[_i]), "org/tiny", whole);
}

static const struct {
        const char *source, *name;
} parts[] = {
        {"hf://org/parts/unet", "org/parts/unet"},
        {"hf://org/parts@main/unet/", "org/parts/unet"},
        {"hf://org/parts@" COMMIT "/unet", "org/parts/unet"},
        {"hf://org/parts@v1/b/unet", "org/parts"},
        {"hf://org/parts/unet/model.safetensors", "org/parts/unet/model"},
        {"HF://org/parts@v1/b/unet/model.safetensors", "org/parts"},
};

TEST(a_folder_or_a_file_of_a_repository, EACH(parts))
{
        load_equals(parts[_i].source, parts[_i].name, whole);
        if (strstr(parts[_i].source, "v1/b/unet/") == NULL)
                assert_lists(parts[_i].source, "{\"files\":[{\"name\":\"config.json\"}]}");
}

TEST(a_folder_without_weights_of_a_repository)
{
        assert_fails("hf://org/parts", STREAMER_ENOENT, "no safetensors files in this revision");
        assert_fails("hf://org/parts/none", STREAMER_ENOENT, "no safetensors files in this folder of the revision");
        assert_fails("hf://org/parts@v9/unet", STREAMER_ENOENT, "the Hub answers 404");
}

TEST(a_model_in_shards)
{
        load_equals("hf://org/sharded", "org/sharded", sharded);
}

TEST(sha256_of_the_hub_is_verified)
{
        assert_verified("hf://org/tiny", whole);
        assert_not_verified("hf://org/forged", "SHA-256 differs");
        assert_not_verified("hf://org/sharded", "no published SHA-256");
}

static const struct {
        const char *source;
        int code;
        const char *text;
} refused[] = {
        {"hf://org/resized", STREAMER_EFAILED, "bytes, where the Hub lists 7 (hf://org/resized@"},
        {"hf://org/none", STREAMER_ENOENT,
         "the Hub answers 404 RepoNotFound (hf://org/none@main, with the token of file:/"},
        {"hf://org/tiny@v9", STREAMER_ENOENT, "hf://org/tiny@v9"},
        {"hf://org/gated", STREAMER_EPERM, "the Hub answers 403 GatedRepo (hf://org/gated@main, request r1, "},
};

TEST(a_model_that_the_hub_refuses, EACH(refused))
{
        assert_fails(refused[_i].source, refused[_i].code, refused[_i].text);
}

/* The other host refuses the link, the Hub the token; the file has the next one by then. */
TEST(a_token_that_expires_in_mid_load)
{
        load_equals("hf://org/expiring", "org/expiring", whole);
}

/* The first variable that is set counts; only the file that it names has the token. */
static const struct {
        const char *variable, *value, *token;
} stored[] = {
        {"HF_TOKEN_PATH", "a-token", "a-token"},
        {"HF_HOME", "hf", "hf/token"},
        {"XDG_CACHE_HOME", "cache", "cache/huggingface/token"},
        {"HOME", "home", "home/.cache/huggingface/token"},
};

TEST(a_token_that_a_login_has_stored, EACH(stored))
{
        struct daemon d;
        char *path = suite_path("%s", stored[_i].token), *slash = strrchr(path, '/');
        must(system(format_text("mkdir -p '%.*s'", (int)(slash - path), path)));
        file_write(path, "hf_thetoken\n", 12);
        unsetenv("HF_TOKEN");
        for (size_t i = 0; i < sizeof(stored) / sizeof(stored[0]); i++)
                unsetenv(stored[i].variable);
        for (size_t i = (size_t)_i; i < sizeof(stored) / sizeof(stored[0]); i++)
                setenv(stored[i].variable, suite_path("%s%s", stored[i].value, i == (size_t)_i ? "" : "-not"), 1);
        daemon_start_simple(&d, suite_path("stored-%d", _i), suite_folder(), "64MiB");
        streamer_client *c = client_open(&d);
        client_load(c, "hf://org/tiny", NULL);
        client_equals(c, "org/tiny", whole);
        ck_assert_int_eq(daemon_stop(&d), 0);
}

TEST(files_beside_the_weights, EACH(revisions))
{
        char *source = format_text("hf://org/sharded%s", revisions[_i]);
        assert_lists(source, "{\"files\":[{\"name\":\"config.json\"},{\"name\":\"model.safetensors.index.json\"}]}");
        assert_fetches_text(source, "config.json", "{}");
}

TEST(files_missing_on_the_hub)
{
        assert_refuses("hf://org/none", "config.json", STREAMER_ENOENT, "");
        assert_refuses("hf://org/sharded", "none.json", STREAMER_ENOENT, "");
        assert_refuses("hf://org/sharded@v9", "config.json", STREAMER_ENOENT, "");
        assert_refuses("hf://org/sharded", "a/../b", STREAMER_EINVAL, "");
}

/* Last. The endpoints live in another process than the tests: they leave a file. */
TEST(the_token_is_sent_to_the_hub_only)
{
        char *log = file_read(test_daemon.log, NULL);
        ck_assert_ptr_null(strstr(log, "hf_the"));
        ck_assert_uint_eq(file_size(suite_path("leaked")), 0);
}
