/* SPDX-License-Identifier: Apache-2.0
 *
 *   api/models/ORG/NAME/revision/REV  > the commit and its files, chosen as in a folder
 *   ORG/NAME/resolve/COMMIT/FILE      > the bytes, mostly by a redirect to another host
 *
 * A branch is resolved to its commit once: all files are of that one, whatever is pushed meanwhile. The
 * token goes to the endpoint alone, never to the target of a redirect.
 */
#include "daemon/source/hf/hf.h"

#include "daemon/base/json/json.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/source/sums.h"
#include "daemon/source/web/http_auth.h"
#include "daemon/source/web/remote_dir.h"
#include "proto/codec.h"

#include <inttypes.h>

#define SCHEME "hf://"
#define ENDPOINT "https://huggingface.co"
#define INFO_MAX (32 * MiB)
#define NAME_MAX_LEN 200
#define FILE_SETTING "file:"
#define FAULT_NOT_ADDED JSON_FAULTS /* the list's own error */

struct hf {
        char *endpoint;
        char *token; /* a value or its location; NULL: none */
        bool stored; /* `token` names the file that huggingface-cli writes */
};

/* ---- the text of a source ---- */

/* "org/name", or an old model's lone "name". */
static bool is_repository(const char *text, size_t len)
{
        const char *slash = memchr(text, '/', len);
        if (len == 0 || len > NAME_MAX_LEN || text[0] == '/' || text[len - 1] == '/' || text[0] == '.')
                return false;
        if (slash != NULL && (slash[1] == '.' || memchr(slash + 1, '/', len - (size_t)(slash + 1 - text)) != NULL))
                return false;
        return strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._/") >= len;
}

static const char *revision_of(const char *source)
{
        const char *at = strchr(source, '@');
        return at != NULL && at[1] != '\0' ? at + 1 : "main";
}

static int hf_canonical(const char *source, char **out, struct error *error)
{
        const char *name = source + strlen(SCHEME);
        size_t len = strcspn(name, "@");
        const char *revision = revision_of(name);
        char shown[REDACTED_SOURCE];
        redact_source(shown, source);
        if (!is_repository(name, len))
                return error_set(error, STREAMER_EINVAL, "%s: not " SCHEME "org/name[@revision]", shown);
        if (strlen(revision) > NAME_MAX_LEN || strstr(revision, "..") != NULL || !codec_utf8(source, strlen(source)))
                return error_set(error, STREAMER_EINVAL, "%s: not a revision", source);
        *out = format_new(SCHEME "%.*s@%s", (int)len, name, revision);
        return *out != NULL ? 0 : error_no_memory(error);
}

static char *hf_default_name(const char *canonical, unsigned n)
{
        const char *name = canonical + strlen(SCHEME);
        return n == 0 ? strndup(name, strcspn(name, "@")) : strdup(name);
}

/* ---- credentials ---- */

/* Without permission to know of it, a private repository is answered as 401, and a gated one as 403. */
static int refused(struct http_access *access, const struct http_request *request, const struct http_answer *answer,
                   struct error *error)
{
        struct http_auth *auth = container_of(access, struct http_auth, access);
        const char *code = http_headers_find(&answer->headers, "X-Error-Code");
        const char *id = http_headers_find(&answer->headers, "X-Request-Id");
        const char *setting = auth->setting ?: "";
        bool unknown = answer->status == 401 && code != NULL && strcmp(code, "RepoNotFound") == 0;
        if (answer->status != 401 && answer->status != 403 && answer->status != 404)
                return 0;
        if (answer->status == 401 && http_auth_reread(auth, answer))
                return 1;
        return error_set(error, answer->status == 404 || unknown ? STREAMER_ENOENT : STREAMER_EPERM,
                         "the Hub answers %d%s%s (%s%s%s, %s%s)", answer->status, code != NULL ? " " : "", code ?: "",
                         request->shown, id != NULL ? ", request " : "", id ?: "",
                         auth->empty          ? "without a token"
                         : setting[0] != '\0' ? "with the token of "
                                              : "with a token",
                         setting);
}

/* ---- the Hub's reply ---- */

/* Of {"sha": "COMMIT", "siblings": [{"rfilename": "NAME", "size": N, "lfs": {"sha256": "HEX"}}, ...]} and much else,
 * which is skipped. A fault ends all loops. */
struct file {
        const char *name, *sha256; /* in the text */
        uint64_t bytes;
};

static bool parse_lfs(struct json *j, struct file *file)
{
        struct json_string key;
        if (!json_open(j, '{'))
                return json_skip(j);
        for (size_t n = 0; json_member(j, &n, &key);)
                if (JSON_IS(j, key, "sha256"))
                        json_take_text(j, &file->sha256);
                else
                        json_skip(j);
        return j->fault == JSON_OK;
}

