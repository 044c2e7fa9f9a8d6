/* SPDX-License-Identifier: Apache-2.0
 *
 *   api/models/ORG/NAME/revision/REV  > the commit and its files, chosen as in a folder
 *   ORG/NAME/resolve/COMMIT/FILE      > the bytes, mostly by a redirect to another host
 *
 * A branch is resolved to its commit once: all files are of that one, whatever is pushed meanwhile. The
 * token goes to the endpoint alone, never to the target of a redirect.
 */
#include "daemon/source/hf/hf.h"

#include "daemon/base/text/redact.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/source/hf/hf_reply.h"
#include "daemon/source/model_dir.h"
#include "daemon/source/sums.h"
#include "daemon/source/web/http_auth.h"
#include "daemon/source/web/remote_dir.h"
#include "proto/codec.h"

#include <inttypes.h>
#include <string.h>

#define SCHEME "hf://"
#define ENDPOINT "https://huggingface.co"
#define INFO_MAX (32 * MiB)
#define NAME_MAX_LEN 200
#define FILE_SETTING "file:"

struct hf {
        char *endpoint;
        char *token; /* a value, or where it is; NULL: none */
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
        return *out != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
}

static char *hf_default_name(const char *canonical)
{
        const char *name = canonical + strlen(SCHEME);
        return strndup(name, strcspn(name, "@"));
}

static uint64_t hf_lane(const char *canonical)
{
        (void)canonical;
        return UINT64_C(0x6875625f6c616e65); /* one endpoint, one lane */
}

/* ---- who asks ---- */

struct hf_access {
        struct http_access http;
        struct http_auth http_auth;
        bool named; /* there is a token */
};

static int authorize(struct http_access *access, const struct http_request *request, struct http_headers *more,
                     struct error *error)
{
        struct hf_access *a = container_of(access, struct hf_access, http);
        (void)request;
        return a->named ? http_auth_authorize(&a->http_auth, more, error) : 0;
}

/* To who may not know of it, a private repository is answered as 401, and a gated one as 403. */
static int say(const struct hf_access *a, const struct http_request *request, const struct http_answer *answer,
               struct error *error)
{
        const char *code = http_headers_find(&answer->headers, "X-Error-Code");
        const char *id = http_headers_find(&answer->headers, "X-Request-Id");
        bool unknown = answer->status == 401 && code != NULL && strcmp(code, "RepoNotFound") == 0;
        return error_set(error, answer->status == 404 || unknown ? STREAMER_ENOENT : STREAMER_EPERM,
                         "the Hub answers %d%s%s (%s%s%s, %s%s)", answer->status, code != NULL ? " " : "", code ?: "",
                         request->shown, id != NULL ? ", request " : "", id ?: "",
                         !a->named                      ? "without a token"
                         : a->http_auth.setting != NULL ? "with the token of "
                                                        : "with a token",
                         a->named && a->http_auth.setting != NULL ? a->http_auth.setting : "");
}

static int refused(struct http_access *access, const struct http_request *request, const struct http_answer *answer,
                   struct error *error)
{
        struct hf_access *a = container_of(access, struct hf_access, http);
        if (answer->status != 401 && answer->status != 403 && answer->status != 404)
                return 0;
        if (answer->status == 401 && a->named && http_auth_reread(&a->http_auth))
                return 1;
        return say(a, request, answer, error);
}

static void access_free(struct http_access *access)
{
        struct hf_access *a = container_of(access, struct hf_access, http);
        if (a->named)
                http_auth_deinit(&a->http_auth);
        free(a);
}

