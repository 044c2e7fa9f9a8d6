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
#include "daemon/source/roots/roots.h"

#include <string.h>

struct doctor {
        struct verb_task task;
        struct machine machine;
        struct cuda_facts cuda;
        struct root_facts root;
        struct device_facts devices[]; /* of server->resident */
};

/* ---- the reply ---- */

static void write_limit(struct writer *w, const char *key, uint64_t limit)
{
        if (limit != MACHINE_UNLIMITED)
                writer_ku64(w, key, limit);
}

static void write_machine(struct writer *w, const struct machine *m)
{
        size_t known = (size_t)(m->memlock != MACHINE_UNLIMITED) + (m->files != MACHINE_UNLIMITED) +
                       (m->cgroup_memory != MACHINE_UNLIMITED) + (m->cgroup_huge_pages != MACHINE_UNLIMITED) +
                       (m->hugepages >= 0) + (m->hugepages_overcommit >= 0);
        writer_kmap(w, "machine", 8 + known);
        writer_kstr(w, "kernel", m->kernel);
        writer_ku64(w, "pid_namespace", m->pid_namespace);
        writer_ku64(w, "net_namespace", m->net_namespace);
        writer_kstr(w, "shmem_enabled", m->shmem_enabled);
        writer_kbool(w, "openat2", m->openat2);
        writer_kbool(w, "pidfd", m->pidfd);
        writer_kbool(w, "peerpidfd", m->peerpidfd);
        writer_kbool(w, "cachestat", m->cachestat);
        write_limit(w, "memlock", m->memlock);
        write_limit(w, "files", m->files);
        write_limit(w, "cgroup_memory", m->cgroup_memory);
        write_limit(w, "cgroup_huge_pages", m->cgroup_huge_pages);
        if (m->hugepages >= 0)
                writer_ku64(w, "hugepages", (uint64_t)m->hugepages);
        if (m->hugepages_overcommit >= 0)
                writer_ku64(w, "hugepages_overcommit", (uint64_t)m->hugepages_overcommit);
}

static void write_version(struct writer *w, const char *key, int version)
{
        char text[32];
        snprintf(text, sizeof(text), "%d.%d", version / 1000, version % 1000 / 10);
        writer_kstr(w, key, text);
}

static void write_cuda(struct writer *w, const struct cuda_facts *cuda)
{
        writer_kmap(w, "cuda", cuda->on ? 5 : 2);
        writer_kbool(w, "on", cuda->on);
        if (!cuda->on) {
                writer_kstr(w, "why", cuda->why);
                return;
        }
        writer_kstr(w, "library", cuda->library);
        write_version(w, "runtime", cuda->runtime);
        write_version(w, "driver", cuda->driver);
        writer_ku64(w, "gpus", (uint64_t)cuda->gpus);
}

static void write_device(struct writer *w, const struct device *d, const struct device_facts *facts)
{
        writer_map(w, d->numa_node >= 0 ? 14 : 13);
        writer_kstr(w, "device", d->name);
        writer_kstr(w, "kind", d->ops->kind);
        writer_kstr(w, "uuid", d->uuid);
        writer_ku64(w, "budget", d->budget);
        writer_ku64(w, "used", d->used);
        writer_kstr(w, "page_kind", page_kind_name(d->pages));
        writer_kstr(w, "handles", facts->handles);
        writer_kbool(w, "in_service", facts->in_service);
        writer_kstr(w, "gpu", facts->model);
        writer_kstr(w, "mig", facts->mig);
        writer_kstr(w, "pci", facts->pci);
        writer_kbool(w, "integrated", facts->integrated);
        writer_kbool(w, "vmm", facts->vmm);
        if (d->numa_node >= 0)
                writer_ku64(w, "numa_node", (uint64_t)d->numa_node);
}

