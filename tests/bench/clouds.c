/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads from Google Cloud Storage, Azure Blob Storage and S3, all from one nginx on loopback with a cached file, which
 * has each request's signature or token checked before it answers. The ceiling is the best of 1 to 16 curl processes
 * that fetch ranges of the same file there without a check; processor time is compared with the S3 path's.
 */
#include "tests/bench/bench.h"
#include "tests/lib/endpoint.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/nginx.h"
#include "tests/lib/ports.h"

#include "daemon/base/util.h"
#include "daemon/source/aws/sigv4.h"
#include "daemon/source/azure/azure.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#define OBJECT "clouds.safetensors"
#define ACCESS "AKIDBENCH"
#define SECRET "benchsecret"
#define ACCOUNT "benchacct"
#define ACCOUNT_KEY "dGhlIGtleSBvZiB0aGUgYmVuY2g="
#define TOKEN "ya29.bench"

enum store { S3, GCS, AZURE, STORES };
static const char *const sources[STORES] = {"s3://models/" OBJECT, "gs://models/" OBJECT, "az://models/" OBJECT};

/* ---- the check ---- */

/* What nginx passes on of a request: its URL, and its headers. */
static bool signed_for_s3(const struct endpoint_request *request, const char *url)
{
        const char *date = endpoint_header(request, "x-amz-date"), *sent = endpoint_header(request, "Authorization");
        struct credential keys = {.access = format_text("%s", ACCESS), .secret = format_text("%s", SECRET)};
        struct http_headers headers = {.n = 0};
        struct error error;
        struct tm tm = {0};
        if (date == NULL || sent == NULL || strptime(date, "%Y%m%dT%H%M%SZ", &tm) == NULL)
                return false;
        const struct http_request original = {.url = url};
        bool same = aws_sign(&headers, &original, "us-east-1", timegm(&tm), &keys, &error) == 0 &&
                    strcmp(http_headers_find(&headers, "Authorization"), sent) == 0;
        http_headers_deinit(&headers);
        return same;
}

static bool signed_for_azure(const struct endpoint_request *request, const char *url)
{
        const char *const names[] = {"x-ms-date", "x-ms-version", "If-Match"};
        const char *sent = endpoint_header(request, "Authorization"), *range = endpoint_header(request, "Range");
        unsigned long long first = 0, last = 0;
        unsigned char digest[32], key[64], text[64];
        struct http_headers headers = {.n = 0};
        struct error error;
        for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
                const char *value = endpoint_header(request, names[i]);
                if (value != NULL)
                        http_headers_add(&headers, names[i], value, &error);
        }
        bool ranged = range != NULL && sscanf(range, "bytes=%llu-%llu", &first, &last) == 2;
        const struct http_request original = {.url = url, .offset = first, .len = ranged ? last - first + 1 : 0};
        char *string = azure_string_to_sign(&original, &headers, ACCOUNT);
        int size = EVP_DecodeBlock(key, (const unsigned char *)ACCOUNT_KEY, (int)strlen(ACCOUNT_KEY));
        size -= (int)(strlen(ACCOUNT_KEY) - trimmed_len(ACCOUNT_KEY, '='));
        HMAC(EVP_sha256(), key, size, (const unsigned char *)string, strlen(string), digest, NULL);
        EVP_EncodeBlock(text, digest, sizeof(digest));
        bool same = sent != NULL && strcmp(sent, format_text("SharedKey " ACCOUNT ":%s", (char *)text)) == 0;
        free(string);
        http_headers_deinit(&headers);
        return same;
}

static void answer(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        const char *url = endpoint_header(request, "X-Original-URL");
        bool ok = strcmp(request->path, "/s3") == 0      ? signed_for_s3(request, url)
                  : strcmp(request->path, "/azure") == 0 ? signed_for_azure(request, url)
                                                         : strcmp(request->path, "/token") == 0;
        reply->status = ok ? 200 : 403;
        if (ok && strcmp(request->path, "/token") == 0)
                reply->body = format_text("{\"access_token\":\"" TOKEN "\",\"expires_in\":3600}");
}

static struct endpoint checks = {.answer = answer};

/* ---- the stores ---- */

