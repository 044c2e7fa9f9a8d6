/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/snapshots.h"

#include "tests/lib/suite.h"

msgpack_sbuffer snapshot_bytes(const struct snapshot *snapshot)
{
        msgpack_sbuffer models, names, out;
        msgpack_sbuffer_init(&models);
        msgpack_sbuffer_init(&names);
        msgpack_sbuffer_init(&out);
        ck_assert_int_eq(snapshot_pack(snapshot, SNAPSHOT_MODELS, &models), 0);
        ck_assert_int_eq(snapshot_pack(snapshot, SNAPSHOT_NAMES, &names), 0);
        ck_assert_int_eq(snapshot_begin(&out, snapshot->counters), 0);
        for (size_t i = 0; i < snapshot->n_leases; i++)
                ck_assert_int_eq(snapshot_add_lease(&out, &snapshot->leases[i]), 0);
        ck_assert_int_eq(snapshot_end(&out, &models, &names), 0);
        return out;
}

void snapshot_write_file(const struct snapshot *snapshot, const char *folder)
{
        struct error error;
        msgpack_sbuffer bytes = snapshot_bytes(snapshot);
        ck_assert_int_eq(snapshot_save(folder, bytes.data, bytes.size, &error), 0);
}
