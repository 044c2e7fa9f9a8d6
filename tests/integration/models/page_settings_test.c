/* SPDX-License-Identifier: Apache-2.0
 *
 * What another process maps is what was read, under every setting of the kernel's huge pages: each kind of page, from
 * disk, the page cache and a web server, published, prefaulted, and restored. `make check-servers` sets all values, as
 * root, and restores them; elsewhere the machine's own are tested.
 */
#include "tests/integration/published_fixture.h"

#include "tests/lib/kernel_counters.h"
#include "tests/lib/nginx.h"
#include "tests/lib/service_manager.h"

#define BYTES (7 * MIB + 12345) /* huge pages, and a part of one */
#define POOL (64 * MIB)

static const char *const shared_values[] = {"never", "advise", "within_size", "always", "deny", "force"};
static const char *const private_values[] = {"always", "madvise", "never"};
static const char *const kinds[] = {"auto", "thp", "4k"};

static struct nginx web;
static struct manager manager;
static struct model *model;

static void begin(void)
{
        must(mkdir(suite_path("www"), 0755));
        nginx_start(&web, suite_path("nginx"), suite_path("www"));
        model = model_mixed(5, BYTES);
        model_write(model, suite_path("www/m.safetensors"));
        /* A file of its own: pages that the web server sends from the page cache cannot be dropped. */
        model_write(model, suite_path("www/network.safetensors"));
}

static void end(void)
{
        nginx_stop(&web);
}

/* False: the kernel does not have it, and the daemon says so. */
static bool start(const char *kind, const char *more)
{
        char *config = suite_file("pages.yaml", format_text("devices: [{device: host, budget: 128MiB, pages: %s%s}]\n"
                                                            "roots: [%s]\n",
                                                            kind, more, suite_path("www")));
        if (strcmp(kind, "thp") == 0 && shmem_thp_is_denied())
                return false;
        manager_init(&manager, suite_path("d"), 64, (const char *const[]){"--config", config, NULL});
        manager_start(&manager);
        client = client_open(&manager.d);
        return true;
}

static void stop(void)
{
        streamer_close(client);
        manager_deinit(&manager);
}

static void load_and_compare(const char *source, const char *name)
{
        client_load(client, source, name);
        client_equals(client, name, model);
}

/* By an attach of its own: the publisher's mapping is not another process's. */
static void publish_and_compare(void)
{
        streamer_lease *other;
        opts = options("tiny");
        streamer_lease *lease = publish_model(client, &opts, 1);
        streamer_client *second = client_open(&manager.d);
        ok(second, streamer_attach(second, "tiny", NULL, &other));
        check_model(second, other, 1);
        streamer_detach(other);
        streamer_close(second);
        streamer_detach(lease);
}

static void compare_all_origins(const char *kind, const char *more)
{
        char *path = suite_path("www/m.safetensors");
        if (!start(kind, more))
                return;
        file_uncache(path);
        load_and_compare(path, "disk");
        client_unload(client, "disk");
        free(file_read(path, NULL));
        load_and_compare(path, "cached");
        load_and_compare(format_text("http://127.0.0.1:%u/network.safetensors", web.http), "network");
        publish_and_compare();
        manager_wait(&manager, "sd-m", 6); /* a segment and a commit record each */
        manager_stop(&manager);
        manager_start(&manager);
        streamer_close(client);
        client = client_open(&manager.d);
        client_equals(client, "cached", model);
        client_equals(client, "network", model);
        json_decref(client_call(client, "verify", "{\"model\":\"tiny\"}"));
        stop();
}

FIXTURE(.all = {begin, end}, .first = machine_settings_lock, .unavailable = nginx_unavailable);

TEST(clients_map_what_was_read_under_every_setting, EACH(shared_values))
{
        bool set = huge_pages_choose(shared_values[_i], NULL);
        if (!set && _i > 0)
                SKIP("the settings of huge pages cannot be changed");
        for (size_t i = 0; i < sizeof(private_values) / sizeof(private_values[0]) && (set || i == 0); i++) {
                if (set)
                        huge_pages_choose(NULL, private_values[i]);
                for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
                        compare_all_origins(kinds[k], "");
        }
        compare_all_origins("auto", ", prefaulted: 16MiB");
        compare_all_origins("4k", ", prefaulted: 16MiB");
}

TEST(clients_map_what_was_read_beside_a_pool, EACH(shared_values))
{
        if (!huge_pages_choose(shared_values[_i], NULL))
                SKIP("the settings of huge pages cannot be changed");
        if (!hugepages_allow(POOL))
                SKIP("vm.nr_overcommit_hugepages cannot be set");
        compare_all_origins("auto", "");
        compare_all_origins("hugetlb", "");
        compare_all_origins("hugetlb", ", prefaulted: 16MiB");
}
