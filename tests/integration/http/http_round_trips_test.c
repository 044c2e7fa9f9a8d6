/* SPDX-License-Identifier: Apache-2.0
 *
 * The requests of a load, by round trips. A round is the set of requests that are sent before any of them is
 * answered: the proxy holds every response until all requests of the round have arrived, so that an additional or a
 * dependent request fails the test at any speed. Only the hedge for an answer that is late by half a second belongs to
 * no round; the daemon's log names each of them.
 *
 * Behind the proxy one endpoint is web server, S3 store and Hub.
 */
#include "tests/lib/endpoint.h"
#include "tests/lib/proxy.h"
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define SHARD(n) "model-0000" #n "-of-00002.safetensors"
#define INDEX "model.safetensors.index.json"
#define ROUNDS 8
#define PREFIX_WITH_INDEX 7 /* of the table */
#define LONG_NAMES 8000     /* tensors: a header of about a MiB */

static struct endpoint server;
static struct proxy proxy;
static struct daemon own;
static struct model *one, *sharded, *many;

/* ---- the server ---- */

static void answer_file(const struct endpoint_request *request, struct endpoint_reply *reply, const char *path)
{
        char *file = suite_path("files/%.*s", (int)strcspn(path, "?"), path);
        size_t size;
        if (access(file, R_OK) != 0) {
                reply->status = 404;
                return;
        }
        char *data = file_read(file, &size);
        reply->headers = format_text("ETag: \"%zu\"\r\n", size);
        endpoint_range(request, reply, data, size);
        free(data);
}

static char *entry(const char *prefix, const char *name)
{
        char *file = suite_path("files/%s%s", prefix, name);
        if (access(file, R_OK) != 0)
                return format_text("%s", "");
        size_t size = (size_t)file_size(file);
        return format_text("<Contents><Key>%s%s</Key><Size>%zu</Size><ETag>&quot;%zu&quot;</ETag></Contents>", prefix,
                           name, size, size);
}

/* The bucket "far" is in another region than the daemon thinks. */
static void answer_list(const struct endpoint_request *request, struct endpoint_reply *reply)
{
        static const char *const names[] = {"SHA256SUMS", SHARD(1), SHARD(2), "model.safetensors", INDEX};
        char prefix[64] = "", *text = format_text("<ListBucketResult><IsTruncated>false</IsTruncated>");
        sscanf(strstr(request->path, "prefix="), "prefix=%63[a-z]", prefix);
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
                text = format_text("%s%s", text, entry(format_text("%s/", prefix), names[i]));
        reply->body = format_text("%s</ListBucketResult>", text);
}

/* The bucket "moving" has an index that differs from its list, until it is requested with the list's ETag. */
static void answer_s3(const struct endpoint_request *request, struct endpoint_reply *reply, const char *path)
{
        const char *authorization = endpoint_header(request, "Authorization");
        bool far = strncmp(request->path, "/far/", 5) == 0, moving = strncmp(request->path, "/moving/", 8) == 0;
        if (far && strstr(authorization, "/elsewhere-1/s3/") == NULL) {
                reply->status = 301;
                reply->headers = format_text("x-amz-bucket-region: elsewhere-1\r\n");
        } else if (path[0] == '?') {
                answer_list(request, reply);
        } else {
                answer_file(request, reply, path);
                if (moving && strstr(path, INDEX) != NULL && !endpoint_header(request, "If-Match"))
                        reply->headers[strlen("ETag: \"")] ^= 1;
        }
}

static void answer_info(struct endpoint_reply *reply, bool shards)
{
        reply->body = format_text("{\"sha\":\"" COMMIT "\",\"siblings\":[%s]}",
                                  shards ? "{\"rfilename\":\"" INDEX
                                           "\"},{\"rfilename\":\"" SHARD(1) "\"},{\"rfilename\":\"" SHARD(2) "\"}"
                                         : "{\"rfilename\":\"model.safetensors\"}");
}

static const char *behind(const char *path, const char *prefix)
{
        size_t len = strlen(prefix);
        return strncmp(path, prefix, len) == 0 ? path + len : NULL;
}

