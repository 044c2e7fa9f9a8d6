/* SPDX-License-Identifier: Apache-2.0
 *
 * A publisher may write to its memory after the commit, also on a machine with a pool of huge pages: a copy of such a
 * page could end its process. Where huge pages of the pool are configured, the memory is read-only for it.
 */
#include "client/python.h"
#include "tests/integration/published_fixture.h"

#include "tests/lib/kernel_counters.h"

static void begin(const char *device)
{
        daemon_begin(device, "");
        connect_client();
}

static void end(void)
{
        disconnect_client();
        daemon_end();
}

static bool in_pool(void)
{
        return strcmp(json_text(client_show(client, "tiny"), "devices.0.page_kind"), "hugetlb") == 0;
}

FIXTURE(.first = machine_settings_lock);

TEST(a_publisher_writes_after_the_commit_beside_a_pool)
{
        streamer_tensor storage = STREAMER_TENSOR_INIT;
        if (!hugepages_allow(64 << 20))
                SKIP("vm.nr_overcommit_hugepages cannot be set");
        begin("device: host, budget: 32MiB, pages: auto");
        streamer_lease *lease = publish_model(client, &opts, 1), *other;
        streamer_attach_opts attach = {.struct_size = sizeof(attach), .flags = STREAMER_ATTACH_PRIVATE};
        ck_assert(!in_pool());
        ck_assert_int_eq(streamer_lease_writable(lease), 1);
        ok(client, streamer_published_storage(lease, 0, &storage));
        memset((void *)(uintptr_t)storage.data, 0xff, storage.bytes);
        ok(client, streamer_attach(client, "tiny", &attach, &other));
        ck_assert_int_eq(streamer_lease_writable(other), 1);
        check_model(client, other, 1);
        streamer_detach(other);
        streamer_detach(lease);
        end();
}

TEST(huge_pages_by_name_are_read_only_for_the_publisher)
{
        if (!hugepages_allow(64 << 20))
                SKIP("vm.nr_overcommit_hugepages cannot be set");
        begin("device: host, budget: 32MiB, pages: hugetlb");
        streamer_lease *lease;
        streamer_publication *p = filled(client, &opts);
        fails(client, STREAMER_EUNSUPPORTED, "publish: ", streamer_python_protect(p));
        ok(client, streamer_publish_commit(p, &lease));
        ck_assert(in_pool());
        ck_assert_int_eq(streamer_lease_writable(lease), 0);
        check_model(client, lease, 1);
        json_decref(client_call(client, "verify", "{\"model\":\"tiny\"}"));
        streamer_detach(lease);
        end();
}
