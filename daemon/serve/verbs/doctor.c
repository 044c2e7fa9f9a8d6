/* SPDX-License-Identifier: Apache-2.0
 *
 * doctor: the daemon's limits and capabilities, which streamerctl compares with its own; or how files below one of the
 * roots can be read.
 *
 * A worker collects the facts. A root is examined in the lane of its file system, so that one that hangs delays only
 * its own reply.
 */
#include "daemon/serve/verbs/verbs_private.h"

#include "daemon/base/sys/machine.h"
#include "daemon/device/cuda/cuda.h"
#include "daemon/serve/reply/reply.h"
#include "daemon/serve/verb_task.h"
#include "daemon/source/local/mounts.h"
#include "daemon/source/roots/roots.h"

#include <string.h>

struct doctor {
        struct verb_task task;
        struct machine machine;
        struct cuda_facts cuda;
        struct root_facts root;
        struct disk_space disk;
        struct disk_rates rates;
        struct mount disk_mount;
};

#define MACHINE_LIMIT(key, limit) kif((limit) != MACHINE_UNLIMITED, ku64(key, limit))

static void write_machine(struct writer *w, const void *data)
{
        const struct machine *m = data;
        writer_map_of(
                w, kstr("kernel", m->kernel), ku64("pid_namespace", m->pid_namespace),
                ku64("net_namespace", m->net_namespace), kstr("shmem_enabled", m->shmem_enabled),
                kbool("openat2", m->openat2), kbool("pidfd", m->pidfd), kbool("peerpidfd", m->peerpidfd),
                kbool("cachestat", m->cachestat), MACHINE_LIMIT("memlock", m->memlock),
                MACHINE_LIMIT("files", m->files), ku64("memory", m->memory),
                MACHINE_LIMIT("cgroup_memory", m->cgroup_memory),
                MACHINE_LIMIT("cgroup_huge_pages", m->cgroup_huge_pages), ku64("huge_page", machine_pages.huge),
                kif(m->hugepages >= 0, ku64("hugepages", (uint64_t)m->hugepages)),
                kif(m->hugepages_overcommit >= 0, ku64("hugepages_overcommit", (uint64_t)m->hugepages_overcommit)));
}

static void write_cuda(struct writer *w, const void *data)
{
        const struct cuda_facts *cuda = data;
        char runtime[32], driver[32];
        snprintf(runtime, sizeof(runtime), "%d.%d", cuda->runtime / 1000, cuda->runtime % 1000 / 10);
        snprintf(driver, sizeof(driver), "%d.%d", cuda->driver / 1000, cuda->driver % 1000 / 10);
        if (cuda->on)
                writer_map_of(w, kbool("on", true), kstr("library", cuda->library), kstr("runtime", runtime),
                              kstr("driver", driver), ku64("gpus", (uint64_t)cuda->gpus));
        else
                writer_map_of(w, kbool("on", false), kstr("why", cuda->error.text));
}

static void write_page_kind(struct writer *w, const void *data, size_t i)
{
        const struct device *device = data;
        for (enum page_kind pages = 0; pages < PAGES_NONE; pages++)
                if (!device_trusts(device, pages) && i-- == 0)
                        writer_str(w, page_kind_name(pages));
}

static size_t count_distrusted(const struct device *device)
{
        size_t n = 0;
        for (enum page_kind pages = 0; pages < PAGES_NONE; pages++)
                n += !device_trusts(device, pages);
        return n;
}

static void write_device(struct writer *w, const void *data, size_t i)
{
        const struct resident *resident = data;
        const struct device *d = resident->devices[i];
        const struct device_facts *facts = &d->facts;
        writer_map_of(
                w, REPLY_DEVICE(d), kstr("kind", d->ops->kind), kstr("handles", d->handles),
                kbool("in_service", device_in_service(d)), kstr("gpu", facts->model), kstr("mig", facts->mig),
                kstr("pci", facts->pci), kbool("integrated", facts->integrated), kbool("vmm", facts->vmm),
                kif(d->numa_node >= 0, ku64("numa_node", (uint64_t)d->numa_node)),
                kif(count_distrusted(d) > 0, karray("distrusted_pages", write_page_kind, d, count_distrusted(d))));
}

