/* SPDX-License-Identifier: Apache-2.0
 *
 * Placement of host memory and threads on machines of several NUMA nodes: near the devices that copies go to.
 *
 *   devices' nodes    choice
 *   one               memory is preferred on it, threads run on its processors
 *   several           memory is split evenly among these nodes, and so are threads
 *   none known        the kernel's own choice, as on a machine of one node
 *
 * Nothing here fails, since a badly placed daemon still works.
 *
 * Not by libnuma: it does not know a PCI device's node, which is half of this, reads the machine at its first call, so
 * that no test can describe another one, and would be one more library of the Python package.
 */
#pragma once

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NUMA_NODES 64

#define NUMA_ANYWHERE (-1)

struct numa_choice {
        uint64_t nodes; /* a bit for each; none: anywhere */
};

/* A list as the kernel writes it: "0-3,8". Numbers from `size` on are left out. False where it is none. */
bool numa_parse_list(const char *text, cpu_set_t *set, unsigned size);

/* Nodes of this machine that are online, a bit for each; at least the first. */
uint64_t numa_online(void);

/* The node of a PCI device ("0000:3b:00.0", any case), -1 where the machine does not say. */
int numa_of_pci(const char *id);

/* `nodes`: of the devices, -1 where unknown. */
struct numa_choice numa_choose(uint64_t online, const int *nodes, size_t n);

/* The node of part i of n equal ones, neighbours together; NUMA_ANYWHERE without a choice. */
int numa_of_part(const struct numa_choice *choice, unsigned i, unsigned n);

/* "node 1", "nodes 0,1, split", or "". Returns text. */
char *numa_text(const struct numa_choice *choice, char *text, size_t size);

/* Before the memory is touched, whole pages of it. False where the kernel refused. */
bool numa_place_memory(int node, void *base, uint64_t bytes);

/* The processors for threads: those of the node that this process may use at all. False where threads
 * are to run anywhere. */
bool numa_processors(int node, cpu_set_t *set);
