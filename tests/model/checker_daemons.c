/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemons that the checker tests: their devices and settings, start, stop, and the loss of a GPU.
 */
#include "tests/model/checker_model.h"
#include "tests/lib/gpu_fixture.h"

#define RING "16MiB"

static const struct {
        const char *name;
        struct checker_device devices[DEVICES];
        unsigned n_devices;
        uint64_t cache_budget;
} kinds[CHECKER_KINDS] = {
        [CHECKER_HOST] = {"host", {{"host", 16 * MIB, -1, false}}, 1, 0},
        [CHECKER_GPUS] = {"gpus",
                          {{"cuda:0", 16 * MIB, 0, false},
                           {"cuda:1", 10 * MIB, 1, false},
                           {"host", 12 * MIB, -1, false}},
                          3,
                          8 * MIB},
};

const char *checker_kind_name(enum checker_kind kind)
{
        return kinds[kind].name;
}

/* ---- start ---- */

static void start_on_host(struct checker *c)
{
        char *device = format_text("host=%" PRIu64, c->devices[0].budget);
        daemon_start(&c->daemon, (const char *const[]){"--device", device, "--root", c->root, "--memory-limit", RING,
                                                       "--concurrency", "4", NULL});
        free(device);
}

/* Each GPU has more memory than its budget, so other users of the GPU do not limit the daemon. */
static void start_on_gpus(struct checker *c)
{
        static const struct gpu_daemon two = {.n = 2,
                                              .mib = 256,
                                              .more = "host_cache: 8MiB\n",
                                              .devices = {"'cuda:0', budget: 16MiB",
                                                          "'cuda:1', budget: 10MiB, handles: cuda-vmm-fd",
                                                          "host, budget: 12MiB"}};
        c->report = format_text("%s/report", c->root);
        setenv("FAKECUDA_REPORT", c->report, 1);
        char *config = gpu_prepare(&two, c->root, "gpus");
        daemon_start(&c->daemon, (const char *const[]){"--config", config, "--root", c->root, "--memory-limit", RING,
                                                       "--concurrency", "4", NULL});
        free(config);
}

void start_daemon(struct checker *c, enum checker_kind kind, const char *folder)
{
        snprintf(c->root, sizeof(c->root), "%s", folder);
        memcpy(c->devices, kinds[kind].devices, sizeof(c->devices));
        c->n_devices = kinds[kind].n_devices;
        c->cache_budget = kinds[kind].cache_budget;
        daemon_init(&c->daemon, folder);
        if (kind == CHECKER_GPUS)
                start_on_gpus(c);
        else
                start_on_host(c);
}

/* ---- stop ---- */

void stop_daemon(struct checker *c)
{
        pid_t pid = c->daemon.pid;
        if (daemon_stop(&c->daemon) != 0)
                daemon_die(&c->daemon, "exited with an error");
        if (c->report != NULL && !daemon_gave_up(&c->daemon))
                gpu_check_freed(c->report, pid);
}

/* ---- loss of a GPU ---- */

static bool in_service(struct checker *c, unsigned device)
{
        json_auto_t *doctor = call_json(c, "doctor", NULL);
        return json_is_true(json_at(device_in(c, doctor, device), "in_service"));
}

/* The contexts of the client processes still work, so the models on the GPU can still be compared. */
void lose_device(struct checker *c)
{
        unsigned device = (unsigned)random_below(c, c->n_devices);
        struct checker_device *d = &c->devices[device];
        if (d->gpu < 0)
                return;
        gpus->broken[d->gpu] = 700;
        int r = call_error(c, ADMIN, "probe", json_pack("{s:s}", "device", d->name));
        gpus->broken[d->gpu] = 0;
        if (r == 0)
                checker_fail(c, "probe %s: succeeded on a failing GPU", d->name);
        d->lost = true;
        c->counts->lost++;
        for (unsigned i = 0; i < c->n_devices; i++)
                if (in_service(c, i) == c->devices[i].lost)
                        checker_fail(c, "%s: is %sin service after %s was lost", c->devices[i].name,
                                     c->devices[i].lost ? "" : "not ", d->name);
        compare(c, false);
}
