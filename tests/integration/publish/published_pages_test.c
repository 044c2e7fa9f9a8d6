/* SPDX-License-Identifier: Apache-2.0
 *
 * A publisher may write to its memory after the commit, also on a machine with a pool of huge pages: a copy of such a
 * page could end its process. Where huge pages of the pool are configured, the memory is read-only for it.
 */
#include "tests/integration/published_fixture.h"

#include "tests/lib/kernel_counters.h"

static struct daemon d;
static streamer_publish_opts opts;

static void start(const char *pages)
{
        char *text = format_text("devices:\n  - {device: host, budget: 32MiB, pages: %s}\nroots: [%s]\n", pages,
                                 suite_folder());
        daemon_init(&d, suite_path("d"));
        daemon_start(&d, (const char *const[]){"--config", suite_file("pages.yaml", text), NULL});
        free(text);
        client = client_open(&d);
        opts = options("tiny");
}

static void stop(void)
{
        client_wait_leases(client, 0);
        streamer_close(client);
        ck_assert_int_eq(daemon_stop(&d), 0);
}

static const char *page_kind(void)
{
        json_t *list = client_call(client, "list", NULL);
        const json_t *device =
                json_array_get(json_object_get(json_array_get(json_object_get(list, "models"), 0), "devices"), 0);
        static char kind[32];
        snprintf(kind, sizeof(kind), "%s", json_text(device, "page_kind"));
        json_decref(list);
        return kind;
}

static bool in_pool(const char *kind)
{
        return strcmp(kind, "hugetlb") == 0;
}

FIXTURE(.first = machine_settings_lock);

TEST(a_publisher_writes_after_the_commit_beside_a_pool)
{
        streamer_tensor storage = STREAMER_TENSOR_INIT;
        if (!hugepages_allow(64 << 20))
                SKIP("vm.nr_overcommit_hugepages cannot be set");
        start("auto");
        streamer_lease *lease = publish_model(client, &opts, 1), *other;
        streamer_attach_opts attach = {.struct_size = sizeof(attach), .flags = STREAMER_ATTACH_PRIVATE};
        ck_assert_msg(!in_pool(page_kind()), "the memory is of the pool");
        ck_assert_int_eq(streamer_lease_writable(lease), 1);
        ok(client, streamer_published_storage(lease, 0, &storage));
        memset((void *)(uintptr_t)storage.data, 0xff, storage.bytes);
        ok(client, streamer_attach(client, "tiny", &attach, &other));
        ck_assert_int_eq(streamer_lease_writable(other), 1);
        check_model(client, other, 1);
        streamer_detach(other);
        streamer_detach(lease);
        stop();
}

TEST(huge_pages_by_name_are_read_only_for_the_publisher)
{
        if (!hugepages_allow(64 << 20))
                SKIP("vm.nr_overcommit_hugepages cannot be set");
        start("hugetlb");
        streamer_lease *lease = publish_model(client, &opts, 1);
        ck_assert(in_pool(page_kind()));
        ck_assert_int_eq(streamer_lease_writable(lease), 0);
        check_model(client, lease, 1);
        json_decref(client_call(client, "verify", "{\"model\":\"tiny\"}"));
        streamer_detach(lease);
        stop();
}
