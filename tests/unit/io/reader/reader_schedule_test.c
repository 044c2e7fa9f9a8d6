/* SPDX-License-Identifier: Apache-2.0
 *
 * The next block of a thread: with several NUMA nodes, its slot, and several loads from one storage. The reader has no
 * threads here, so that the test controls each step.
 */
#include "tests/lib/read_fixture.h"

#define SLOTS 8
#define NODES UINT64_C(0xa) /* 1 and 3 */
#define NEAR 1
#define FAR 3

static struct reader turns;
static struct reader_thread thread = {.reader = &turns};
static struct read_fixture near, far;
static struct ticket taken[2 * SLOTS];
static size_t n_taken;

static void begin(void)
{
        read_fixture_bare_begin(&turns, SLOTS, SLOTS, SLOTS);
        turns.staging.numa.nodes = NODES; /* as if this machine had them */
        read_fixture_plan(&near, blocks_file("near", SLOTS), true);
        read_fixture_plan(&far, blocks_file("far", SLOTS), true);
        near.device.device.numa_node = NEAR;
        far.device.device.numa_node = FAR;
        n_taken = 0;
}

static void end(void)
{
        for (size_t i = 0; i < n_taken; i++)
                reader_return_ticket(&thread, &taken[i], NULL);
        read_fixture_bare_end(&turns);
}

/* The job of the block that a thread of this node takes, or NULL. */
static struct read_job *take(int node)
{
        struct ticket *ticket = &taken[n_taken];
        struct read_run none;
        thread.node = node;
        if (!reader_try_take_ticket(&thread, NULL, &none, ticket))
                return NULL;
        n_taken++;
        return ticket->job;
}

static int node_of_last_slot(void)
{
        uint64_t at = (uint64_t)(taken[n_taken - 1].slot - turns.staging.base) / turns.staging.stride;
        return at < SLOTS / 2 ? NEAR : FAR;
}

CORE_FIXTURE(begin, end);

TEST(a_block_gets_a_slot_near_its_device)
{
        reader_start(&turns, &near.job);
        reader_start(&turns, &far.job);
        for (size_t i = 0; i < 3; i++) {
                ck_assert_ptr_eq(take(NEAR), &near.job);
                ck_assert_int_eq(node_of_last_slot(), NEAR);
        }
        ck_assert_ptr_eq(take(FAR), &far.job);
        ck_assert_int_eq(node_of_last_slot(), FAR);
}

TEST(a_thread_prefers_jobs_of_its_node_up_to_their_share)
{
        size_t own = 0;
        reader_start(&turns, &far.job); /* due first */
        reader_start(&turns, &near.job);
        struct read_job *job;
        while ((job = take(NEAR)) == &near.job)
                own++;
        ck_assert_uint_eq(own, SLOTS / 2);
        ck_assert_ptr_eq(job, &far.job);
}

TEST(an_unbound_thread_uses_shares_only)
{
        reader_start(&turns, &far.job);
        reader_start(&turns, &near.job);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &far.job);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &near.job);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &far.job);
}

TEST(a_job_for_devices_of_several_nodes_has_no_preferred_node)
{
        near.job.targets[near.job.n_targets++] = &far.target;
        reader_start(&turns, &near.job);
        ck_assert_int_eq(near.job.node, NUMA_ANYWHERE);
        ck_assert_ptr_eq(take(FAR), &near.job);
}

TEST(a_failed_device_does_not_affect_the_decision)
{
        struct read_target left_out = {.dead = true};
        near.job.targets[0] = &left_out;
        near.job.targets[near.job.n_targets++] = &near.target;
        reader_start(&turns, &near.job);
        ck_assert_int_eq(near.job.node, NEAR);
}

TEST(threads_are_placed_on_the_nodes_in_turn)
{
        pthread_attr_t attr;
        pthread_attr_init(&attr);
        ck_assert_int_eq(reader_set_affinity(&turns, &attr), NUMA_ANYWHERE);
        turns.n_nodes = 2;
        turns.nodes[0].node = NEAR;
        turns.nodes[1].node = FAR;
        CPU_SET(5, &turns.nodes[1].processors);
        ck_assert_int_eq(reader_set_affinity(&turns, &attr), NEAR);
        ck_assert_int_eq(reader_set_affinity(&turns, &attr), FAR);
        cpu_set_t set;
        ck_assert_int_eq(pthread_attr_getaffinity_np(&attr, sizeof(set), &set), 0);
        ck_assert(CPU_EQUAL(&set, &turns.nodes[1].processors));
        ck_assert_int_eq(reader_set_affinity(&turns, &attr), NEAR);
}

