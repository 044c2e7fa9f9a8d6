/* SPDX-License-Identifier: Apache-2.0
 *
 *   api/models/ORG/NAME/revision/REV  > the commit and its files, chosen as in a folder
 *   ORG/NAME/resolve/COMMIT/FILE      > the bytes, mostly by a redirect to another host
 *
 * A source may go on with a folder of the repository, or one file. Revisions may have slashes, too: of "@a/b" the Hub
 * is asked for revision "a/b", and if there is none for "a", which has a folder or file "b".
 *
 * A branch is resolved to its commit once: all files are of that one, whatever is pushed meanwhile. The
 * token goes to the endpoint alone, never to the target of a redirect.
 */
#include "daemon/source/hf/hf.h"

#include "daemon/base/json/json.h"
#include "daemon/base/log/log.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/source/sums.h"
#include "daemon/source/web/http_auth.h"
#include "daemon/source/web/remote_dir.h"
#include "proto/codec.h"

#include <inttypes.h>
#include <strings.h>

#define SCHEME "hf://"
#define ENDPOINT "https://huggingface.co"
#define INFO_MAX (32 * MiB)
#define NAME_MAX_LEN 200
#define PATH_MAX_LEN 1024
#define READINGS_MAX 8u /* of the slashes of a revision and a path */
#define FILE_SETTING "file:"
#define FAULT_NOT_ADDED JSON_FAULTS /* the list's own error */

struct hf {
        char *endpoint;
        char *token;        /* a value or its location; NULL: none */
        bool stored;        /* `token` names the file that huggingface-cli writes */
        struct error fault; /* in a variable: returned to loads from the Hub */
};

