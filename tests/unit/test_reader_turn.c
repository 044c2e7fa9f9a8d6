/* SPDX-License-Identifier: Apache-2.0
 *
 * Whose block a thread takes: on a machine of several NUMA nodes, which slot it gets there, and where
 * several read from one storage. The reader has no threads of its own here, so that each step is the
 * test's.
 */
#include "tests/lib/reading.h"

#include "daemon/base/util.h"

#define SLOTS 8
#define NODES UINT64_C(0xa) /* 1 and 3 */
#define NEAR 1
#define FAR 3

static struct reader turns;
static struct reading near, far;
static struct ticket taken[2 * SLOTS];
static size_t n_taken;

static void begin(void)
{
        reading_bare_begin(&turns, SLOTS, SLOTS, SLOTS);
        turns.staging.numa.nodes = NODES; /* as if this machine had them */
        reading_plan(&near, even_file("near", SLOTS), true);
        reading_plan(&far, even_file("far", SLOTS), true);
        near.device.device.numa_node = NEAR;
        far.device.device.numa_node = FAR;
        n_taken = 0;
}

static void end(void)
{
        for (size_t i = 0; i < n_taken; i++)
                reader_give(&turns, &taken[i], NULL);
        reading_bare_end(&turns);
        reading_end(&near);
        reading_end(&far);
}

/* What a thread of this node takes: the job of its block, or NULL. */
static struct read_job *take(int node)
{
        struct ticket *ticket = &taken[n_taken];
        if (!reader_try(&turns, READ_PREAD, node, NULL, ticket))
                return NULL;
        n_taken++;
        return ticket->job;
}

static int node_of_last_slot(void)
{
        uint64_t at = (uint64_t)(taken[n_taken - 1].slot - turns.staging.base) / turns.staging.stride;
        return at < SLOTS / 2 ? NEAR : FAR;
}

START_TEST(a_block_gets_a_slot_near_its_device)
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
END_TEST

START_TEST(a_slot_elsewhere_is_better_than_none)
{
        for (size_t i = 0; i < SLOTS / 2; i++)
                staging_get_near(&turns.staging, FAR);
        reader_start(&turns, &far.job);
        ck_assert_ptr_eq(take(FAR), &far.job);
        ck_assert_int_eq(node_of_last_slot(), NEAR);
}
END_TEST

START_TEST(a_thread_takes_from_its_own_node_until_that_job_has_its_share_and_then_from_the_other)
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
END_TEST

START_TEST(a_thread_that_runs_anywhere_goes_by_the_shares_alone)
{
        reader_start(&turns, &far.job);
        reader_start(&turns, &near.job);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &far.job);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &near.job);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &far.job);
}
END_TEST

START_TEST(a_job_for_devices_of_several_nodes_is_near_none)
{
        near.job.targets[near.job.n_targets++] = &far.target;
        reader_start(&turns, &near.job);
        ck_assert_int_eq(near.job.node, NUMA_ANYWHERE);
        ck_assert_ptr_eq(take(FAR), &near.job);
}
END_TEST

START_TEST(a_device_that_is_left_out_has_no_say)
{
        struct read_target left_out = {.dead = true};
        near.job.targets[0] = &left_out;
        near.job.targets[near.job.n_targets++] = &near.target;
        reader_start(&turns, &near.job);
        ck_assert_int_eq(near.job.node, NEAR);
}
END_TEST

START_TEST(threads_are_placed_on_the_nodes_in_turn)
{
        pthread_attr_t attr;
        pthread_attr_init(&attr);
        ck_assert_int_eq(reader_place_thread(&turns, &attr), NUMA_ANYWHERE);
        turns.n_places = 2;
        turns.places[0].node = NEAR;
        turns.places[1].node = FAR;
        CPU_SET(5, &turns.places[1].processors);
        ck_assert_int_eq(reader_place_thread(&turns, &attr), NEAR);
        ck_assert_int_eq(reader_place_thread(&turns, &attr), FAR);
        cpu_set_t set;
        ck_assert_int_eq(pthread_attr_getaffinity_np(&attr, sizeof(set), &set), 0);
        ck_assert(CPU_EQUAL(&set, &turns.places[1].processors));
        ck_assert_int_eq(reader_place_thread(&turns, &attr), NEAR);
        pthread_attr_destroy(&attr);
}
END_TEST

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

/* A load that has read for a while has as much in flight as it may. */
static void begin_large(void)
{
        reader_start(&turns, &near.job);
        near.job.share.ahead = 0;
        for (unsigned i = 0; i < DEPTH; i++)
                ck_assert_ptr_eq(take(NUMA_ANYWHERE), &near.job);
        ck_assert_ptr_null(take(NUMA_ANYWHERE));
}