static void doctor_reply(struct verb_task *task, struct session *session)
{
        const struct doctor *doctor = container_of(task, struct doctor, task);
        const struct request *request = &task->deferred.request;
        const struct server *server = task->server;
        const struct source_roots *all = server->loads->sources->roots;
        const struct state_file *state = &server->persist.file;
        bool failed = state->failure.code != 0;
        const struct disk_cache *disk = server->loads->sources->disk;
        cleanup_with(items_deinit) struct items roots;
        items_init(&roots);
        if (request->u.doctor.root != NULL) {
                char file[4 * sizeof(doctor->root.file)];
                error_escape(file, sizeof(file), doctor->root.file);
                session_reply(session, request->id, kstr("root", request->u.doctor.root), kstr("file", file),
                              ku64("direct_align", doctor->root.direct_align),
                              kbool("cachestat", doctor->root.cachestat), kbool("changed", doctor->root.changed),
                              kstr("file_system", doctor->root.file_system));
                return;
        }
        for (; source_root(all, roots.n) != NULL; roots.n++)
                writer_str(&roots.w, source_root(all, roots.n));
        session_reply(session, request->id, kstr("version", STREAMERD_VERSION), ku64("pid", (uint64_t)getpid()),
                      ku64("uid", geteuid()), ku64("socket_gid", server->listener.gid),
                      ku64("connections", server->limits->connections), kbool("across_uids", server->share_across_uids),
                      kcall("machine", write_machine, &doctor->machine), kcall("cuda", write_cuda, &doctor->cuda),
                      kcall("ring", reply_ring, server),
                      kif(state->folder != NULL, kmap("state", kstr("folder", state->folder),
                                                      kif(failed, kstr("error", state->failure.text)))),
                      kif(disk != NULL && doctor->disk.total > 0,
                          kmap("disk_cache", kstr("path", disk->folder.path), ku64("budget", doctor->disk.budget),
                               ku64("used", doctor->disk.used), ku64("free", doctor->disk.free),
                               ku64("min_free", doctor->disk.min_free), kstr("file_system", doctor->disk_mount.type),
                               kif(doctor->rates.disk > 0, ku64("disk_bytes_per_s", doctor->rates.disk)),
                               kif(doctor->rates.store > 0, ku64("store_bytes_per_s", doctor->rates.store)))),
                      kitems("roots", &roots),
                      karray("devices", write_device, server->resident, server->resident->n_devices));
}

static void doctor_start(struct verb_task *task)
{
        const char *root = task->deferred.request.u.doctor.root;
        if (root != NULL)
                verb_task_submit_source(task, root);
        else
                verb_task_submit(task, WORK_LANE_INSPECT);
}

static void doctor_run(struct verb_task *task)
{
        struct doctor *doctor = container_of(task, struct doctor, task);
        const struct server *server = task->server;
        const char *root = task->deferred.request.u.doctor.root;
        if (root != NULL) {
                source_inspect_root(task->roots, root, &doctor->root, &task->error);
                return;
        }
        struct disk_cache *disk = server->loads->sources->disk;
        if (disk != NULL) {
                disk_cache_space(disk, &doctor->disk);
                doctor->rates = disk_cache_rates(disk);
                doctor->disk_mount = mounts_find(disk->folder.path);
        }
        machine_read(&doctor->machine);
        cuda_facts_read(server->cuda, server->cuda_library, &doctor->cuda);
}

static const struct verb_task_ops doctor_ops = {.start = doctor_start, .run = doctor_run, .reply = doctor_reply};

int verb_doctor(struct session *session, struct request *request, struct error *error)
{
        const char *root = request->u.doctor.root;
        const char *known = root;
        struct source_roots *roots = session->server->loads->sources->roots;
        for (size_t i = 0; root != NULL && (known = source_root(roots, i)) != NULL; i++)
                if (strcmp(known, root) == 0)
                        break;
        if (root != NULL && known == NULL)
                return error_set(error, STREAMER_ENOENT, "doctor: not one of the roots (%s)", root);
        struct doctor *doctor = verb_task_new(sizeof(*doctor), &doctor_ops, session, request, error);
        if (doctor == NULL)
                return error->code;
        doctor->task.roots = source_roots_ref(roots);
        return verb_task_begin(&doctor->task, 0, QUOTA_DOCTOR, error);
}
