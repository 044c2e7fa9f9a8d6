/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon's facts, held against what it is configured to do, and against this process.
 */
#include "client/streamerctl/doctor.h"
#include "client/streamerctl/output.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#define SPARE_FILES 1024 /* for models, segments and roots, beside one for each connection */

static const json_t *machine_of(const struct doctor *d)
{
        return json_object_get(d->facts, "machine");
}

static bool has(const json_t *o, const char *key)
{
        return json_object_get(o, key) != NULL;
}

/* ---- who talks to whom ---- */

static void check_version(struct doctor *d)
{
        const char *version = json_str(d->facts, "version");
        bool same = strcmp(version, STREAMERD_VERSION) == 0;
        streamer_socket_info socket = STREAMER_SOCKET_INFO_INIT;
        streamer_socket(d->ctl->client, &socket);
        doctor_add(d, same ? FINDING_OK : FINDING_WARN, "daemon", same ? NULL : "update the older one",
                   "streamerd %s%s%s answers, pid %" PRIu64 ", uid %" PRIu64 " (%s)", version,
                   same ? "" : ", but streamerctl " STREAMERD_VERSION, same ? "" : ",", json_u64(d->facts, "pid"),
                   json_u64(d->facts, "uid"), socket.path);
}

static const char *ipc_device(const struct doctor *d)
{
        return json_string_value(json_object_get(doctor_device(d, "handles", "cuda-ipc"), "device"));
}

/* Where cuda-ipc is used, the probe shows whether it works across two. */
static const struct namespace
{
        const char *kind, *fact, *name; /* of /proc; in the daemon's facts; as people say */
        const char *advice;             /* where cuda-ipc is used */
        const char *crosses;            /* "does" or "may": how certain it is that cuda-ipc fails across two */
        bool names_processes;           /* the daemon must know a client's process, whatever the kind of handle */
}
namespaces[] = {
        {"pid", "pid_namespace", "PID",
         "share the daemon's PID namespace (hostPID, --pid=host), or set handles: cuda-vmm-fd", "does", true},
        /* Reported of libcuda, and not verified: it binds an abstract socket, which belongs to a network namespace, to
         * pass descriptors to the processes that open a legacy handle. */
        {"net", "net_namespace", "network",
         "if the probe fails, share the network namespace (hostNetwork, --network=host), or set handles: cuda-vmm-fd",
         "may", false},
};

static void check_namespace(struct doctor *d, const struct namespace *n)
{
        uint64_t theirs = json_u64(machine_of(d), n->fact), ours = self_namespace(n->kind);
        const char *ipc = ipc_device(d);
        bool needed = n->names_processes || ipc;
        if (!has(machine_of(d), n->fact))
                return; /* an older daemon */
        if (theirs == 0 || ours == 0)
                doctor_add(d, needed ? FINDING_WARN : FINDING_OK, "namespace",
                           needed ? "mount /proc in both containers" : NULL,
                           "the %s namespaces cannot be compared: /proc shows none%s", n->name,
                           n->names_processes ? " (older gVisor has none)" : "");
        else if (theirs == ours)
                doctor_add(d, FINDING_OK, "namespace", NULL, "one %s namespace (%" PRIu64 ")", n->name, ours);
        else if (ipc)
                doctor_add(d, FINDING_WARN, "namespace", n->advice,
                           "%s uses cuda-ipc, which %s not cross %s namespaces (%" PRIu64 "; the daemon's: %" PRIu64
                           ")",
                           ipc, n->crosses, n->name, ours, theirs);
        else if (n->names_processes && !json_bool(machine_of(d), "peerpidfd"))
                doctor_add(d, FINDING_FAIL, "namespace", "use Linux 6.5 or newer, or share the PID namespace",
                           "another PID namespace (%" PRIu64 ") than the daemon's (%" PRIu64
                           "); this kernel cannot identify processes there",
                           ours, theirs);
        else
                doctor_add(d, FINDING_OK, "namespace", NULL,
                           "another %s namespace (%" PRIu64 ") than the daemon's (%" PRIu64
                           "); its handles work across it",
                           n->name, ours, theirs);
}

