/* SPDX-License-Identifier: Apache-2.0
 *
 * What outlives a run of the daemon, as facts: pairs of a msgpack map. One walk over the facts of an object writes or
 * reads it, so each fact is named once.
 *
 *   commit_record.h   what it takes to restore a generation with its memory
 *   snapshot.h        names, leases, and what it takes to load a model again
 *
 * Both end with a foot, which says of which version they are and that they are whole:
 *
 *   manifest, or leases | one msgpack map | foot: magic, version, sizes, XXH3-128 of everything before it
 */
#pragma once

#include "daemon/resident/model.h"
#include "proto/codec.h"

#define FACT_DEVICE_MAX (sizeof(((struct device *)0)->uuid) - 1) /* bytes that identify a device */
#define FACT_ID_MAX (UINT32_MAX - 1) /* (uid_t)-1 is no user: setresuid() and the like would change nothing */

/* In place of a key: there was no memory for the value. */
extern const char facts_no_memory[];

struct facts {
        struct writer *w;           /* NULL: they are read */
        const msgpack_object *from; /* the map that is read, or an element of a list */
        const char *wrong;          /* the key of the first that is missing, malformed or out of range */
};

/* Each writes *value, or reads it where that is possible. A NULL key: an element of a list, without a map. `max` of a
 * number or a text's bytes; 0: any. */
void fact_number(struct facts *facts, const char *key, uint64_t *value, uint64_t max);
void fact_number32(struct facts *facts, const char *key, uint32_t *value, uint64_t max);
void fact_bool(struct facts *facts, const char *key, bool *value);
/* malloc'd; an empty one is NULL. */
void fact_text(struct facts *facts, const char *key, char **value, size_t min, size_t max);
void fact_bytes(struct facts *facts, const char *key, void *value, size_t size);
/* It is written, or the map that is read has it: an earlier form had not. */
bool fact_exists(const struct facts *facts, const char *key);
/* Of n elements, or as many as there are, from min to max: element() has the facts of the i-th. How many; 0 where they
 * are wrong. */
size_t fact_list(struct facts *facts, const char *key, size_t n, size_t min, size_t max,
                 void (*element)(struct facts *element, void *list, size_t i), void *list);
/* Three of them: uid, gid, groups. */
void fact_caller(struct facts *facts, struct caller *caller);

#define RECORD_MAGIC 8

struct record_foot {
        char magic[RECORD_MAGIC];
        uint32_t version, reserved;
        uint64_t first_size, map_size;
        unsigned char checksum[DIGEST_SIZE];
};

/* Of a map that comes after `first` in the file. */
struct record_foot record_foot(const void *first, size_t first_size, const void *map, size_t map_size,
                               const char magic[RECORD_MAGIC]);
/* Appends it to the map in `out`. STREAMER_ENOMEM. */
int record_seal(msgpack_sbuffer *out, const void *first, size_t first_size, const char magic[RECORD_MAGIC]);
/* A file has this magic, whatever else it has. */
bool record_is(const void *file, size_t size, const char magic[RECORD_MAGIC]);
/* A file's map, and the size of what is before it. NULL, or what is wrong with the file; facts_no_memory. */
const char *record_open(const void *file, size_t size, const char magic[RECORD_MAGIC], size_t *first_size,
                        struct message *map);
