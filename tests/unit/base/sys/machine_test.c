/* SPDX-License-Identifier: Apache-2.0
 *
 * Limits of the machine, read from fake /proc and /sys trees and from this machine.
 */
#include "daemon/base/sys/machine.h"
#include "daemon/base/util.h"
#include "tests/lib/deny_syscalls.h"
#include "tests/unit/sysfile_fixture.h"

#include <sys/prctl.h>
#include <sys/resource.h>

/* ---- small files ---- */

FIXTURE(.each = {begin_tree, NULL});

TEST(a_number_is_alone_on_its_line)
{
        int64_t n = 7;
        put("a", "-12\nrest\n");
        ck_assert(sysfile_number(&n, "/%s", "a"));
        ck_assert_int_eq(n, -12);
        static const char *const bad[] = {"max\n", "12 kB\n", "\n", "", "99999999999999999999\n"};
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
                put("b", bad[i]);
                ck_assert_msg(!sysfile_number(&n, "/b"), "'%s'", bad[i]);
        }
        ck_assert(!sysfile_number(&n, "/not-there"));
        ck_assert_int_eq(n, -12);
}

TEST(the_chosen_word_is_in_brackets)
{
        char word[8];
        put("a", "always within_size [advise] never\n");
        ck_assert(sysfile_chosen(word, sizeof(word), "/a"));
        ck_assert_str_eq(word, "advise");
        put("a", "always [never\n");
        ck_assert(!sysfile_chosen(word, sizeof(word), "/a"));
        put("a", "[a-word-that-is-longer]\n");
        ck_assert(sysfile_chosen(word, sizeof(word), "/a"));
        ck_assert_str_eq(word, "a-word-");
}

TEST(a_path_that_is_too_long_is_not_cut)
{
        char line[16], name[700];
        memset(name, 'x', sizeof(name));
        name[sizeof(name) - 1] = '\0';
        ck_assert(!sysfile_line(line, sizeof(line), "/%s", name));
        ck_assert_str_eq(line, "");
}

/* ---- pages ---- */

TEST(the_size_of_huge_pages_is_the_kernels, .to = 2)
{
        static const char *const files[] = {"33554432\n", "536870912\n"};
        put("sys/kernel/mm/transparent_hugepage/hpage_pmd_size", files[_i]);
        machine_pages_read();
        ck_assert_uint_eq(machine_pages.huge, strtoull(files[_i], NULL, 10));
        ck_assert_uint_eq(machine_pages.small, (uint64_t)sysconf(_SC_PAGESIZE));
}

static const char *const unknown[] = {NULL, "0\n", "4096\n", "3000000\n", "none\n"};

TEST(where_it_is_not_known_a_table_of_one_page_maps_a_huge_page, EACH(unknown))
{
        if (unknown[_i] != NULL)
                put("sys/kernel/mm/transparent_hugepage/hpage_pmd_size", unknown[_i]);
        machine_pages_read();
        ck_assert_uint_eq(machine_pages.huge, machine_pages.small * (machine_pages.small / 8));
}

