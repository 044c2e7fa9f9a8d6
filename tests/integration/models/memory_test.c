/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory and storage: every kind of page, the smallest ring, the page cache after a cold load, and leaks over many
 * loads.
 */
#include "daemon/device/host/host_private.h"
#include "tests/lib/deny_syscalls.h"
#include "tests/lib/doctor_checks.h"
#include "tests/lib/fixture.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/suite.h"

/* ---- kinds of pages ---- */

static const char *page_kind_of(const char *name)
{
        return json_text(client_show(client, name), "devices.0.page_kind");
}

static bool have_hugetlb;

BEFORE_ALL()
{
        have_hugetlb = hugepages_allow(512 * MIB);
}

static bool thp_is_off(void)
{
        struct collapse_kernel kernel;
        collapse_probe(&kernel, &collapse_calls);
        return !kernel.supported && shmem_thp_is_off();
}

static const char *const kinds[] = {"4k", "thp", "hugetlb"};

TEST(segments_of_each_kind_of_pages, EACH(kinds))
{
        const char *pages = kinds[_i];
        if (strcmp(pages, "thp") == 0 && thp_is_off())
                SKIP("transparent huge pages are off for shared memory (shmem_enabled)");
        if (strcmp(pages, "hugetlb") == 0 && !have_hugetlb)
                SKIP("vm.nr_overcommit_hugepages cannot be set");
        struct model *m = model_mixed(1, 20 << 20), *odd = model_mixed(2, 20 << 20);
        char *config = suite_file("kind.yaml",
                                  format_text("devices:\n  - {device: host, budget: 128MiB, pages: %s}\n", pages));
        fixture_begin((const char *const[]){"--config", config, NULL});
        client = client_open(&test_daemon);
        model_place_data(odd, 8, 5);
        client_load(client, fixture_write(m, "even.safetensors"), "even");
        client_load(client, fixture_write(odd, "odd.safetensors"), "odd");
        client_equals(client, "even", m);
        client_equals(client, "odd", odd);
        ck_assert_str_eq(page_kind_of("even"), pages);
        ck_assert_str_eq(page_kind_of("odd"), pages);
        ck_assert_int_eq(client_call_code(client, "verify", "{\"model\":\"odd\"}"), 0);
        streamer_close(client);
        fixture_end();
}

/* As on a host whose memory is fragmented. */
TEST(pages_that_are_small_for_want_of_huge_ones_are_reported)
{
        daemon_before = deny_collapse;
        fixture_begin((const char *const[]){"--config",
                                            suite_file("small.yaml", "devices:\n  - {device: host, budget: "
                                                                     "128MiB, pages: thp}\n"),
                                            NULL});
        client = client_open(&test_daemon);
        client_load(client, fixture_write(model_mixed(3, 20 << 20), "small.safetensors"), "small");
        const json_t *witness = client_show(client, "witness"), *small = client_show(client, "small");
        uint64_t bytes = json_number(small, "devices.0.small_page_bytes");
        ck_assert_uint_ge(bytes, 20 << 20);
        ck_assert_double_eq(client_metric(client, "streamerd_device_small_page_bytes{device=\"host\"}"),
                            (double)(bytes + json_number(witness, "devices.0.small_page_bytes")));
        streamer_close(client);
        fixture_end();
}

/* ---- a control group's limit of huge pages, as a container has it ---- */

#define NO_LIMIT_HERE "huge pages of a control group cannot be limited here"

/* The limit of huge pages, the loaded model, and the pages that it gets. */
static const struct {
        uint64_t limit;
        bool shown; /* the group's files are in their place */
        uint64_t model;
        const char *pages, *ring;
} limits[] = {
        {0, true, 4 * MIB, "4k", "thp"},
        {0, false, 4 * MIB, "4k", "thp"},
        {16 * MIB, true, 24 * MIB, "4k", "thp"},
        {16 * MIB, true, 4 * MIB, "hugetlb", "thp"},
        {64 * MIB, false, 4 * MIB, "hugetlb", "thp"},
};

static const char *ring_pages(void)
{
        return json_text(client_call(client, "status", NULL), "ring.page_kind");
}

