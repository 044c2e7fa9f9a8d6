/* SPDX-License-Identifier: Apache-2.0
 *
 * From a source (a URI) to the ordered list of objects that make a model. All calls here may block
 * on a file system or a server, and belong into a work lane (base/work).
 *
 * A scheme chooses the source from one table (uri.c); each kind is a file of its own. Local files are opened below the
 * roots only (roots/roots.h).
 */
#pragma once

#include "daemon/base/error.h"
#include "daemon/base/text/text.h"
#include "daemon/base/thread/work.h"
#include "daemon/io/object.h"
#include "daemon/model/safetensors.h"

struct caller;
struct source_roots; /* immutable once made; shared by threads */

/* Opens each root directory. A root that is missing or no directory is an error that names it. */
int source_roots_new(struct source_roots **roots, const char *const *paths, size_t n, struct error *error);
/* The roots of a rule, which its denials name. Each is below one of the daemon's, without its links, too. */
int source_roots_new_rule(struct source_roots **roots, const char *const *paths, size_t n, const char *rule,
                          struct source_roots *within, struct error *error);
/* A reference, on any thread; NULL stays NULL. */
struct source_roots *source_roots_ref(struct source_roots *roots);
struct source_roots *source_roots_free(struct source_roots *roots); /* with the last reference */

#define SOURCE_SUFFIX ".safetensors"

/* Canonical text of a source: file:// removed (percent-decoded), "." and "//" and trailing slashes
 * collapsed, ".." refused, relative paths refused (clients make them absolute). malloc'd. */
int source_canonical(const char *source, char **out, struct error *error);

/* Two canonical texts for one source: URLs may differ in their signature. */
bool source_same(const char *a, const char *b);

/* Candidates for the default name of a model, from the shortest (0): the last component without ".safetensors"; each
 * further one takes a leading component more. For a snapshot folder of an HF cache (models--org--name/snapshots/REV)
 * "org/name", then "org/name@REV", and for what lies in it "org/name/FILE", then "org/name@REV/FILE". The longest is
 * returned for every greater n. malloc'd; NULL: no memory. */
char *source_default_name(const char *canonical, unsigned n);

/* A key for base/work's lanes. Of a path: the mount that holds it, found in /proc/self/mountinfo by
 * the longest prefix without touching the file system. Else one for each host or bucket. */
uint64_t source_lane(const char *canonical);
/* The same on the loop, without reading a file. False: a worker has to find it. */
bool source_lane_known(const char *canonical, uint64_t *lane);

/* What the names of the source's objects in messages (object.path) begin with; of a web server or the Hub, those of its
 * folder or repository. malloc'd; NULL: no memory. */
char *source_stored_prefix(const char *canonical);

struct source_set {
        struct object *objects;
        size_t n_objects;
        struct st_index index; /* of n_files, which are the objects, in the order of index.files; 0: there is none */
        struct text index_text;
        struct object index_object; /* of the kind of the others */
        char **left_out;            /* weights of the folder that the model does not use; no more than the maximum */
        size_t n_left_out;
        bool stale;  /* its store could not be asked: it is what was stored of it on the disk */
        char *fixed; /* the source in this version, which never changes, as another canonical text; NULL: it has none */
};

#define SOURCE_LEFT_OUT_MAX 100

struct disk_cache;
struct http;
struct hf;
struct listing;
struct azure_stores;
struct gcs_stores;
struct s3_endpoints;
struct web_host;

/* Context of all sources: made at start, shared by threads. */
struct sources {
        struct source_roots *roots;  /* changed by a reload, on the loop's thread; others use a reference */
        const struct caller *caller; /* whose local files are opened (roots/caller.h); NULL: the daemon's own user */
        struct http *http;
        const struct web_host *hosts; /* credentials by host */
        size_t n_hosts;
        struct s3_endpoints *s3;
        struct gcs_stores *gcs;
        struct azure_stores *azure;
        struct hf *hf;
        struct disk_cache *disk; /* NULL: none is configured */
        const char *const *also; /* folders whose files it has copies of, too; borrowed */
        size_t n_also;
};
/* The same, but local files are opened as the caller and below these roots. All are borrowed. */
static inline struct sources sources_for(const struct sources *sources, struct source_roots *roots,
                                         const struct caller *caller)
{
        return (struct sources){.roots = roots,
                                .caller = caller,
                                .http = sources->http,
                                .hosts = sources->hosts,
                                .n_hosts = sources->n_hosts,
                                .s3 = sources->s3,
                                .gcs = sources->gcs,
                                .azure = sources->azure,
                                .hf = sources->hf,
                                .disk = sources->disk,
                                .also = sources->also,
                                .n_also = sources->n_also};
}

