/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemons that the checker knows: which devices they have, how they start, what they leave.
 */
#include "tests/lib/base.h"
#include "tests/lib/checker_model.h"
#include "tests/lib/gpus.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
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

/* A GPU has more memory than its budget: what others have of it is another matter. */
static void start_on_gpus(struct checker *c)
{
        static const struct gpus gpus = {.n = 2,
                                         .mib = 256,
                                         .more = "host_cache: 8MiB\n",
                                         .devices = {"'cuda:0', budget: 16MiB",
                                                     "'cuda:1', budget: 10MiB, handles: cuda-vmm-fd",
                                                     "host, budget: 12MiB"}};
        char config[PATH_SIZE];
        c->report = format_text("%s/report", c->root);
        setenv("FAKECUDA_REPORT", c->report, 1);
        c->gpus = gpus_prepare(&gpus, c->root, "gpus", config);
        daemon_start(&c->daemon, (const char *const[]){"--config", config, "--root", c->root, "--memory-limit", RING,
                                                       "--concurrency", "4", NULL});
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

/* ---- the end ---- */

void stop_daemon(struct checker *c)
{
        char *line = format_text("pid=%d allocations=0 opened=0 handles=0 reserved=0 mapped=0 streams=0 events=0 "
                                 "registered=0 retained=0\n",
                                 (int)c->daemon.pid);
        if (daemon_stop(&c->daemon) != 0)
                daemon_die(&c->daemon, "did not end well");
        if (c->report != NULL) {
                char *text = file_read(c->report, NULL);
                if (strstr(text, line) == NULL)
                        differ(c, "it left more than '%s' on its GPUs: %s", line, text);
                free(text);
                unsetenv("FAKECUDA_REPORT");
        }
        free(line);
        free(c->report);
        c->report = NULL;
}

/* ---- a GPU that fails ---- */

static bool in_service(struct checker *c, unsigned device)
{
        json_t *doctor = ask(c, "doctor", NULL), *d;
        bool in = false;
        size_t i;
        json_array_foreach(json_object_get(doctor, "devices"), i, d)
        {
                if (strcmp(json_text(d, "device"), c->devices[device].name) == 0)
                        in = json_is_true(json_object_get(d, "in_service"));
        }
        json_decref(doctor);
        return in;
}

/* Its processes' other contexts stay: what is there can be held against the model still. */
void lose_device(struct checker *c)
{
        unsigned device = (unsigned)random_below(c, c->n_devices);
        struct checker_device *d = &c->devices[device];
        if (d->gpu < 0)
                return;
        c->gpus->broken[d->gpu] = 700;
        int r = try(c, "probe", json_pack("{s:s}", "device", d->name));
        c->gpus->broken[d->gpu] = 0;
        if (r == 0)
                differ(c, "probe %s: loaded on a GPU that fails", d->name);
        d->lost = true;
        c->counts->lost++;
        for (unsigned i = 0; i < c->n_devices; i++)
                if (in_service(c, i) == c->devices[i].lost)
                        differ(c, "%s: is %sin service after %s was lost", c->devices[i].name,
                               c->devices[i].lost ? "" : "not ", d->name);
        compare(c, false);
}
