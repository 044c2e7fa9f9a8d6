/* SPDX-License-Identifier: Apache-2.0
 *
 * Kinds of handles: how a segment that the daemon hands out becomes an address in this process.
 * Each kind is a constant table in a file of its own, listed in attach.c.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* One segment of an attach reply. */
struct handle {
        int fd; /* borrowed; -1 where the kind has none */
        const void *bytes;
        size_t n_bytes;
        uint64_t size;    /* of the segment */
        uint64_t offset;  /* of the segment in what the handle names */
        const char *uuid; /* of the device; NULL if the daemon did not say */
        size_t uuid_len;
        pid_t daemon_pid; /* channel_daemon() */
};

struct fault;

struct mapping {
        const struct handle_kind *kind; /* NULL: not mapped */
        const void *data;
        uint64_t size;
        void *map; /* the kind's own */
        size_t map_size;
        int device_index; /* this process's number of the device; 0 for the host */
        bool writable;    /* by this process */
};

/* MODE_COPY: of the caller's own, for writing. MODE_LENT: of memory that this process publishes, for writing by it and
 * the daemon. */
enum map_mode { MODE_READ, MODE_COPY, MODE_LENT };

struct handle_kind {
        const char *name;        /* on the wire */
        const char *device_kind; /* "host", "cuda" */
        bool outlives_daemon;    /* a map keeps the memory by itself */
        /* 0 or STREAMER_E* with the text kept in `fault`. */
        int (*map)(struct mapping *mapping, const struct handle *handle, enum map_mode mode, struct fault *fault);
        void (*unmap)(struct mapping *mapping);
        /* Its daemon was lost: it stays mapped, and no later map() finds it. Does not block: the client's lock is held.
         * NULL: none would. */
        void (*forget)(struct mapping *mapping);
        /* Of what is lent: what this process writes from now on reaches no other, and the address stays. `reading`: a
         * descriptor for reading alone, or -1. */
        int (*make_private)(struct mapping *mapping, int reading, struct fault *fault);
        /* The same of the first `bytes`, whole pages, of what is lent, for writing: of pages that are written to the
         * process has copies. NULL: none would. */
        int (*protect)(struct mapping *mapping, uint64_t bytes, int reading, struct fault *fault);
        /* Copies a range of the mapping to host memory, or from there to what is lent; the other one is NULL. */
        int (*copy)(const struct mapping *mapping, uint64_t offset, void *to, const void *from, size_t size,
                    struct fault *fault);
};

extern const struct handle_kind handle_kind_memfd;
extern const struct handle_kind handle_kind_cuda_ipc;
extern const struct handle_kind handle_kind_cuda_vmm_fd;

/* Maps `size` bytes of a descriptor, which must be that large, and stay so; *map is NULL for 0 bytes. */
int map_fd(void **map, int fd, uint64_t size, uint64_t offset, int prot, int flags, const char *what,
           struct fault *fault);

/* A write to a private mapping of hugetlb pages takes a page of the pool, and the kernel kills the writer when the pool
 * is empty. */
bool fd_is_hugetlb(int fd);