/* What the requests for a source's objects are made with. */
struct http_access;
struct source_reach {
        struct http_access *access; /* a reference, or NULL: no credentials */
        char *url;                  /* the objects' URLs begin with it */
};
void source_reach_deinit(struct source_reach *reach); /* accepts a zeroed one */

/* A kind of source. The functions of the same names describe the contracts. */
struct source_ops {
        const char *const *schemes; /* "s3://", ..., NULL; "": no scheme */
        int (*canonical)(const char *source, char **out, struct error *error);
        char *(*default_name)(const char *canonical, unsigned n);
        /* The URI of one file of the source, malloc'd (NULL: no memory). The function is NULL where a file has none. */
        char *(*file_uri)(const char *canonical, const char *name);
        /* Its objects never change: what is stored of it needs no request. NULL: they may. */
        bool (*is_fixed)(const char *canonical);
        uint64_t (*lane)(const char *canonical); /* NULL: fixed_lane, or if it is 0 one for each host or bucket */
        uint64_t fixed_lane;
        bool (*known_lane)(const char *canonical, uint64_t *lane); /* NULL: lane() reads no file */
        int (*open)(const struct sources *sources, const char *canonical, bool want_sha256, struct source_set *set,
                    struct error *error);
        /* NULL: it has no URLs. */
        int (*reach)(const struct sources *sources, const char *canonical, struct source_reach *reach,
                     struct error *error);
        /* NULL: a sidecar is as accessible as its source. */
        char *(*sidecar_uri)(const char *canonical, const char *name);
        /* NULL: cannot be listed, which yields an empty list. */
        int (*list_sidecars)(const struct sources *sources, const char *canonical, struct listing *list,
                             struct error *error);
        /* NULL: there is none. */
        int (*open_sidecar)(const struct sources *sources, const char *canonical, const char *name,
                            struct object *object, struct error *error);
};
extern const struct source_ops source_local, source_web, source_s3, source_gcs, source_azure, source_hf, source_probe;

#define PROBE_SCHEME "probe:" /* "probe:SEED"; also begins the names of these models */

bool source_is_local(const char *canonical); /* opened as the caller, where the daemon is root */
/* As the kind's file_uri. */
char *source_file_uri(const char *canonical, const char *name);
bool source_is_test(const char *canonical); /* its models evict nothing, are not cached and are not persisted */
/* Of a URL that may be signed. What is persisted, or handed to clients, has such a source without its query. */
bool source_has_query(const char *canonical);
/* malloc'd; the same where it has none. NULL: no memory. */
char *source_without_query(const char *canonical);

/* How files below a root can be read: the capabilities of its file system, tried on an existing file. */
struct root_facts {
        char file[512];        /* that was inspected, below the root; "": none was found */
        uint32_t direct_align; /* of O_DIRECT; 0: refused */
        bool cachestat;        /* the kernel says what of it is cached */
        bool changed;          /* it is another folder than when the daemon started: a file system was mounted there */
        char file_system[32];  /* its type; "": not known */
};
/* As the daemon's own user. May hang with its file system: for its lane. STREAMER_EFAILED where the root cannot be
 * listed. */
int source_inspect_root(const struct source_roots *roots, const char *path, struct root_facts *facts,
                        struct error *error);

/* Files of one model. Each takes two descriptors. */
#define SOURCE_FILES_MAX 4096

/* STREAMER_ENOENT (nothing there, no safetensors in the folder), STREAMER_EPERM (not readable),
 * STREAMER_EFAILED (outside the roots, not a regular file, I/O, a bad index, a directory loop).
 * `want_sha256`: also finds the published digests, in a SHA256SUMS beside the files or a blob's name; STREAMER_EFAILED
 * if a file has none, or two that differ. */
int source_open(const struct sources *sources, const char *canonical, bool want_sha256, struct source_set *set,
                struct error *error);
void source_set_deinit(struct source_set *set); /* accepts a zeroed set */
/* Closes its objects, which may take long; the rest stays. */
void source_set_close(struct source_set *set);

/* For the kinds: n zeroed objects; index_text becomes the index, and must name files. */
int source_set_reserve(struct source_set *set, size_t n, struct error *error);
int source_set_index(struct source_set *set, struct error *error);
/* As if there were none. */
void source_set_drop_index(struct source_set *set);
/* Adds the name of a file that is left out; from the maximum on, does nothing. */
int source_set_leave_out(struct source_set *set, const char *name, struct error *error);

/* ---- names, for the kinds ---- */