static void give_one_of(struct read_job *job)
{
        size_t i = 0;
        while (taken[i].job != job)
                i++;
        reader_give(&turns, &taken[i], NULL);
        taken[i] = taken[--n_taken];
}

START_TEST(who_comes_has_its_part_at_once)
{
        begin_large();
        reader_start(&turns, &far.job);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &far.job);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &far.job);
        ck_assert_ptr_null(take(NUMA_ANYWHERE));
}
END_TEST

START_TEST(who_comes_goes_first_and_the_others_keep_a_quarter)
{
        begin_large();
        reader_start(&turns, &far.job);
        take(NUMA_ANYWHERE);
        take(NUMA_ANYWHERE);
        give_one_of(&near.job);
        give_one_of(&near.job);
        ck_assert_ptr_null(take(NUMA_ANYWHERE)); /* as many are in flight as may be */
        give_one_of(&near.job);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &far.job);
        give_one_of(&near.job);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &far.job);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &near.job);
        ck_assert_ptr_null(take(NUMA_ANYWHERE));
}
END_TEST

START_TEST(without_a_head_start_each_has_its_part)
{
        begin_large();
        reader_start(&turns, &far.job);
        far.job.share.ahead = 0;
        take(NUMA_ANYWHERE);
        take(NUMA_ANYWHERE);
        for (unsigned i = 0; i < DEPTH - 1; i++)
                give_one_of(&near.job);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &near.job);
        ck_assert_ptr_null(take(NUMA_ANYWHERE));
}
END_TEST

START_TEST(other_storage_has_a_queue_of_its_own)
{
        begin_large();
        far.job.storage = STORAGE + 1;
        reader_start(&turns, &far.job);
        for (unsigned i = 0; i < DEPTH; i++)
                ck_assert_ptr_eq(take(NUMA_ANYWHERE), &far.job);
        give_one_of(&near.job);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &near.job);
}
END_TEST

/* As the watch counts them: what hangs has no place any more. */
static void hang(struct read_job *job, unsigned n)
{
        job->stalled += n;
        for (unsigned i = 0; i < n; i++)
                reader_place_left(&turns, job);
}

static void answer(struct read_job *job, unsigned n)
{
        job->stalled -= n;
        for (unsigned i = 0; i < n; i++)
                reader_place_taken(&turns, job);
}

START_TEST(who_hangs_takes_no_more)
{
        begin_large();
        hang(&near.job, 1);
        ck_assert_ptr_null(take(NUMA_ANYWHERE));
        give_one_of(&near.job);
        ck_assert_ptr_null(take(NUMA_ANYWHERE));
        answer(&near.job, 1);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &near.job);
}
END_TEST

START_TEST(who_comes_to_storage_that_hangs_takes_what_does_not_hang_there)
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
END_TEST

START_TEST(who_is_expected_finds_a_short_queue)
{
        begin_large();
        struct read_expect *expect = reader_expect(&turns, STORAGE);
        for (unsigned i = 0; i < DEPTH; i++) {
                ck_assert_ptr_null(take(NUMA_ANYWHERE));
                give_one_of(&near.job);
        }
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &near.job);
        ck_assert_ptr_null(take(NUMA_ANYWHERE));
        ck_assert_ptr_null(reader_expect_over(&turns, expect));
        ck_assert_ptr_null(reader_expect_over(&turns, NULL));
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &near.job);
}
END_TEST

START_TEST(who_is_expected_elsewhere_or_for_long_is_not_waited_for)
{
        begin_large();
        struct read_expect *elsewhere = reader_expect(&turns, STORAGE + 1);
        give_one_of(&near.job);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &near.job);
        struct read_expect *late = reader_expect(&turns, STORAGE);
        late->since_ns -= UINT64_C(3600) * 1000000000;
        give_one_of(&near.job);
        ck_assert_ptr_null(take(NUMA_ANYWHERE));
        reader_watch(&turns);
        ck_assert_ptr_eq(take(NUMA_ANYWHERE), &near.job);
        reader_expect_over(&turns, elsewhere);
        reader_expect_over(&turns, late);
}
END_TEST

/* ---- while a thread has the reader's lock, and perhaps no processor ---- */

static void lock_begin(void)
{
        begin();
        pthread_mutex_lock(&turns.mutex);
}

START_TEST(the_loop_starts_a_job_and_the_holder_of_the_lock_lets_it_in)
{
        reader_start(&turns, &near.job);
        ck_assert(list_empty(&turns.jobs));
        reader_unlock(&turns);
        ck_assert_ptr_eq(take(NEAR), &near.job);
}
END_TEST

