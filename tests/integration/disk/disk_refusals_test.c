/* SPDX-License-Identifier: Apache-2.0
 *
 * Whose store refuses what a copy is of has no use of the copy: neither where the store says what a source consists of
 * and refuses its objects, nor where it cannot say that.
 */
#include "tests/integration/disk_fixture.h"

static struct model *model;

#define ONE "s3://b/one/model.safetensors"
#define MANY "s3://b/many/"
#define INDEX "s3://b/many/model.safetensors.index.json"
#define ALLOW "http: {backoff: 5ms, tries: 2, patience: 0s}\ndisk_cache: {min_free: 1, offline: allow}\n"

static void begin(void)
{
        model = model_mixed(91, 6 << 20);
        begin_store_with(model);
        start_with(format_text("%s=64MiB", cache_path()), ALLOW);
}

static void store_source(const char *source, uint64_t entries)
{
        store_behind(source, model, entries);
        ck_assert(log_wait_for(disk_daemon.log,
                               format_text("a source of %d objects is stored", strcmp(source, ONE) == 0 ? 1 : 4)));
}

FIXTURE(.each = {begin, stop});

static const struct refused {
        const char *source, *object; /* those whose URLs have this are refused */
        int status, code;
} refused[] = {
        {MANY, "", 401, STREAMER_EPERM},
        {MANY, "", 403, STREAMER_EPERM},
        {MANY, "", 404, STREAMER_ENOENT},
        {MANY, "-of-", 410, STREAMER_EFAILED}, /* a list that promises what there is not */
        {MANY, "00002-of", 403, STREAMER_EPERM},
        {MANY, "00003-of", 404, STREAMER_EFAILED},
        {MANY, "index.json", 403, STREAMER_EPERM},
        {INDEX, "index.json", 403, STREAMER_EPERM},
        {INDEX, "00001-of", 403, STREAMER_EPERM},
        {INDEX, "00001-of", 404, STREAMER_EFAILED},
        {ONE, "", 403, STREAMER_EPERM},
        {ONE, "", 404, STREAMER_ENOENT},
};

TEST(a_copy_of_what_the_store_refuses_is_not_used, EACH(refused))
{
        const struct refused *r = &refused[_i];
        store_source(r->source, r->source[7] == 'o' ? 1 : 4);
        store_object = r->object;
        store_object_status = r->status;
        client_load_fails(client, r->source, "m", r->code, NULL);
        store_object_status = 0;
        ck_assert_str_eq(load_from(r->source, model), "disk");
}

static const struct refused offline[] = {
        {MANY, "", 401, STREAMER_EPERM},         {MANY, "", 403, STREAMER_EPERM},
        {MANY, "", 404, STREAMER_ENOENT},        {MANY, "", 410, STREAMER_ENOENT},
        {MANY, "00002-of", 403, STREAMER_EPERM}, {MANY, "index.json", 403, STREAMER_EPERM},
};

static const int outages[] = {501, 503};

TEST(a_refusal_forbids_the_use_of_copies_while_the_store_cannot_list, EACH(offline))
{
        const struct refused *r = &offline[_i];
        store_source(r->source, 4);
        for (size_t i = 0; i < sizeof(outages) / sizeof(*outages); i++) {
                store_list_status = outages[i];
                store_object = r->object;
                store_object_status = r->status;
                client_load_fails(client, r->source, "m", r->code, format_text("%d", r->status));
                store_object_status = 0;
                client_load(client, r->source, "m");
                ck_assert(json_is_true(json_object_get(client_show(client, "m"), "stale")));
                client_equals(client, "m", model);
                client_unload(client, "m");
                client_wait_used(client, 0);
        }
}

/* An index is asked for first; then the files that it names, of which one is refused and the others cannot be served.
 */
TEST(a_refusal_of_one_file_outweighs_an_outage_of_the_others)
{
        store_source(INDEX, 4);
        store_object = "index.json";
        store_object_status = 503;
        client_load(client, INDEX, "m");
        ck_assert(json_is_true(json_object_get(client_show(client, "m"), "stale")));
        client_unload(client, "m");
        client_wait_used(client, 0);
        must(rename(bucket("/many/model-00002-of-00003.safetensors"), bucket("/aside")));
        client_load_fails(client, INDEX, "m", STREAMER_ENOENT, "404");
}

/* ---- the Hub, which says of gated repositories what they have ---- */

static struct endpoint hub;
static _Atomic int hub_api_status, hub_file_status;

static void answer_hub(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        static const char commit[] = "0123456789abcdef0123456789abcdef01234567",
                          sha256[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
        bool api = strncmp(request->path, "/api/", 5) == 0;
        size_t size;
        if ((api ? hub_api_status : hub_file_status) != 0) {
                reply->status = api ? hub_api_status : hub_file_status;
                return;
        }
        char *data = file_read(bucket("/one/model.safetensors"), &size);
        if (api) {
                reply->body = strdup(format_text("{\"sha\":\"%s\",\"siblings\":[{\"rfilename\":\"model.safetensors\","
                                                 "\"size\":%zu,\"lfs\":{\"sha256\":\"%s\"}}]}",
                                                 commit, size, sha256));
        } else {
                reply->headers = format_text("ETag: \"%s\"\r\n", etag_of(data, size));
                endpoint_range(request, reply, data, size);
        }
        free(data);
}

static const struct gated {
        int status, code, code_of_listed;
} gated[] = {{401, STREAMER_EPERM, STREAMER_EPERM},
             {403, STREAMER_EPERM, STREAMER_EPERM},
             {404, STREAMER_ENOENT, STREAMER_EFAILED}};

TEST(a_copy_of_a_file_that_the_hub_refuses_is_not_used, EACH(gated))
{
        stop();
        hub.answer = answer_hub;
        endpoint_start(&hub);
        setenv("HF_ENDPOINT", hub.url, 1);
        start_with(format_text("%s=64MiB", cache_path()), ALLOW);
        store_behind("hf://org/gated@main", model, 1);
        ck_assert(log_wait_for(disk_daemon.log, "a source of 1 objects is stored"));
        ck_assert_str_eq(load_from("hf://org/gated@main", model), "disk");
        hub_file_status = gated[_i].status;
        client_load_fails(client, "hf://org/gated@main", "m", gated[_i].code_of_listed, NULL);
        hub_api_status = 503;
        client_load_fails(client, "hf://org/gated@main", "m", gated[_i].code, NULL);
        hub_file_status = 503;
        ck_assert_str_eq(load_from("hf://org/gated@main", model), "disk");
}