/* ---- one storage ---- */

#define DEPTH 4
#define STORAGE 7

static void storage_begin(void)
{
        begin();
        turns.opts.concurrency = DEPTH;
        turns.engines[READ_PREAD].alive = 8 * DEPTH;
        near.job.storage = far.job.storage = STORAGE;
        for (size_t i = 0; i < SLOTS; i++)
                near.resolved.plan.blocks[i].in_place = far.resolved.plan.blocks[i].in_place = true;
}

/* A load that has read for some time has the maximum in flight. */
static void begin_large(void)
{
        reader_start(&turns, &near.job);
        near.job.share.head_start = 0;
        for (unsigned i = 0; i < DEPTH; i++)
                ck_assert_ptr_eq(take(NUMA_ANYWHERE), &near.job);
        ck_assert_ptr_null(take(NUMA_ANYWHERE));
}

static void return_one_of(struct read_job *job)
{
        size_t i = 0;
        while (taken[i].job != job)
                i++;
        reader_return_ticket(&thread, &taken[i], NULL);
        taken[i] = taken[--n_taken];
}

CORE_FIXTURE(storage_begin, end);

TEST(a_new_load_has_its_share_at_once)
{
        begin_large();
        reader_start(&turns, &far.job);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &far.job);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &far.job);
        ck_assert_ptr_null(take(NUMA_ANYWHERE));
}

TEST(a_new_load_precedes_the_others_which_keep_a_quarter)
{
        begin_large();
        reader_start(&turns, &far.job);
        take(NUMA_ANYWHERE);
        take(NUMA_ANYWHERE);
        return_one_of(&near.job);
        return_one_of(&near.job);
        ck_assert_ptr_null(take(NUMA_ANYWHERE)); /* as many are in flight as may be */
        return_one_of(&near.job);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &far.job);
        return_one_of(&near.job);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &far.job);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &near.job);
        ck_assert_ptr_null(take(NUMA_ANYWHERE));
}

TEST(without_a_head_start_each_has_its_part)
{
        begin_large();
        reader_start(&turns, &far.job);
        far.job.share.head_start = 0;
        take(NUMA_ANYWHERE);
        take(NUMA_ANYWHERE);
        for (unsigned i = 0; i < DEPTH - 1; i++)
                return_one_of(&near.job);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &near.job);
        ck_assert_ptr_null(take(NUMA_ANYWHERE));
}

TEST(each_storage_has_its_own_queue)
{
        begin_large();
        far.job.storage = STORAGE + 1;
        reader_start(&turns, &far.job);
        for (unsigned i = 0; i < DEPTH; i++)
                ck_assert_ptr_eq(take(NUMA_ANYWHERE), &far.job);
        return_one_of(&near.job);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &near.job);
}

/* As reader_watch() counts them: hanging blocks have no slot. */
static void hang(struct read_job *job, unsigned n)
{
        job->stuck += n;
        for (unsigned i = 0; i < n; i++)
                reader_add_busy(&turns, job, -1);
}

static void answer(struct read_job *job, unsigned n)
{
        job->stuck -= n;
        for (unsigned i = 0; i < n; i++)
                reader_add_busy(&turns, job, 1);
}

TEST(a_hanging_load_gets_no_more_slots)
{
        begin_large();
        hang(&near.job, 1);
        ck_assert_ptr_null(take(NUMA_ANYWHERE));
        return_one_of(&near.job);
        ck_assert_ptr_null(take(NUMA_ANYWHERE));
        answer(&near.job, 1);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &near.job);
}

TEST(a_load_from_hung_storage_uses_the_remaining_threads, .from = 1, .to = DEPTH + 1)
{
        begin_large();
        hang(&near.job, (unsigned)_i);
        reader_start(&turns, &far.job);
        unsigned n = 0;
        while (take(NUMA_ANYWHERE) != NULL)
                n++;
        ck_assert_uint_eq(n, _i < DEPTH ? DEPTH - (unsigned)_i : 1);
        answer(&near.job, (unsigned)_i);
}