#define BEGIN_LIMITED(limit, shown)                                                                                    \
        do {                                                                                                           \
                if (!have_hugetlb)                                                                                     \
                        SKIP("vm.nr_overcommit_hugepages cannot be set");                                              \
                if (!hugepages_limit((limit), (shown) ? NULL : suite_path("groups-%d", (int)getpid())))                \
                        SKIP(NO_LIMIT_HERE);                                                                           \
                fixture_begin((const char *const[]){"--device", "host=256MiB", "--memory-limit", "1MiB",               \
                                                    "--block-size", "1MiB", NULL});                                    \
                client = client_open(&test_daemon);                                                                    \
        } while (0)

static void end_limited(void)
{
        streamer_close(client);
        fixture_end();
        limit_end();
}

TEST(a_small_limit_of_huge_pages_falls_back_to_smaller_pages, EACH(limits))
{
        struct model *m = model_mixed(6, limits[_i].model);
        BEGIN_LIMITED(limits[_i].limit, limits[_i].shown);
        client_load(client, fixture_write(m, "m.safetensors"), "m");
        client_equals(client, "m", m);
        const char *got = page_kind_of("m");
        if (strcmp(limits[_i].pages, "4k") != 0 || strcmp(got, "thp") != 0) /* as shmem_enabled has it */
                ck_assert_str_eq(got, limits[_i].pages);
        if (strcmp(limits[_i].ring, "thp") != 0 || strcmp(ring_pages(), "4k") != 0)
                ck_assert_str_eq(ring_pages(), limits[_i].ring);
        end_limited();
}

/* Several models share the limit, also before they have touched their pages. */
TEST(the_limit_of_huge_pages_is_for_all_models)
{
        BEGIN_LIMITED(24 * MIB, true);
        for (int i = 0; i < 3; i++) {
                struct model *m = model_mixed((unsigned)i, 10 * MIB);
                char *file = format_text("%d.safetensors", i), *name = format_text("m%d", i);
                client_load(client, fixture_write(m, file), name);
                client_equals(client, name, m);
        }
        unsigned huge = 0;
        for (int i = 0; i < 3; i++)
                huge += strcmp(page_kind_of(format_text("m%d", i)), "hugetlb") == 0;
        ck_assert_uint_eq(huge, 1); /* each takes 12 MiB, and so does the witness a page */
        end_limited();
}

TEST(doctor_reports_the_limit_of_huge_pages)
{
        BEGIN_LIMITED(0, true);
        doctor_ask();
        const char *pages = json_text(client_call(client, "status", NULL), "devices.0.page_kind");
        doctor_found(strcmp(pages, "4k") == 0 ? "warn" : "ok", "pages", "cgroup limit 0 B");
        end_limited();
}

TEST(an_unreported_memory_limit_fails_the_load_and_not_the_daemon)
{
        struct model *m = model_mixed(8, 32 * MIB);
        BEGIN_LIMITED(16 * MIB, false);
        client_load_fails(client, fixture_write(m, "m.safetensors"), "m", STREAMER_ENOMEM,
                          "a limit of the control group is reached");
        end_limited();
}

/* ---- the ring ---- */

TEST(a_ring_of_one_slot_suffices)
{
        struct model *m = model_mixed(3, 20 << 20), *odd = model_mixed(4, 20 << 20);
        fixture_begin((const char *const[]){"--device", "host=128MiB", "--block-size", "1MiB", "--memory-limit", "1MiB",
                                            NULL});
        client = client_open(&test_daemon);
        ck_assert_uint_le(json_number(client_call(client, "status", NULL), "ring.bytes"), 2 * MIB);
        model_place_data(odd, 8, 1);
        /* Both at once: they must share the slot, and neither may starve. */
        streamer_op *a = client_load_begin(client, fixture_write(odd, "odd.safetensors"), "odd");
        streamer_op *b = client_load_begin(client, fixture_write(m, "even.safetensors"), "even");
        client_ok(client, client_load_end(a), "odd");
        client_ok(client, client_load_end(b), "even");
        client_equals(client, "odd", odd);
        client_equals(client, "even", m);
        streamer_close(client);
        fixture_end();
}

/* ---- storage ---- */

