/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/sys/numa.h"

#include "daemon/base/sys/sysfile.h"
#include "daemon/base/util.h"

#include <ctype.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>

bool numa_parse_list(const char *text, cpu_set_t *set, unsigned size)
{
        CPU_ZERO(set);
        while (*text != '\0') {
                char *end;
                if (!isdigit((unsigned char)*text))
                        return false;
                unsigned long i = strtoul(text, &end, 10), last = i;
                if (*end == '-' && isdigit((unsigned char)end[1]))
                        last = strtoul(end + 1, &end, 10);
                if (last < i || (*end != ',' && *end != '\0'))
                        return false;
                for (; i <= last && i < size; i++)
                        CPU_SET(i, set);
                text = end + (*end == ',');
        }
        return true;
}

uint64_t numa_online(void)
{
        char line[256];
        cpu_set_t set;
        uint64_t nodes = 0;
        if (sysfile_line(line, sizeof(line), "/sys/devices/system/node/online") &&
            numa_parse_list(line, &set, NUMA_NODES))
                for (unsigned i = 0; i < NUMA_NODES; i++)
                        nodes |= (uint64_t)(CPU_ISSET(i, &set) != 0) << i;
        return nodes != 0 ? nodes : 1;
}

int numa_of_pci(const char *id)
{
        char lower[32];
        int64_t node;
        size_t n = 0;
        for (; id[n] != '\0' && n < sizeof(lower) - 1; n++)
                lower[n] = (char)tolower((unsigned char)id[n]);
        lower[n] = '\0';
        if (n == 0 || strchr(lower, '/') != NULL || !sysfile_number(&node, "/sys/bus/pci/devices/%s/numa_node", lower))
                return -1;
        return node >= 0 && node < NUMA_NODES ? (int)node : -1;
}

struct numa_choice numa_choose(uint64_t online, const int *nodes, size_t n)
{
        uint64_t wanted = 0;
        for (size_t i = 0; i < n; i++)
                if (nodes[i] >= 0 && nodes[i] < NUMA_NODES)
                        wanted |= UINT64_C(1) << nodes[i];
        wanted &= online;
        return (struct numa_choice){.nodes = __builtin_popcountll(online) < 2 ? 0 : wanted};
}

int numa_of_part(const struct numa_choice *choice, unsigned i, unsigned n)
{
        unsigned n_nodes = (unsigned)__builtin_popcountll(choice->nodes);
        uint64_t left = choice->nodes;
        require(i < n);
        if (n_nodes == 0)
                return NUMA_ANYWHERE;
        for (unsigned skip = (unsigned)((uint64_t)i * n_nodes / n); skip > 0; skip--)
                left &= left - 1;
        return __builtin_ctzll(left);
}

char *numa_text(const struct numa_choice *choice, char *text, size_t size)
{
        bool split = __builtin_popcountll(choice->nodes) > 1;
        char before = ' ';
        snprintf(text, size, "%s", choice->nodes == 0 ? "" : split ? "nodes" : "node");
        for (unsigned i = 0; i < NUMA_NODES; i++) {
                if (!(choice->nodes >> i & 1))
                        continue;
                format_append(text, size, "%c%u", before, i);
                before = ',';
        }
        if (split)
                format_append(text, size, ", split");
        return text;
}

bool numa_place_memory(int node, void *base, uint64_t bytes)
{
        if (node == NUMA_ANYWHERE || bytes == 0)
                return true;
        uint64_t mask = UINT64_C(1) << node;
        /* The kernel uses one bit less than this number. */
        return syscall(SYS_mbind, base, bytes, MPOL_PREFERRED, &mask, NUMA_NODES + 1, 0) == 0;
}

bool numa_processors(int node, cpu_set_t *set)
{
        char line[1024];
        cpu_set_t usable;
        if (node == NUMA_ANYWHERE ||
            !sysfile_line(line, sizeof(line), "/sys/devices/system/node/node%d/cpulist", node) ||
            !numa_parse_list(line, set, CPU_SETSIZE))
                return false;
        /* A container may have been given a part of the node, or another one. */
        if (sched_getaffinity(0, sizeof(usable), &usable) < 0)
                return false;
        CPU_AND(set, set, &usable);
        return CPU_COUNT(set) > 0;
}