TEST(an_expected_load_finds_a_short_queue)
{
        begin_large();
        struct announced_load expect;
        reader_announce(&turns, &expect, STORAGE);
        for (unsigned i = 0; i < DEPTH; i++) {
                ck_assert_ptr_null(take(NUMA_ANYWHERE));
                return_one_of(&near.job);
        }
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &near.job);
        ck_assert_ptr_null(take(NUMA_ANYWHERE));
        reader_announce_end(&turns, &expect);
        reader_announce_end(&turns, &expect);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &near.job);
}

TEST(a_load_expected_elsewhere_or_later_is_not_awaited)
{
        begin_large();
        struct announced_load elsewhere, late;
        reader_announce(&turns, &elsewhere, STORAGE + 1);
        return_one_of(&near.job);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &near.job);
        reader_announce(&turns, &late, STORAGE);
        return_one_of(&near.job);
        ck_assert_ptr_null(take(NUMA_ANYWHERE));
        late.since_ns -= UINT64_C(3600) * 1000000000;
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &near.job);
        reader_announce_end(&turns, &elsewhere);
        reader_announce_end(&turns, &late);
}

/* ---- calls of the loop ---- */

CORE_FIXTURE(begin, end);

TEST(a_job_that_is_stopped_at_once_ends_without_a_block)
{
        reader_start(&turns, &near.job);
        reader_stop(&turns, &near.job);
        ck_assert_ptr_null(take(NEAR));
        ck_assert(!near.ended); /* not inside the call */
        core_until(near.ended);
        ck_assert(!near.job.failed);
}

TEST(of_several_weights_the_last_one_counts)
{
        reader_start(&turns, &near.job);
        reader_set_weight(&turns, &near.job, 7);
        reader_set_weight(&turns, &near.job, 9);
        ck_assert_uint_eq(near.job.share.weight, 9);
        reader_stop(&turns, &near.job);
        reader_set_weight(&turns, &near.job, 8); /* its end is queued for the loop */
        core_until(near.ended);
}

/* As many again as the limit, not more. */
TEST(tickets_of_silent_requests_leave_the_limit)
{
        reader_start(&turns, &near.job);
        near.job.limit = 1;
        ck_assert_ptr_eq(take(NEAR), &near.job);
        ck_assert_ptr_null(take(NEAR));
        near.job.silent = 1;
        ck_assert_ptr_eq(take(NEAR), &near.job);
        ck_assert_ptr_null(take(NEAR));
        near.job.silent = 2;
        ck_assert_ptr_null(take(NEAR));
        near.job.silent = 0;
}

static unsigned woken[READ_ENGINES];

static void count_files(struct reader *bare)
{
        woken[READ_PREAD]++;
}

static void count_network(struct reader *bare)
{
        woken[READ_HTTP]++;
}

/* A lighter load leaves more slots to the others, which may be loads of another engine. */
TEST(a_changed_weight_wakes_the_threads_of_every_engine)
{
        struct engine_ops files = *turns.engines[READ_PREAD].ops, network = files;
        files.wake = count_files;
        network.wake = count_network;
        reader_start(&turns, &near.job);
        turns.engines[READ_PREAD].ops = &files;
        turns.engines[READ_HTTP].ops = &network;
        reader_set_weight(&turns, &near.job, 7);
        ck_assert_uint_eq(woken[READ_PREAD], 1);
        ck_assert_uint_eq(woken[READ_HTTP], 1);
        reader_stop(&turns, &near.job);
        core_until(near.ended);
}

TEST(usage_counts_blocks_slots_and_threads)
{
        struct reader_usage usage;
        reader_start(&turns, &near.job);
        take(NEAR);
        reader_usage(&turns, &usage);
        ck_assert_uint_eq(usage.blocks, 1);
        ck_assert_uint_eq(usage.used_slots, 1);
        ck_assert_uint_eq(usage.slots, SLOTS);
        ck_assert_uint_eq(usage.threads, READ_ENGINES * SLOTS);
        reader_stop(&turns, &near.job);
}
