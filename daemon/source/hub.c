/* SPDX-License-Identifier: Apache-2.0
 *
 *   api/models/ORG/NAME/revision/REV  > the commit and its files, chosen as in a folder
 *   ORG/NAME/resolve/COMMIT/FILE      > the bytes, mostly by a redirect to another host
 *
 * A branch is resolved to its commit once: all files are of that one, whatever is pushed meanwhile. The
 * token goes to the endpoint alone, never where it redirects to.
 */
#include "daemon/source/hub.h"

#include "daemon/base/secret.h"
#include "daemon/base/shown.h"
#include "daemon/base/util.h"
#include "daemon/source/folder.h"
#include "daemon/source/hub_reply.h"
#include "daemon/source/login.h"
#include "daemon/source/aws_sign.h"
#include "daemon/source/store.h"
#include "daemon/source/sums.h"
#include "proto/codec.h"

#include <inttypes.h>
#include <string.h>

#define SCHEME "hf://"
#define ENDPOINT "https://huggingface.co"
#define INFO_MAX (32 * MiB)
#define NAME_MAX_LEN 200
#define FILE_SETTING "file:"

struct hub {
        char *endpoint, *ca;
        char *token; /* a value, or where it is; NULL: none */
        bool stored; /* where huggingface-cli leaves it, once somebody has logged in */
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

static int hub_canonical(const char *source, char **out, struct error *error)
{
        const char *name = source + strlen(SCHEME);
        size_t len = strcspn(name, "@");
        const char *revision = revision_of(name);
        char shown[SHOWN_SOURCE];
        shown_source(shown, source);
        if (!is_repository(name, len))
                return error_set(error, STREAMER_EINVAL, "%s: not " SCHEME "org/name[@revision]", shown);
        if (strlen(revision) > NAME_MAX_LEN || strstr(revision, "..") != NULL || !codec_utf8(source, strlen(source)))
                return error_set(error, STREAMER_EINVAL, "%s: not a revision", source);
        if (asprintf(out, SCHEME "%.*s@%s", (int)len, name, revision) >= 0)
                return 0;
        *out = NULL;
        return error_set(error, STREAMER_ENOMEM, "no memory");
}

static char *hub_default_name(const char *canonical)
{
        const char *name = canonical + strlen(SCHEME);
        return strndup(name, strcspn(name, "@"));
}

static uint64_t hub_lane(const char *canonical)
{
        (void)canonical;
        return UINT64_C(0x6875625f6c616e65); /* one endpoint, one lane */
}

/* ---- who asks ---- */

struct hub_access {
        struct http_access http;
        struct login login;
        bool named; /* there is a token */
};

static int authorize(struct http_access *access, const struct http_request *request, struct http_headers *more,
                     struct error *error)
{
        struct hub_access *a = container_of(access, struct hub_access, http);
        (void)request;
        return a->named ? login_authorize(&a->login, more, error) : 0;
}

/* To who may not know of it, a private repository is answered as 401, and a gated one as 403. */
static int say(const struct hub_access *a, const struct http_request *request, const struct http_answer *answer,
               struct error *error)
{
        const char *code = http_headers_find(&answer->headers, "X-Error-Code");
        const char *id = http_headers_find(&answer->headers, "X-Request-Id");
        bool unknown = answer->status == 401 && code != NULL && strcmp(code, "RepoNotFound") == 0;
        return error_set(error, answer->status == 404 || unknown ? STREAMER_ENOENT : STREAMER_EPERM,
                         "the Hub answers %d%s%s (%s%s%s, %s%s)", answer->status, code != NULL ? " " : "", code ?: "",
                         request->shown, id != NULL ? ", request " : "", id ?: "",
                         !a->named                  ? "without a token"
                         : a->login.setting != NULL ? "with the token of "
                                                    : "with a token",
                         a->named && a->login.setting != NULL ? a->login.setting : "");
}

static int refused(struct http_access *access, const struct http_request *request, const struct http_answer *answer,
                   struct error *error)
{
        struct hub_access *a = container_of(access, struct hub_access, http);
        if (answer->status != 401 && answer->status != 403 && answer->status != 404)
                return 0;
        if (answer->status == 401 && a->named && login_again(&a->login))
                return 1;
        return say(a, request, answer, error);
}

static void access_free(struct http_access *access)
{
        struct hub_access *a = container_of(access, struct hub_access, http);
        if (a->named)
                login_deinit(&a->login);
        free(a);
}

/* The token as it is now: a file may have been written since. */
static int access_new(const struct hub *hub, struct hub_access **out, struct error *error)
{
        static const struct http_access_ops ops = {.authorize = authorize, .refused = refused, .free = access_free};
        const char *token = hub->token;
        struct hub_access *a = calloc(1, sizeof(*a));
        if (a == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        a->http = (struct http_access){.ops = &ops, .refs = 1, .ca = hub->ca};
        a->named = token != NULL && !(hub->stored && access(token + strlen(FILE_SETTING), F_OK) < 0);
        int r = a->named ? login_init(&a->login, NULL, secret_is_elsewhere(token) ? NULL : token, token, error) : 0;
        if (r < 0)
                free(a);
        else
                *out = a;
        return r;
}

/* ---- opening ---- */

struct opening {
        struct store store;
        const struct hub *hub;
        const char *canonical;
        char *repository; /* encoded */
        struct hub_access *access;
        struct http_fetch fetch; /* whose body holds the names */
        struct hub_info info;
        struct folder folder;
        struct source_set *set;
        struct error *error;
};

static int no_memory(struct opening *o)
{
        return error_set(o->error, STREAMER_ENOMEM, "no memory");
}

static int read_info(struct opening *o)
{
        cleanup_free char *url = NULL, *revision = aws_encode(revision_of(o->canonical), false);
        if (revision == NULL ||
            asprintf(&url, "%s/api/models/%s/revision/%s?blobs=true", o->hub->endpoint, o->repository, revision) < 0) {
                url = NULL;
                return no_memory(o);
        }
        o->fetch = (struct http_fetch){.request = {.url = url, .shown = o->canonical, .access = &o->access->http},
                                       .max_body = INFO_MAX};
        int r = http_fetch(o->store.http, &o->fetch, 1, o->error);
        if (r < 0)
                return r;
        if (o->fetch.answer.body == NULL)
                return error_set(o->error, STREAMER_EFAILED, "an empty answer (%s)", o->canonical);
        return hub_info_parse(&o->info, o->fetch.answer.body, o->fetch.answer.body_len, o->canonical, o->error);
}

static int choose(struct opening *o)
{
        int r = 0;
        for (size_t i = 0; r == 0 && i < o->info.n; i++)
                if (strchr(o->info.files[i].name, '/') == NULL)
                        r = folder_offer(&o->folder, o->info.files[i].name, o->canonical, o->error);
        if (r == 0 && o->folder.n == 0 && !o->folder.has_index)
                r = error_set(o->error, STREAMER_ENOENT, "no safetensors files in this revision (%s)", o->canonical);
        if (r == 0)
                folder_choose(&o->folder);
        return r;
}

static bool hub_locate(const struct store *store, const char *name, char **url, char **shown)
{
        const struct opening *o = container_of(store, struct opening, store);
        cleanup_free char *file = aws_encode(name, true);
        size_t len = strcspn(o->canonical, "@");
        if (file == NULL ||
            asprintf(url, "%s/%s/resolve/%s/%s", o->hub->endpoint, o->repository, o->info.commit, file) < 0)
                *url = NULL;
        if (asprintf(shown, "%.*s@%.12s/%s", (int)len, o->canonical, o->info.commit, name) < 0)
                *shown = NULL;
        return *url != NULL && *shown != NULL;
}

/* A cache in front of the Hub may hold something else under the name: its size tells. */
static int check_size(const struct opening *o, const struct object *object, const char *name)
{
        const struct hub_file *file = hub_info_find(&o->info, name);
        if (file == NULL || file->size == UINT64_MAX || file->size == object->version.size)
                return 0;
        return error_set(o->error, STREAMER_EFAILED, "%" PRIu64 " bytes, where the Hub lists %" PRIu64 " (%s)",
                         object->version.size, file->size, object->path);
}

static int check_sizes(const struct opening *o)
{
        const struct source_set *set = o->set;
        int r = 0;
        for (size_t i = 0; r == 0 && i < set->n_objects; i++)
                r = check_size(o, &set->objects[i], strrchr(set->objects[i].path, '/') + 1);
        return r;
}

static int open_indexed(struct opening *o)
{
        struct object_url url;
        int r = store_url_init(&o->store, FOLDER_INDEX, &url, o->error);
        url.text = true;
        if (r == 0)
                r = object_http_open(o->store.http, &url, 1, &o->set->index_object, o->error);
        store_url_deinit(&url);
        return r < 0 ? r : store_open_indexed(&o->store, o->set, o->error);
}

static int take_digests(struct opening *o)
{
        int r = 0;
        for (size_t i = 0; r == 0 && i < o->set->n_objects; i++) {
                struct object *object = &o->set->objects[i];
                const struct hub_file *file = hub_info_find(&o->info, strrchr(object->path, '/') + 1);
                bool valid = false;
                if (file != NULL)
                        r = sums_publish(object, file->sha256, "the Hub", &valid, o->error);
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
        if (r == 0)
                r = o->folder.has_index ? open_indexed(o)
                                        : store_open_files(&o->store, (const char *const *)o->folder.names, o->folder.n,
                                                           o->set, o->error);
        if (r == 0)
                r = check_sizes(o);
        if (r == 0 && opts->want_sha256)
                r = take_digests(o);
        return r;
}

static int hub_open(const struct sources *sources, const char *canonical, const struct source_opts *opts,
                    struct source_set *set, struct error *error)
{
        const char *name = canonical + strlen(SCHEME);
        struct opening o = {.store = {.http = sources->http,
                                      .atomic = true, /* of one commit */
                                      .listed = "listed in its revision",
                                      .locate = hub_locate},
                            .hub = sources->hub,
                            .canonical = canonical,
                            .repository = strndup(name, strcspn(name, "@")),
                            .set = set,
                            .error = error};
        int r = o.repository != NULL ? access_new(o.hub, &o.access, error) : no_memory(&o);
        if (r == 0) {
                o.store.access = &o.access->http;
                r = open_all(&o, opts);
        }
        if (o.access != NULL)
                http_access_unref(&o.access->http);
        folder_deinit(&o.folder);
        hub_info_deinit(&o.info);
        http_fetch_deinit(&o.fetch);
        free(o.repository);
        return r;
}

/* ---- lifecycle ---- */

static const char *given(const char *text)
{
        return text != NULL && text[0] != '\0' ? text : NULL;
}

/* Where huggingface-cli leaves it, as a setting; NULL where it has no place. */
static char *stored_token(void)
{
        const char *path = given(getenv("HF_TOKEN_PATH")), *home = given(getenv("HF_HOME"));
        const char *cache = given(getenv("XDG_CACHE_HOME")), *user = given(getenv("HOME"));
        char *setting = NULL;
        int n = path != NULL    ? asprintf(&setting, FILE_SETTING "%s", path)
                : home != NULL  ? asprintf(&setting, FILE_SETTING "%s/token", home)
                : cache != NULL ? asprintf(&setting, FILE_SETTING "%s/huggingface/token", cache)
                : user != NULL  ? asprintf(&setting, FILE_SETTING "%s/.cache/huggingface/token", user)
                                : -1;
        return n < 0 ? NULL : setting;
}

int hub_new(struct hub **out, const struct hub_opts *opts, struct error *error)
{
        struct hub *hub = calloc(1, sizeof(*hub));
        if (hub == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        hub->endpoint = strdup(given(opts->endpoint) ?: ENDPOINT);
        hub->stored = given(opts->token) == NULL;
        hub->token = hub->stored ? stored_token() : strdup(opts->token);
        hub->ca = given(opts->ca) != NULL ? strdup(opts->ca) : NULL;
        if (hub->endpoint == NULL || (!hub->stored && hub->token == NULL) ||
            (given(opts->ca) != NULL && hub->ca == NULL)) {
                hub_free(hub);
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
        hub_free(hub);
        return STREAMER_EINVAL;
}

struct hub *hub_free(struct hub *hub)
{
        if (hub != NULL) {
                free(hub->endpoint);
                secret_free(hub->token);
                free(hub->ca);
                free(hub);
        }
        return NULL;
}

static const char *const schemes[] = {SCHEME, NULL};

const struct source_ops source_hub = {
        .schemes = schemes,
        .canonical = hub_canonical,
        .default_name = hub_default_name,
        .lane = hub_lane,
        .open = hub_open,
};