/* The path is this folder, or below it: /models holds /models and /models/x, not /models-old. */
bool source_is_below(const char *folder, const char *path);
bool source_ends_with(const char *text, size_t len, const char *suffix);
/* The length of a name without ".safetensors", unless it is nothing else. */
size_t source_stem_len(const char *name, size_t len);
/* The name is that of an index: NAME.safetensors.index.json, or NAME.safetensors.index.VARIANT.json. */
bool source_is_index(const char *name);
/* The length of a path; of an index's that of its folder, after which it is named. */
size_t source_folder_len(const char *path);
/* The last n components of a path, or all, the last one without ".safetensors"; "model" if there is none. malloc'd. */
char *source_last_components(const char *path, size_t len, unsigned n);

/* ---- versions ---- */

/* The same files in the same versions? (joins, aliases, "already resident") Equal in all bytes. */
struct source_identity {
        unsigned char digest[16]; /* over every object's version, in order, and the index's */
        unsigned char sample[16]; /* of the bytes of those whose version is weak; zeroes: not read, or there are none */
};
/* Without the sample. */
void source_identity(const struct source_set *set, struct source_identity *out);
/* What the servers say of the versions, whatever the URLs: that of two sources may be equal. False: not all objects
 * have one. */
bool source_answers(const struct source_set *set, unsigned char digest[16]);
/* Has objects whose version is weak: without a sample its identity may be equal to that of another version. */
bool source_is_weak(const struct source_set *set);
/* Adds the sample, if the source is weak. Reads files. */
int source_identity_sample(const struct source_set *set, struct source_identity *identity, struct error *error);

/* The files that a model was loaded from, for a comparison with others. Immutable; shared by threads. */
#define SHA256_SIZE 32
struct source_file {
        const char *name; /* in the source's folder */
        uint64_t bytes, mtime_ns;
        unsigned char identity[16];
        const unsigned char *sha256; /* published; NULL: none */
};
struct source_files {
        unsigned refs; /* atomic */
        unsigned n;
        unsigned char sums[16]; /* over the published digests of all */
        struct source_file v[];
};
struct source_files *source_files_new(const struct source_set *set); /* NULL: no memory */
struct source_files *source_files_ref(struct source_files *files);   /* NULL stays NULL */
struct source_files *source_files_free(struct source_files *files);  /* with the last reference */
/* STREAMER_EFAILED: a file that matched the digest which was published for `before` has another one in `now`. */
int source_files_compare_sums(const struct source_files *before, const struct source_files *now, struct error *error);
/* The error of a file that differs from its published digest. */
int source_sum_differs(const unsigned char published[32], const unsigned char read[32], const char *path,
                       struct error *error);
const struct source_file *source_files_find(const struct source_files *files, const char *name); /* NULL: none */

/* What a user is told of a model besides its contents. Immutable once it is shared; shared by threads. */
#define SOURCE_MISSING_MAX 10 /* that are named */
struct source_notes {
        unsigned refs; /* atomic */
        char *left_out[SOURCE_LEFT_OUT_MAX];
        size_t n_left_out;
        char *missing[SOURCE_MISSING_MAX]; /* tensors that the index lists, and that are in none of its files */
        uint64_t n_missing;                /* of all; the first are named */
};
struct source_notes *source_notes_new(const struct source_set *set); /* with what was left out; NULL: no memory */
int source_notes_add_missing(struct source_notes *notes, const char *tensor); /* STREAMER_ENOMEM */
struct source_notes *source_notes_ref(struct source_notes *notes);            /* NULL stays NULL */
struct source_notes *source_notes_free(struct source_notes *notes);           /* with the last reference */
static inline bool source_notes_empty(const struct source_notes *notes)
{
        return notes->n_left_out == 0 && notes->n_missing == 0;
}
static inline size_t source_notes_named(const struct source_notes *notes) /* of the missing tensors */
{
        return notes->n_missing < SOURCE_MISSING_MAX ? notes->n_missing : SOURCE_MISSING_MAX;
}

/* All objects and the index file: unchanged since they were opened? */
int source_check(const struct source_set *set, struct error *error);

/* ---- sidecars (listing.h) ---- */

/* The URI of this sidecar, which access rules check besides the source. malloc'd; NULL: no memory. */
char *source_sidecar_uri(const char *canonical, const char *name);

/* In byte order of the names; empty for a source that cannot be listed (https://). The source may hold no weights.
 * `weights`: also the files with weights. Fails as source_open(). Deinited by the caller, also on failure. */
int source_list_sidecars(const struct sources *sources, const char *canonical, bool weights, struct listing *list,
                         struct error *error);
/* Opens one of this name; STREAMER_ENOENT, or as source_open(). */
int source_open_sidecar(const struct sources *sources, const char *canonical, const char *name, struct object *object,
                        struct error *error);
