/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/desired/model_record.h"

#include "daemon/base/util.h"

#include <string.h>

bool model_record_equal(const struct model_record *a, const struct model_record *b)
{
        bool equal = same_text(a->name, b->name) && same_text(a->source, b->source) &&
                     same_text(a->pattern, b->pattern) && a->verified == b->verified && a->ranks == b->ranks &&
                     settings_equal(&a->settings, &b->settings) && a->n_devices == b->n_devices;
        for (size_t i = 0; equal && i < a->n_devices; i++)
                equal = strcmp(a->devices[i].uuid, b->devices[i].uuid) == 0;
        return equal;
}

void model_record_deinit(struct model_record *record)
{
        for (size_t i = 0; i < record->n_devices; i++)
                free(record->devices[i].uuid);
        free(record->devices);
        free(record->pattern);
        free(record->source);
        free(record->name);
        *record = (struct model_record){.name = NULL};
}

/* Its index, or n_devices. */
static size_t find_device(const struct model_record *model, const char *uuid)
{
        size_t i = 0;
        while (i < model->n_devices && strcmp(model->devices[i].uuid, uuid) != 0)
                i++;
        return i;
}

int model_record_add_device(struct model_record *model, const char *uuid, bool pinned)
{
        size_t i = find_device(model, uuid);
        if (i == MODEL_RECORD_DEVICES)
                return STREAMER_ENOMEM;
        if (i == model->n_devices) {
                struct model_device *devices = array_grow(model->devices, i, sizeof(*devices));
                if (devices == NULL)
                        return STREAMER_ENOMEM;
                model->devices = devices;
                devices[i] = (struct model_device){.uuid = strdup(uuid)};
                if (devices[i].uuid == NULL)
                        return STREAMER_ENOMEM;
                model->n_devices++;
        }
        model->devices[i].pinned |= pinned;
        model->settings.pinned |= pinned;
        return 0;
}

int model_record_copy(struct model_record *to, const struct model_record *from)
{
        *to = *from;
        to->name = strdup(from->name);
        to->source = strdup(from->source);
        to->pattern = from->pattern != NULL ? strdup(from->pattern) : NULL;
        to->devices = NULL;
        to->n_devices = 0;
        bool copied = to->name != NULL && to->source != NULL && (to->pattern != NULL || from->pattern == NULL);
        for (size_t i = 0; copied && i < from->n_devices; i++)
                copied = model_record_add_device(to, from->devices[i].uuid, from->devices[i].pinned) == 0;
        if (copied)
                return 0;
        model_record_deinit(to);
        return STREAMER_ENOMEM;
}
