/* SPDX-License-Identifier: Apache-2.0
 *
 * A snapshot, before a matching checksum: a byte with the number of leases, these, and the map. An accepted one is
 * written again as it was read.
 */
#include "daemon/resident/persist/snapshot.h"
#include "tests/fuzz/fuzz.h"

static void check_records(const struct snapshot *s)
{
        for (size_t i = 0; i < s->n; i++) {
                const struct model_record *m = &s->models[i];
                holds(m->name != NULL && m->source != NULL);
                holds(m->n_devices > 0 && m->n_devices <= MODEL_RECORD_DEVICES);
                holds(m->settings.priority <= PROTO_PRIORITY_MAX && m->caller.n_groups <= CALLER_GROUPS);
        }
        for (size_t i = 0; i < s->n_names; i++)
                holds(s->names[i].text != NULL && s->names[i].text[0] != '\0' &&
                      strlen(s->names[i].text) <= PROTO_NAME_MAX &&
                      s->names[i].settings.priority <= PROTO_PRIORITY_MAX);
}

static msgpack_sbuffer pack(const struct snapshot *s)
{
        msgpack_sbuffer models, names, out;
        msgpack_sbuffer_init(&models);
        msgpack_sbuffer_init(&names);
        msgpack_sbuffer_init(&out);
        holds(snapshot_pack(s, SNAPSHOT_MODELS, &models) == 0 && snapshot_pack(s, SNAPSHOT_NAMES, &names) == 0);
        holds(snapshot_begin(&out, s->counters) == 0);
        for (size_t i = 0; i < s->n_leases; i++)
                holds(snapshot_add_lease(&out, &s->leases[i]) == 0);
        holds(snapshot_end(&out, &models, &names) == 0);
        msgpack_sbuffer_destroy(&models);
        msgpack_sbuffer_destroy(&names);
        return out;
}

static void repack(const struct snapshot *s)
{
        struct snapshot again;
        struct error error = {0};
        msgpack_sbuffer first = pack(s);
        holds(snapshot_unpack(&again, first.data, first.size, &error) == 0);
        holds(again.n == s->n && again.n_names == s->n_names && again.n_leases == s->n_leases &&
              again.last_number == s->last_number);
        msgpack_sbuffer second = pack(&again);
        holds(first.size == second.size && memcmp(first.data, second.data, first.size) == 0);
        msgpack_sbuffer_destroy(&first);
        msgpack_sbuffer_destroy(&second);
        snapshot_deinit(&again);
}

static void check(const void *data, size_t size)
{
        struct snapshot snapshot;
        struct error error = {0};
        if (snapshot_unpack(&snapshot, data, size, &error) == 0) {
                check_records(&snapshot);
                repack(&snapshot);
                snapshot_deinit(&snapshot);
        } else {
                holds(error.code == STREAMER_ECORRUPT && error.text[0] != '\0');
                holds(snapshot.models == NULL && snapshot.names == NULL && snapshot.leases == NULL);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static const uint64_t counters[SNAPSHOT_COUNTERS];
        static char nothing[1];
        const msgpack_sbuffer none = {.data = nothing};
        if (size == 0)
                return 0;
        size_t leases = data[0] * sizeof(struct lease_record);
        if (leases > size - 1)
                leases = size - 1; /* the last one is cut */
        const msgpack_sbuffer map = {.data = (char *)(uintptr_t)data + 1 + leases, .size = size - 1 - leases};
        msgpack_sbuffer bytes;
        msgpack_sbuffer_init(&bytes);
        holds(snapshot_begin(&bytes, counters) == 0);
        holds(leases == 0 || msgpack_sbuffer_write(&bytes, (const char *)data + 1, leases) == 0);
        holds(map.size == 0 || snapshot_end(&bytes, &map, &none) == 0);
        check(bytes.data, bytes.size);
        msgpack_sbuffer_destroy(&bytes);
        check(data, size); /* and unchanged */
        return 0;
}