TEST(the_pool_and_the_limit_are_those_of_their_size)
{
        bool limited;
        put("sys/kernel/mm/hugepages/hugepages-524288kB/free_hugepages", "3\n");
        put("sys/kernel/mm/hugepages/hugepages-524288kB/resv_hugepages", "1\n");
        put("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "100\n");
        put("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "0\n");
        put("proc/self/cgroup", "0::/pod\n");
        put("sys/fs/cgroup/pod/cgroup.procs", "");
        put("sys/fs/cgroup/pod/hugetlb.512MB.max", "1073741824\n");
        put("sys/fs/cgroup/pod/hugetlb.2MB.max", "0\n");
        machine_pages_set(64 * KiB, 512 * MiB);
        ck_assert_uint_eq(machine_pool_left(), GiB);
        ck_assert_uint_eq(machine_huge_pages_left(512 * MiB, &limited), 512 * MiB);
        ck_assert(limited);
}

/* ---- memory limits of a control group ---- */

TEST(the_tightest_limit_of_the_ancestors_applies)
{
        put("proc/self/cgroup", "0::/pod/daemon\n");
        ck_assert_uint_eq(machine_cgroup_memory(), MACHINE_UNLIMITED);
        put("sys/fs/cgroup/pod/daemon/memory.max", "max\n");
        ck_assert_uint_eq(machine_cgroup_memory(), MACHINE_UNLIMITED);
        put("sys/fs/cgroup/pod/memory.max", "4294967296\n");
        ck_assert_uint_eq(machine_cgroup_memory(), UINT64_C(4) << 30);
        put("sys/fs/cgroup/pod/daemon/memory.max", "8589934592\n");
        ck_assert_uint_eq(machine_cgroup_memory(), UINT64_C(4) << 30);
}

TEST(the_cgroup_at_the_root_of_its_namespace_has_its_limit)
{
        put("proc/self/cgroup", "0::/\n");
        put("sys/fs/cgroup/memory.max", "1048576\n");
        ck_assert_uint_eq(machine_cgroup_memory(), 1 << 20);
}

TEST(cgroup_version_1_has_its_own_files_and_unlimited_value)
{
        put("proc/self/cgroup", "12:cpu,cpuacct:/a\n7:memory:/job\n0::/\n");
        put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
        ck_assert_uint_eq(machine_cgroup_memory(), MACHINE_UNLIMITED);
        put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "65536\n");
        ck_assert_uint_eq(machine_cgroup_memory(), 65536);
}

/* ---- free memory ---- */

TEST(free_memory_is_the_minimum_of_machine_and_cgroups)
{
        ck_assert_uint_eq(machine_available_memory(), MACHINE_UNLIMITED);
        put("proc/meminfo", "MemTotal:  9000 kB\nMemFree:  1000 kB\nMemAvailable:   3000 kB\n");
        ck_assert_uint_eq(machine_available_memory(), 3000 * 1024);
        put("proc/self/cgroup", "0::/pod/daemon\n");
        put("sys/fs/cgroup/pod/memory.max", "4194304\n");
        put("sys/fs/cgroup/pod/memory.current", "3145728\n");
        ck_assert_uint_eq(machine_available_memory(), 1 << 20);
        put("sys/fs/cgroup/pod/daemon/memory.max", "8192\n");
        put("sys/fs/cgroup/pod/daemon/memory.current", "4096\n");
        ck_assert_uint_eq(machine_available_memory(), 4096);
        ck_assert_uint_eq(machine_cgroup_memory(), 8192);
}

TEST(cached_files_of_a_cgroup_count_as_free)
{
        put("proc/self/cgroup", "0::/x\n");
        put("sys/fs/cgroup/x/memory.max", "1000000\n");
        put("sys/fs/cgroup/x/memory.current", "900000\n");
        put("sys/fs/cgroup/x/memory.stat",
            "anon 1\nfile 800000\nshmem 500000\ninactive_file 200000\nactive_file 100000\n");
        ck_assert_uint_eq(machine_available_memory(), 400000);
        put("sys/fs/cgroup/x/memory.current", "2000000\n");
        ck_assert_uint_eq(machine_available_memory(), 0);
}

TEST(cgroup_version_1_computes_free_memory_from_its_own_files)
{
        put("proc/self/cgroup", "7:memory:/job\n");
        put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "65536\n");
        put("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "65000\n");
        put("sys/fs/cgroup/memory/job/memory.stat",
            "inactive_file 7\ntotal_inactive_file 1000\ntotal_active_file 2000\n");
        ck_assert_uint_eq(machine_available_memory(), 3536);
}

TEST(promised_huge_pages_are_not_free)
{
        ck_assert_uint_eq(machine_pool_left(), 0);
        put("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "7\n");
        ck_assert_uint_eq(machine_pool_left(), 0);
        put("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "0\n");
        ck_assert_uint_eq(machine_pool_left(), 14 << 20);
        put("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "5\n");
        ck_assert_uint_eq(machine_pool_left(), 4 << 20);
        put("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "8\n");
        ck_assert_uint_eq(machine_pool_left(), 0);
}

/* ---- a group's limit of huge pages ---- */

static uint64_t huge_pages_left(uint64_t held)
{
        bool limited;
        return machine_huge_pages_left(held, &limited);
}

static bool huge_pages_limited(void)
{
        bool limited;
        machine_huge_pages_left(0, &limited);
        return limited;
}

TEST(huge_pages_of_a_cgroup_have_their_own_limit)
{
        put("proc/self/cgroup", "0::/pod/daemon\n");
        put("sys/fs/cgroup/pod/memory.max", "7\n");
        ck_assert_uint_eq(huge_pages_left(5 << 20), MACHINE_UNLIMITED);
        put("sys/fs/cgroup/pod/daemon/hugetlb.2MB.max", "max\n");
        put("sys/fs/cgroup/pod/hugetlb.2MB.max", "33554432\n");
        put("sys/fs/cgroup/pod/hugetlb.2MB.current", "4194304\n");
        put("sys/fs/cgroup/pod/memory.stat", "inactive_file 4194304\n");
        ck_assert_uint_eq(huge_pages_left(0), 28 << 20);
        ck_assert_uint_eq(machine_cgroup_memory(), 7);
}

/* A limit applies even if its files are not visible. */
TEST(a_limit_of_huge_pages_is_detected)
{
        ck_assert(!huge_pages_limited());
        put("proc/self/cgroup", "0::/x\n");
        ck_assert(huge_pages_limited());
        put("sys/fs/cgroup/x/cgroup.procs", "1\n");
        ck_assert(!huge_pages_limited());
        put("sys/fs/cgroup/x/hugetlb.2MB.max", "max\n");
        ck_assert(!huge_pages_limited());
        put("sys/fs/cgroup/x/hugetlb.2MB.max", "0\n");
        ck_assert(huge_pages_limited());
        put("proc/self/cgroup", "3:hugetlb:/\n");
        ck_assert(!huge_pages_limited());
        /* of both versions: that of the controller, or else none */
        put("proc/self/cgroup", "3:cpu:/\n0::/y\n");
        ck_assert(!huge_pages_limited());
        put("proc/self/cgroup", "3:hugetlb:/z\n0::/y\n");
        ck_assert(huge_pages_limited());
        put("sys/fs/cgroup/hugetlb/z/cgroup.procs", "1\n");
        ck_assert(!huge_pages_limited());
        put("sys/fs/cgroup/hugetlb/z/hugetlb.2MB.limit_in_bytes", "9223372036852678656\n");
        ck_assert(!huge_pages_limited());
}

TEST(mapped_untouched_huge_pages_are_not_free)
{
        put("proc/self/cgroup", "5:memory:/a\n9:hugetlb:/b\n");
        put("sys/fs/cgroup/hugetlb/b/hugetlb.2MB.limit_in_bytes", "33554432\n");
        ck_assert_uint_eq(huge_pages_left(8 << 20), 24 << 20);
        put("sys/fs/cgroup/hugetlb/b/hugetlb.2MB.usage_in_bytes", "4194304\n");
        ck_assert_uint_eq(huge_pages_left(8 << 20), 24 << 20);
        put("sys/fs/cgroup/hugetlb/b/hugetlb.2MB.usage_in_bytes", "16777216\n");
        ck_assert_uint_eq(huge_pages_left(8 << 20), 16 << 20);
        ck_assert_uint_eq(huge_pages_left(64 << 20), 0);
        put("sys/fs/cgroup/hugetlb/b/hugetlb.2MB.limit_in_bytes", "9223372036852678656\n");
        ck_assert_uint_eq(huge_pages_left(0), MACHINE_UNLIMITED);
}

/* ---- the whole model ---- */

TEST(an_unreadable_file_is_unknown)
{
        struct machine m;
        machine_read(&m);
        ck_assert_uint_eq(m.pid_namespace, 0);
        ck_assert_uint_eq(m.net_namespace, 0);
        ck_assert_int_eq(m.hugepages, -1);
        ck_assert_int_eq(m.hugepages_overcommit, -1);
        ck_assert_str_eq(m.shmem_enabled, "");
        ck_assert_uint_eq(m.cgroup_memory, MACHINE_UNLIMITED);
        ck_assert_uint_eq(m.cgroup_huge_pages, MACHINE_UNLIMITED);
}

TEST(this_machine_is_described)
{
        struct rlimit files = {.rlim_cur = 321, .rlim_max = 321};
        struct machine m;
        struct stat st;
        sysfile_root = "";
        must(setrlimit(RLIMIT_NOFILE, &files));
        must(stat("/proc/self/ns/pid", &st));
        machine_read(&m);
        ck_assert_str_ne(m.kernel, "");
        ck_assert_uint_eq(m.pid_namespace, st.st_ino);
        must(stat("/proc/self/ns/net", &st));
        ck_assert_uint_eq(m.net_namespace, st.st_ino);
        ck_assert_uint_eq(m.files, 321);
        ck_assert(m.pidfd); /* 5.3, and 5.14 is asked for */
        ck_assert(m.openat2);
        deny_openat2(ENOSYS);
        machine_read(&m);
        ck_assert(!m.openat2);
}

TEST(a_command_name_is_printable)
{
        char comm[SYSFILE_COMM];
        sysfile_root = "";
        must(prctl(PR_SET_NAME, "a \xff\t~"));
        sysfile_comm(comm, getpid());
        ck_assert_str_eq(comm, "a ??~");
        sysfile_comm(comm, INT_MAX);
        ck_assert_str_eq(comm, "");
}
