/* SPDX-License-Identifier: Apache-2.0
 *
 * A snapshot of the earlier form is read: its models and names become rows.
 */
#include "daemon/resident/persist/snapshot.h"
#include "daemon/resident/persist/snapshot_v1.h"
#include "tests/lib/suite.h"

static struct error error;

static void write_settings(struct writer *w, bool pinned)
{
        writer_ku64(w, "keep_alive_ns", 30);
        writer_ku64(w, "drain_timeout_ns", 5);
        writer_ku64(w, "priority", 7);
        writer_key(w, "pinned");
        writer_bool(w, pinned);
        writer_ku64(w, "owner", 1002);
}

static void write_device(struct writer *w, const char *uuid, bool pinned)
{
        writer_map(w, 2);
        writer_kstr(w, "uuid", uuid);
        writer_key(w, "pinned");
        writer_bool(w, pinned);
}

static void write_model(struct writer *w, bool ranks)
{
        writer_map(w, 15);
        writer_kstr(w, "name", "m");
        writer_kstr(w, "source", "/models/x");
        writer_ku64(w, "generation", 41);
        writer_key(w, "verified");
        writer_bool(w, true);
        writer_ku64(w, "uid", 1000);
        writer_ku64(w, "gid", 1001);
        writer_key(w, "groups");
        writer_array(w, 1);
        writer_u64(w, 8);
        writer_kstr(w, "pattern", ranks ? "rank-{rank}" : "");
        write_settings(w, true);
        writer_key(w, "ranks");
        writer_bool(w, ranks);
        writer_key(w, "devices");
        writer_array(w, 2);
        write_device(w, "uuid-0", false);
        write_device(w, "uuid-1", true);
}

static void write_name(struct writer *w, const char *name)
{
        writer_map(w, 8);
        writer_ku64(w, "model", 3);
        writer_kstr(w, "name", name);
        write_settings(w, true);
        writer_ku64(w, "charged", 9);
}

static struct snapshot read_v1(bool ranks)
{
        static const uint64_t counters[SNAPSHOT_COUNTERS] = {11, 12, 13, 14};
        static const struct lease_record lease = {.id = 5, .model = 3};
        struct snapshot snapshot;
        struct writer w;
        msgpack_sbuffer file;
        writer_init(&w);
        writer_map(&w, 3);
        writer_key(&w, "models");
        writer_array(&w, 1);
        write_model(&w, ranks);
        writer_ku64(&w, "last_generation", 42);
        writer_key(&w, "names");
        writer_array(&w, 2);
        write_name(&w, "m");
        write_name(&w, "alias");
        msgpack_sbuffer_init(&file);
        ck_assert_int_eq(snapshot_begin(&file, counters), 0);
        ck_assert_int_eq(snapshot_add_lease(&file, &lease), 0);
        const struct record_foot foot = record_foot(file.data, file.size, w.buf.data, w.buf.size, SNAPSHOT_V1_MAGIC);
        ck_assert_int_eq(msgpack_sbuffer_write(&file, w.buf.data, w.buf.size), 0);
        ck_assert_int_eq(msgpack_sbuffer_write(&file, (const char *)&foot, sizeof(foot)), 0);
        ck_assert_msg(snapshot_unpack(&snapshot, file.data, file.size, &error) == 0, "%s", error.text);
        ck_assert_uint_eq(snapshot.counters[SNAPSHOT_WRITES], 11);
        ck_assert_uint_eq(snapshot.last_number, 42);
        ck_assert_uint_eq(snapshot.n_leases, 1);
        ck_assert_uint_eq(snapshot.n_rows, 4);
        return snapshot;
}

TEST(a_model_of_the_earlier_form_is_loadable_on_each_of_its_devices)
{
        const struct snapshot snapshot = read_v1(false);
        for (unsigned i = 0; i < 2; i++) {
                const struct name_row *row = &snapshot.rows[i];
                ck_assert_str_eq(row->name, "m");
                ck_assert_str_eq(row->source, "/models/x");
                ck_assert_str_eq(row->device, i ? "uuid-1" : "uuid-0");
                ck_assert(row->loadable && row->verified && row->settings.pinned == (i == 1));
                ck_assert(row->number == 41 && row->owner == 1002 && row->n_models == 0 && row->n_ranks == 0);
                ck_assert(row->caller.uid == 1000 && row->caller.gid == 1001 && row->caller.groups[0] == 8);
                ck_assert(row->settings.priority == 7 && row->settings.keep_alive_ns == 30);
        }
}

TEST(ranks_of_the_earlier_form_are_numbered)
{
        const struct snapshot snapshot = read_v1(true);
        for (uint32_t i = 0; i < 2; i++)
                ck_assert(snapshot.rows[i].rank == i && snapshot.rows[i].n_ranks == 2);
        ck_assert_str_eq(snapshot.rows[1].pattern, "rank-{rank}");
}

TEST(a_name_of_the_earlier_form_leads_to_its_model)
{
        const struct snapshot snapshot = read_v1(false);
        ck_assert_str_eq(snapshot.rows[2].name, "m");
        ck_assert_str_eq(snapshot.rows[3].name, "alias");
        for (unsigned i = 2; i < 4; i++) {
                const struct name_row *row = &snapshot.rows[i];
                ck_assert(row->n_models == 1 && row->models[0] == 3 && row->charged == 9 && row->owner == 1002);
                ck_assert(row->settings.pinned && row->settings.drain_timeout_ns == 5);
                ck_assert(!row->loadable && row->source == NULL && row->device == NULL);
        }
}