/* The token as it is now: a file may have been written since. */
static int access_new(const struct hf *hub, struct hf_access **out, struct error *error)
{
        static const struct http_access_ops ops = {.authorize = authorize, .refused = refused, .free = access_free};
        const char *token = hub->token;
        struct hf_access *a = calloc(1, sizeof(*a));
        if (a == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        a->http = (struct http_access){.ops = &ops, .refs = 1};
        a->named = token != NULL && !(hub->stored && access(token + strlen(FILE_SETTING), F_OK) < 0);
        int r = a->named ? http_auth_init(&a->http_auth, NULL, secret_is_reference(token) ? NULL : token, token, error)
                         : 0;
        if (r < 0)
                free(a);
        else
                *out = a;
        return r;
}

/* ---- opening ---- */

struct opening {
        struct remote_dir store;
        const struct hf *hub;
        const char *canonical;
        char *repository; /* encoded */
        struct hf_access *access;
        struct http_fetch fetch; /* whose body holds the names */
        struct hf_info info;
        struct model_dir folder;
        struct source_set *set; /* NULL where no weights are opened */
        struct error *error;
};

static int no_memory(struct opening *o)
{
        return error_set(o->error, STREAMER_ENOMEM, "no memory");
}

static int read_info(struct opening *o)
{
        cleanup_free char *revision = http_url_encode(revision_of(o->canonical), "");
        if (revision == NULL)
                return no_memory(o);
        cleanup_free char *url =
                format_new("%s/api/models/%s/revision/%s?blobs=true", o->hub->endpoint, o->repository, revision);
        if (url == NULL)
                return no_memory(o);
        o->fetch = (struct http_fetch){.request = {.url = url, .shown = o->canonical, .access = &o->access->http},
                                       .max_body = INFO_MAX};
        int r = http_fetch(o->store.http, &o->fetch, 1, o->error);
        if (r < 0)
                return r;
        if (o->fetch.answer.body == NULL)
                return error_set(o->error, STREAMER_EFAILED, "an empty answer (%s)", o->canonical);
        return hf_info_parse(&o->info, o->fetch.answer.body, o->fetch.answer.body_len, o->canonical, o->error);
}

static int choose(struct opening *o)
{
        int r = 0;
        for (size_t i = 0; r == 0 && i < o->info.n; i++)
                if (strchr(o->info.files[i].name, '/') == NULL)
                        r = model_dir_offer(&o->folder, o->info.files[i].name, o->canonical, o->error);
        if (r == 0 && o->folder.n == 0 && !o->folder.has_index)
                r = error_set(o->error, STREAMER_ENOENT, "no safetensors files in this revision (%s)", o->canonical);
        if (r == 0)
                model_dir_choose(&o->folder);
        return r;
}

/* Of the commit, once it is known; a sidecar is asked for by the revision as it was given. */
static bool hf_locate(const struct remote_dir *store, const char *name, char **url, char **shown)
{
        const struct opening *o = container_of(store, struct opening, store);
        const char *revision = o->info.commit[0] != '\0' ? o->info.commit : revision_of(o->canonical);
        cleanup_free char *file = http_url_encode(name, "/"), *encoded = http_url_encode(revision, "");
        if (file != NULL && encoded != NULL)
                *url = format_new("%s/%s/resolve/%s/%s", o->hub->endpoint, o->repository, encoded, file);
        *shown = format_new("%.*s@%.12s/%s", (int)strcspn(o->canonical, "@"), o->canonical, revision, name);
        return *url != NULL && *shown != NULL;
}

/* A cache in front of the Hub may hold another file under the name, which has another size. */
static int check_size(const struct opening *o, const struct object *object)
{
        const struct hf_file *file = hf_info_find(&o->info, strrchr(object->path, '/') + 1);
        if (file == NULL || file->size == UINT64_MAX || file->size == object->version.size)
                return 0;
        return error_set(o->error, STREAMER_EFAILED, "%" PRIu64 " bytes, where the Hub lists %" PRIu64 " (%s)",
                         object->version.size, file->size, object->path);
}

static int take_digests(struct opening *o)
{
        int r = 0;
        for (size_t i = 0; r == 0 && i < o->set->n_objects; i++) {
                struct object *object = &o->set->objects[i];
                const struct hf_file *file = hf_info_find(&o->info, strrchr(object->path, '/') + 1);
                bool valid = false;
                if (file != NULL)
                        r = sums_set_digest(object, file->sha256, "the Hub", &valid, o->error);
                if (r == 0 && !valid)
                        r = error_set(o->error, STREAMER_EFAILED, "no published SHA-256: the Hub keeps none of it (%s)",
                                      object->path);
        }
        return r;
}

static int open_all(struct opening *o, const struct source_opts *opts)
{
        int r = read_info(o);
        if (r == 0)
                r = choose(o);
        if (r == 0 && o->folder.has_index)
                r = remote_dir_open_text(&o->store, MODEL_DIR_INDEX, &o->set->index_object, o->error);
        if (r == 0)
                r = o->folder.has_index ? remote_dir_open_indexed(&o->store, o->set, o->error)
                                        : remote_dir_open_files(&o->store, (const char *const *)o->folder.names,
                                                                o->folder.n, o->set, o->error);
        for (size_t i = 0; r == 0 && i < o->set->n_objects; i++)
                r = check_size(o, &o->set->objects[i]);
        if (r == 0 && opts->want_sha256)
                r = take_digests(o);
        return r;
}

static int opening_init(struct opening *o, const struct sources *sources, const char *canonical, struct error *error)
{
        const char *name = canonical + strlen(SCHEME);
        *o = (struct opening){.store = {.http = sources->http,
                                        .atomic = true, /* of one commit */
                                        .listed = "listed in its revision",
                                        .locate = hf_locate},
                              .hub = sources->hub,
                              .canonical = canonical,
                              .repository = strndup(name, strcspn(name, "@")),
                              .error = error};
        int r = o->repository != NULL ? access_new(o->hub, &o->access, error) : no_memory(o);
        if (r == 0)
                o->store.access = &o->access->http;
        return r;
}

static void opening_deinit(struct opening *o)
{
        if (o->access != NULL)
                http_access_unref(&o->access->http);
        model_dir_deinit(&o->folder);
        hf_info_deinit(&o->info);
        http_fetch_deinit(&o->fetch);
        free(o->repository);
}

static int hf_open(const struct sources *sources, const char *canonical, const struct source_opts *opts,
                   struct source_set *set, struct error *error)
{
        struct opening o;
        int r = opening_init(&o, sources, canonical, error);
        o.set = set;
        if (r == 0)
                r = open_all(&o, opts);
        opening_deinit(&o);
        return r;
}

/* ---- sidecars ---- */

static int hf_list_sidecars(const struct sources *sources, const char *canonical, struct sidecar_list *list,
                            struct error *error)
{
        struct opening o;
        int r = opening_init(&o, sources, canonical, error);
        if (r == 0)
                r = read_info(&o);
        for (size_t i = 0; r == 0 && i < o.info.n; i++)
                r = sidecar_list_add(list, o.info.files[i].name, o.info.files[i].size, canonical, error);
        opening_deinit(&o);
        return r;
}

static int hf_open_sidecar(const struct sources *sources, const char *canonical, const char *name,
                           struct object *object, struct error *error)
{
        struct opening o;
        int r = opening_init(&o, sources, canonical, error);
        if (r == 0)
                r = remote_dir_open_text(&o.store, name, object, error);
        opening_deinit(&o);
        return r;
}

/* ---- lifecycle ---- */

/* The file that huggingface-cli writes, as a setting; NULL: the environment determines none. */
static char *stored_token(void)
{
        static const struct {
                const char *variable, *below;
        } places[] = {{"HF_TOKEN_PATH", ""},
                      {"HF_HOME", "/token"},
                      {"XDG_CACHE_HOME", "/huggingface/token"},
                      {"HOME", "/.cache/huggingface/token"}};
        for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
                const char *value = filled(getenv(places[i].variable));
                if (value != NULL)
                        return format_new(FILE_SETTING "%s%s", value, places[i].below);
        }
        return NULL;
}

