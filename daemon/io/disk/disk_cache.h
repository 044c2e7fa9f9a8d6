/* SPDX-License-Identifier: Apache-2.0
 *
 * The disk cache: objects of stores, in one version each, on a local disk (disk_folder.h). docs/disk-cache.md is the
 * user's view.
 *
 *   writing > stored > dropped
 *      \--------------^
 *
 * Whose an entry is says a label (object.h): `id` of the object in this version, `place` of it in any version. Entries
 * are found by either. A load opens a copy by the id that the store has just named, and reads it instead of the object;
 * it holds a reference meanwhile, and what it holds is not evicted. A copy whose bytes are not those that were stored
 * is dropped, and the object is read from its store.
 *
 * Space. An entry's bytes are reserved before it is written: within the budget, and so that the file system keeps
 * `min_free`. For that, entries go that were used least recently, but for those that are held and those of pinned
 * models. What would not fit even then is not stored, and nothing is evicted for it. A lower budget, also that of the
 * next start, is observed at once, as far as entries may be evicted.
 *
 * Threads. Any, under one mutex, which is not held across I/O. The first use waits until the folder was scanned.
 */
#pragma once

#include "daemon/base/list.h"
#include "daemon/io/disk/disk_folder.h"
#include "daemon/io/disk/disk_source.h"
#include "daemon/io/object.h"

#include <pthread.h>

struct disk_limits {
        uint64_t budget;
        uint64_t min_free; /* of the file system: bytes; 0: the next */
        unsigned min_free_percent;
        bool offline; /* what is stored of a source is used when its store cannot be asked */
};

enum disk_entry_state { DISK_WRITING, DISK_STORED, DISK_DROPPED };

struct disk_entry {
        struct list by_id, by_place; /* by_place, in_order: while it is stored */
        struct list in_order;        /* in cache->entries, least recently used first */
        enum disk_entry_state state;
        unsigned refs; /* copies that are open, and the writer */
        unsigned char id[DISK_ID_SIZE], place[DISK_ID_SIZE];
        uint64_t size;  /* of the object */
        uint64_t bytes; /* that it takes on the disk */
        uint64_t used_s, stored_s;
        char *shown, *version; /* for messages; NULL while it is written */
        char *other;           /* another name of the object, that a load has used; NULL: none */
};

struct disk_cache {
        struct disk_folder folder;
        uint64_t lane; /* of its file system */
        pthread_mutex_t mutex;
        pthread_cond_t ready;
        bool scanned; /* the entries are known */
        struct disk_limits limits;
        struct list sources; /* of struct disk_source */
        struct buckets sources_by_id;
        size_t n_sources, most_sources; /* if there are more, the incomplete ones are dropped */
        uint64_t noted_ns;              /* the latest time of one */
        struct list entries;
        struct buckets by_id, by_place;
        uint64_t n_entries, used; /* used: with what is being written */
        char **pins;              /* what their models' objects begin with */
        size_t n_pins;
        bool pins_known; /* they were set once */
        struct disk_rates {
                uint64_t disk, store; /* bytes in a second; 0: not known */
        } rates;
};

/* Locks the folder. STREAMER_EBUSY, STREAMER_EFAILED, STREAMER_ENOMEM. */
int disk_cache_new(struct disk_cache **cache, const char *path, uint64_t lane, const struct disk_limits *limits,
                   struct error *error);
struct disk_cache *disk_cache_free(struct disk_cache *cache); /* nothing uses it; accepts NULL */
/* On a thread of its own; ends soon once *stop, which is atomic, is true. */
void disk_cache_scan(struct disk_cache *cache, const bool *stop);

/* After these two the writer is to trim the cache (disk_writer_trim). */
void disk_cache_configure(struct disk_cache *cache, const struct disk_limits *limits);
/* Entries whose objects begin with one of these are not evicted. Takes the list and its texts over. */
void disk_cache_set_pins(struct disk_cache *cache, char **pins, size_t n);
/* After the scan: evicts what is beyond the budget; nothing before the pins are known. Not for the file system's free
 * space, which others take and give back: a new object looks at that. True: what is in use, or being written, is beyond
 * the budget still. */
bool disk_cache_trim(struct disk_cache *cache);

