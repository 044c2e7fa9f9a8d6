/* SPDX-License-Identifier: Apache-2.0
 *
 * A device: who owns weight memory. The daemon knows devices only through this vtable.
 *
 * A segment is one allocation. Threads: alloc and release run on the device's own thread
 * (device->thread) and nowhere else; prepare and put on reader threads; read on any worker. The
 * byte budget belongs to the loop thread.
 *
 * A device whose segments have `base` takes reads in place; others take them through staging slots:
 * by put(), which is complete on return, or where the device has copiers by copy(), which is complete
 * when its event has fired. Until then the slot is the device's, and nobody may see the bytes.
 */
#ifndef DAEMON_DEVICE_DEVICE_H
#define DAEMON_DEVICE_DEVICE_H

#include "daemon/base/error.h"
#include "daemon/base/work.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct device;

enum page_kind { PAGES_HUGETLB, PAGES_THP, PAGES_4K, PAGES_DEVICE };
const char *page_kind_name(enum page_kind kind);

/* How tensors are laid out on this device (see daemon/model/plan.h). */
struct device_layout {
        uint64_t page, align, granularity, max_segment;
};

struct segment {
        struct device *device;
        uint64_t size;
        unsigned char *base; /* host address, NULL where the host cannot write there */
        int fd;              /* where the handle is a descriptor, else -1 */
        enum page_kind pages;
        /* The device's own. */
        uint64_t address, allocation;
        unsigned char ipc[64];
};

/* Host memory, and where it goes. */
struct device_span {
        struct segment *segment;
        uint64_t offset; /* in the segment */
        const void *from;
        uint64_t len;
};

/* What one reader thread copies with: used by that thread alone; the beginning of the device's own. */
struct copier {
        const struct device_ops *ops;
};

/* What a client needs to map a segment. */
struct handle {
        const char *kind; /* "memfd" */
        int fd;           /* borrowed from the segment; -1 where bytes are used */
        unsigned char bytes[64];
        size_t n_bytes;
};

/* What doctor tells of a device beyond its name. */
struct device_facts {
        char model[128];     /* "NVIDIA H200"; "" for the host */
        char mig[64];        /* its MIG instance, "1g.18gb"; "": whole */
        char pci[32];        /* "0000:3b:00.0" */
        const char *handles; /* the kind that clients get */
        bool in_service;
        bool integrated;    /* shares the host's memory: Tegra */
        bool host_pointers; /* it knows registered host memory by the host's addresses */
        bool vmm;           /* could hand out cuda-vmm-fd */
};

struct device_ops {
        const char *kind; /* "host" */
        int (*alloc)(struct device *device, uint64_t size, struct segment *segment, struct error *error);
        void (*release)(struct segment *segment);
        /* Memory of an earlier run, by its descriptor: takes it over if it is `size` bytes that nobody
         * can change. To be read only. NULL where DEVICE_KEPT is not set. */
        int (*adopt_consume_fd)(struct device *device, int fd, uint64_t size, enum page_kind pages,
                                struct segment *segment, struct error *error);
        /* Before bytes land in [offset, offset + len): memory that is missing is found here, where
         * its absence is an error, not a signal. */
        int (*prepare)(struct segment *segment, uint64_t offset, uint64_t len, struct error *error);
        /* Copies from host memory; complete on return. */
        int (*put)(struct segment *segment, uint64_t offset, const void *from, uint64_t len, struct error *error);
        /* All of the following or none (NULL). copy() starts n copies and answers an event; copied()
         * asks for it, or waits: 1 when all bytes are there, 0 not yet, else the failure. The event
         * is gone unless the answer was 0. */
        struct copier *(*copier_new)(struct device *device, struct error *error);
        void (*copier_free)(struct copier *copier);
        int (*copy)(struct copier *copier, const struct device_span *spans, size_t n, void **event,
                    struct error *error);
        int (*copied)(struct copier *copier, void *event, bool wait, struct error *error);
        /* Starts a copy back to host memory, and answers an event as copy() does. */
        int (*fetch)(struct copier *copier, const struct segment *segment, uint64_t offset, void *to, uint64_t len,
                     void **event, struct error *error);
        /* The same, complete on return. */
        int (*read)(const struct segment *segment, uint64_t offset, void *to, uint64_t len, struct error *error);
        void (*handle)(const struct segment *segment, struct handle *handle);
        /* On any worker; may ask the driver, makes no context. */
        void (*describe)(struct device *device, struct device_facts *facts);
        /* Both or none (NULL), on the device's thread. ceiling(): what models could hold here in all, as
         * others use the device too; UINT64_MAX where it does not say. idle(): nothing is going to be
         * allocated after all, whatever ceiling() needed may go. */
        uint64_t (*ceiling)(struct device *device);
        void (*idle)(struct device *device);
        /* From any thread, without waiting: false once what it has is lost. NULL: it never is. */
        bool (*in_service)(struct device *device);
        /* Both or none (NULL), on the device's thread: host memory that the device copies from and to
         * at its best (pinned), zeroed. */
        int (*host_alloc)(struct device *device, uint64_t size, void **base, struct error *error);
        void (*host_free)(struct device *device, void *base, uint64_t size);
        /* Both or none (NULL), from any thread, without waiting: memory that is made ready ahead of need, where
         * that is configured. spare_fill(): it may be, until further notice, or must not; spare(): bytes. */
        void (*spare_fill)(struct device *device, bool fill);
        uint64_t (*spare)(const struct device *device);
        void (*free)(struct device *device);
};

