/* SPDX-License-Identifier: Apache-2.0
 *
 * Models in object stores: what S3, Google Cloud Storage and Azure Blob Storage have in common. A store's own file
 * makes the requests (struct store_ops); here is what they are for.
 *
 * A source is "scheme://bucket/key" or "scheme://bucket/prefix/", taken literally: no percent-decoding, nothing
 * collapsed. A key ends in ".safetensors", or is that of an index; anything else is a prefix, which becomes objects
 * like a folder:
 *
 *   list (paged), and the index, if there is one > choose > request the first bytes of all at once
 *
 * The version in the listing is sent along: if an object is replaced in between all of this begins again, once; one
 * that is replaced later fails the load. The index counts only if the listing has it with this version.
 */
#pragma once

#include "daemon/source/source.h"
#include "daemon/source/web/remote_dir.h"

struct store_ops;

/* A source at its store. */
struct store_place {
        struct remote_dir dir;
        const struct store_ops *ops;
        char *bucket;
        char *base;   /* URL that requests for the bucket begin with */
        char *prefix; /* of keys, which is empty or ends in '/' */
        char at[64];  /* S3: the region that the bucket is assumed to be in */
        struct error *error;
};

struct store_ops {
        /* The length of what is before the key in a canonical source. */
        size_t (*key_at)(const char *canonical);
        /* Completes a place that has the bucket, the prefix, and of dir the source, its client and what it is called:
         * base, and of dir access and url. store_place_deinit() follows, also on failure. */
        int (*enter)(const struct sources *sources, struct store_place *place);
        /* After a failure, which the place's error is: the store has named another place. NULL: it never does. */
        bool (*moved)(const struct sources *sources, const struct store_place *place);
        /* The URL of a page of keys; `nested`: with those below folders. *next: as parse_page() has it. malloc'd. */
        char *(*list_url)(const struct store_place *place, bool nested, const char *next);
        /* Adds the files below the prefix. *next: where the next page begins, malloc'd; NULL: this is the last, or an
         * error. */
        int (*parse_page)(const struct store_place *place, char **next, char *text, size_t size, struct listing *list,
                          struct error *error);
        /* Checksums that are asked for with a request of their own, HEAD with this header; NULL: none. */
        const char *sum_header, *sum_value;
        int (*take_sum)(struct object *object, const struct http_headers *headers, struct error *error);
        const char *no_sums; /* what else than SHA256SUMS has been looked for, for a message: ", and no ..." */
};

/* With a '/' at its end, unless it is a key: s3://b/llama and s3://b/llama/ are one source. STREAMER_EINVAL: no UTF-8,
 * or a key of more than 1024 bytes. */
int store_canonical(const char *source, size_t key_at, char **out, struct error *error);
/* A prefix is a directory itself. */
size_t store_directory_len(const char *canonical);

int store_open(const struct store_ops *ops, const struct sources *sources, const char *canonical, bool want_sha256,
               struct source_set *set, struct error *error);
int store_reach(const struct store_ops *ops, const struct sources *sources, const char *canonical,
                struct source_reach *reach, struct error *error);
int store_list_sidecars(const struct store_ops *ops, const struct sources *sources, const char *canonical,
                        struct listing *list, struct error *error);
int store_open_sidecar(const struct store_ops *ops, const struct sources *sources, const char *canonical,
                       const char *name, struct object *object, struct error *error);
char *store_sidecar_uri(const char *canonical, const char *name);

/* The length of a setting's source that this one begins with; 0: it does not. "s3://models" is that bucket and not
 * "s3://models-2"; "s3://b/llama" covers both "llama/" and "llama-3/", as a prefix of keys does. */
size_t store_covers(const char *prefix, const char *source);
/* Of n entries of this size, the first of which is for all sources, that with the longest setting's source. `sources`
 * is of the first entry. */
size_t store_find(const char *const *sources, size_t entry_size, size_t n, const char *source);
