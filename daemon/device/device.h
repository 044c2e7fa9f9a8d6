/* SPDX-License-Identifier: Apache-2.0
 *
 * A device owns weight memory. A segment is one allocation. Threads: alloc and release run on the device's own thread
 * (device->thread) and nowhere else, but see DEVICE_SMALL_ANYWHERE; prepare and put on reader threads; read on any
 * worker. The byte budget belongs to the loop thread.
 *
 * Blocks are read in place into segments that have a `base`, and through staging slots into others:
 * by put(), which is complete on return, or if the device has copiers by copy(), which is complete
 * when its event has fired. Until then the slot belongs to the device, and no client may see the bytes.
 */
#pragma once

#include "daemon/base/error.h"
#include "daemon/base/thread/work.h"
#include "daemon/model/plan.h"

struct device;

enum page_kind { PAGES_HUGETLB, PAGES_THP, PAGES_4K, PAGES_DEVICE, PAGES_NONE };
const char *page_kind_name(enum page_kind kind);

#define IPC_SIZE 64

struct segment {
        struct device *device;
        uint64_t size;
        unsigned char *base; /* host address, NULL where the host cannot write there */
        int fd;              /* the handle that clients map; -1: it is `ipc` */
        enum page_kind pages;
        unsigned char *ipc;   /* the handle where it is no descriptor: IPC_SIZE bytes, malloc'd */
        uint64_t small_bytes; /* restored: bytes without the huge pages of `pages`; see segment_small_bytes() */
        /* The device's own. */
        uint64_t address, allocation;
        struct collapse *collapse;
        uint64_t held;  /* of the host, atomic: bytes that have their memory */
        int writing_fd; /* lent: the descriptor for writing, if the handle is one for reading */
        bool lent;      /* of the host: a client may write to it, until seal() */
};

/* Host memory, and its destination. */
struct device_span {
        struct segment *segment;
        uint64_t offset; /* in the segment */
        const void *from;
        uint64_t len;
};

/* Used by one reader thread alone; the first member of the device's own struct. */
struct copier {
        const struct device_ops *ops;
};

/* A device that is configured as optional, and does not work. */
struct device_absence {
        char name[80]; /* the configuration's */
        struct error error;
};

/* A GPU, as its driver describes it. */
struct device_facts {
        char model[128];    /* "NVIDIA H200" */
        char mig[64];       /* its MIG instance, "1g.18gb"; "": whole */
        char pci[32];       /* "0000:3b:00.0" */
        bool integrated;    /* shares the host's memory: Tegra */
        bool host_pointers; /* uses the host's addresses of registered host memory */
        bool vmm;           /* supports cuda-vmm-fd */
};

struct device_ops {
        const char *kind; /* "host" */
        int (*alloc)(struct device *device, uint64_t size, struct segment *segment, struct error *error);
        void (*release)(struct segment *segment);
        /* As alloc, of memory that a client fills: until seal() no other client may have its handle, and the daemon
         * does not read it. On the device's thread. */
        int (*lend)(struct device *device, uint64_t size, struct segment *segment, struct error *error);
        /* No process can write to it any more. STREAMER_EBUSY: a process has a writable mapping of it. On any worker;
         * may be repeated. NULL: the device can neither revoke a mapping nor tell of one, and its clients are trusted.
         */
        int (*seal)(struct segment *segment, struct error *error);
        /* Memory of an earlier run, by its descriptor: takes it over if it is `size` bytes that nobody
         * can change. To be read only. NULL where DEVICE_PERSISTENT is not set. */
        int (*adopt_consume_fd)(struct device *device, int fd, uint64_t size, enum page_kind pages,
                                struct segment *segment, struct error *error);
        /* Before bytes are written to [offset, offset + len) of a segment with a base: here a lack of memory is an
         * error, later it would be a signal. NULL: segments have none. */
        int (*prepare)(struct segment *segment, uint64_t offset, uint64_t len, struct error *error);
        /* Copies from host memory; complete on return. */
        int (*put)(struct segment *segment, uint64_t offset, const void *from, uint64_t len, struct error *error);
        /* All of the following or none (NULL). copy() starts n copies and returns an event; copied()
         * queries it, or waits: 1 when the copies are done, 0 not yet, else the error. It frees the event unless it
         * returns 0. */
        struct copier *(*copier_new)(struct device *device, struct error *error);
        void (*copier_free)(struct copier *copier);
        int (*copy)(struct copier *copier, const struct device_span *spans, size_t n, void **event,
                    struct error *error);
        int (*copied)(struct copier *copier, void *event, bool wait, struct error *error);
        /* Starts a copy back to host memory, and returns an event as copy() does. */
        int (*fetch)(struct copier *copier, const struct segment *segment, uint64_t offset, void *to, uint64_t len,
                     void **event, struct error *error);
        /* The same, complete on return. */
        int (*read)(const struct segment *segment, uint64_t offset, void *to, uint64_t len, struct error *error);
        /* Both or none (NULL: read() shows what clients see). Maps the segment anew, for reading, as a client does: a
         * mapping that bytes were written through may show other bytes than all others do. On any worker. */
        int (*view_open)(const struct segment *segment, const unsigned char **base, struct error *error);
        void (*view_close)(const struct segment *segment, const unsigned char *base);
        /* On the device's thread: bytes that models can hold here in all, since other processes use the device too;
         * UINT64_MAX where that is not known. NULL: only models use it. */
        uint64_t (*ceiling)(struct device *device);
        /* On the loop: bytes in memory of this kind of page were not those that were written. It is not used again.
         * NULL: the device has one kind. */
        void (*distrust)(struct device *device, enum page_kind pages, const char *why);
        /* Both or none (NULL), on the device's thread: pinned host memory for copies of the device, zeroed. */
        int (*host_alloc)(struct device *device, uint64_t size, void **base, struct error *error);
        void (*host_free)(struct device *device, void *base, uint64_t size);
        void (*free)(struct device *device);
};