/* What a device's handles mean for those who get them. */
enum device_caps {
        /* A client can write to what it maps, and frees nothing by exiting late: so clients of one
         * model must trust each other, and must be processes that can be watched. */
        DEVICE_SHARED_WRITABLE = 1,
        /* A segment is a descriptor that holds the memory by itself, so it can outlive the daemon. */
        DEVICE_KEPT = 2,
};

struct device {
        const struct device_ops *ops;
        unsigned caps;
        char name[64]; /* "host" */
        char uuid[64]; /* of the device; for the host its machine's boot */
        int index;
        int numa_node; /* nearest; -1: unknown, or none */
        struct device_layout layout;
        enum page_kind pages; /* what a new segment is expected to get */
        unsigned number;      /* among the daemon's devices */
        struct work_pool *thread;
        uint64_t budget, used; /* bytes; used counts what is being allocated and freed, too */
        uint64_t ceiling;      /* bytes, when it was last asked; 0: never */
        uint64_t quarantined;  /* of the used: models that were taken from clients who still map them */
};

/* The budget, or what others leave of the device where that is less. */
uint64_t device_budget(const struct device *device);
uint64_t device_unused(const struct device *device);
/* Bytes that are made ready and belong to no model: beside the used ones, and no charge on the budget. */
uint64_t device_spare(const struct device *device);
/* From any thread, without waiting: what it has is not lost. */
bool device_in_service(struct device *device);
/* What is refused there once it is. */
int device_lost_error(const struct device *device, struct error *error);

struct device *device_free(struct device *device); /* the thread must have been stopped */

/* ---- host ---- */

enum host_pages { HOST_PAGES_AUTO, HOST_PAGES_HUGETLB, HOST_PAGES_THP, HOST_PAGES_4K };

struct host_opts {
        uint64_t budget;
        enum host_pages pages;
        uint64_t spare; /* bytes that are made ready ahead of need; 0: none; HOST_SPARE_AUTO */
};

/* Of huge pages that were set aside and lie idle, what costs nobody anything. */
#define HOST_SPARE_AUTO UINT64_MAX

/* Memory of this machine in sealed memfds. AUTO takes hugetlb where the system grants it, else
 * transparent huge pages, else 4 KiB pages; a named kind is taken or fails. */
int host_device_new(struct device **device, const struct host_opts *opts, struct wake *wake, struct error *error);

/* A memfd for tables: sealed against growing and shrinking, and against writing except through the
 * map that is returned. */
int host_table_new(const char *name, uint64_t size, int *fd, void **map, struct error *error);

/* A further descriptor and read-only map of one. */
int host_table_share(int table_fd, uint64_t size, int *fd, void **map, struct error *error);

#endif