/* Of one user on both sides there is nothing to say. */
static void check_users(struct doctor *d)
{
        uint64_t theirs = json_u64(d->facts, "uid"), ours = geteuid();
        const char *ipc = ipc_device(d);
        if (theirs != ours && ipc)
                doctor_add(d, FINDING_WARN, "users", /* the probe shows whether it does here */
                           "run this as the user that will attach; if its probe fails, set handles: cuda-vmm-fd",
                           "%s uses cuda-ipc, which may not work between the daemon's uid %" PRIu64 " and uid %" PRIu64,
                           ipc, theirs, ours);
}

static void check_kernel(struct doctor *d)
{
        const json_t *m = machine_of(d);
        const char *kernel = json_str(m, "kernel");
        bool in_others = json_bool(m, "peerpidfd");
        if (!in_others && !json_bool(m, "pidfd"))
                doctor_add(
                        d, FINDING_WARN, "kernel", "allow pidfd_open in the container's system call filter",
                        "Linux %s: no pidfd_open and no SO_PEERPIDFD: the daemon polls clients' processes a few times "
                        "a "
                        "second, clients in other PID namespaces cannot attach, and after a restart a lease holds its "
                        "model only once it is claimed",
                        kernel);
        else if (!in_others)
                doctor_add(d, FINDING_WARN, "kernel", "use Linux 6.5 or newer, which has SO_PEERPIDFD and cachestat",
                           "Linux %s: clients in other PID namespaces cannot attach", kernel);
        else
                doctor_add(d, FINDING_OK, "kernel", NULL, "Linux %s: %sSO_PEERPIDFD%s", kernel,
                           json_bool(m, "pidfd") ? "pidfd, " : "", json_bool(m, "cachestat") ? ", cachestat" : "");
}

/* Only a daemon that tells of it is asked. */
static void check_names(struct doctor *d)
{
        const json_t *m = machine_of(d);
        if (has(m, "openat2") && !json_bool(m, "openat2"))
                doctor_add(
                        d, FINDING_WARN, "kernel",
                        "allow openat2 in the container's system call filter; gVisor has it since the autumn of 2026",
                        "Linux %s: no openat2: the daemon resolves paths itself, with a few calls per directory",
                        json_str(m, "kernel"));
}

/* ---- limits ---- */

static void check_files(struct doctor *d)
{
        const json_t *m = machine_of(d);
        uint64_t limit = json_u64(m, "files"), wanted = json_u64(d->facts, "connections") + SPARE_FILES;
        char advice[128];
        snprintf(advice, sizeof(advice), "set LimitNOFILE=%" PRIu64 ", or lower limits.connections", wanted);
        if (has(m, "files") && limit < wanted)
                doctor_add(d, FINDING_WARN, "files", advice,
                           "limit of %" PRIu64 " open files, for %" PRIu64 " connections", limit,
                           json_u64(d->facts, "connections"));
        else if (has(m, "files"))
                doctor_add(d, FINDING_OK, "files", NULL, "limit of %" PRIu64 " open files", limit);
        else
                doctor_add(d, FINDING_OK, "files", NULL, "no limit of open files");
}

/* Only GPUs want the ring pinned. */
static void check_memlock(struct doctor *d)
{
        const json_t *m = machine_of(d);
        char limit[HUMAN_MAX], ring[HUMAN_MAX];
        uint64_t bytes = json_u64(json_object_get(d->facts, "ring"), "bytes");
        human_size(limit, json_u64(m, "memlock"));
        human_size(ring, bytes);
        if (!doctor_has_cuda(d))
                return;
        if (strcmp(json_str(json_object_get(d->facts, "ring"), "pinned"), "refused") == 0)
                doctor_add(d, FINDING_WARN, "memlock",
                           "set LimitMEMLOCK=infinity (ulimit -l unlimited); see the daemon's log",
                           "the staging ring (%s) could not be pinned; copies to GPUs are slower", ring);
        else if (!has(m, "memlock"))
                doctor_add(d, FINDING_OK, "memlock", NULL, "no limit of locked memory");
        else if (json_u64(m, "memlock") >= bytes || json_u64(d->facts, "uid") == 0)
                doctor_add(d, FINDING_OK, "memlock", NULL, "limit of locked memory %s, staging ring %s", limit, ring);
        else
                doctor_add(d, FINDING_WARN, "memlock", "set LimitMEMLOCK=infinity (ulimit -l unlimited)",
                           "limit of locked memory %s, but the ring that is pinned for GPUs has %s", limit, ring);
}

