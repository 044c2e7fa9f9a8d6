/* SPDX-License-Identifier: Apache-2.0
 *
 * One endpoint that is web server, S3 store, those of Google and Azure, and Hub. Its models are the folders of
 * suite_path("files"):
 *
 *   URL/web/FOLDER/NAME      s3://near/FOLDER/      gs://near/FOLDER/      az://near/FOLDER/      hf://org/FOLDER
 */
#pragma once

#include "tests/lib/endpoint.h"
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define SHARD(n) "model-0000" #n "-of-00002.safetensors"
#define INDEX "model.safetensors.index.json"
#define GCS "/storage/v1/b/near/o"

static struct endpoint server;

/* ---- files ---- */

static inline void answer_file(const struct endpoint_request *request, struct endpoint_reply *reply, const char *path)
{
        char *file = suite_path("files/%.*s", (int)strcspn(path, "?"), path);
        size_t size;
        if (access(file, R_OK) != 0) {
                reply->status = 404;
                return;
        }
        char *data = file_read(file, &size);
        reply->headers = format_text("ETag: \"%zu\"\r\nx-goog-generation: %zu\r\n", size, size);
        endpoint_range(request, reply, data, size);
        free(data);
}

/* ---- lists ---- */

struct list_form {
        const char *begin, *entry, *between, *end; /* entry: of prefix, name, size and version */
};

static const struct list_form list_s3 = {
        "<ListBucketResult><IsTruncated>false</IsTruncated>",
        "<Contents><Key>%s%s</Key><Size>%zu</Size><ETag>&quot;%zu&quot;</ETag></Contents>", "", "</ListBucketResult>"};
static const struct list_form list_gcs = {"{\"items\":[", "{\"name\":\"%s%s\",\"size\":\"%zu\",\"generation\":\"%zu\"}",
                                          ",", "]}"};
static const struct list_form list_azure = {
        "<EnumerationResults><Blobs>",
        "<Blob><Name>%s%s</Name><Properties><Content-Length>%zu</Content-Length><Etag>%zu</Etag></Properties></Blob>",
        "", "</Blobs><NextMarker /></EnumerationResults>"};

static inline void answer_list(const struct endpoint_request *request, struct endpoint_reply *reply,
                               const struct list_form *form)
{
        static const char *const names[] = {"SHA256SUMS", SHARD(1), SHARD(2), "model.safetensors", INDEX};
        char prefix[64] = "", *text = format_text("%s", form->begin);
        bool any = false;
        sscanf(strstr(request->path, "prefix="), "prefix=%62[a-z0-9]", prefix);
        strcat(prefix, "/");
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
                char *file = suite_path("files/%s%s", prefix, names[i]);
                if (access(file, R_OK) != 0)
                        continue;
                size_t size = (size_t)file_size(file);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
                char *entry = format_text(form->entry, prefix, names[i], size, size);
#pragma GCC diagnostic pop
                text = format_text("%s%s%s", text, any ? form->between : "", entry);
                any = true;
        }
        reply->body = format_text("%s%s", text, form->end);
}

/* ---- services ---- */

/* The bucket "far" is in another region than the daemon thinks. The bucket "moving" has an index that differs from its
 * list, until it is requested with the list's ETag. */
static inline void answer_s3(const struct endpoint_request *request, struct endpoint_reply *reply, const char *path)
{
        const char *authorization = endpoint_header(request, "Authorization");
        bool far = strncmp(request->path, "/far/", 5) == 0, moving = strncmp(request->path, "/moving/", 8) == 0;
        if (far && strstr(authorization, "/elsewhere-1/s3/") == NULL) {
                reply->status = 301;
                reply->headers = format_text("x-amz-bucket-region: elsewhere-1\r\n");
        } else if (path[0] == '?') {
                answer_list(request, reply, &list_s3);
        } else {
                answer_file(request, reply, path);
                if (moving && strstr(path, INDEX) != NULL && !endpoint_header(request, "If-Match"))
                        reply->headers[strlen("ETag: \"")] ^= 1;
        }
}

/* An object is one segment of the path. */
static inline void answer_gcs(const struct endpoint_request *request, struct endpoint_reply *reply, const char *path)
{
        if (path[0] == '?') {
                answer_list(request, reply, &list_gcs);
                return;
        }
        const char *slash = strstr(path, "%2F");
        if (slash == NULL || strstr(path, "alt=media") == NULL)
                reply->status = 400;
        else
                answer_file(request, reply, format_text("%.*s/%s", (int)(slash - path - 1), path + 1, slash + 3));
}

static inline void answer_azure(const struct endpoint_request *request, struct endpoint_reply *reply, const char *path)
{
        if (path[0] == '?')
                answer_list(request, reply, &list_azure);
        else
                answer_file(request, reply, path + 1);
}

static inline void answer_info(struct endpoint_reply *reply, bool shards)
{
        reply->body = format_text("{\"sha\":\"" COMMIT "\",\"siblings\":[%s]}",
                                  shards ? "{\"rfilename\":\"" INDEX
                                           "\"},{\"rfilename\":\"" SHARD(1) "\"},{\"rfilename\":\"" SHARD(2) "\"}"
                                         : "{\"rfilename\":\"model.safetensors\"}");
}

static inline const char *behind(const char *path, const char *prefix)
{
        size_t len = strlen(prefix);
        return strncmp(path, prefix, len) == 0 ? path + len : NULL;
}

static inline void answer(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        const char *path = request->path, *rest;
        if ((rest = behind(path, "/web/")) || (rest = behind(path, "/cdn/"))) {
                answer_file(request, reply, rest);
        } else if ((rest = behind(path, "/near/")) || (rest = behind(path, "/far/")) ||
                   (rest = behind(path, "/moving/"))) {
                answer_s3(request, reply, rest);
        } else if ((rest = behind(path, GCS))) {
                answer_gcs(request, reply, rest);
        } else if ((rest = behind(path, "/acct/near"))) {
                answer_azure(request, reply, rest);
        } else if ((rest = behind(path, "/api/models/org/"))) {
                answer_info(reply, behind(rest, "sharded") != NULL);
        } else if ((rest = behind(path, "/org/"))) {
                const char *file = strrchr(rest, '/') + 1;
                reply->status = 302;
                reply->headers = format_text("Location: /cdn/%.*s/%s\r\n", (int)strcspn(rest, "/"), rest, file);
        } else {
                reply->status = 404;
        }
}

/* ---- lifecycle ---- */

/* Before a daemon is started. */
static inline void services_begin(void)
{
        setenv("AWS_ACCESS_KEY_ID", "key", 1);
        setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
        setenv("HF_HOME", suite_path("none"), 1);
        must(mkdir(suite_path("files"), 0755));
}

static inline void services_start(void)
{
        server.answer = answer;
        endpoint_start(&server);
}

/* Of a configuration, for services at this URL. */
static inline char *services_settings(const char *url)
{
        return format_text("s3: {endpoint: '%s'}\ngcs: {endpoint: '%s', anonymous: true}\n"
                           "azure: {account: acct, endpoint: '%s/acct', anonymous: true}\nhf: {endpoint: '%s'}\n",
                           url, url, url, url);
}
