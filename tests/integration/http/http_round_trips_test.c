/* SPDX-License-Identifier: Apache-2.0
 *
 * The requests of a load, by round trips. A round is the set of requests that are sent before any of them is
 * answered: the proxy holds every response until all requests of the round have arrived, so that an additional or a
 * dependent request fails the test at any speed. Only the hedge for an answer that is late by half a second belongs to
 * no round; the daemon's log names each of them.
 *
 * Behind the proxy one endpoint is web server, object store and Hub.
 */
#include "tests/integration/services_fixture.h"
#include "tests/lib/proxy.h"

#define ROUNDS 8
#define PREFIX_WITH_INDEX 7 /* of the table */
#define LONG_NAMES 8000     /* tensors: a header of about a MiB */

static struct proxy proxy;
static struct daemon own;
static struct model *one, *sharded, *many;

/* ---- fixture ---- */

static void write_files(void)
{
        one = model_new(1), sharded = model_new(2), many = model_new(3);
        model_add_many(one, "weight", 3, 1 << 20);
        model_add_many(sharded, "weight", 4, 1 << 20);
        model_add_many(many, "model.layers.with.a.rather.long.name.so.that.the.header.grows", LONG_NAMES, 64);
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
        services_begin();
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
        services_start();
        proxy_start(&proxy, (unsigned)strtoul(strrchr(server.url, ':') + 1, NULL, 10));
        hold_all();
        char *text = format_text("io: {block_size: 1MiB, concurrency: 16}\nhttp: {threads: 2}\n"
                                 "%s",
                                 services_settings(proxy_url(&proxy, "")));
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
        ck_assert_msg(WITHIN(PATIENCE_MS, hedges_are_logged()), "%s: a block is asked for again", name);
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
        {"an object of Google's store",
         "gs://near/one/model.safetensors",
         ONE,
         false,
         {"GET " GCS "/one%2Fmodel.safetensors?list first", "GET " GCS "/one%2Fmodel.safetensors?list range x3"}},
        {"a prefix of Google's store with an index",
         "gs://near/sharded/",
         SHARDED,
         false,
         {"GET " GCS "/sharded%2F" INDEX "?list first\nGET " GCS "?list",
          "GET " GCS "/sharded%2F" SHARD(1) "?list first\nGET " GCS "/sharded%2F" SHARD(2) "?list first",
          "GET " GCS "/sharded%2F" SHARD(1) "?list range x2\nGET " GCS "/sharded%2F" SHARD(2) "?list range x2"}},
        {"a blob of Azure's store",
         "az://near/one/model.safetensors",
         ONE,
         false,
         {"GET /acct/near/one/model.safetensors first", "GET /acct/near/one/model.safetensors range x3"}},
        {"a prefix of Azure's store with an index",
         "az://near/sharded/",
         SHARDED,
         false,
         {"GET /acct/near/sharded/" INDEX " first\nGET /acct/near?list",
          "GET /acct/near/sharded/" SHARD(1) " first\nGET /acct/near/sharded/" SHARD(2) " first",
          "GET /acct/near/sharded/" SHARD(1) " range x2\nGET /acct/near/sharded/" SHARD(2) " range x2"}},
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
