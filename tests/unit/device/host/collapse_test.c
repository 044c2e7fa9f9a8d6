/* SPDX-License-Identifier: Apache-2.0
 *
 * Collapsing huge pages: each range is collapsed once, before it is filled. It gets small pages if the kernel has no
 * huge page, and so does the rest of the segment if memory is fragmented.
 */
#include "tests/lib/core.h"

#include "daemon/device/host/host_private.h"
#include "tests/lib/kernel_counters.h"

#define RANGES 64
#define SIZE (RANGES * machine_pages.huge)
#define SMALL_NS 1000

/* ---- a kernel of our own ---- */

static struct {
        _Atomic unsigned calls;
        int error; /* of collapses; 0: none */
        uint64_t collapse_ns;
        bool compacts;
        _Atomic uint64_t now, compactions;
        struct gate *gate;
} own;

static int own_collapse(void *base, uint64_t len)
{
        ck_assert_uint_eq(len, machine_pages.huge);
        own.calls++;
        own.now += own.collapse_ns;
        own.compactions += own.compacts;
        if (own.gate != NULL)
                gate_pass(own.gate);
        errno = own.error;
        return own.error == 0 ? 0 : -1;
}

static uint64_t own_clock(void)
{
        return own.now;
}

static uint64_t own_compactions(void)
{
        return own.compactions;
}

#define OWN_CALLS                                                                                                      \
        {                                                                                                              \
                .collapse = own_collapse, .clock = own_clock, .compactions = own_compactions                           \
        }
static const struct collapse_calls own_calls = OWN_CALLS;
static struct collapse_kernel kernel = {.calls = OWN_CALLS, .supported = true, .small_ns = SMALL_NS};

static int fd;
static unsigned char *base;
static struct collapse *collapse;
static uint64_t made; /* bytes of pages, by collapse_prepare() */

static void begin(const struct collapse_kernel *by, uint64_t ready)
{
        fd = host_memfd_seal_consume_fd(host_memfd_new(PAGES_4K), SIZE, false, (void **)&base);
        must(fd);
        collapse = collapse_new(by, base, fd, SIZE, ready);
        ck_assert_ptr_nonnull(collapse);
}

static uint64_t populated(void)
{
        struct stat st;
        must(fstat(fd, &st));
        return (uint64_t)st.st_blocks * 512;
}

/* ---- probing ---- */

static const struct {
        int error;
        bool supported;
} answers[] = {{0, true},       {ENOMEM, true}, {EAGAIN, true}, {EBUSY, true},
               {EINVAL, false}, {EPERM, false}, {ENOSYS, false}};

CORE_FIXTURE(NULL, NULL);

TEST(a_refusal_is_distinguished_from_a_lack_of_pages, EACH(answers))
{
        struct collapse_kernel probed;
        own.error = answers[_i].error;
        collapse_probe(&probed, &own_calls);
        ck_assert_int_eq(probed.supported, answers[_i].supported);
        ck_assert_uint_eq(own.calls, 1);
}

TEST(the_kernel_reports_the_cost_of_small_pages)
{
        struct collapse_kernel probed;
        unsigned fds = process_fds(getpid());
        collapse_probe(&probed, &collapse_calls);
        ck_assert_uint_gt(probed.small_ns, 0);
        ck_assert_uint_eq(process_fds(getpid()), fds);
}

/* ---- ranges ---- */

TEST(each_range_is_collapsed_once)
{
        begin(&kernel, 0);
        ck_assert_int_eq(collapse_prepare(collapse, machine_pages.huge - 1, 2, &made), 0);
        ck_assert_uint_eq(own.calls, 2);
        ck_assert_int_eq(collapse_prepare(collapse, 0, 2 * machine_pages.huge, &made), 0);
        ck_assert_uint_eq(own.calls, 2);
        ck_assert_int_eq(collapse_prepare(collapse, 0, SIZE, &made), 0);
        ck_assert_uint_eq(own.calls, RANGES);
        ck_assert_uint_eq(collapse_small_bytes(collapse), 0);
}

TEST(populated_ranges_are_not_collapsed)
{
        begin(&kernel, (RANGES - 1) * machine_pages.huge);
        ck_assert_int_eq(collapse_prepare(collapse, 0, SIZE, &made), 0);
        ck_assert_uint_eq(own.calls, 1);
}

TEST(a_range_without_a_huge_page_gets_the_small_ones_it_needs, .to = 4)
{
        static const int errors[] = {ENOMEM, EBUSY, EAGAIN, EINVAL};
        own.error = errors[_i];
        const uint64_t page = machine_pages.small;
        begin(&kernel, 0);
        ck_assert_int_eq(collapse_prepare(collapse, 2 * page + 1, page, &made), 0);
        ck_assert_uint_eq(populated(), 3 * page); /* the range's first, and two */
        ck_assert_uint_eq(collapse_small_bytes(collapse), machine_pages.huge);
        ck_assert_int_eq(collapse_prepare(collapse, 0, machine_pages.huge, &made), 0);
        ck_assert_uint_eq(populated(), machine_pages.huge);
        ck_assert_uint_eq(own.calls, 1); /* no second try */
        ck_assert_uint_eq(collapse_small_bytes(collapse), machine_pages.huge);
        ck_assert(!collapse_stopped(collapse));
}