static bool parse_file(struct json *j, struct file *file)
{
        struct json_string key;
        *file = (struct file){.sha256 = "", .bytes = UINT64_MAX};
        if (!json_open(j, '{'))
                return json_unexpected(j, "'{'");
        for (size_t n = 0; json_member(j, &n, &key);) {
                bool digit = json_peek(j) >= '0' && json_peek(j) <= '9';
                if (JSON_IS(j, key, "rfilename"))
                        json_take_text(j, &file->name);
                else if (JSON_IS(j, key, "lfs"))
                        parse_lfs(j, file);
                else if (JSON_IS(j, key, "size") && digit)
                        json_whole(j, JSON_SYNTAX, &file->bytes);
                else
                        json_skip(j);
        }
        return j->fault == JSON_OK;
}

static bool parse_files(struct json *j, struct listing *list, struct error *error)
{
        struct file file;
        if (!json_open(j, '['))
                return json_unexpected(j, "'['");
        for (size_t n = 0; json_more(j, ']', n); n++)
                if (parse_file(j, &file) && file.name != NULL &&
                    listing_add(list, file.name, file.bytes, file.sha256, error) < 0)
                        json_fail(j, FAULT_NOT_ADDED, j->at, "%s", error->text);
        return j->fault == JSON_OK;
}

/* The commit becomes part of a URL. */
int hf_reply_parse(char *text, size_t size, char commit[HF_COMMIT], struct listing *list, struct error *error)
{
        struct json json;
        struct json_string key;
        const char *sha = "";
        json_init(&json, text, size);
        if (!json_open(&json, '{'))
                json_unexpected(&json, "'{'");
        for (size_t n = 0; json_member(&json, &n, &key);) {
                if (JSON_IS(&json, key, "sha"))
                        json_take_text(&json, &sha);
                else if (JSON_IS(&json, key, "siblings"))
                        parse_files(&json, list, error);
                else
                        json_skip(&json);
        }
        size_t len = strlen(sha);
        int r = 0;
        if (!json_end(&json) && json.fault == FAULT_NOT_ADDED)
                r = error->code;
        else if (json.fault != JSON_OK)
                r = error_set(error, STREAMER_EFAILED, "the answer is not as the Hub's: %s (%s)", json.detail,
                              list->shown);
        else if (len < 7 || len >= HF_COMMIT || strspn(sha, "0123456789abcdef") < len)
                r = error_set(error, STREAMER_EFAILED, "the answer names no commit (%s)", list->shown);
        else
                strcpy(commit, sha);
        json_deinit(&json);
        return r;
}

/* ---- opening ---- */

/* The commit of the source's revision, and its files. */
static int read_revision(const struct remote_dir *dir, const struct hf *hf, char commit[HF_COMMIT],
                         struct listing *list, struct error *error)
{
        const char *repository = dir->source + strlen(SCHEME);
        cleanup_free char *revision = http_url_encode(revision_of(repository), "");
        cleanup_free char *url = revision == NULL
                                         ? NULL
                                         : format_new("%s/api/models/%.*s/revision/%s?blobs=true", hf->endpoint,
                                                      (int)strcspn(repository, "@"), repository, revision);
        if (url == NULL)
                return error_no_memory(error);
        cleanup_with(http_fetch_deinit) struct http_fetch fetch = {
                .request = {.url = url, .shown = dir->source, .access = dir->access}, .max_body = INFO_MAX};
        int r = http_fetch(dir->http, &fetch, 1, error);
        if (r == 0 && fetch.answer.body == NULL)
                r = error_set(error, STREAMER_EFAILED, "an empty answer (%s)", dir->source);
        return r ?: hf_reply_parse(fetch.answer.body, fetch.answer.body_len, commit, list, error);
}

/* The files of this revision are those of the directory. */
static int enter_revision(struct remote_dir *dir, const struct hf *hf, const char *revision, struct error *error)
{
        const char *repository = dir->source + strlen(SCHEME);
        int len = (int)strcspn(repository, "@");
        cleanup_free char *encoded = http_url_encode(revision, "");
        if (encoded != NULL)
                dir->url = format_new("%s/%.*s/resolve/%s/", hf->endpoint, len, repository, encoded);
        dir->shown = format_new(SCHEME "%.*s@%.12s/", len, repository, revision);
        return dir->url != NULL && dir->shown != NULL ? 0 : error_no_memory(error);
}

/* A cache in front of the Hub may hold another file under the name, which has another size. */
static int check_file(const struct listing *list, struct object *object, bool want_sha256, struct error *error)
{
        const struct listed_file *file = listing_find(list, strrchr(object->path, '/') + 1);
        int r = 0;
        if (file != NULL && file->bytes != UINT64_MAX && file->bytes != object->version.size)
                return error_set(error, STREAMER_EFAILED, "%" PRIu64 " bytes, where the Hub lists %" PRIu64 " (%s)",
                                 object->version.size, file->bytes, object->path);
        if (want_sha256 && file != NULL)
                r = sums_set_digest(object, file->tag, "the Hub", error);
        if (want_sha256 && r == 0 && !object->has_sha256)
                r = error_set(error, STREAMER_EFAILED, "no published SHA-256: the Hub keeps none of it (%s)",
                              object->path);
        return r;
}

