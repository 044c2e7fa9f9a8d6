/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/load/readback.h"

static void give_slots(struct readback *readback)
{
        for (size_t i = 0; i < 2; i++)
                if (readback->to[i] != NULL)
                        reader_slot_put(readback->reader, readback->to[i]);
        readback->to[0] = readback->to[1] = NULL;
}

/* Both, or it does without: it waits for no load. */
static bool take_slots(struct readback *readback)
{
        for (size_t i = 0; i < 2; i++)
                readback->to[i] = reader_slot_get(readback->reader);
        if (readback->to[0] != NULL && readback->to[1] != NULL)
                return true;
        give_slots(readback);
        return false;
}

int readback_init(struct readback *readback, struct reader *reader, struct device *device, struct error *error)
{
        *readback = (struct readback){.reader = reader};
        if (device->ops->fetch != NULL && take_slots(readback)) {
                readback->copier = device->ops->copier_new(device, error);
                return readback->copier != NULL ? 0 : error->code;
        }
        readback->to[0] = malloc(READBACK_PIECE);
        return readback->to[0] != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory to read back");
}

void readback_deinit(struct readback *readback)
{
        struct copier *copier = readback->copier;
        if (readback->event != NULL)
                copier->ops->copied(copier, readback->event, true, NULL);
        if (copier != NULL)
                copier->ops->copier_free(copier);
        if (readback->to[1] != NULL)
                give_slots(readback);
        else
                free(readback->to[0]);
        *readback = (struct readback){0};
}

int readback_ask(struct readback *readback, struct segment *segment, uint64_t offset, uint64_t len, struct error *error)
{
        require(readback->next.len == 0 && len > 0 && len <= READBACK_PIECE);
        readback->next = (struct device_span){.segment = segment, .offset = offset, .len = len};
        if (readback->copier == NULL || segment->base != NULL)
                return 0;
        unsigned char *to = readback->to[readback->turn];
        readback->turn ^= 1;
        readback->next.from = to;
        return readback->copier->ops->fetch(readback->copier, segment, offset, to, len, &readback->event, error);
}

int readback_take(struct readback *readback, const unsigned char **data, struct error *error)
{
        const struct device_span next = readback->next;
        const struct device_ops *ops = next.segment->device->ops;
        void *event = readback->event;
        readback->next.len = 0;
        readback->event = NULL;
        *data = next.segment->base != NULL ? next.segment->base + next.offset : next.from;
        if (event != NULL)
                return ops->copied(readback->copier, event, true, error) < 0 ? error->code : 0;
        if (*data != NULL)
                return 0;
        *data = readback->to[0];
        return ops->read(next.segment, next.offset, readback->to[0], next.len, error);
}