static void start_stores(struct nginx *web, const struct bench *b)
{
        char *check = format_text("proxy_pass_request_body off; proxy_set_header X-Original-URL "
                                  "http://$http_host$request_uri; proxy_set_header Content-Length \"\";");
        *web = (struct nginx){.http = free_port()};
        endpoint_start(&checks);
        nginx_start_with(web, format_text("%s/clouds", b->folder),
                         format_text("server { listen 127.0.0.1:%u;\n"
                                     "location /plain/ { alias %s/; }\n"
                                     "location /models/ { auth_request /check/s3; alias %s/; }\n"
                                     "location /" ACCOUNT "/models/ { auth_request /check/azure; alias %s/; }\n"
                                     "location /storage/v1/b/models/o/ { if ($http_authorization != \"Bearer " TOKEN
                                     "\") { return 401; } add_header x-goog-generation 1; alias %s/; }\n"
                                     "location /check/ { internal; proxy_pass %s/; %s }\n}\n",
                                     web->http, b->folder, b->folder, b->folder, b->folder, checks.url, check),
                         web->http);
}

static char *settings(const struct nginx *web)
{
        char *url = format_text("http://127.0.0.1:%u", web->http);
        return format_text(
                "s3: {endpoint: '%s', region: us-east-1, access_key: '" ACCESS "', secret_key: '" SECRET "'}\n"
                "gcs: {endpoint: '%s', credentials: '{\"type\":\"authorized_user\",\"client_id\":\"i\","
                "\"client_secret\":\"s\",\"refresh_token\":\"r\",\"token_uri\":\"%s/token\"}'}\n"
                "azure: {account: " ACCOUNT ", endpoint: '%s/" ACCOUNT "', account_key: '" ACCOUNT_KEY "'}\n",
                url, url, checks.url, url);
}

void rows_clouds(const struct bench *b)
{
        struct bench_daemon bd;
        struct held_file held;
        struct nginx web;
        struct model *m = model_new(23);
        double rates[STORES][ROUNDS_MAX], cpu[STORES][ROUNDS_MAX];
        unsigned rounds = curls_rounds(b);
        if (nginx_unavailable() != NULL)
                die("%s", nginx_unavailable());
        model_add_many(m, "model.layers.weight", 300, 2 * GIB / b->shrink / 300);
        const char *path = bench_file(b, m, "clouds");
        file_map_cached(&held, path);
        start_stores(&web, b);
        const char *url = format_text("http://127.0.0.1:%u/plain/" OBJECT, web.http);
        struct curls c = {.url = url, .size = file_size(path)};
        bench_daemon_start(&bd, b, b->hugetlb ? "hugetlb" : "auto", settings(&web));
        report_note("clouds: the ceiling is the best of 1, 2, 4, 8 and 16 of: curl -s -f -o /dev/null -r FROM-TO %s",
                    url);
        for (unsigned i = 0; i < rounds; i++) {
                struct load_figures f;
                curls_round(&c);
                report_note("round %u: curls %s GiB/s", i + 1, curls_reported(&c));
                for (enum store s = 0; s < STORES; s++) {
                        bench_touch(&bd, m->bytes);
                        bench_load(&bd, sources[s], m, false, &f);
                        rates[s][i] = f.gib_per_s;
                        cpu[s][i] = f.cpu_s_per_gib;
                        report_note("round %u: %s %.2f GiB/s, %.3f CPU-s/GiB: %s", i + 1, sources[s], f.gib_per_s,
                                    f.cpu_s_per_gib, f.stages);
                }
        }
        struct curl_ceiling best = curls_best(&c);
        double s3 = median(cpu[S3], rounds);
        report_row(ROW_s3_vs_curl, median(rates[S3], rounds) / best.gib_per_s, best.gib_per_s);
        report_row(ROW_gcs_vs_curl, median(rates[GCS], rounds) / best.gib_per_s, best.gib_per_s);
        report_row(ROW_azure_vs_curl, median(rates[AZURE], rounds) / best.gib_per_s, best.gib_per_s);
        report_row(ROW_gcs_cpu_vs_s3, median(cpu[GCS], rounds) / s3, 0);
        report_row(ROW_azure_cpu_vs_s3, median(cpu[AZURE], rounds) / s3, 0);
        bench_daemon_stop(&bd);
        nginx_stop(&web);
        file_release(&held);
        unlink(path);
        model_free(m);
}
