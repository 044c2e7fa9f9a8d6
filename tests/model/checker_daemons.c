/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemons that the checker tests: their devices and settings, start, stop, and the loss of a GPU. Each has a disk
 * cache for the sources, which is too small for all of them and outlives the daemon.
 */
#include "tests/model/checker_model.h"
#include "tests/lib/gpu_fixture.h"

#include <dirent.h>
#include <fcntl.h>

#define RING "16MiB"
#define DISK_CACHE "16MiB"

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

static char *disk_path(const struct checker *c)
{
        return format_text("%s/disk", c->root);
}

/* Files that the checker's own user loads are stored, and read from their copies. */
static char *disk_settings(const struct checker *c)
{
        cleanup_free char *path = disk_path(c);
        return format_text("disk_cache: {path: %s, budget: " DISK_CACHE ", min_free: 1MiB, also: [%s]}\n", path,
                           c->root);
}

static void start_with_config(struct checker *c, const char *config)
{
        daemon_start(&c->daemon, (const char *const[]){"--config", config, "--root", c->root, "--memory-limit", RING,
                                                       "--concurrency", "4", NULL});
}

static void start_on_host(struct checker *c)
{
        cleanup_free char *disk = disk_settings(c), *config = format_text("%s/host.yaml", c->root);
        cleanup_free char *text =
                format_text("devices: [{device: host, budget: %" PRIu64 "}]\n%s", c->devices[0].budget, disk);
        file_write(config, text, strlen(text));
        start_with_config(c, config);
}

/* Each GPU has more memory than its budget, so other users of the GPU do not limit the daemon. */
static void start_on_gpus(struct checker *c)
{
        cleanup_free char *disk = disk_settings(c), *more = format_text("host_cache: 8MiB\n%s", disk);
        const struct gpu_daemon two = {.n = 2,
                                       .mib = 256,
                                       .more = more,
                                       .devices = {"'cuda:0', budget: 16MiB",
                                                   "'cuda:1', budget: 10MiB, handles: cuda-vmm-fd",
                                                   "host, budget: 12MiB"}};
        free(c->report);
        c->report = format_text("%s/report", c->root);
        setenv("FAKECUDA_REPORT", c->report, 1);
        cleanup_free char *config = gpu_prepare(&two, c->root, "gpus");
        start_with_config(c, config);
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

/* ---- the disk cache ---- */

/* False: it was evicted meanwhile, or is still being written and has no byte yet. */
static bool damage_file(struct checker *c, const char *path)
{
        unsigned char byte;
        struct stat st = {0};
        int fd = open(path, O_RDWR);
        bool has_bytes = fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0;
        off_t at = has_bytes ? (off_t)random_below(c, (uint64_t)st.st_size) : 0;
        bool damaged = has_bytes && pread(fd, &byte, 1, at) == 1;
        if (damaged) {
                byte ^= 1;
                must(pwrite(fd, &byte, 1, at));
                trail_add(c, "damage of a copy at offset %ju", (uintmax_t)at);
        }
        if (fd >= 0)
                close(fd);
        return damaged;
}

void step_damage(struct checker *c)
{
        cleanup_free char *disk = disk_path(c), *objects = format_text("%s/objects", disk);
        unsigned n = 0, chosen = (unsigned)random_below(c, 8);
        DIR *dir = opendir(objects);
        for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
                if (e->d_name[0] == '.' || n++ != chosen)
                        continue;
                cleanup_free char *path = format_text("%s/%s/data", objects, e->d_name);
                c->counts->damages += damage_file(c, path);
        }
        if (dir != NULL)
                closedir(dir);
}

/* ---- stop ---- */

void stop_daemon(struct checker *c)
{
        pid_t pid = c->daemon.pid;
        c->counts->disk_hits += (uint64_t)client_metric(c->client, "streamerd_disk_cache_hits_total");
        c->counts->disk_damaged += (uint64_t)client_metric(c->client, "streamerd_disk_cache_damaged_total");
        users_stop(c);
        streamer_close(c->subscriber);
        json_decref(c->events);
        c->events = NULL;
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