static void answer(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        const char *path = request->path, *rest;
        if ((rest = behind(path, "/web/")) || (rest = behind(path, "/cdn/"))) {
                answer_file(request, reply, rest);
        } else if ((rest = behind(path, "/near/")) || (rest = behind(path, "/far/")) ||
                   (rest = behind(path, "/moving/"))) {
                answer_s3(request, reply, rest);
        } else if ((rest = behind(path, "/api/models/org/"))) {
                answer_info(reply, behind(rest, "sharded/") != NULL);
        } else if ((rest = behind(path, "/org/"))) {
                const char *file = strrchr(rest, '/') + 1;
                reply->status = 302;
                reply->headers = format_text("Location: /cdn/%.*s/%s\r\n", (int)strcspn(rest, "/"), rest, file);
        } else {
                reply->status = 404;
        }
}

/* ---- fixture ---- */

static void write_files(void)
{
        one = model_new(1), sharded = model_new(2), many = model_new(3);
        model_add_many(one, "weight", 3, 1 << 20);
        model_add_many(sharded, "weight", 4, 1 << 20);
        model_add_many(many, "model.layers.with.a.rather.long.name.so.that.the.header.grows", LONG_NAMES, 64);
        must(mkdir(suite_path("files"), 0755));
        static const char *const folders[] = {"one", "summed", "long"};
        for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
                must(mkdir(suite_path("files/%s", folders[i]), 0755));
                model_write(i == 2 ? many : one, suite_path("files/%s/model.safetensors", folders[i]));
        }
        model_write_sharded(sharded, suite_path("files/sharded"), 2, false);
        model_write_sharded(many, suite_path("files/many"), 2, false);
        must(system(format_text("cd '%s' && sha256sum *.safetensors >SHA256SUMS", suite_path("files/summed"))));
}

static void begin(void)
{
        setenv("AWS_ACCESS_KEY_ID", "key", 1);
        setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
        setenv("HF_HOME", suite_path("none"), 1);
        write_files();
}

static void hold_all(void)
{
        proxy_clear(&proxy);
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_HOLD, .what = PROXY_ALL});
}

/* A daemon for each test: it has learnt nothing, and no connection of its is open. */
static void before(void)
{
        char *config = suite_path("config-%d.yaml", (int)getpid());
        server.answer = answer;
        endpoint_start(&server);
        proxy_start(&proxy, (unsigned)strtoul(strrchr(server.url, ':') + 1, NULL, 10));
        hold_all();
        char *text = format_text("io: {block_size: 1MiB, concurrency: 16}\nhttp: {threads: 2}\n"
                                 "s3: {endpoint: '%s'}\nhf: {endpoint: '%s'}\n",
                                 proxy_url(&proxy, ""), proxy_url(&proxy, ""));
        file_write(config, text, strlen(text));
        DAEMON_START(&own, suite_path("daemon-%d", (int)getpid()), "--config", config, "--device", "host=64MiB",
                     "--root", suite_folder(), "--log-level", "debug");
        client = client_open(&own);
}

static void after(void)
{
        streamer_close(client);
        ck_assert_int_eq(daemon_stop(&own), 0);
        proxy_stop(&proxy);
}

/* ---- rounds ---- */

/* `accepted`: connections so far; 0: any number. The next round may begin with the release. */
static void round_over(unsigned accepted, const char *name, unsigned n, const char *lines)
{
        if (!WITHIN(10000 * (suite_short() ? 3 : 1), strcmp(proxy_held(&proxy), lines) == 0))
                ck_abort_msg("%s: round %u: not\n%s\nbut\n%s", name, n, lines, proxy_held(&proxy));
        if (accepted > 0)
                ck_assert_uint_eq(proxy.accepted, accepted);
        proxy_release(&proxy);
}

static void round_is(const char *name, unsigned n, const char *lines)
{
        round_over(0, name, n, lines);
}

static bool hedges_are_logged(void)
{
        static const char line[] = "a hedge for a range of ";
        cleanup_free char *log = file_read(own.log, NULL);
        unsigned n = 0;
        for (const char *at = log; (at = strstr(at, line)) != NULL; at += strlen(line))
                n++;
        return n >= proxy_asked_again(&proxy, 0);
}

