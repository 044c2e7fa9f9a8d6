/* SPDX-License-Identifier: Apache-2.0
 *
 * Look-ups in the table of outcomes. A word or number that the table does not hold reads as
 * "failed", so that an older library meets a newer daemon without inventing a meaning.
 */
#include "proto/codes.h"

#include <string.h>

struct row {
        const char *wire;
        int code;
        int exit;
        const char *text;
};

static const struct row rows[] = {
#define X(wire, code, exit, text) {wire, code, exit, text},
        CODES(X)
#undef X
};

#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

static const struct row *row_of(int code)
{
        for (size_t i = 0; i < N_ROWS; i++)
                if (rows[i].code == code)
                        return &rows[i];
        return &rows[0];
}

const char *code_wire(int code)
{
        return row_of(code)->wire;
}

int code_from_wire(const char *wire, size_t len)
{
        for (size_t i = 0; i < N_ROWS; i++)
                if (strlen(rows[i].wire) == len && memcmp(rows[i].wire, wire, len) == 0)
                        return rows[i].code;
        return STREAMER_EFAILED;
}

int code_exit(int code)
{
        return code == STREAMER_OK ? 0 : row_of(code)->exit;
}

const char *code_text(int code)
{
        return code == STREAMER_OK ? "ok" : row_of(code)->text;
}
