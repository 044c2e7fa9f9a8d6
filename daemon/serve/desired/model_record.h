/* SPDX-License-Identifier: Apache-2.0
 *
 * What it takes to load a model under a name, on one or several devices: an entry of `preload`, or what was pinned when
 * the daemon last ended.
 */
#pragma once

#include "daemon/resident/model.h"

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
/* What is to be loaded, where, and with which settings. */
bool model_record_equal(const struct model_record *a, const struct model_record *b);
void model_record_deinit(struct model_record *record); /* of one that owns its texts; accepts a zeroed one */