static void write_facts(struct writer *w, const struct doctor *doctor)
{
        const struct server *server = doctor->task.server;
        const struct resident *resident = server->resident;
        const struct source_roots *roots = server->loads->sources->roots;
        size_t n_roots = 0;
        while (source_root(roots, n_roots) != NULL)
                n_roots++;
        const struct state_writer *state = &server->state_writer;
        bool has_state = state->folder != NULL, failed = state->failure.code != 0;
        writer_reply(w, verb_task_request(&doctor->task)->id, 11u + has_state);
        writer_kstr(w, "version", STREAMERD_VERSION);
        writer_ku64(w, "pid", (uint64_t)getpid());
        writer_ku64(w, "uid", geteuid());
        writer_ku64(w, "socket_gid", server->listener.gid);
        writer_ku64(w, "connections", server->limits->connections);
        writer_kbool(w, "across_uids", server->share_across_uids);
        write_machine(w, &doctor->machine);
        write_cuda(w, &doctor->cuda);
        reply_ring(w, server->reader);
        if (has_state) {
                writer_kmap(w, "state", 1u + failed);
                writer_kstr(w, "folder", state->folder);
        }
        if (has_state && failed)
                writer_kstr(w, "error", state->failure.text);
        writer_karray(w, "roots", n_roots);
        for (size_t i = 0; i < n_roots; i++)
                writer_str(w, source_root(roots, i));
        writer_karray(w, "devices", resident->n_devices);
        for (size_t i = 0; i < resident->n_devices; i++)
                write_device(w, resident->devices[i], &doctor->devices[i]);
}

static void write_root(struct writer *w, const struct doctor *doctor)
{
        const struct request *request = verb_task_request(&doctor->task);
        char file[4 * sizeof(doctor->root.file)];
        error_escape(file, sizeof(file), doctor->root.file);
        writer_reply(w, request->id, 4);
        writer_kstr(w, "root", request->u.doctor.root);
        writer_kstr(w, "file", file);
        writer_ku64(w, "direct_align", doctor->root.direct_align);
        writer_kbool(w, "cachestat", doctor->root.cachestat);
}

static void doctor_reply(struct verb_task *task, struct session *session)
{
        struct writer w;
        conn_writer(&w);
        if (verb_task_request(task)->u.doctor.root != NULL)
                write_root(&w, container_of(task, struct doctor, task));
        else
                write_facts(&w, container_of(task, struct doctor, task));
        session_send(session, &w);
}

/* ---- facts ---- */

static void doctor_start(struct verb_task *task)
{
        const char *root = verb_task_request(task)->u.doctor.root;
        if (root != NULL)
                verb_task_submit_source(task, root);
        else
                verb_task_submit(task, WORK_LANE_INSPECT);
}

static void doctor_run(struct verb_task *task)
{
        struct doctor *doctor = container_of(task, struct doctor, task);
        const struct server *server = task->server;
        const struct resident *resident = server->resident;
        const char *root = verb_task_request(task)->u.doctor.root;
        if (root != NULL) {
                root_facts_read(server->loads->sources->roots, root, &doctor->root, &task->error);
                return;
        }
        machine_read(&doctor->machine);
        cuda_facts_read(server->cuda, server->cuda_library, &doctor->cuda);
        for (size_t i = 0; i < resident->n_devices; i++)
                resident->devices[i]->ops->describe(resident->devices[i], &doctor->devices[i]);
}

static const struct verb_task_ops doctor_ops = {.start = doctor_start, .run = doctor_run, .reply = doctor_reply};

/* ---- the verb ---- */

static bool is_root(const struct source_roots *roots, const char *path)
{
        const char *root;
        for (size_t i = 0; (root = source_root(roots, i)) != NULL; i++)
                if (strcmp(root, path) == 0)
                        return true;
        return false;
}

int verb_doctor(struct session *session, struct request *request, struct error *error)
{
        const char *root = request->u.doctor.root;
        struct server *server = session->server;
        if (root != NULL && !is_root(server->loads->sources->roots, root))
                return error_set(error, STREAMER_ENOENT, "doctor: not one of the roots (%s)", root);
        size_t devices = server->resident->n_devices * sizeof(struct device_facts);
        struct doctor *doctor = verb_task_new(sizeof(*doctor) + devices, &doctor_ops, error);
        return doctor != NULL ? verb_task_begin(&doctor->task, session, request, VERB_TASK_DOCTOR, error) : error->code;
}