static void check_memory(struct doctor *d)
{
        const json_t *m = machine_of(d);
        char limit[HUMAN_MAX], wanted[HUMAN_MAX], all[HUMAN_MAX];
        uint64_t bytes = json_u64(doctor_device(d, "kind", "host"), "budget") +
                         json_u64(json_object_get(d->facts, "ring"), "bytes");
        human_size(limit, json_u64(m, "cgroup_memory"));
        human_size(all, json_u64(m, "memory"));
        human_size(wanted, bytes);
        if (has(m, "cgroup_memory") && json_u64(m, "cgroup_memory") < bytes)
                doctor_add(d, FINDING_FAIL, "memory", "raise the container's memory limit, or lower the host budget",
                           "cgroup limit %s is less than staging ring and host budget, %s", limit, wanted);
        else if (has(m, "memory") && json_u64(m, "memory") < bytes)
                doctor_add(d, FINDING_FAIL, "memory", "lower the host budget",
                           "this machine's memory of %s is less than staging ring and host budget, %s", all, wanted);
        else
                doctor_add(d, FINDING_OK, "memory", NULL, "%s %s; staging ring and host budget: %s",
                           has(m, "cgroup_memory") ? "cgroup limit" : "no cgroup limit, memory",
                           has(m, "cgroup_memory") ? limit : all, wanted);
}

static void check_state(struct doctor *d)
{
        const json_t *state = json_object_get(d->facts, "state");
        if (has(state, "error"))
                doctor_add(d, FINDING_FAIL, "state", "let the daemon's user write there, and see the disk's free space",
                           "%s: the next run will not restore what is resident", json_str(state, "error"));
        else if (state)
                doctor_add(d, FINDING_OK, "state", NULL, "%s: written", json_str(state, "folder"));
}

/* NULL: it is on a disk. */
static const char *no_disk(const char *file_system)
{
        static const struct {
                const char *begins, *why;
        } kinds[] = {{"nfs", "a network file system, gains little"},    {"cifs", "a network file system, gains little"},
                     {"smb", "a network file system, gains little"},    {"ceph", "a network file system, gains little"},
                     {"lustre", "a network file system, gains little"}, {"9p", "a network file system, gains little"},
                     {"fuse", "a program's file system, gains little"}, {"overlay", "a container's, ends with it"},
                     {"tmpfs", "memory, ends with the machine"},        {"ramfs", "memory, ends with the machine"}};
        for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
                if (strncmp(file_system, kinds[i].begins, strlen(kinds[i].begins)) == 0)
                        return kinds[i].why;
        return NULL;
}

/* The file system, and the last loads. */
static void check_disk(struct doctor *d, const json_t *disk)
{
        char read[HUMAN_MAX], sent[HUMAN_MAX];
        const char *file_system = json_str(disk, "file_system"), *path = json_str(disk, "path");
        uint64_t of_disk = json_u64(disk, "disk_bytes_per_s"), of_store = json_u64(disk, "store_bytes_per_s");
        human_rate(read, of_disk, UINT64_C(1000000000));
        human_rate(sent, of_store, UINT64_C(1000000000));
        if (no_disk(file_system) != NULL)
                doctor_add(d, FINDING_WARN, "disk-cache", "put it on a local disk", "%s: %s: %s", path, file_system,
                           no_disk(file_system));
        else if (of_disk > 0 && of_store > of_disk)
                doctor_add(d, FINDING_WARN, "disk-cache", "put it on a faster disk",
                           "%s: %s: the last load from it had %s, the last one from a store %s", path, file_system,
                           read, sent);
        else if (of_disk > 0 && of_store > 0)
                doctor_add(d, FINDING_OK, "disk-cache", NULL, "%s: %s, loads %s; stores %s", path, file_system, read,
                           sent);
        else
                doctor_add(d, FINDING_OK, "disk-cache", NULL, "%s: %s", path, file_system);
}