static streamer_op *start(const char *source, bool sha256)
{
        return client_load_begin_with(
                client, (streamer_load_opts){.source = source, .name = "m", .verify = sha256 ? "sha256" : NULL});
}

/* The whole of a load: these rounds and no other. */
static void load_takes(const char *name, const char *source, bool sha256, const char *const *rounds,
                       const struct model *m)
{
        hold_all();
        streamer_op *op = start(source, sha256);

        for (unsigned i = 0; i < ROUNDS && rounds[i]; i++)
                round_is(name, i + 1, rounds[i]);
        int r = streamer_op_wait(op, 10000 * (suite_short() ? 3 : 1), NULL);
        ck_assert_msg(r == 0, "%s: %d: %s, and is asked for\n%s", name, r, streamer_last_error(client),
                      proxy_held(&proxy));
        ck_assert_msg(WITHIN(20000, hedges_are_logged()), "%s: a block is asked for again", name);
        client_equals(client, "m", m);
        client_unload(client, "m");
}

enum model_kind { ONE, SHARDED, MANY };

static const struct {
        const char *name, *source; /* "web/..." : of the proxy */
        enum model_kind model;
        bool sha256;
        const char *rounds[ROUNDS];
} loads[] = {
        {"a file of a web server",
         "web/one/model.safetensors",
         ONE,
         false,
         {"GET /web/one/model.safetensors first", "GET /web/one/model.safetensors range x3",
          "GET /web/one/model.safetensors check"}},
        {"an index of a web server",
         "web/sharded/" INDEX,
         SHARDED,
         false,
         {"GET /web/sharded/" INDEX " first",
          "GET /web/sharded/" SHARD(1) " first\nGET /web/sharded/" SHARD(2) " first",
          "GET /web/sharded/" SHARD(1) " range x2\nGET /web/sharded/" SHARD(2) " range x2",
          "GET /web/sharded/" SHARD(1) " check\nGET /web/sharded/" SHARD(2) " check\nGET /web/sharded/" INDEX
                                                                            " check"}},
        {"a file and the list of digests beside it",
         "web/summed/model.safetensors",
         ONE,
         true,
         {"GET /web/summed/SHA256SUMS first\nGET /web/summed/model.safetensors first",
          "GET /web/summed/model.safetensors range x3", "GET /web/summed/model.safetensors check"}},
        {"a header longer than the first bytes",
         "web/long/model.safetensors",
         MANY,
         false,
         {"GET /web/long/model.safetensors first", "GET /web/long/model.safetensors range",
          "GET /web/long/model.safetensors range", "GET /web/long/model.safetensors check"}},
        {"long headers that an index has told of",
         "web/many/" INDEX,
         MANY,
         false,
         {"GET /web/many/" INDEX " first", "GET /web/many/" SHARD(1) " first\nGET /web/many/" SHARD(2) " first",
          "GET /web/many/" SHARD(1) " range\nGET /web/many/" SHARD(2) " range",
          "GET /web/many/" SHARD(1) " check\nGET /web/many/" SHARD(2) " check\nGET /web/many/" INDEX " check"}},
        {"a key of a store",
         "s3://near/one/model.safetensors",
         ONE,
         false,
         {"GET /near/one/model.safetensors first", "GET /near/one/model.safetensors range x3"}},
        {"a prefix of a store",
         "s3://near/one/",
         ONE,
         false,
         {"GET /near/?list\nGET /near/one/" INDEX " first", "GET /near/one/model.safetensors first",
          "GET /near/one/model.safetensors range x3"}},
        {"a prefix of a store with an index",
         "s3://near/sharded/",
         SHARDED,
         false,
         {"GET /near/?list\nGET /near/sharded/" INDEX " first",
          "GET /near/sharded/" SHARD(1) " first\nGET /near/sharded/" SHARD(2) " first",
          "GET /near/sharded/" SHARD(1) " range x2\nGET /near/sharded/" SHARD(2) " range x2"}},
        {"an index that is replaced while it is listed",
         "s3://moving/sharded/",
         SHARDED,
         false,
         {"GET /moving/?list\nGET /moving/sharded/" INDEX " first", "GET /moving/sharded/" INDEX " first",
          "GET /moving/sharded/" SHARD(1) " first\nGET /moving/sharded/" SHARD(2) " first",
          "GET /moving/sharded/" SHARD(1) " range x2\nGET /moving/sharded/" SHARD(2) " range x2"}},
        {"a key of a bucket in another region",
         "s3://far/one/model.safetensors",
         ONE,
         false,
         {"GET /far/one/model.safetensors first", "GET /far/one/model.safetensors first",
          "GET /far/one/model.safetensors range x3"}},
        {"a key and its digests",
         "s3://near/summed/model.safetensors",
         ONE,
         true,
         {"GET /near/summed/model.safetensors first",
          "GET /near/summed/SHA256SUMS\nHEAD /near/summed/model.safetensors",
          "GET /near/summed/model.safetensors range x3"}},
        {"a file of the Hub",
         "hf://org/one",
         ONE,
         false,
         {"GET /api/models/org/one/revision/main?list", "GET /org/one/resolve/" COMMIT "/model.safetensors first",
          "GET /cdn/one/model.safetensors first", "GET /cdn/one/model.safetensors range x3"}},
        {"shards of the Hub",
         "hf://org/sharded",
         SHARDED,
         false,
         {"GET /api/models/org/sharded/revision/main?list", "GET /org/sharded/resolve/" COMMIT "/" INDEX " first",
          "GET /cdn/sharded/" INDEX " first",
          "GET /org/sharded/resolve/" COMMIT "/" SHARD(1) " first\nGET /org/sharded/resolve/" COMMIT
                                                          "/" SHARD(2) " first",
          "GET /cdn/sharded/" SHARD(1) " first\nGET /cdn/sharded/" SHARD(2) " first",
          "GET /cdn/sharded/" SHARD(1) " range x2\nGET /cdn/sharded/" SHARD(2) " range x2"}},
};