/* The staging ring, as a device pins it. Copies from one that is not pinned work, through memory of the driver's own.
 */
enum ring_pinned { RING_NOT_PINNED, RING_PINNED, RING_PIN_REFUSED };

/* What a device's handles mean for clients. */
enum device_caps {
        /* A client can write to what it maps, and memory that it maps must not be freed: clients of one
         * model must trust each other, and must be processes that can be watched. */
        DEVICE_SHARED_WRITABLE = 1,
        /* A segment is a descriptor that holds the memory by itself, so it can outlive the daemon. */
        DEVICE_PERSISTENT = 2,
        /* A segment of at most layout.small bytes may be allocated on any worker, which it does not hold up. */
        DEVICE_SMALL_ANYWHERE = 4,
};

struct device {
        const struct device_ops *ops;
        unsigned caps;
        char name[64];             /* "host" */
        char uuid[64];             /* of the device; for the host its machine's boot */
        const char *handles;       /* the kind that clients get: "memfd" */
        const char *shared;        /* why its ceiling is below its budget: "others use the device too" */
        struct device_facts facts; /* zero for the host */
        bool lost;                 /* atomic: its memory is lost, it is out of service */
        int numa_node;             /* nearest; -1: unknown, or none */
        struct plan_layout layout; /* of tensors */
        enum page_kind pages;      /* what a new segment is expected to get */
        unsigned distrusted;       /* atomic: a bit for each page kind that is not used, since its bytes were wrong */
        uint64_t sample_interval;  /* a load reads one leaf of so many bytes back; 0: none */
        unsigned number;           /* among the daemon's devices */
        struct work_pool *thread;
        struct prefault *prefault; /* of the host; NULL: none is configured */
        uint64_t budget, used;     /* bytes; used counts what is being allocated and freed, too */
        uint64_t ceiling;          /* bytes, of the last ceiling(); 0: never called */
        uint64_t reserve;          /* bytes of the host's memory that no segment gets; set at start */
        uint64_t quarantined;      /* of the used: models that were revoked from clients that still map them */
};

/* Whether memory of this kind is used; from any thread. */
bool device_trusts(const struct device *device, enum page_kind pages);
/* The budget, or what other processes leave of the device if that is less. */
uint64_t device_budget(const struct device *device);
uint64_t device_unused(const struct device *device);
/* From any thread, without waiting: its memory is not lost. */
bool device_in_service(const struct device *device);
/* The error of calls on a lost device. */
int device_lost_error(const struct device *device, struct error *error);

struct device *device_free(struct device *device); /* the thread must have been stopped */

/* ---- host ---- */

struct collapse_calls;

enum host_pages { HOST_PAGES_AUTO, HOST_PAGES_HUGETLB, HOST_PAGES_THP, HOST_PAGES_4K };

struct host_opts {
        uint64_t budget;
        enum host_pages pages;
        const struct collapse_calls *collapse; /* NULL: the kernel's */
        uint64_t prefault;                     /* bytes that are prefaulted; 0: none; PREFAULT_AUTO */
};

/* Only huge pages of the pool that are idle. */
#define PREFAULT_AUTO UINT64_MAX

/* Memory of this machine in sealed memfds. AUTO takes hugetlb pages if the pool has enough, else transparent huge
 * pages if the kernel makes them for shared memory, else 4 KiB pages; a named kind is taken or fails. */
int host_device_new(struct device **device, const struct host_opts *opts, struct wake *wake, struct error *error);

/* From any thread, without waiting: bytes that have small pages because no huge page was found. */
uint64_t segment_small_bytes(const struct segment *segment);

/* From any thread, without waiting; accept NULL. Allows or forbids prefaulting until the next call; false takes effect
 * within one huge page. Prefaulted bytes belong to no model: they are not among the used ones, and not charged to the
 * budget. True: it is to be called again in a second, since what other programs do changes how much may be. */
bool prefault_fill(struct prefault *prefault, bool fill);
uint64_t prefault_bytes(const struct prefault *prefault);

/* A memfd and a map of it. */
struct table {
        int fd; /* -1: none */
        void *map;
        uint64_t size;
};

/* The memfd is sealed against growing and shrinking, and against writing except through this map. A failure leaves
 * *table as it was. */
int host_table_new(struct table *table, const char *name, uint64_t size, struct error *error);
/* The same, with these bytes: writing costs less than making empty pages and filling them. */
int host_table_copy(struct table *table, const char *name, const void *bytes, uint64_t size, struct error *error);

/* A further descriptor and read-only map of one. */
int host_table_share(const struct table *table, struct table *shared, struct error *error);

void table_drop(struct table *table); /* accepts one without */