/* A mapping behind the end of its file has no page, as one that lacks memory. */
TEST(out_of_memory_is_an_error)
{
        begin(&kernel, 0);
        cleanup_close int empty = memfd_create("empty", MFD_CLOEXEC);
        void *beyond = host_memfd_map(empty, SIZE, PROT_READ | PROT_WRITE);
        struct collapse *without = collapse_new(&kernel, beyond, empty, SIZE, 0);
        ck_assert_int_eq(collapse_prepare(without, 0, 1, &made), -1);
        ck_assert_int_eq(errno, ENOMEM);
        ck_assert_uint_eq(own.calls, 0);
}

TEST(ranges_become_huge_pages)
{
        struct collapse_kernel real;
        collapse_probe(&real, &collapse_calls);
        if (!real.supported)
                SKIP("the kernel does not collapse shared memory");
        begin(&real, 0);
        base[machine_pages.huge + 5000] = 'x';
        ck_assert_int_eq(collapse_prepare(collapse, machine_pages.huge, 4 * machine_pages.huge, &made), 0);
        ck_assert_uint_eq(populated() + collapse_small_bytes(collapse) / machine_pages.huge *
                                                (machine_pages.huge - machine_pages.small),
                          4 * machine_pages.huge);
        ck_assert_int_eq(base[machine_pages.huge + 5000], 'x');
        for (uint64_t i = 2 * machine_pages.huge; i < 5 * machine_pages.huge; i += 509)
                ck_assert_int_eq(base[i], 0);
}

/* ---- several threads ---- */

static void *prepare_second(void *unused)
{
        return (void *)(intptr_t)collapse_prepare(collapse, 4096, 4096, &(uint64_t){0});
}

TEST(a_caller_waits_until_its_range_is_collapsed)
{
        struct gate gate;
        pthread_t first, second;
        void *result;
        gate_init(&gate, false);
        own.gate = &gate;
        begin(&kernel, 0);
        must(pthread_create(&first, NULL, prepare_second, NULL));
        gate_await(&gate, 1);
        must(pthread_create(&second, NULL, prepare_second, NULL));
        ck_assert_int_eq(collapse_prepare(collapse, 0, 0, &made), 0);
        gate_open(&gate);
        must(pthread_join(first, &result));
        ck_assert_ptr_null(result);
        must(pthread_join(second, &result));
        ck_assert_ptr_null(result);
        ck_assert_uint_eq(own.calls, 1);
        own.gate = NULL;
}

static void *prepare_all(void *unused)
{
        for (uint64_t at = 0; at < SIZE; at += 3 * 4096)
                if (collapse_prepare(collapse, at, 4096, &(uint64_t){0}) < 0)
                        return base;
        return NULL;
}

TEST(concurrent_threads_collapse_each_range_once)
{
        pthread_t threads[4];
        void *result;
        begin(&kernel, 0);
        for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
                must(pthread_create(&threads[i], NULL, prepare_all, NULL));
        for (size_t i = 0; i < ARRAY_SIZE(threads); i++) {
                must(pthread_join(threads[i], &result));
                ck_assert_ptr_null(result);
        }
        ck_assert_uint_eq(own.calls, RANGES);
}

/* ---- the guard ---- */

TEST(an_occasional_slow_collapse_is_tolerated)
{
        own.compacts = true;
        begin(&kernel, 0);
        own.collapse_ns = 15 * SMALL_NS;
        ck_assert_int_eq(collapse_prepare(collapse, 0, 1, &made), 0);
        own.collapse_ns = SMALL_NS / 10;
        ck_assert_int_eq(collapse_prepare(collapse, 0, SIZE, &made), 0);
        ck_assert_uint_eq(own.calls, RANGES);
        ck_assert(!collapse_stopped(collapse));
}

TEST(collapsing_continues_without_compaction)
{
        own.collapse_ns = 30 * SMALL_NS;
        begin(&kernel, 0);
        ck_assert_int_eq(collapse_prepare(collapse, 0, SIZE, &made), 0);
        ck_assert_uint_eq(own.calls, RANGES);
        ck_assert_uint_eq(collapse_small_bytes(collapse), 0);
        ck_assert(!collapse_stopped(collapse));
}

TEST(collapsing_stops_if_compaction_costs_more_than_small_pages, .to = 2)
{
        own.collapse_ns = 3 * SMALL_NS;
        own.compacts = true;
        own.error = _i == 0 ? 0 : ENOMEM;
        begin(&kernel, 0);
        ck_assert_int_eq(collapse_prepare(collapse, 0, SIZE, &made), 0);
        ck_assert(collapse_stopped(collapse));
        ck_assert_ptr_nonnull(strstr(metric_text(METRIC_COLLAPSE_STOPPED), "\nstreamerd_collapse_stopped_total 1\n"));
        unsigned tried = own.calls;
        ck_assert_uint_lt(tried, RANGES / 2);
        ck_assert_uint_eq(collapse_small_bytes(collapse), (RANGES - (_i == 0 ? tried : 0)) * machine_pages.huge);
        ck_assert_int_eq(collapse_prepare(collapse, 0, SIZE, &made), 0);
        ck_assert_uint_eq(own.calls, tried);
        /* The next segment tries again. */
        begin(&kernel, 0);
        ck_assert_int_eq(collapse_prepare(collapse, 0, 1, &made), 0);
        ck_assert_uint_eq(own.calls, tried + 1);
}
