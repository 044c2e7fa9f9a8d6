/* SPDX-License-Identifier: Apache-2.0
 *
 * A snapshot, before a matching checksum, of each form: a byte with the number of leases, these, and the map. An
 * accepted one is written again as it was read, and applied as a change.
 */
#include "daemon/resident/persist/snapshot.h"
#include "daemon/resident/persist/snapshot_v1.h"
#include "tests/fuzz/fuzz.h"

static void check_rows(const struct snapshot *s)
{
        for (size_t i = 0; i < s->n_rows; i++) {
                const struct name_row *row = &s->rows[i];
                holds(row->name != NULL && row->name[0] != '\0' && strlen(row->name) <= PROTO_NAME_MAX);
                holds(!row->loadable || (row->source != NULL && row->device != NULL));
                holds(row->n_models <= NAME_ROW_MODELS && row->n_ranks <= NAME_ROW_RANKS);
                holds(row->settings.priority <= PROTO_PRIORITY_MAX && row->caller.n_groups <= CALLER_GROUPS);
        }
}

static msgpack_sbuffer pack(const struct snapshot *s)
{
        msgpack_sbuffer out;
        msgpack_sbuffer_init(&out);
        holds(snapshot_pack(&out, s) == 0);
        return out;
}

static void repack(const struct snapshot *s)
{
        struct snapshot again;
        struct error error = {0};
        msgpack_sbuffer first = pack(s);
        holds(snapshot_unpack(&again, first.data, first.size, &error) == 0);
        holds(again.n_rows == s->n_rows && again.n_leases == s->n_leases && again.last_number == s->last_number);
        msgpack_sbuffer second = pack(&again);
        holds(first.size == second.size && memcmp(first.data, second.data, first.size) == 0);
        msgpack_sbuffer_destroy(&first);
        msgpack_sbuffer_destroy(&second);
        snapshot_deinit(&again);
}

static void append(msgpack_sbuffer *to, const void *data, uint64_t size)
{
        holds(msgpack_sbuffer_write(to, (const char *)&size, sizeof(size)) == 0);
        holds(msgpack_sbuffer_write(to, data, size) == 0);
}

/* A change behind an empty whole, and once more, which does not count; the sequence as a whole says the same. */
static void check_sequence(const void *change, size_t size)
{
        struct snapshot read, again;
        struct error error = {0};
        size_t used = 0;
        msgpack_sbuffer bytes, whole = pack(&(struct snapshot){.counters = {0}});
        msgpack_sbuffer_init(&bytes);
        append(&bytes, whole.data, whole.size);
        size_t before = bytes.size;
        append(&bytes, change, size);
        append(&bytes, change, size);
        holds(snapshot_read(&read, bytes.data, bytes.size, &used, &error) == 0);
        holds(used == before || used == before + sizeof(uint64_t) + size);
        check_rows(&read);
        msgpack_sbuffer first = pack(&read);
        holds(snapshot_unpack(&again, first.data, first.size, &error) == 0);
        msgpack_sbuffer second = pack(&again);
        holds(first.size == second.size && memcmp(first.data, second.data, first.size) == 0);
        snapshot_deinit(&read);
        snapshot_deinit(&again);
        msgpack_sbuffer_destroy(&first);
        msgpack_sbuffer_destroy(&second);
        msgpack_sbuffer_destroy(&bytes);
        msgpack_sbuffer_destroy(&whole);
}

static void check(const void *data, size_t size)
{
        struct snapshot snapshot;
        struct error error = {0};
        if (snapshot_unpack(&snapshot, data, size, &error) == 0) {
                check_rows(&snapshot);
                repack(&snapshot);
                check_sequence(data, size);
                snapshot_deinit(&snapshot);
        } else {
                holds(error.code == STREAMER_ECORRUPT && error.text[0] != '\0');
                holds(snapshot.rows == NULL && snapshot.leases == NULL);
        }
}

/* With a foot of this form. */
static void check_form(const uint8_t *data, size_t size, size_t leases, const char *magic)
{
        static const uint64_t counters[SNAPSHOT_COUNTERS] = {[SNAPSHOT_WRITES] = 1};
        const char *map = (const char *)data + leases;
        msgpack_sbuffer bytes;
        msgpack_sbuffer_init(&bytes);
        holds(snapshot_begin(&bytes, counters) == 0);
        holds(leases == 0 || msgpack_sbuffer_write(&bytes, (const char *)data, leases) == 0);
        const struct record_foot foot = record_foot(bytes.data, bytes.size, map, size - leases, magic);
        holds(size == leases || msgpack_sbuffer_write(&bytes, map, size - leases) == 0);
        holds(msgpack_sbuffer_write(&bytes, (const char *)&foot, sizeof(foot)) == 0);
        check(bytes.data, bytes.size);
        msgpack_sbuffer_destroy(&bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        if (size == 0)
                return 0;
        size_t leases = data[0] * sizeof(struct lease_record);
        if (leases > size - 1)
                leases = size - 1; /* the last one is cut */
        check_form(data + 1, size - 1, leases, SNAPSHOT_MAGIC);
        check_form(data + 1, size - 1, leases, SNAPSHOT_V2_MAGIC);
        check_form(data + 1, size - 1, leases, SNAPSHOT_V1_MAGIC);
        check(data, size); /* and unchanged */
        return 0;
}