/* The parts of a canonical text, in it. */
struct parts {
        const char *repository, *revision, *path; /* path: after the revision's slash, "" if there is none */
        int repository_len, revision_len;
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

/* The length of a revision that has no slash but those of the Hub's own ones: main, a commit, refs/pr/1; 0: it may have
 * more. */
static size_t certain_len(const char *revision)
{
        static const char *const refs[] = {"refs/pr/", "refs/convert/"};
        size_t len = strcspn(revision, "/");
        for (size_t i = 0; i < ARRAY_SIZE(refs); i++)
                if (strncmp(revision, refs[i], strlen(refs[i])) == 0)
                        return strlen(refs[i]) + strcspn(revision + strlen(refs[i]), "/");
        bool is_commit = len == 40 && strspn(revision, "0123456789abcdef") >= len;
        return is_commit || (len == 4 && strncmp(revision, "main", len) == 0) ? len : 0;
}

/* The n-th reading of "org/name@rev/path", from 0: the last n components are the path, unless the revision is certain.
 * False: there is none. */
static bool split(const char *source, unsigned n, struct parts *parts)
{
        const char *text = source + strlen(SCHEME), *at = strchr(text, '@'), *revision = at + 1;
        size_t certain = certain_len(revision), len = certain > 0 ? certain : strlen(revision);
        if (n > READINGS_MAX || (certain > 0 && n > 0))
                return false;
        for (; n > 0; n--) {
                const char *slash = memrchr(revision, '/', len);
                if (slash == NULL)
                        return false;
                len = (size_t)(slash - revision);
        }
        *parts = (struct parts){.repository = text,
                                .repository_len = (int)(at - text),
                                .revision = revision,
                                .revision_len = (int)len,
                                .path = revision + len + (revision[len] == '/')};
        return true;
}

/* "org/name/path": the first two components are the repository. An '@' after them is part of the path. */
static int hf_canonical(const char *source, char **out, struct error *error)
{
        const char *name = source + strlen(SCHEME), *at = strchr(name, '@'), *slash = strchr(name, '/');
        const char *second = slash != NULL ? strchr(slash + 1, '/') : NULL;
        char shown[REDACTED_SOURCE];
        redact_source(shown, source);
        if (at != NULL && second != NULL && second < at)
                at = NULL;
        size_t len = at != NULL ? (size_t)(at - name) : second != NULL ? (size_t)(second - name) : strlen(name);
        const char *revision = at != NULL && at[1] != '\0' ? at + 1 : "main";
        const char *rest = at == NULL && second != NULL ? second : "";
        int revision_len = (int)trimmed_len(revision, '/'), rest_len = (int)trimmed_len(rest, '/');
        if (!is_repository(name, len))
                return error_set(error, STREAMER_EINVAL, "%s: not " SCHEME "org/name[@revision][/path]", shown);
        if (revision_len + rest_len > PATH_MAX_LEN || strstr(revision, "..") != NULL || revision[0] == '/' ||
            strstr(revision, "//") != NULL || !codec_utf8(source, strlen(source)))
                return error_set(error, STREAMER_EINVAL, "%s: not a revision", source);
        if (rest_len > 0 && (strstr(rest, "..") != NULL || strstr(rest, "//") != NULL))
                return error_set(error, STREAMER_EINVAL, "%s: not a path in a repository", source);
        *out = format_new(SCHEME "%.*s@%.*s%.*s", (int)len, name, revision_len, revision, rest_len, rest);
        return *out != NULL ? 0 : error_no_memory(error);
}

/* "org/name/path", and with the revision. */
static char *hf_default_name(const char *canonical, unsigned n)
{
        struct parts parts;
        const char *name = canonical + strlen(SCHEME);
        require(split(canonical, 0, &parts));
        if (n > 0)
                return strndup(name, source_stem_len(name, strlen(name)));
        return format_new("%.*s%s%.*s", parts.repository_len, parts.repository, parts.path[0] != '\0' ? "/" : "",
                          (int)source_stem_len(parts.path, strlen(parts.path)), parts.path);
}

/* A commit that is named in full. */
static bool hf_is_fixed(const char *canonical)
{
        const char *revision = strchr(canonical, '@');
        return revision != NULL && strspn(revision + 1, "0123456789abcdef") == 40 &&
               (revision[41] == '/' || revision[41] == '\0');
}

/* A file, or an index; else a folder. */
static bool is_file(const char *path)
{
        const char *slash = strrchr(path, '/');
        return source_ends_with(path, strlen(path), SOURCE_SUFFIX) || source_is_index(slash != NULL ? slash + 1 : path);
}

/* In its folder; whichever slash ends the revision. */
static char *hf_file_uri(const char *canonical, const char *name)
{
        const char *slash = strrchr(strchr(canonical, '@'), '/');
        if (slash != NULL && is_file(slash + 1))
                return format_new("%.*s%s", (int)(slash + 1 - canonical), canonical, name);
        return format_new("%s/%s", canonical, name);
}

/* ---- credentials ---- */

/* Without permission to know of it, a private repository is answered as 401, and a gated one as 403. The Hub's own
 * words say whom to ask. */
static int refused(struct http_access *access, const struct http_request *request, const struct http_answer *answer,
                   struct error *error)
{
        struct http_auth *auth = container_of(access, struct http_auth, access);
        const char *code = http_headers_find(&answer->headers, "X-Error-Code");
        const char *message = http_headers_find(&answer->headers, "X-Error-Message");
        const char *id = http_headers_find(&answer->headers, "X-Request-Id");
        const char *setting = auth->setting ?: "";
        char text[1024] = "", escaped[512];
        bool unknown = answer->status == 401 && code != NULL && strcmp(code, "RepoNotFound") == 0;
        if (answer->status != 401 && answer->status != 403 && answer->status != 404)
                return HTTP_REFUSAL_STAYS;
        if (answer->status == 401 && http_auth_reread(auth, answer))
                return HTTP_REFUSAL_RETRY;
        format_append(text, sizeof(text), "the Hub answers %d", answer->status);
        if (code != NULL)
                format_append(text, sizeof(text), " %s", code);
        if (message != NULL) {
                error_escape(escaped, sizeof(escaped), message);
                format_append(text, sizeof(text), ": %s", escaped);
        }
        format_append(text, sizeof(text), " (%s, ", request->shown);
        if (id != NULL)
                format_append(text, sizeof(text), "request %s, ", id);
        if (auth->empty)
                format_append(text, sizeof(text), "without a token)");
        else if (setting[0] == '\0')
                format_append(text, sizeof(text), "with a token)");
        else
                format_append(text, sizeof(text), "with the token of %s)", setting);
        return error_set(error, answer->status == 404 || unknown ? STREAMER_ENOENT : STREAMER_EPERM, "%s", text);
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

static bool parse_files(struct json *j, const char *folder, struct listing *list, struct error *error)
{
        struct file file;
        size_t len = strlen(folder);
        if (!json_open(j, '['))
                return json_unexpected(j, "'['");
        for (size_t n = 0; json_more(j, ']', n); n++)
                if (parse_file(j, &file) && file.name != NULL && strncmp(file.name, folder, len) == 0 &&
                    listing_add(list, file.name + len, file.bytes, file.sha256, error) < 0)
                        json_fail(j, FAULT_NOT_ADDED, j->at, "%s", error->text);
        return j->fault == JSON_OK;
}

/* The commit becomes part of a URL. */
int hf_reply_parse(char *text, size_t size, const char *folder, char commit[HF_COMMIT], struct listing *list,
                   struct error *error)
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
                        parse_files(&json, folder, list, error);
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

/* The folder of a path, with its slash: of a file the one that it lies in. "": the repository. malloc'd. */
static char *folder_of(const char *path)
{
        size_t len = strlen(path);
        const char *slash = strrchr(path, '/');
        if (is_file(path))
                return strndup(path, slash != NULL ? (size_t)(slash + 1 - path) : 0);
        return format_new("%s%s", path, len > 0 ? "/" : "");
}

static bool is_missing(const struct http_answer *answer)
{
        return answer->status == 404;
}

enum revision { REVISION_READ, REVISION_MISSING };

/* The commit of a revision, and its files below the folder. An enum revision (missing: `error` says so), or an error.
 */
static int read_revision(const struct remote_dir *dir, const struct hf *hf, const struct parts *parts,
                         const char *folder, char commit[HF_COMMIT], struct listing *list, struct error *error)
{
        cleanup_free char *name = strndup(parts->revision, (size_t)parts->revision_len);
        cleanup_free char *revision = name != NULL ? http_url_encode(name, "") : NULL;
        cleanup_free char *url = revision == NULL
                                         ? NULL
                                         : format_new("%s/api/models/%.*s/revision/%s?blobs=true", hf->endpoint,
                                                      parts->repository_len, parts->repository, revision);
        if (url == NULL)
                return error_no_memory(error);
        cleanup_with(http_fetch_deinit) struct http_fetch fetch = {
                .request = {.url = url, .shown = dir->source, .access = dir->access}, .max_body = INFO_MAX};
        int r = http_fetch(dir->http, &fetch, 1, error);
        if (r < 0 && is_missing(&fetch.answer))
                return REVISION_MISSING;
        if (r == 0 && fetch.answer.body == NULL)
                r = error_set(error, STREAMER_EFAILED, "an empty answer (%s)", dir->source);
        return r ?: hf_reply_parse(fetch.answer.body, fetch.answer.body_len, folder, commit, list, error);
}

/* The files of this revision, a branch or a commit, are those of the directory. */
static int enter_revision(struct remote_dir *dir, const struct hf *hf, const struct parts *parts, const char *revision,
                          const char *folder, struct error *error)
{
        cleanup_free char *encoded = http_url_encode(revision, "");
        cleanup_free char *below = http_url_encode(folder, "/");
        if (encoded != NULL && below != NULL)
                dir->url = format_new("%s/%.*s/resolve/%s/%s", hf->endpoint, parts->repository_len, parts->repository,
                                      encoded, below);
        dir->shown = format_new(SCHEME "%.*s@%.12s/%s", parts->repository_len, parts->repository, revision, folder);
        dir->repository = format_new("%s/%.*s", hf->endpoint, parts->repository_len, parts->repository);
        return dir->url != NULL && dir->shown != NULL && dir->repository != NULL ? 0 : error_no_memory(error);
}

/* A revision that exists, with the list of its files; the directory is entered. The error is that of the first reading.
 */
static int find_revision(struct remote_dir *dir, const struct hf *hf, struct parts *parts, char commit[HF_COMMIT],
                         struct listing *list, struct error *error)
{
        struct error first = {.code = 0};
        for (unsigned n = 0; split(dir->source, n, parts); n++) {
                cleanup_free char *folder = folder_of(parts->path);
                if (folder == NULL)
                        return error_no_memory(error);
                int r = read_revision(dir, hf, parts, folder, commit, list, error);
                if (r != REVISION_MISSING)
                        return r ?: enter_revision(dir, hf, parts, commit, folder, error);
                first = n == 0 ? *error : first;
                *error = (struct error){.code = 0};
        }
        *error = first;
        return error->code;
}

/* A cache in front of the Hub may hold another file under the name, which has another size. */
static int check_file(const struct listing *list, struct object *object, bool want_sha256, struct error *error)
{
        const struct listed_file *file = listing_find(list, object_name(object));
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

/* As huggingface_hub reads them. */
static const char *offline_variable(void)
{
        static const char *const variables[] = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"};
        static const char *const yes[] = {"1", "ON", "YES", "TRUE"};
        for (size_t i = 0; i < ARRAY_SIZE(variables); i++) {
                const char *value = filled(getenv(variables[i]));
                for (size_t k = 0; value != NULL && k < ARRAY_SIZE(yes); k++)
                        if (strcasecmp(value, yes[k]) == 0)
                                return variables[i];
                if (value != NULL)
                        return NULL;
        }
        return NULL;
}

/* With the current token: its file may have been written since the start. */
static int dir_init(struct remote_dir *dir, const struct sources *sources, const char *canonical, struct error *error)
{
        static const struct http_access_ops ops = {
                .authorize = http_auth_authorize, .refused = refused, .free = http_auth_free};
        const char *token = sources->hf->token, *offline = offline_variable();
        *dir = (struct remote_dir){.source = canonical};
        if (offline != NULL)
                return error_set(error, STREAMER_EFAILED,
                                 "the Hub is not asked: %s is set in the daemon's environment (%s)", offline,
                                 canonical);
        if (sources->hf->fault.code != 0) {
                *error = sources->hf->fault;
                return error->code;
        }
        if (token != NULL && sources->hf->stored && access(token + strlen(FILE_SETTING), F_OK) < 0)
                token = NULL;
        bool reference = token != NULL && secret_is_reference(token);
        *dir = (struct remote_dir){.source = canonical,
                                   .http = sources->http,
                                   .disk = sources->disk,
                                   .atomic = true, /* of one commit */
                                   .promise = "listed in its revision"};
        int r = http_auth_new(&dir->access, &ops, NULL, reference ? NULL : token, reference ? token : NULL, error);
        const char *variable = filled(getenv("HF_TOKEN"));
        if (r == STREAMER_EFAILED && variable != NULL && same_text(variable, token)) {
                cleanup_free char *why = strdup(error->text);
                error_set(error, STREAMER_EFAILED, "HF_TOKEN: %s", why ?: "");
        }
        return r;
}

/* One file, or those that the listing has of a folder. */
static int open_files(struct remote_dir *dir, const struct parts *parts, struct listing *list, struct source_set *set,
                      struct error *error)
{
        const char *slash = strrchr(parts->path, '/');
        const struct remote_file file = {.name = slash != NULL ? slash + 1 : parts->path};
        if (is_file(parts->path))
                listing_sort(list);
        if (source_is_index(file.name)) {
                dir->listing = NULL; /* it was chosen */
                return remote_dir_open_text(dir, file.name, &set->index_object, error)
                               ?: remote_dir_open(dir, set, error);
        }
        if (is_file(parts->path))
                return source_set_reserve(set, 1, error) ?: remote_dir_open_files(dir, &file, 1, set->objects, error);
        return listing_choose(list, parts->path[0] != '\0' ? "in this folder of the revision" : "in this revision",
                              error)
                       ?: remote_dir_open(dir, set, error);
}

/* The source by its commit in full; none where the Hub names it in short, or the source did. */
static int name_commit(const struct parts *parts, const char *commit, char **fixed, struct error *error)
{
        char *text = format_new(SCHEME "%.*s@%s%s%s", parts->repository_len, parts->repository, commit,
                                parts->path[0] != '\0' ? "/" : "", parts->path);
        if (text == NULL)
                return error_no_memory(error);
        if (hf_is_fixed(text) && strncmp(parts->revision, commit, strlen(commit)) != 0)
                *fixed = text;
        else
                free(text);
        return 0;
}

static int hf_open(const struct sources *sources, const char *canonical, bool want_sha256, struct source_set *set,
                   struct error *error)
{
        cleanup_with(listing_deinit) struct listing list = {.shown = canonical};
        cleanup_with(remote_dir_deinit) struct remote_dir dir;
        struct parts parts;
        char commit[HF_COMMIT];
        int r = dir_init(&dir, sources, canonical, error)
                        ?: find_revision(&dir, sources->hf, &parts, commit, &list, error);
        dir.listing = &list;
        r = r ?: open_files(&dir, &parts, &list, set, error);
        for (size_t i = 0; r == 0 && i < set->n_objects; i++)
                r = check_file(&list, &set->objects[i], want_sha256, error);
        return r ?: name_commit(&parts, commit, &set->fixed, error);
}

/* Whatever the revision is. */
static int hf_reach(const struct sources *sources, const char *canonical, struct source_reach *reach,
                    struct error *error)
{
        cleanup_with(remote_dir_deinit) struct remote_dir dir;
        struct parts parts;
        require(split(canonical, 0, &parts));
        int r = dir_init(&dir, sources, canonical, error);
        if (r < 0)
                return r;
        reach->url = format_new("%s/%.*s/resolve/", sources->hf->endpoint, parts.repository_len, parts.repository);
        if (reach->url == NULL)
                return error_no_memory(error);
        reach->access = dir.access;
        dir.access = NULL;
        return 0;
}

/* ---- sidecars ---- */

static int hf_list_sidecars(const struct sources *sources, const char *canonical, struct listing *list,
                            struct error *error)
{
        cleanup_with(remote_dir_deinit) struct remote_dir dir;
        struct parts parts;
        char commit[HF_COMMIT];
        return dir_init(&dir, sources, canonical, error)
                       ?: find_revision(&dir, sources->hf, &parts, commit, list, error);
}

/* By the revision as it was given, in one round; only of a text with several readings the Hub says which it is. */
static int hf_open_sidecar(const struct sources *sources, const char *canonical, const char *name,
                           struct object *object, struct error *error)
{
        cleanup_with(listing_deinit) struct listing list = {.shown = canonical, .sidecars = true};
        cleanup_with(remote_dir_deinit) struct remote_dir dir;
        struct parts parts, other;
        int r = dir_init(&dir, sources, canonical, error);
        if (r < 0)
                return r;
        if (split(canonical, 1, &other)) {
                char commit[HF_COMMIT];
                r = find_revision(&dir, sources->hf, &parts, commit, &list, error);
        } else {
                require(split(canonical, 0, &parts));
                cleanup_free char *revision = strndup(parts.revision, (size_t)parts.revision_len);
                cleanup_free char *folder = folder_of(parts.path);
                r = revision != NULL && folder != NULL
                            ? enter_revision(&dir, sources->hf, &parts, revision, folder, error)
                            : error_no_memory(error);
        }
        return r ?: remote_dir_open_text(&dir, name, object, error);
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

/* The endpoint with a scheme and without slashes at its end. */
static int set_endpoint(struct hf *hf, const char *endpoint, const char *variable, struct error *error)
{
        const char *text = filled(endpoint) ?: ENDPOINT;
        struct http_url url;
        hf->endpoint =
                format_new("%s%.*s", strstr(text, "://") == NULL ? "https://" : "", (int)trimmed_len(text, '/'), text);
        if (hf->endpoint == NULL)
                return error_no_memory(error);
        if (http_url_parse(&url, hf->endpoint) == 0)
                return 0;
        error_set(variable != NULL ? &hf->fault : error, STREAMER_EINVAL,
                  "%s: not http(s)://host[:port], without user and password", variable ?: "hf.endpoint");
        if (variable == NULL)
                return error->code;
        log_warn("loads from the Hub fail: %s", hf->fault.text);
        return 0;
}

int hf_new(struct hf **out, const char *endpoint, const char *variable, const char *token, struct error *error)
{
        struct hf *hf = calloc(1, sizeof(*hf));
        if (hf == NULL)
                return error_no_memory(error);
        hf->stored = filled(token) == NULL;
        bool ok = hf->stored ? stored_token(&hf->token) : (hf->token = strdup(token)) != NULL;
        int r = ok ? set_endpoint(hf, endpoint, variable, error) : error_no_memory(error);
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
        .is_fixed = hf_is_fixed,
        .file_uri = hf_file_uri,
        .fixed_lane = WORK_LANE_REMOTE, /* one endpoint, one lane */
        .open = hf_open,
        .reach = hf_reach,
        .list_sidecars = hf_list_sidecars,
        .open_sidecar = hf_open_sidecar,
};