/* With the current token: its file may have been written since the start. */
static int dir_init(struct remote_dir *dir, const struct sources *sources, const char *canonical, struct error *error)
{
        static const struct http_access_ops ops = {
                .authorize = http_auth_authorize, .refused = refused, .free = http_auth_free};
        const char *token = sources->hf->token;
        if (token != NULL && sources->hf->stored && access(token + strlen(FILE_SETTING), F_OK) < 0)
                token = NULL;
        bool reference = token != NULL && secret_is_reference(token);
        *dir = (struct remote_dir){.source = canonical,
                                   .http = sources->http,
                                   .atomic = true, /* of one commit */
                                   .promise = "listed in its revision"};
        return http_auth_new(&dir->access, &ops, NULL, reference ? NULL : token, reference ? token : NULL, error);
}

static int hf_open(const struct sources *sources, const char *canonical, bool want_sha256, struct source_set *set,
                   struct error *error)
{
        cleanup_with(listing_deinit) struct listing list = {.shown = canonical};
        cleanup_with(remote_dir_deinit) struct remote_dir dir;
        char commit[HF_COMMIT];
        int r = dir_init(&dir, sources, canonical, error) ?: read_revision(&dir, sources->hf, commit, &list, error);
        dir.listing = &list;
        r = r ?: listing_choose(&list, "in this revision", error)
                      ?: enter_revision(&dir, sources->hf, commit, error)
                      ?: remote_dir_open(&dir, set, error);
        for (size_t i = 0; r == 0 && i < set->n_objects; i++)
                r = check_file(&list, &set->objects[i], want_sha256, error);
        return r;
}

/* ---- sidecars ---- */

static int hf_list_sidecars(const struct sources *sources, const char *canonical, struct listing *list,
                            struct error *error)
{
        cleanup_with(remote_dir_deinit) struct remote_dir dir;
        char commit[HF_COMMIT];
        return dir_init(&dir, sources, canonical, error) ?: read_revision(&dir, sources->hf, commit, list, error);
}

/* By the revision as it was given. */
static int hf_open_sidecar(const struct sources *sources, const char *canonical, const char *name,
                           struct object *object, struct error *error)
{
        cleanup_with(remote_dir_deinit) struct remote_dir dir;
        return dir_init(&dir, sources, canonical, error)
                       ?: enter_revision(&dir, sources->hf, revision_of(canonical), error)
                       ?: remote_dir_open_text(&dir, name, object, error);
}

/* ---- lifecycle ---- */

/* The file that huggingface-cli writes, as a setting; NULL: the environment names none. False: no memory. */
static bool stored_token(char **token)
{
        static const struct {
                const char *variable, *below;
        } files[] = {{"HF_TOKEN_PATH", ""},
                     {"HF_HOME", "/token"},
                     {"XDG_CACHE_HOME", "/huggingface/token"},
                     {"HOME", "/.cache/huggingface/token"}};
        for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
                const char *value = filled(getenv(files[i].variable));
                if (value != NULL)
                        return (*token = format_new(FILE_SETTING "%s%s", value, files[i].below)) != NULL;
        }
        return true;
}

int hf_new(struct hf **out, const char *endpoint, const char *token, struct error *error)
{
        struct http_url url;
        struct hf *hf = calloc(1, sizeof(*hf));
        if (hf == NULL)
                return error_no_memory(error);
        hf->endpoint = strdup(filled(endpoint) ?: ENDPOINT);
        hf->stored = filled(token) == NULL;
        bool ok = hf->stored ? stored_token(&hf->token) : (hf->token = strdup(token)) != NULL;
        if (hf->endpoint != NULL)
                hf->endpoint[trimmed_len(hf->endpoint, '/')] = '\0';
        int r = 0;
        if (hf->endpoint == NULL || !ok)
                r = error_no_memory(error);
        else if (http_url_parse(&url, hf->endpoint) < 0)
                r = error_set(error, STREAMER_EINVAL,
                              "hf.endpoint: not http(s)://host[:port], without user and password");
        *out = r == 0 ? hf : hf_free(hf);
        return r;
}

struct hf *hf_free(struct hf *hf)
{
        if (hf != NULL) {
                free(hf->endpoint);
                secret_free(hf->token);
                free(hf);
        }
        return NULL;
}

const struct source_ops source_hf = {
        .schemes = (const char *const[]){SCHEME, NULL},
        .canonical = hf_canonical,
        .default_name = hf_default_name,
        .fixed_lane = WORK_LANE_REMOTE, /* one endpoint, one lane */
        .open = hf_open,
        .list_sidecars = hf_list_sidecars,
        .open_sidecar = hf_open_sidecar,
};