struct disk_usage {
        uint64_t budget, used, entries;
        uint64_t oldest_s; /* seconds since the least recently used one was used; 0: there is none */
        bool scanned;
};
void disk_cache_usage(struct disk_cache *cache, struct disk_usage *usage);

struct disk_space {
        uint64_t budget, used;
        uint64_t total, free, min_free; /* of its file system; total 0: not known */
};
/* Asks the file system. */
void disk_cache_space(struct disk_cache *cache, struct disk_space *space);

/* A load has taken so long for so many bytes, all of them from copies, or from stores. Short ones do not count. */
void disk_cache_note_load(struct disk_cache *cache, bool of_disk, uint64_t bytes, uint64_t ns);
/* Of the last such loads. */
struct disk_rates disk_cache_rates(struct disk_cache *cache);

/* ---- for people ---- */

struct disk_row {
        unsigned char id[DISK_ID_SIZE];
        char *shown, *version;
        uint64_t size, bytes;
        uint64_t used_s, stored_s; /* seconds ago */
        bool pinned, in_use;
};
/* The entries that `of` names: an id or the beginning of one, or of a name that a load has used; NULL: all.
 * By id, at most `max` after the one with these digits (NULL: from the first on). STREAMER_ENOMEM. */
int disk_cache_rows(struct disk_cache *cache, const char *of, const char *after, size_t max, struct disk_row **rows,
                    size_t *n, bool *more);
void disk_rows_free(struct disk_row *rows, size_t n); /* accepts NULL */
/* Also one that is being read, or of a pinned model. False: it is not stored any more. */
bool disk_cache_remove(struct disk_cache *cache, const unsigned char id[DISK_ID_SIZE]);

/* ---- reading ---- */

/* Some version of the object is stored; this one is. */
bool disk_cache_has(struct disk_cache *cache, const unsigned char place[DISK_ID_SIZE]);
bool disk_cache_has_version(struct disk_cache *cache, const unsigned char id[DISK_ID_SIZE]);
/* Opens the copy of this version for a load; its first bytes are read and compared. `size`: of the object; UINT64_MAX:
 * not known. `name`: what the load calls it, which a pin may be of; NULL: there is none. NULL: it is not stored, or was
 * dropped just now. Its close() is on any thread. */
struct object_copy *disk_cache_open(struct disk_cache *cache, const unsigned char id[DISK_ID_SIZE], uint64_t size,
                                    const char *name);
/* Opens it for no load: it does not count as used. STREAMER_ENOENT: it is not stored any more; STREAMER_EFAILED: its
 * first bytes or its record are damaged, and it was dropped; STREAMER_ELIMIT, STREAMER_ENOMEM. */
int disk_cache_examine(struct disk_cache *cache, const unsigned char id[DISK_ID_SIZE], struct object_copy **copy,
                       struct error *error);
/* Its bytes are damaged, or cannot be read: it is not opened again. */
void disk_copy_drop(struct object_copy *copy, const char *why);

bool disk_cache_serves_offline(struct disk_cache *cache);
/* What the source of this id consisted of last, as it was noted of itself, or of one that it is an object of; NULL: not
 * known, or an object of it is not stored any more. To be put. */
struct disk_source *disk_cache_find_source(struct disk_cache *cache, const unsigned char id[DISK_ID_SIZE]);
struct disk_source *disk_cache_put_source(struct disk_cache *cache, struct disk_source *source); /* accepts NULL */

/* ---- writing ---- */

/* On the writer's thread: all objects of the source are stored, or it is not noted. Takes the source over. */
void disk_cache_note_source(struct disk_cache *cache, struct disk_source *source);

enum disk_reserved { DISK_RESERVED, DISK_KNOWN, DISK_BUSY, DISK_FULL, DISK_NO_MEMORY };
/* Space for an object of this label, which the load calls `name`: *entry is being written, and referenced. KNOWN: it is
 * stored; BUSY: another writes it, and may give it up; FULL: *error says which limit leaves how much. */
enum disk_reserved disk_cache_reserve(struct disk_cache *cache, const struct object_label *label, uint64_t size,
                                      const char *name, struct disk_entry **entry, struct error *error);
/* It was committed with this record, whose texts it takes over. */
void disk_cache_add(struct disk_cache *cache, struct disk_entry *entry, struct disk_record *record);
/* It was not. */
void disk_cache_give_up(struct disk_cache *cache, struct disk_entry *entry);
