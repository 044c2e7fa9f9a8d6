/* SPDX-License-Identifier: Apache-2.0
 *
 * The state file: which names led to which sources, on which devices, with which settings and for which users, for
 * the next run.
 *
 *   DIR/state          one msgpack map, and a foot (facts.h)
 *   DIR/state.new      the next one, while it is written
 *   DIR/state.damaged  one that could not be read, set aside
 *
 * A file is complete or absent: the new one is written beside it, synced, and renamed. It is kept in step with what is
 * resident: compared a few times a second on the loop, and written by a worker where it differs, one write at a time.
 */
#pragma once

#include "daemon/resident/persist/facts.h"

#define STATE_FILE "state"
#define MODEL_RECORD_DEVICES 64

struct model_device {
        char *uuid;
        bool pinned;
};

struct model_record {
        char *name;
        char *source;
        uint64_t number;
        bool verified;
        struct caller caller;
        char *pattern;
        struct model_settings settings;
        uint32_t owner; /* of the name */
        bool ranks;
        struct model_device *devices; /* by rank where it has ranks */
        size_t n_devices;
};

/* With texts of its own. STREAMER_ENOMEM. */
int model_record_copy(struct model_record *to, const struct model_record *from);
/* Once for each device. */
int model_record_add_device(struct model_record *record, const char *uuid, bool pinned);
bool model_record_has_device(const struct model_record *record, const char *uuid);
/* What is to be loaded, where, and with which settings. */
bool model_record_equal(const struct model_record *a, const struct model_record *b);
void model_record_deinit(struct model_record *record); /* of one that owns its texts; accepts a zeroed one */

struct state_file {
        uint64_t last_number;
        struct model_record *models;
        size_t n;
};

/* From what is resident, in the order of names; devices in that in which they got the name: ranks by number. To be
 * deinited in any case. STREAMER_ENOMEM. */
int state_file_of(struct state_file *state, const struct resident *resident);
/* NULL if none. The models must be sorted by name, as those that were read are. */
struct model_record *state_file_find(const struct state_file *state, const char *name);
/* A copy of `from`; NULL on ENOMEM. */
struct model_record *state_file_add(struct state_file *state, const struct model_record *from);
/* Its source and settings under this name, without devices. NULL on ENOMEM. */
struct model_record *state_file_add_generation(struct state_file *state, const struct generation *generation,
                                               const char *name);
void state_file_deinit(struct state_file *state); /* accepts a zeroed one */

/* The file's bytes. */
int state_file_pack(const struct state_file *state, msgpack_sbuffer *out);
/* STREAMER_ECORRUPT where they are truncated, malformed, or of another version. */
int state_file_unpack(struct state_file *state, const void *data, size_t size, struct error *error);

/* On a worker, or at the start. STREAMER_ENOENT where there is none; STREAMER_ECORRUPT where it was invalid and set
 * aside. */
int state_file_load(struct state_file *state, const char *folder, struct error *error);
int state_file_save(const char *folder, const void *data, size_t size, struct error *error);

/* ---- keeping it in step ---- */

struct desired; /* of serve/desired, which sees all models */

struct state_writer {
        struct work_pool *pool;
        const char *folder;                                                      /* NULL: no state file */
        int (*collect)(const struct desired *desired, struct state_file *state); /* desired_state() */
        const struct desired *desired;
        bool due; /* set by the owner when what is resident has changed */
        bool writing;
        struct error failure;              /* of the last save, and logged; else zero */
        msgpack_sbuffer next, pending;     /* the file's bytes: as being written; as to be written after that */
        unsigned char newest[DIGEST_SIZE]; /* of the newest of these, or of the file; zeroes: not known */
        struct work work;
        struct error error;
};

/* `folder` and `desired` are borrowed. */
void state_writer_init(struct state_writer *writer, struct work_pool *pool, const char *folder,
                       int (*collect)(const struct desired *, struct state_file *), const struct desired *desired);
void state_writer_deinit(struct state_writer *writer);
/* A few times a second, and a last time when the daemon ends: models that are unloaded after that stay in the file. */
void state_writer_tick(struct state_writer *writer);