int hf_new(struct hf **out, const char *endpoint, const char *token, struct error *error)
{
        struct hf *hub = calloc(1, sizeof(*hub));
        if (hub == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        hub->endpoint = strdup(filled(endpoint) ?: ENDPOINT);
        hub->stored = filled(token) == NULL;
        hub->token = hub->stored ? stored_token() : strdup(token);
        if (hub->endpoint == NULL || (!hub->stored && hub->token == NULL)) {
                hf_free(hub);
                return error_set(error, STREAMER_ENOMEM, "no memory");
        }
        for (size_t len = strlen(hub->endpoint); len > 0 && hub->endpoint[len - 1] == '/';)
                hub->endpoint[--len] = '\0';
        struct http_url url;
        if (http_url_parse(&url, hub->endpoint) == 0) {
                *out = hub;
                return 0;
        }
        error_set(error, STREAMER_EINVAL, "hf.endpoint: not http(s)://host[:port], without user and password");
        hf_free(hub);
        return STREAMER_EINVAL;
}

struct hf *hf_free(struct hf *hub)
{
        if (hub != NULL) {
                free(hub->endpoint);
                secret_free(hub->token);
                free(hub);
        }
        return NULL;
}

static const char *const schemes[] = {SCHEME, NULL};

const struct source_ops source_hub = {
        .schemes = schemes,
        .canonical = hf_canonical,
        .default_name = hf_default_name,
        .lane = hf_lane,
        .open = hf_open,
        .list_sidecars = hf_list_sidecars,
        .open_sidecar = hf_open_sidecar,
};
