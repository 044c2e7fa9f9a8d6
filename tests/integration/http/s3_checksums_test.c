/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 checksums of a store's objects. No packaged store has them, so an endpoint answers HEAD as AWS does: with
 * x-amz-checksum-sha256 if x-amz-checksum-mode was requested and signed, and with the type that distinguishes a
 * checksum of the object from one of an upload's parts.
 */
#include "tests/integration/remote_fixture.h"
#include "tests/lib/endpoint.h"

#include <openssl/evp.h>
#include <openssl/sha.h>

static struct endpoint store;
static struct model *model;
static char *data; /* of the model's file */
static size_t size;
static char digest[65];       /* of these, for SHA256SUMS */
static char checksums[2][48]; /* of these, and of others */
static char text[1024];
static _Atomic unsigned checksums_requested; /* replies to HEAD that may have one */

/* The checksum in the reply to HEAD, by the key's folder. "%s" is the checksum, "%w" that of other bytes. */
static const struct {
        const char *folder, *headers;
        const char *sums;
        const char *says; /* NULL: the load succeeds */
} cases[] = {
        {"whole", "x-amz-checksum-sha256: %s\r\nx-amz-checksum-type: FULL_OBJECT\r\n", NULL, NULL},
        {"untyped", "x-amz-checksum-sha256: %s\r\n", NULL, NULL},
        {"wrong", "x-amz-checksum-sha256: %w\r\nx-amz-checksum-type: FULL_OBJECT\r\n", NULL, "SHA-256 differs"},
        {"parts", "x-amz-checksum-sha256: %s-12\r\nx-amz-checksum-type: COMPOSITE\r\n", NULL, "no published SHA-256"},
        {"typed", "x-amz-checksum-sha256: %s\r\nx-amz-checksum-type: COMPOSITE\r\n", NULL, "no published SHA-256"},
        {"short", "x-amz-checksum-sha256: AAAA\r\n", NULL, "no published SHA-256"},
        {"odd", "x-amz-checksum-sha256: ********************************************\r\n", NULL,
         "no published SHA-256"},
        {"other", "x-amz-checksum-crc32: AAAAAA==\r\n", NULL, "no published SHA-256"},
        {"none", "", NULL, "no published SHA-256"},
        {"agreed", "x-amz-checksum-sha256: %s\r\n", "right", NULL},
        {"differ", "x-amz-checksum-sha256: %w\r\n", "right", "two published digests that differ"},
        {"forged", "", "forged", "SHA-256 differs"},
};

/* ---- the store ---- */

static char *filled(const char *headers)
{
        const char *at = strchr(headers, '%');
        if (!at)
                return format_text("%s", headers);
        return format_text("%.*s%s%s", (int)(at - headers), headers, checksums[at[1] == 'w'], at + 2);
}

static void answer_head(const struct endpoint_request *request, struct endpoint_reply *reply, size_t i)
{
        const char *mode = endpoint_header(request, "x-amz-checksum-mode");
        const char *authorization = endpoint_header(request, "Authorization");
        checksums_requested += mode != NULL;
        if (mode && (!authorization || !strstr(authorization, ";x-amz-checksum-mode;"))) {
                reply->status = 403; /* what is of x-amz-* has to be signed */
                return;
        }
        reply->headers = format_text("x-amz-request-id: R1\r\nETag: \"e\"\r\nAccept-Ranges: bytes\r\n%s",
                                     mode ? filled(cases[i].headers) : "");
        reply->body = must_alloc(size);
        reply->size = size;
}

static void answer_sums(struct endpoint_reply *reply, size_t i)
{
        if (!cases[i].sums)
                reply->status = 404;
        else
                reply->body = format_text("%s  model.safetensors\n",
                                          strcmp(cases[i].sums, "right") == 0 ? digest : format_text("%064d", 1));
}

static void answer(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                const char *prefix = format_text("/models/%s/", cases[i].folder);
                if (strncmp(request->path, prefix, strlen(prefix)) != 0)
                        continue;
                reply->headers = format_text("ETag: \"e\"\r\n");
                if (strstr(request->path, "SHA256SUMS"))
                        answer_sums(reply, i);
                else if (strcmp(request->method, "HEAD") == 0)
                        answer_head(request, reply, i);
                else
                        endpoint_range(request, reply, data, size);
                return;
        }
        reply->status = 404;
}

/* ---- fixture ---- */

static void begin(void)
{
        unsigned char sum[32];
        model = model_mixed(1, 2 << 20);
        model_write(model, suite_path("model.safetensors"));
        data = file_read(suite_path("model.safetensors"), &size);
        for (size_t others = 0; others < 2; others++) {
                SHA256((unsigned char *)data, size - 1 + others, sum);
                EVP_EncodeBlock((unsigned char *)checksums[1 - others], sum, sizeof(sum));
        }
        file_sha256(suite_path("model.safetensors"), digest);
        store.answer = answer;
        endpoint_start(&store);
        setenv("AWS_ACCESS_KEY_ID", "key", 1);
        setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
        char *config = suite_file("config.yaml",
                                  format_text("s3: {sources: [{source: 's3://models', endpoint: '%s'}]}\n", store.url));
        fixture_begin(
                (const char *const[]){"--config", config, "--device", "host=64MiB", "--block-size", "1MiB", NULL});
}

FIXTURE(.all = {begin, fixture_end}, .each = {fixture_connect, fixture_disconnect});

TEST(a_load_is_verified_against_the_stores_checksum, EACH(cases))
{
        const char *says = cases[_i].says;
        int r = client_load_sha256(client, format_text("s3://models/%s/model.safetensors", cases[_i].folder), "sha",
                                   text);
        if (!says) {
                ck_assert_msg(r == 0, "%s: %s", cases[_i].folder, text);
                client_equals(client, "sha", model);
        } else {
                ck_assert_msg(r == STREAMER_EFAILED && strstr(text, says), "%s: %d: %s", cases[_i].folder, r, text);
                ck_assert_msg(strstr(text, "model.safetensors") != NULL, "%s", text);
        }
        client_unload(client, "sha");
}

TEST(without_verify_no_checksum_is_requested)
{
        assert_not_verified("s3://models/wrong/model.safetensors", "SHA-256 differs");
        unsigned before = checksums_requested;
        ck_assert_uint_gt(before, 0);
        client_load(client, "s3://models/wrong/model.safetensors", "m");
        ck_assert_uint_eq(checksums_requested, before);
        client_equals(client, "m", model);
        client_unload(client, "m");
}
