/* SPDX-License-Identifier: Apache-2.0
 *
 * streamerctl top: what is asked of the daemon (a sample), and how it is laid out (a frame). A frame
 * is lines of text, so that a terminal and a test see the same.
 */
#pragma once

#include "client/streamerctl/ctl.h"

enum top_sort { TOP_BY_NAME, TOP_BY_SIZE, TOP_BY_LEASES, TOP_SORTS };

struct top_sample {
        json_t *status, *models, *leases;
        uint64_t at_ns;
};

struct top {
        struct ctl *ctl;
        struct top_sample now, before; /* before: what rates are reckoned from; may be empty */
        enum top_sort sort;
        size_t scroll; /* models above the first that is shown */
};

#define FRAME_LINES 200
#define FRAME_COLUMNS 400

struct top_line {
        bool title;
        char text[FRAME_COLUMNS * 4]; /* printable, at most `width` characters */
};

struct top_frame {
        int width, height;
        int n;
        struct top_line line[FRAME_LINES];
};

/* Lays the sample out within width x height, at most FRAME_COLUMNS x FRAME_LINES. */
void top_compose(struct top *top, struct top_frame *frame, int width, int height);
