/* SPDX-License-Identifier: Apache-2.0
 *
 * What a change costs to persist: it is written alone, however many models, names and leases there are, and what was
 * written is compacted meanwhile.
 */
#include "tests/lib/kernel_counters.h"
#include "tests/lib/managed_daemon.h"
#include "tests/lib/snapshots.h"
#include "tests/lib/suite.h"

#define CHANGES 64
#define NAMES 300
#define LEASES 1000

FIXTURE(.each = {managed_begin, managed_end});

static void pin(const char *name, bool pinned)
{
        json_decref(client_call(client, pinned ? "pin" : "unpin", format_text("{\"model\":\"%s\"}", name)));
}

/* With the share of what is compacted: bytes that a change of "m" makes the daemon write: a pin and its end, an attach
 * and a detach. */
static uint64_t written_for_pins(void)
{
        uint64_t before = process_written_bytes(managed.m.d.pid);
        for (int i = 0; i < CHANGES; i++) {
                pin("m", true);
                pin("m", false);
        }
        return (process_written_bytes(managed.m.d.pid) - before) / CHANGES;
}

static uint64_t written_for_leases(void)
{
        uint64_t before = process_written_bytes(managed.m.d.pid);
        for (int i = 0; i < CHANGES; i++)
                streamer_detach(client_attach(client, "m"));
        client_wait_leases(client, 0);
        return (process_written_bytes(managed.m.d.pid) - before) / CHANGES;
}

static void add_names(unsigned n)
{
        model_write(model_mixed(71, 1 << 20), suite_path("root/other.safetensors"));
        for (unsigned i = 0; i < n; i++)
                client_load(client, suite_path("root/other.safetensors"), format_text("name-%u", i));
        manager_wait(&managed.m, MANAGED_MODELS, 4);
}

TEST(a_change_is_written_alone_beside_many_names)
{
        managed_load("m");
        uint64_t pins = written_for_pins(), leases = written_for_leases();
        add_names(NAMES);
        ck_assert_uint_le(pins, 4096);
        /* The rows of all names have 100 KiB, of which each change writes a part: they are compacted meanwhile. */
        ck_assert_uint_le(written_for_pins(), 4 * pins + 4096);
        ck_assert_uint_le(written_for_leases(), 4 * leases + 4096);
}

TEST(a_change_is_written_alone_beside_many_leases)
{
        static streamer_lease *held[LEASES];
        managed_load("m");
        add_names(1);
        uint64_t pins = written_for_pins();
        for (int i = 0; i < LEASES; i++)
                held[i] = client_attach(client, "name-0");
        ck_assert_uint_le(written_for_pins(), 4 * pins + 1024);
        for (int i = 0; i < LEASES; i++)
                streamer_detach(held[i]);
}

/* How much was written when the newest of the two wholes was. */
static uint64_t newest_whole(void)
{
        uint64_t newest = 0;
        for (unsigned i = 0; i < 2; i++) {
                uint64_t head[2] = {0}; /* its size, and the first of its counters */
                int fd = manager_find(&managed.m, MANAGED_SNAPSHOT, 0)->fd;
                ck_assert_int_eq(pread(fd, head, sizeof(head), (off_t)(i * SNAPSHOT_MAX)), sizeof(head));
                newest = head[1] > newest ? head[1] : newest;
        }
        return newest;
}

/* They outgrow what was written first. */
TEST(many_changes_are_compacted_and_survive_a_crash)
{
        managed_load("m");
        streamer_lease *lease = managed_attach();
        uint64_t first = newest_whole();
        for (int i = 0; i < 1000; i++) {
                pin("m", i % 2 == 0);
                if (i % 100 == 0)
                        client_load(client, managed_file(), format_text("name-%d", i));
        }
        AWAIT(newest_whole() > first);
        managed_restart(1);
        client_ok(client, streamer_lease_check(lease), "check");
        client_equals(client, "m", managed.model);
        for (int i = 0; i < 1000; i += 100)
                client_equals(client, format_text("name-%d", i), managed.model);
        const json_t *model = client_show(client, "m");
        ck_assert(!json_is_true(json_object_get(model, "pinned")));
        streamer_detach(lease);
}
