/* SPDX-License-Identifier: Apache-2.0
 *
 * What can be read: one file or one key of a store, with the version it had when it was opened.
 *
 * A file has two descriptors: `fd` reads through the page cache (with POSIX_FADV_RANDOM), `direct` with O_DIRECT (-1:
 * the file system refuses it). Remote objects: http_object.h.
 */
#pragma once

#include "daemon/base/error.h"
#include "daemon/base/hash.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Of a file all of it (file_version.h); of a remote object the size, and the rest is its own (http_object.h). */
struct object_version {
        uint64_t dev, ino, size;
        uint64_t mtime_ns, ctime_ns;
        bool by_volume;          /* the next two belong to it: they tell file systems of one device number apart */
        uint64_t mount, diskseq; /* 0: not known */
        uint64_t place;          /* of a file whose inode number says nothing: its path, as a hash; else 0 */
        bool is_weak;            /* another version may have the same of all of these: a sample of the bytes tells */
};

struct object;
struct hash;
struct remote;

/* The engine that reads the blocks of objects of a kind: see reader.h. */
enum read_engine { READ_PREAD, READ_HTTP, READ_ENGINES };

/* A piece of an object that is read whole, or not at all, for other uses than blocks. */
struct object_range {
        const struct object *object;
        uint64_t offset, len; /* within the object */
        unsigned char *to;    /* congruent to offset modulo 4096, with space to the end of its last page */
};

/* What identifies a version of an object beyond this run, and what the disk cache stores of it besides its bytes.
 * Borrowed from the object. */
struct object_label {
        unsigned char id[32];        /* SHA-256: of the object in this version */
        unsigned char place[32];     /* of the object, whatever its version */
        const char *etag, *modified; /* as its store says them; NULL: it has none */
        bool settled;                /* each answer's version proves its bytes: they need no check after the reading */
        const char *url;
        /* Its first bytes, if they are still in memory: of a safetensors file its header, of a text all. */
        const unsigned char *first;
        uint64_t n_first;
};

/* The same bytes on a local disk (daemon/io/disk), which are read instead of the object's. */
struct object_copy {
        const struct object *file;
        const unsigned char *first;         /* bytes up to the first tensor; of a text all; they were compared */
        uint64_t header;                    /* how many */
        const char *etag, *modified;        /* as in the label; "": none */
        unsigned char (*sums)[DIGEST_SIZE]; /* of each leaf of each tensor, in the order of their bytes */
        uint64_t n_sums;
        bool damaged; /* on the loop: it is not read any more by this load */
        void (*close)(struct object_copy *copy);
};

/* Calls with n take objects of one kind, and do for a store in parallel what a file does in turn. */
struct object_ops {
        enum read_engine engine;
        int (*read_ranges)(const struct object_range *ranges, size_t n, struct error *error);
        /* STREAMER_EFAILED if one is not what it was when opened. */
        int (*check_versions)(const struct object *const *objects, size_t n, struct error *error);
        /* Adds what distinguishes this version of this object from all others. */
        void (*identify)(const struct object *object, struct hash *hash);
        /* The same of what its server says of this version, without its URL. NULL: it has none. */
        void (*identify_answer)(const struct object *object, struct hash *hash);
        /* Where the version is weak: adds a sample of the object, whose source has so many objects. */
        int (*sample)(const struct object *object, size_t n_objects, struct hash *hash, struct error *error);
        /* False: its version cannot be trusted, or it is not for the disk cache. NULL: none of the kind is. */
        bool (*label)(const struct object *object, struct object_label *label);
        void (*deinit)(struct object *object);
};

#define OBJECT_STREAMS 4u /* of one object, and of a load that is read in streams */

struct object {
        const struct object_ops *ops; /* NULL: nothing here */
        char *path;                   /* for messages: a path, or a URL without its query */
        size_t folder_len;            /* of the path, that of its source's folder; 0: all but the last component */
        struct object_version version;
        uint64_t first_read;      /* bytes to read before the header's length is known; the 8 that state it, at least */
        unsigned char sha256[32]; /* published digest, where has_sha256 */
        bool has_sha256;
        uint32_t crc32c; /* published by its store, where has_crc32c; counts where there is no SHA-256 */
        bool has_crc32c;
        struct object_copy *copy; /* NULL: none */
        union {                   /* the kind's own */
                struct {
                        int fd, direct;
                        uint32_t direct_align; /* of offset, length and memory; at most 4096 where direct >= 0 */
                        bool is_overlay;
                        /* Each open file is one sequential stream (FUSE): further ones, for other parts of the file. */
                        bool is_streamed;
                        int streams[OBJECT_STREAMS - 1];
                        unsigned n_streams;
                        struct disk_local *local; /* NULL: it is not for the disk cache (disk_local.h) */
                };
                struct remote *remote;
        };
};

/* Its name in its source, which may lie in a folder below the source's. */
static inline const char *object_name(const struct object *object)
{
        const char *slash = strrchr(object->path, '/');
        return object->folder_len > 0 ? object->path + object->folder_len : slash != NULL ? slash + 1 : object->path;
}

/* Its first read brings all of it. */
static inline bool object_is_read(const struct object *object)
{
        return object->version.size <= object->first_read;
}

/* All of one kind; n may be 0. */
static inline int object_read_ranges(const struct object_range *ranges, size_t n, struct error *error)
{
        return n > 0 ? ranges[0].object->ops->read_ranges(ranges, n, error) : 0;
}
static inline int object_read_range(const struct object *object, uint64_t offset, uint64_t len, unsigned char *to,
                                    struct error *error)
{
        return object->ops->read_ranges(&(struct object_range){object, offset, len, to}, 1, error);
}
/* The error names the field that changed. */
static inline int object_check_versions(const struct object *const *objects, size_t n, struct error *error)
{
        return n > 0 ? objects[0]->ops->check_versions(objects, n, error) : 0;
}

/* Accepts a zeroed object. */
static inline void object_deinit(struct object *object)
{
        if (object->ops != NULL)
                object->ops->deinit(object);
        if (object->copy != NULL)
                object->copy->close(object->copy);
        free(object->path);
        *object = (struct object){.fd = -1, .direct = -1};
}
