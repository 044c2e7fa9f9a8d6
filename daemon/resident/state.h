/* SPDX-License-Identifier: Apache-2.0
 *
 * The state file: what the daemon knew, for the next run. Which names led to which sources, on which
 * devices, how they were to be kept, and for whom they were loaded.
 *
 *   DIR/state          magic, version, length, XXH3-128 of the rest · one msgpack map
 *   DIR/state.new      the next one, while it is written
 *   DIR/state.damaged  one that could not be read, set aside
 *
 * A file is there whole or not at all: it is written beside, synced, and renamed.
 */
#ifndef DAEMON_RESIDENT_STATE_H
#define DAEMON_RESIDENT_STATE_H

#include "daemon/base/error.h"
#include "daemon/resident/origin.h"
#include "daemon/resident/resident.h"

#define STATE_FILE "state"
#define STATE_DEVICES 64

struct state_model {
        char *name, *source;
        char *devices[STATE_DEVICES]; /* UUIDs, by rank where it has ranks */
        bool pins[STATE_DEVICES];     /* pinned there */
        size_t n_devices;
        struct origin origin;
        uid_t owner; /* of the name */
        uint64_t number, keep_alive_ns, drain_timeout_ns;
        unsigned priority;
        bool pinned; /* on any of them */
        bool verified, ranks;
};

struct state {
        uint64_t last_number;
        struct state_model *models;
        size_t n;
};

/* From what is resident, in the order of names. STREAMER_ENOMEM. */
int state_of(struct state *state, const struct resident *resident);
/* NULL if none. They must stand in the order of their names, as what was read does. */
struct state_model *state_find(const struct state *state, const char *name);
/* A model of this name, empty; NULL on ENOMEM. */
struct state_model *state_add(struct state *state, const char *name, const char *source);
/* What it is under this name: its source, and how it is to be kept; without devices. NULL on ENOMEM. */
struct state_model *state_add_generation(struct state *state, const struct generation *generation, const char *name);
/* Pinned there, too, or not; once for each device. */
int state_add_device(struct state_model *model, const char *uuid, bool pinned);
/* Not this device any more; what is left may be pinned, or not. */
void state_drop_device(struct state_model *model, size_t i);
void state_deinit(struct state *state); /* accepts a zeroed one */

/* The file's bytes. */
int state_pack(const struct state *state, msgpack_sbuffer *out);
/* STREAMER_ECORRUPT where they are not whole, not ours, or of a newer version. */
int state_unpack(struct state *state, const void *data, size_t size, struct error *error);

/* On a worker, or at the start. STREAMER_ENOENT where there is none; what cannot be read is set aside
 * and STREAMER_ECORRUPT. */
int state_load(struct state *state, const char *folder, struct error *error);
int state_save(const char *folder, const void *data, size_t size, struct error *error);

#endif