/* What the cache has counts as space for it. */
static void check_disk_cache(struct doctor *d)
{
        const json_t *disk = json_object_get(d->facts, "disk_cache");
        char used[HUMAN_MAX], budget[HUMAN_MAX], space[HUMAN_MAX], kept[HUMAN_MAX], has[HUMAN_MAX];
        uint64_t all = json_u64(disk, "used") + json_u64(disk, "free"), keep = json_u64(disk, "min_free");
        uint64_t usable = all > keep ? all - keep : 0;
        if (!disk)
                return;
        human_size(used, json_u64(disk, "used"));
        human_size(budget, json_u64(disk, "budget"));
        human_size(space, usable);
        human_size(kept, keep);
        human_size(has, json_u64(disk, "free"));
        if (usable == 0)
                doctor_add(d, FINDING_WARN, "disk-cache", "lower disk_cache.min_free, or free space",
                           "%s: min_free leaves it nothing: the file system is to keep %s free, and has %s",
                           json_str(disk, "path"), kept, has);
        else if (usable < json_u64(disk, "budget"))
                doctor_add(d, FINDING_WARN, "disk-cache", "lower disk_cache.budget or min_free, or free space",
                           "%s: its file system has space for %s, less than the budget of %s", json_str(disk, "path"),
                           space, budget);
        else if (json_u64(disk, "used") > json_u64(disk, "budget"))
                doctor_add(d, FINDING_WARN, "disk-cache", "raise disk_cache.budget, or unpin models",
                           "%s: %s, more than the budget of %s: pinned models have them, or they are in use",
                           json_str(disk, "path"), used, budget);
        else
                doctor_add(d, FINDING_OK, "disk-cache", NULL, "%s: %s of %s", json_str(disk, "path"), used, budget);
        check_disk(d, disk);
}

/* ---- what is to be resident ---- */

static void check_desired_list(struct doctor *d, const json_t *models, const char *check)
{
        const json_t *row;
        size_t i, failed = 0;
        for (i = 0; (row = json_array_get(models, i)); i++) {
                const char *name = json_str(row, "name")[0] ? json_str(row, "name") : json_str(row, "source");
                if (strcmp(json_str(row, "state"), "failed") != 0)
                        continue;
                failed++;
                doctor_add(d, FINDING_FAIL, check, "see 'streamerctl status' and the daemon's log; it is retried",
                           "%s: %s", name, json_str(row, "error"));
        }
        if (i > 0 && failed == 0)
                doctor_add(d, FINDING_OK, check, NULL, "%zu model%s, none has failed", i, i == 1 ? "" : "s");
}

static void check_desired(struct doctor *d)
{
        json_auto_t *status = NULL;
        if (ask(d->ctl->client, "status", json_object(), &status) != 0)
                return;
        check_desired_list(d, json_object_get(status, "preload"), "preload");
        check_desired_list(d, json_object_get(status, "restoring"), "restoring");
}

/* ---- pages ---- */

static void page_settings(const struct doctor *d, char *text, size_t size)
{
        const json_t *m = machine_of(d);
        char limit[HUMAN_MAX];
        human_size(limit, json_u64(m, "cgroup_huge_pages"));
        snprintf(text, size,
                 "vm.nr_hugepages %" PRIu64 ", vm.nr_overcommit_hugepages %" PRIu64 ", shmem_enabled %s%s%s",
                 json_u64(m, "hugepages"), json_u64(m, "hugepages_overcommit"),
                 json_str(m, "shmem_enabled")[0] ? json_str(m, "shmem_enabled") : "unknown",
                 has(m, "cgroup_huge_pages") ? ", cgroup limit " : "", has(m, "cgroup_huge_pages") ? limit : "");
}

/* What grants huge pages: a limit that is too small comes before the machine's settings. */
static void page_advice(const struct doctor *d, uint64_t wanted, char *text, size_t size)
{
        const json_t *m = machine_of(d);
        uint64_t page = has(m, "huge_page") ? json_u64(m, "huge_page") : 2u << 20;
        if (has(m, "cgroup_huge_pages") && json_u64(m, "cgroup_huge_pages") < wanted)
                snprintf(text, size,
                         "raise the container's limit of huge pages (hugepages-%" PRIu64 "Mi, hugetlb.%" PRIu64
                         "MB.max), then restart the daemon",
                         page >> 20, page >> 20);
        else
                snprintf(text, size,
                         "set shmem_enabled other than deny, or sysctl -w vm.nr_hugepages=%" PRIu64
                         ", then restart the daemon",
                         wanted / page + 1);
}

