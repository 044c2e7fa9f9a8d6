/* SPDX-License-Identifier: Apache-2.0
 *
 * Placement of the ring and its threads, from a fake /sys tree and from values.
 */
#include "daemon/base/sys/numa.h"
#include "tests/unit/sysfile_fixture.h"

#define BOTH UINT64_C(3)

/* ---- lists ---- */

TEST(a_list_has_numbers_and_ranges)
{
        cpu_set_t set;
        ck_assert(numa_parse_list("0-2,5,8-9", &set, CPU_SETSIZE));
        ck_assert_int_eq(CPU_COUNT(&set), 6);
        ck_assert(CPU_ISSET(2, &set) && CPU_ISSET(5, &set) && CPU_ISSET(9, &set) && !CPU_ISSET(3, &set));
        ck_assert(numa_parse_list("", &set, CPU_SETSIZE)); /* a node of memory alone */
        ck_assert_int_eq(CPU_COUNT(&set), 0);
}

TEST(numbers_beyond_the_set_are_ignored)
{
        cpu_set_t set;
        ck_assert(numa_parse_list("62-90,4000000000", &set, 64));
        ck_assert_int_eq(CPU_COUNT(&set), 2);
}

TEST(an_invalid_list_is_refused)
{
        static const char *const bad[] = {"x", "-3", "1-", "1-x", "3-1", "1;2", "1,,2", " 1"};
        cpu_set_t set;
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
                ck_assert_msg(!numa_parse_list(bad[i], &set, CPU_SETSIZE), "'%s'", bad[i]);
}

/* ---- the machine ---- */

FIXTURE(.each = {begin_tree, NULL});

TEST(nodes_that_are_online_are_known)
{
        ck_assert_uint_eq(numa_online(), 1); /* a kernel without NUMA */
        put("sys/devices/system/node/online", "0-1,3\n");
        ck_assert_uint_eq(numa_online(), 0xb);
        put("sys/devices/system/node/online", "nonsense\n");
        ck_assert_uint_eq(numa_online(), 1);
}

TEST(the_node_of_a_gpu_is_found_whatever_the_case_of_its_address)
{
        put("sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
        put("sys/bus/pci/devices/0000:af:00.0/numa_node", "-1\n");
        ck_assert_int_eq(numa_of_pci("0000:3B:00.0"), 1);
        ck_assert_int_eq(numa_of_pci("0000:af:00.0"), -1);
        ck_assert_int_eq(numa_of_pci("0000:00:00.0"), -1);
        ck_assert_int_eq(numa_of_pci(""), -1);
        ck_assert_int_eq(numa_of_pci("../devices/0000:3b:00.0"), -1);
}

/* ---- the choice ---- */

static const struct {
        const char *what;
        uint64_t online;
        int nodes[4];
        uint64_t chosen;
        const char *text;
} cases[] = {
        {"one node", 1, {0, 0, 0, 0}, 0, ""},
        {"no GPU whose node is known", BOTH, {-1, -1, -1, -1}, 0, ""},
        {"all GPUs on one", BOTH, {1, 1, 1, 1}, 2, "node 1"},
        {"the host device has no say", BOTH, {-1, 0, -1, 0}, 1, "node 0"},
        {"GPUs on both", BOTH, {0, 1, 0, 1}, BOTH, "nodes 0,1, split"},
        {"on two of four", 15, {3, 1, 3, 1}, 10, "nodes 1,3, split"},
        {"a node that is offline", BOTH, {5, 5, 1, 70}, 2, "node 1"},
};

FIXTURE();

TEST(memory_is_on_the_gpus_node, EACH(cases))
{
        char text[64];
        struct numa_choice choice = numa_choose(cases[_i].online, cases[_i].nodes, 4);
        ck_assert_msg(choice.nodes == cases[_i].chosen, "%s", cases[_i].what);
        ck_assert_str_eq(numa_text(&choice, text, sizeof(text)), cases[_i].text);
}

TEST(each_node_has_a_contiguous_equal_share)
{
        static const struct {
                uint64_t nodes;
                unsigned n;
                int want[7];
        } splits[] = {
                {0, 2, {NUMA_ANYWHERE, NUMA_ANYWHERE}},
                {4, 3, {2, 2, 2}},
                {0xa, 4, {1, 1, 3, 3}},
                {0xa, 1, {1}},
                {7, 7, {0, 0, 0, 1, 1, 2, 2}},
                {UINT64_C(1) << 63 | 1, 2, {0, 63}},
        };
        for (size_t s = 0; s < sizeof(splits) / sizeof(splits[0]); s++)
                for (unsigned i = 0; i < splits[s].n; i++)
                        ck_assert_int_eq(numa_of_part(&(struct numa_choice){splits[s].nodes}, i, splits[s].n),
                                         splits[s].want[i]);
}

/* ---- observing the limit ---- */

FIXTURE(.each = {begin_tree, NULL});

TEST(threads_run_on_the_nodes_processors_that_we_may_use)
{
        cpu_set_t mine, set;
        size_t cpu = 0;
        must(sched_getaffinity(0, sizeof(mine), &mine));
        while (!CPU_ISSET(cpu, &mine))
                cpu++;
        char *list = format_text("%zu,1023\n", cpu);
        ck_assert(!numa_processors(1, &set)); /* unknown */
        put("sys/devices/system/node/node1/cpulist", list);
        ck_assert(numa_processors(1, &set));
        ck_assert_int_eq(CPU_COUNT(&set), 1);
        ck_assert(CPU_ISSET(cpu, &set));
        put("sys/devices/system/node/node1/cpulist", "1023\n"); /* none of ours */
        ck_assert(!numa_processors(1, &set));
        ck_assert(!numa_processors(NUMA_ANYWHERE, &set));
}

FIXTURE();

TEST(memory_is_placed_before_it_is_touched)
{
        size_t size = 4 << 20;
        unsigned char *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        ck_assert_ptr_ne(map, MAP_FAILED);
        ck_assert(numa_place_memory(NUMA_ANYWHERE, map, size));
        if (!numa_place_memory(0, map, size))
                SKIP("the kernel or the container forbids mbind");
        memset(map, 1, size);
        ck_assert(!numa_place_memory(63, map, size)); /* a missing node */
}
