/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/numa.h"

#include "daemon/base/sysfile.h"
#include "daemon/base/util.h"

#include <ctype.h>
#include <linux/mempolicy.h>
#include <string.h>
#include <sys/syscall.h>

/* ---- what the machine says ---- */

bool numa_parse_list(const char *text, cpu_set_t *set, unsigned size)
{
        CPU_ZERO(set);
        while (*text != '\0') {
                char *end;
                unsigned long first, last;
                if (!isdigit((unsigned char)*text))
                        return false;
                first = last = strtoul(text, &end, 10);
                if (*end == '-') {
                        if (!isdigit((unsigned char)end[1]))
                                return false;
                        last = strtoul(end + 1, &end, 10);
                }
                if (last < first || (*end != ',' && *end != '\0'))
                        return false;
                for (unsigned long i = first; i <= last && i < size; i++)
                        CPU_SET(i, set);
                text = *end == ',' ? end + 1 : end;
        }
        return true;
}

uint64_t numa_online(const char *root)
{
        char line[256];
        cpu_set_t set;
        uint64_t nodes = 0;
        if (sysfile_line(line, sizeof(line), root, "/sys/devices/system/node/online") &&
            numa_parse_list(line, &set, NUMA_NODES))
                for (unsigned i = 0; i < NUMA_NODES; i++)
                        nodes |= (uint64_t)(CPU_ISSET(i, &set) != 0) << i;
        return nodes != 0 ? nodes : 1;
}

int numa_of_pci(const char *root, const char *id)
{
        char lower[32];
        int64_t node;
        size_t n = 0;
        for (; id[n] != '\0' && n < sizeof(lower) - 1; n++)
                lower[n] = (char)tolower((unsigned char)id[n]);
        lower[n] = '\0';
        if (n == 0 || strchr(lower, '/') != NULL ||
            !sysfile_number(&node, root, "/sys/bus/pci/devices/%s/numa_node", lower))
                return -1;
        return node >= 0 && node < NUMA_NODES ? (int)node : -1;
}

/* ---- the choice ---- */

struct numa_choice numa_choose(uint64_t online, const int *nodes, size_t n)
{
        uint64_t wanted = 0;
        for (size_t i = 0; i < n; i++)
                if (nodes[i] >= 0 && nodes[i] < NUMA_NODES)
                        wanted |= UINT64_C(1) << nodes[i];
        wanted &= online;
        if (__builtin_popcountll(online) < 2 || wanted == 0)
                return (struct numa_choice){.policy = NUMA_ANYWHERE};
        return (struct numa_choice){.policy = __builtin_popcountll(wanted) == 1 ? NUMA_PREFERRED : NUMA_INTERLEAVED,
                                    .nodes = wanted};
}

char *numa_text(const struct numa_choice *choice, char *text, size_t size)
{
        size_t used = 0;
        text[0] = '\0';
        if (choice->policy == NUMA_ANYWHERE)
                return text;
        used = (size_t)snprintf(text, size, choice->policy == NUMA_PREFERRED ? "node" : "nodes");
        char before = ' ';
        for (unsigned i = 0; i < NUMA_NODES && used < size; i++) {
                if (!(choice->nodes >> i & 1))
                        continue;
                used += (size_t)snprintf(text + used, size - used, "%c%u", before, i);
                before = ',';
        }
        if (choice->policy == NUMA_INTERLEAVED && used < size)
                snprintf(text + used, size - used, ", interleaved");
        return text;
}

/* ---- keeping to it ---- */

bool numa_place_memory(const struct numa_choice *choice, void *base, uint64_t bytes)
{
        if (choice->policy == NUMA_ANYWHERE)
                return true;
        unsigned long mask[NUMA_NODES / (8 * sizeof(unsigned long))] = {0};
        memcpy(mask, &choice->nodes, sizeof(choice->nodes));
        int mode = choice->policy == NUMA_PREFERRED ? MPOL_PREFERRED : MPOL_INTERLEAVE;
        /* The kernel counts one bit less than it is told. */
        return syscall(SYS_mbind, base, bytes, mode, mask, NUMA_NODES + 1, 0) == 0;
}

bool numa_processors(const struct numa_choice *choice, const char *root, cpu_set_t *set)
{
        char line[1024];
        cpu_set_t usable;
        if (choice->policy != NUMA_PREFERRED)
                return false;
        if (!sysfile_line(line, sizeof(line), root, "/sys/devices/system/node/node%d/cpulist",
                          __builtin_ctzll(choice->nodes)) ||
            !numa_parse_list(line, set, CPU_SETSIZE))
                return false;
        /* A container may have been given a part of the node, or another one. */
        if (sched_getaffinity(0, sizeof(usable), &usable) < 0)
                return false;
        CPU_AND(set, set, &usable);
        return CPU_COUNT(set) > 0;
}
