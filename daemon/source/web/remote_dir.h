/* SPDX-License-Identifier: Apache-2.0
 *
 * Files by name on a remote server: what web servers, S3 and the Hub have in common. The URL of a file is that of its
 * directory and its encoded name.
 */
#pragma once

#include "daemon/io/remote/http_object.h"
#include "daemon/source/listing.h"
#include "daemon/source/source.h"

struct remote_dir {
        const char *source; /* canonical; borrowed */
        struct http *http;
        struct http_access *access;         /* NULL: no credentials */
        char *url, *shown;                  /* of the directory, with its slash: encoded; for messages */
        bool atomic;                        /* as object_url.atomic */
        const struct http_dialect *dialect; /* of the store; NULL */
        bool etags;                         /* the tags of the listing are ETags or times, or versions of the dialect */
        const char *keep;                   /* characters of names that URLs have as they are; NULL: "/" */
        char *tail;                         /* of each URL, after the name; NULL: none */
        struct listing *listing;            /* of the weights; NULL: the directory is not listed */
        const char *promise;                /* of the listing: "listed in ..." */
        struct disk_cache *disk;            /* as object_url.disk */
        char *repository; /* tags of the listing are SHA-256 of files, which this repository has; NULL: they are not */
};

struct remote_file {
        const char *name;    /* NULL: the source, which is a URL itself */
        uint64_t header;     /* as object_url.header */
        bool text, optional; /* likewise */
};

void remote_dir_deinit(struct remote_dir *dir);

/* The URL of a file. Freed with remote_dir_url_deinit(), also on failure. */
int remote_dir_url_init(const struct remote_dir *dir, const struct remote_file *file, struct object_url *url,
                        struct error *error);
void remote_dir_url_deinit(struct object_url *url);

/* All in one round; on failure none is left open. */
int remote_dir_open_files(const struct remote_dir *dir, const struct remote_file *files, size_t n,
                          struct object *objects, struct error *error);
/* A file that is no safetensors file: see object_url.text. */
int remote_dir_open_text(const struct remote_dir *dir, const char *name, struct object *object, struct error *error);

/* Opens the model's files: those that the index names if the listing has chosen one or there is no listing; else all
 * that the listing names. The set's index_object may be open. */
int remote_dir_open(const struct remote_dir *dir, struct source_set *set, struct error *error);