/* Bytes that a load reads from an uncached file, and bytes that are cached afterwards. */
static void load_cold(const char *path, uint64_t *read, uint64_t *cached)
{
        file_uncache(path);
        uint64_t kept = file_cached_bytes(path), before = process_read_bytes(test_daemon.pid);

        client_load(client, path, "cold");
        *read = process_read_bytes(test_daemon.pid) - before;
        uint64_t after = file_cached_bytes(path);
        *cached = after > kept ? after - kept : 0;
        client_unload(client, "cold");
}

FIXTURE(.all = {fixture_begin_default, fixture_end}, .each = {fixture_connect, fixture_disconnect},
        .first = machine_settings_lock);

/* The kernel charges the daemon for its own program pages if they were dropped; then the test measures once more. */
TEST(a_cold_load_reads_each_byte_once_and_caches_none, .to = 2)
{
        struct model *m = model_mixed(6, 64 * MIB);
        uint64_t read = UINT64_MAX, cached = 0;
        model_place_data(m, 8, (uint64_t)_i);
        const char *path = fixture_write(m, "cold.safetensors");
        for (int i = 0; i < 3 && (read > m->bytes / 100 * 101 || read < m->bytes / 2); i++)
                load_cold(path, &read, &cached);
        if (read < m->bytes / 2)
                SKIP("this file system does not count bytes read");
        ck_assert_uint_le(read, m->bytes / 100 * 101);
        ck_assert_uint_le(cached, m->bytes / 100);
}

/* The kernel may take pages out of the cache at any time, the daemon's own among them: then once more. */
TEST(a_warm_load_reads_nothing_from_storage)
{
        struct model *m = model_mixed(7, 32 * MIB);
        const char *path = fixture_write(m, "warm.safetensors");
        uint64_t read = UINT64_MAX;
        for (int i = 0; i < 3 && read > MIB; i++) {
                file_cache(path);
                uint64_t before = process_read_bytes(test_daemon.pid);
                client_load(client, path, "warm");
                read = process_read_bytes(test_daemon.pid) - before;
                client_equals(client, "warm", m);
                client_unload(client, "warm");
        }
        ck_assert_uint_le(read, MIB);
}

/* ---- leaks ---- */

/* The loop, two readers for each block in flight (16), the device's thread, and workers, which are
 * started when work finds none idle, up to 16, and stay. */
#define THREADS_MOST (1 + 2 * 16 + 1 + 16)

/* Thread pools grow at random times, each thread with a stack and a heap, but only once. A leak grows in every stretch.
 */
TEST(loads_leak_no_memory_descriptor_or_thread, .slow = true)
{
        struct model *m = model_mixed(10, 4 * MIB);
        const char *path = fixture_write(m, "again.safetensors");
        uint64_t used = client_used(client), memory, least_growth = UINT64_MAX;
        unsigned fds = 0;
        for (int stretch = 0; stretch < 6 && least_growth > MIB / 2; stretch++) {
                memory = fixture_memory();
                for (int i = 0; i < 20; i++) {
                        client_load(client, path, "again");
                        streamer_detach(client_attach(client, "again"));
                        client_unload(client, "again");
                        client_load_fails(client, fixture_path("missing.safetensors"), "missing", STREAMER_ENOENT,
                                          NULL);
                        client_wait_used(client, used);
                }
                uint64_t after = fixture_memory(), growth = after > memory ? after - memory : 0;
                if (growth < least_growth)
                        least_growth = growth;
                if (stretch == 0)
                        fds = process_fds(test_daemon.pid);
        }
        ck_assert_uint_le(least_growth, MIB / 2);
        ck_assert(process_wait_fds(test_daemon.pid, fds)); /* workers close files after the reply */
        ck_assert_uint_le(process_threads(test_daemon.pid), THREADS_MOST);
}

TEST(the_daemons_own_memory_does_not_grow_with_the_model, .slow = true)
{
        struct model *small = model_mixed(11, 4 * MIB), *large = model_mixed(12, 160 * MIB);
        client_load(client, fixture_write(small, "small.safetensors"), "small");
        uint64_t before = fixture_memory();
        client_load(client, fixture_write(large, "large.safetensors"), "large");
        ck_assert_uint_le(fixture_memory(), before + 4 * MIB);
        client_unload(client, "small");
        client_unload(client, "large");
        unlink(fixture_path("large.safetensors"));
}
