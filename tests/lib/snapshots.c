/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/snapshots.h"

#include "tests/lib/suite.h"

static char *copy(const char *text)
{
        return text != NULL ? strdup(text) : NULL;
}

struct name_row *snapshot_add(struct snapshot *snapshot, const struct name_row *row)
{
        struct name_row *added = name_row_append(&snapshot->rows, &snapshot->n_rows);
        ck_assert_ptr_nonnull(added);
        *added = *row;
        added->name = copy(row->name);
        added->device = copy(row->device);
        added->source = copy(row->source);
        added->pattern = copy(row->pattern);
        return added;
}

struct name_row *snapshot_find(const struct snapshot *snapshot, const char *name)
{
        for (size_t i = 0; i < snapshot->n_rows; i++)
                if (strcmp(snapshot->rows[i].name, name) == 0)
                        return &snapshot->rows[i];
        return NULL;
}

msgpack_sbuffer snapshot_bytes(const struct snapshot *snapshot)
{
        msgpack_sbuffer out;
        msgpack_sbuffer_init(&out);
        ck_assert_int_eq(snapshot_pack(&out, snapshot), 0);
        return out;
}

void snapshot_write_file(const struct snapshot *snapshot, const char *folder)
{
        struct error error;
        struct snapshot_extent extent;
        msgpack_sbuffer bytes = snapshot_bytes(snapshot);
        ck_assert_int_eq(snapshot_save(folder, bytes.data, bytes.size, &extent, &error), 0);
}