FIXTURE(.all = {begin, NULL}, .each = {before, after});

TEST(rounds_of_a_load, EACH(loads))
{
        const struct model *models[] = {[ONE] = one, [SHARDED] = sharded, [MANY] = many};
        const char *source = loads[_i].source;
        if (strncmp(source, "web/", 4) == 0)
                source = proxy_url(&proxy, format_text("/%s", source));
        load_takes(loads[_i].name, source, loads[_i].sha256, loads[_i].rounds, models[loads[_i].model]);
}

/* ---- caching of results ---- */

TEST(a_region_is_asked_for_once)
{
        static const char *const first[] = {"GET /far/one/model.safetensors first",
                                            "GET /far/one/model.safetensors first",
                                            "GET /far/one/model.safetensors range x3", NULL};
        load_takes("at first", "s3://far/one/model.safetensors", false, first, one);
        load_takes("again", "s3://far/one/model.safetensors", false, first + 1, one);
}

TEST(a_resident_model_costs_only_the_opening_requests)
{
        static const char *const first[] = {"GET /near/one/model.safetensors first",
                                            "GET /near/one/model.safetensors range x3"};
        streamer_op *op = start("s3://near/one/model.safetensors", false);
        round_is("at first", 1, first[0]);
        round_is("at first", 2, first[1]);
        ck_assert_int_eq(client_load_end(op), 0);
        op = start("s3://near/one/model.safetensors", false);
        round_is("again", 1, first[0]);
        ck_assert_int_eq(client_load_end(op), 0);
        client_unload(client, "m");
}

/* ---- connections ---- */

/* List and index over two; the shards' headers over the same two. */
TEST(openings_reuse_connections)
{
        streamer_op *op = start("s3://near/sharded/", false);
        round_over(2, "list", 1, loads[PREFIX_WITH_INDEX].rounds[0]);
        round_over(2, "headers", 2, loads[PREFIX_WITH_INDEX].rounds[1]);
        round_over(2 + 4, "ranges", 3, loads[PREFIX_WITH_INDEX].rounds[2]);
        ck_assert_int_eq(client_load_end(op), 0);
        client_unload(client, "m");
}
