/* SPDX-License-Identifier: Apache-2.0
 *
 * The frame splitter, fed in pieces; the first byte of the input is their size. The bodies with their headers must
 * equal the input up to the point of refusal.
 */
#include "proto/frame.h"
#include "tests/fuzz/fuzz.h"

struct feed {
        struct frame_reader reader;
        const uint8_t *input;
        size_t checked; /* of the input, as whole frames */
};

/* False when a length was refused. */
static bool take_frames(struct feed *f)
{
        const void *body;
        size_t len;
        int rc;
        while ((rc = frame_reader_next(&f->reader, &body, &len)) == 1) {
                unsigned char header[FRAME_HEADER];
                frame_put_header(header, len);
                holds(len > 0 && len <= FRAME_MAX);
                holds(memcmp(f->input + f->checked, header, FRAME_HEADER) == 0);
                holds(memcmp(f->input + f->checked + FRAME_HEADER, body, len) == 0);
                f->checked += FRAME_HEADER + len;
        }
        return rc == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        if (size == 0)
                return 0;
        size_t piece = data[0] + 1u, fed = 0;
        struct feed f = {.input = data + 1};
        frame_reader_init(&f.reader);
        bool good = true;
        while (good && fed < size - 1) {
                size_t room, n = size - 1 - fed < piece ? size - 1 - fed : piece;
                void *space = frame_reader_space(&f.reader, &room);
                holds(space && room > 0); /* every complete frame was read */
                n = n < room ? n : room;
                memcpy(space, f.input + fed, n);
                frame_reader_added(&f.reader, n);
                fed += n;
                good = take_frames(&f);
        }
        holds(!good || frame_reader_partial(&f.reader) == (f.checked < fed));
        /* Memory follows what arrived, not what a header claims. */
        holds(f.reader.cap <= 4096 || f.reader.cap <= 2 * fed);
        frame_reader_deinit(&f.reader);
        return 0;
}
