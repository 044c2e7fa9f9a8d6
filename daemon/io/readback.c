/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/readback.h"

#include "daemon/io/reader/engine.h"

static void put_slots(struct readback *readback)
{
        for (size_t i = 0; i < 2; i++)
                if (readback->to[i] != NULL)
                        reader_slot_put(readback->reader, readback->to[i]);
        readback->to[0] = readback->to[1] = NULL;
}

int readback_init(struct readback *readback, struct reader *reader, struct device *device, struct error *error)
{
        *readback = (struct readback){.reader = reader};
        bool copies = device->ops->fetch != NULL;
        for (size_t i = 0; copies && reader != NULL && i < 2; i++) {
                readback->to[i] = reader_slot_get(reader);
                copies = readback->to[i] != NULL; /* it does not wait for slots that loads hold */
        }
        if (copies) {
                readback->copier = device->ops->copier_new(device, error);
                return readback->copier != NULL ? 0 : error->code;
        }
        put_slots(readback);
        if (device->ops->view_open != NULL)
                return 0;
        readback->to[0] = malloc(READBACK_PIECE);
        return readback->to[0] != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory to read back");
}

static void close_view(struct readback *readback)
{
        if (readback->viewed != NULL)
                readback->viewed->device->ops->view_close(readback->viewed, readback->view);
        readback->viewed = NULL;
}

static int open_view(struct readback *readback, const struct segment *segment, struct error *error)
{
        if (readback->viewed == segment)
                return 0;
        close_view(readback);
        int r = segment->device->ops->view_open(segment, &readback->view, error);
        if (r == 0)
                readback->viewed = segment;
        return r;
}

void readback_deinit(struct readback *readback)
{
        close_view(readback);
        struct copier *copier = readback->copier;
        if (readback->event != NULL)
                copier->ops->copied(copier, readback->event, true, NULL);
        if (copier != NULL)
                copier->ops->copier_free(copier);
        if (readback->to[1] != NULL)
                put_slots(readback);
        else
                free(readback->to[0]);
        *readback = (struct readback){0};
}

/* Finds the next piece, and starts its copy if it needs one. */
static int request_next(struct readback *readback, struct error *error)
{
        struct readback_run *run = &readback->run, *piece = &readback->piece;
        piece->bytes = 0;
        while (readback->requested == run->bytes) {
                *run = (struct readback_run){.bytes = 0};
                readback->requested = 0;
                if (!readback->runs(readback->context, run))
                        return 0;
        }
        uint64_t left = run->bytes - readback->requested;
        *piece = (struct readback_run){.segment = run->segment,
                                       .offset = run->offset + readback->requested,
                                       .bytes = left < READBACK_PIECE ? left : READBACK_PIECE,
                                       .to = run->to != NULL ? run->to + readback->requested : NULL};
        readback->requested += piece->bytes;
        if (readback->copier == NULL)
                return 0;
        if (piece->to == NULL) {
                piece->to = readback->to[readback->turn];
                readback->turn ^= 1;
        }
        return readback->copier->ops->fetch(readback->copier, piece->segment, piece->offset, piece->to, piece->bytes,
                                            &readback->event, error);
}

int readback_begin(struct readback *readback, readback_runs_fn *runs, void *context, struct error *error)
{
        readback->runs = runs;
        readback->context = context;
        readback->requested = readback->run.bytes = 0;
        return request_next(readback, error);
}

int readback_take(struct readback *readback, const unsigned char **data, uint64_t *len, struct error *error)
{
        struct readback_run piece = readback->piece;
        const struct segment *segment = piece.segment;
        void *event = readback->event;
        int r = 0;
        require(piece.bytes > 0);
        readback->event = NULL;
        if (event != NULL) {
                r = readback->copier->ops->copied(readback->copier, event, true, error);
        } else if (segment->device->ops->view_open == NULL) {
                piece.to = piece.to != NULL ? piece.to : readback->to[0];
                r = segment->device->ops->read(segment, piece.offset, piece.to, piece.bytes, error);
        } else {
                r = open_view(readback, segment, error);
        }
        if (r < 0)
                return r;
        const unsigned char *viewed = readback->viewed == segment ? readback->view + piece.offset : NULL;
        if (viewed != NULL && piece.to != NULL)
                memcpy(piece.to, viewed, piece.bytes);
        *data = piece.to != NULL ? piece.to : viewed;
        *len = piece.bytes;
        return request_next(readback, error);
}