static void check_pages(struct doctor *d)
{
        char settings[192], advice[160];
        const json_t *ring = json_object_get(d->facts, "ring"), *device = doctor_device(d, "kind", "host");
        const char *kind = json_str(ring, "page_kind"), *host = device ? json_str(device, "page_kind") : kind;
        page_settings(d, settings, sizeof(settings));
        const json_t *distrusted = json_object_get(device, "distrusted_pages");
        for (size_t i = 0; i < json_array_size(distrusted); i++)
                doctor_add(
                        d, FINDING_FAIL, "pages",
                        "set shmem_enabled to never or advise, restart the daemon, and report this with the kernel's "
                        "version",
                        "%s pages are not used: other processes did not see the bytes that were written (%s)",
                        json_string_value(json_array_get(distrusted, i)), settings);
        page_advice(d, json_u64(device, "budget") + json_u64(ring, "bytes"), advice, sizeof(advice));
        bool good = strcmp(host, "4k") != 0 && strcmp(kind, "4k") != 0;
        doctor_add(d, good ? FINDING_OK : FINDING_WARN, "pages", good ? NULL : advice, "segments %s, ring %s%s%s (%s)",
                   host, kind, json_str(ring, "numa")[0] ? " on " : "", json_str(ring, "numa"), settings);
}

/* ---- devices ---- */

static void check_runtime(struct doctor *d)
{
        const json_t *cuda = json_object_get(d->facts, "cuda");
        if (json_bool(cuda, "on"))
                doctor_add(d, FINDING_OK, "cuda", NULL, "driver for CUDA %s, runtime %s (%s), %" PRIu64 " visible%s",
                           json_str(cuda, "driver"), json_str(cuda, "runtime"), json_str(cuda, "library"),
                           json_u64(cuda, "gpus"), doctor_has_cuda(d) ? "" : "; none is configured");
        else
                doctor_add(d, FINDING_OK, "cuda", NULL, "no GPU is configured; CUDA is unavailable: %s",
                           json_str(cuda, "why"));
}

static void check_device(struct doctor *d, const json_t *device)
{
        char about[400], node[40] = "";
        const char *mig = json_str(device, "mig"), *handles = json_str(device, "handles");
        if (has(device, "numa_node"))
                snprintf(node, sizeof(node), ", NUMA node %" PRIu64, json_u64(device, "numa_node"));
        snprintf(about, sizeof(about), "%s: %s%s%s (%s, %s), %s%s", json_str(device, "device"), json_str(device, "gpu"),
                 mig[0] ? ", MIG instance " : "", mig, json_str(device, "uuid"), json_str(device, "pci"), handles,
                 node);
        if (!json_bool(device, "in_service"))
                doctor_add(d, FINDING_FAIL, "device", "see dmesg (Xid) and nvidia-smi, then restart the daemon",
                           "%s: out of service, its context failed", about);
        else if (json_bool(device, "integrated") && strcmp(handles, "cuda-ipc") == 0)
                doctor_add(d, FINDING_WARN, "device",
                           json_bool(device, "vmm") ? "set handles: cuda-vmm-fd" : "use the host device",
                           "%s: integrated GPUs (Tegra) have no cuda-ipc", about);
        else if (mig[0])
                doctor_add(d, FINDING_OK, "device", NULL, "%s; shared within this instance only", about);
        else
                doctor_add(d, FINDING_OK, "device", NULL, "%s", about);
}

static void check_devices(struct doctor *d)
{
        const json_t *device;
        for (size_t i = 0; (device = json_array_get(json_object_get(d->facts, "devices"), i)); i++)
                if (strcmp(json_str(device, "kind"), "cuda") == 0)
                        check_device(d, device);
}

void daemon_check(struct doctor *d)
{
        check_version(d);
        for (size_t i = 0; i < sizeof(namespaces) / sizeof(namespaces[0]); i++)
                check_namespace(d, &namespaces[i]);
        check_users(d);
        check_kernel(d);
        check_names(d);
        check_files(d);
        check_memlock(d);
        check_memory(d);
        check_state(d);
        check_disk_cache(d);
        check_desired(d);
        check_pages(d);
        check_runtime(d);
        check_devices(d);
}