START_TEST(a_job_that_is_stopped_before_it_was_let_in_ends_without_a_block)
{
        reader_start(&turns, &near.job);
        reader_stop(&turns, &near.job);
        reader_unlock(&turns);
        ck_assert_ptr_null(take(NEAR));
        core_until(near.ended);
        ck_assert(!near.job.failed);
}
END_TEST

START_TEST(of_several_weights_the_last_one_counts)
{
        reader_start(&turns, &near.job);
        reader_set_weight(&turns, &near.job, 7);
        reader_set_weight(&turns, &near.job, 9);
        reader_unlock(&turns);
        ck_assert_uint_eq(near.job.share.weight, 9);
}
END_TEST

/* Its owner may free it when it has ended, and whoever has the lock is still to look at it. */
START_TEST(a_job_does_not_end_before_what_was_wanted_of_it_is_done)
{
        reader_unlock(&turns);
        reader_start(&turns, &near.job);
        reader_stop(&turns, &near.job); /* its end is on the way to the loop */
        pthread_mutex_lock(&turns.mutex);
        reader_set_weight(&turns, &near.job, 7);
        core_settle();
        ck_assert(!near.ended);
        reader_unlock(&turns);
        core_until(near.ended);
        ck_assert_uint_eq(near.job.share.weight, 7);
}
END_TEST

START_TEST(who_is_expected_and_comes_at_once_was_never_waited_for)
{
        struct read_expect *expect = reader_expect(&turns, STORAGE);
        reader_expect_over(&turns, expect);
        reader_unlock(&turns);
        ck_assert(list_empty(&turns.expected));
}
END_TEST

START_TEST(who_asks_what_is_in_use_is_told_of_when_the_lock_was_free_last)
{
        struct reader_usage usage;
        reader_unlock(&turns);
        reader_start(&turns, &near.job);
        take(NEAR);
        pthread_mutex_lock(&turns.mutex);
        reader_watch(&turns); /* twice: the first is left to be done */
        reader_watch(&turns);
        reader_usage(&turns, &usage);
        reader_unlock(&turns);
        ck_assert_uint_eq(usage.blocks, 1);
        ck_assert_uint_eq(usage.used_slots, 1);
        ck_assert_uint_eq(usage.slots, SLOTS);
        ck_assert_uint_eq(usage.threads, READ_ENGINES * SLOTS);
        reader_stop(&turns, &near.job);
}
END_TEST

int main(void)
{
        suite_begin("reader turns");
        TCase *t = core_group("several nodes", begin, end);
        tcase_add_test(t, a_block_gets_a_slot_near_its_device);
        tcase_add_test(t, a_slot_elsewhere_is_better_than_none);
        tcase_add_test(t, a_thread_takes_from_its_own_node_until_that_job_has_its_share_and_then_from_the_other);
        tcase_add_test(t, a_thread_that_runs_anywhere_goes_by_the_shares_alone);
        tcase_add_test(t, a_job_for_devices_of_several_nodes_is_near_none);
        tcase_add_test(t, a_device_that_is_left_out_has_no_say);
        tcase_add_test(t, threads_are_placed_on_the_nodes_in_turn);
        t = core_group("one storage", storage_begin, end);
        tcase_add_test(t, who_comes_has_its_part_at_once);
        tcase_add_test(t, who_comes_goes_first_and_the_others_keep_a_quarter);
        tcase_add_test(t, without_a_head_start_each_has_its_part);
        tcase_add_test(t, other_storage_has_a_queue_of_its_own);
        tcase_add_test(t, who_hangs_takes_no_more);
        tcase_add_loop_test(t, who_comes_to_storage_that_hangs_takes_what_does_not_hang_there, 1, DEPTH + 1);
        tcase_add_test(t, who_is_expected_finds_a_short_queue);
        tcase_add_test(t, who_is_expected_elsewhere_or_for_long_is_not_waited_for);
        t = core_group("a lock that somebody has", lock_begin, end);
        tcase_add_test(t, the_loop_starts_a_job_and_the_holder_of_the_lock_lets_it_in);
        tcase_add_test(t, a_job_that_is_stopped_before_it_was_let_in_ends_without_a_block);
        tcase_add_test(t, of_several_weights_the_last_one_counts);
        tcase_add_test(t, a_job_does_not_end_before_what_was_wanted_of_it_is_done);
        tcase_add_test(t, who_is_expected_and_comes_at_once_was_never_waited_for);
        tcase_add_test(t, who_asks_what_is_in_use_is_told_of_when_the_lock_was_free_last);
        return suite_run();
}
