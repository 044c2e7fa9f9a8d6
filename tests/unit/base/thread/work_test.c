/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread pool for blocking work: lanes that do not delay one another, order within a lane, the thread limit,
 * results on the loop, and a shutdown that never hangs.
 */
#include "tests/lib/core.h"

#define THREADS "t-work"
#define LOCAL(n) (WORK_LANE_SOURCES + 1000 + (uint64_t)(n))
#define REMOTE(n) (WORK_LANE_REMOTE + (uint64_t)(n))

static struct work_pool *pool;
static struct gate gate;

static void begin(void)
{
        gate_init(&gate, false);
}

static void pool_begin(unsigned threads, unsigned per_lane)
{
        pool = work_pool_new(core_wake, THREADS, threads, per_lane);
        ck_assert_ptr_nonnull(pool);
}

static struct held_work held[300];
static size_t n_held;

static void hold_for(uint64_t user, uint64_t lane)
{
        held_work_submit_for(&held[n_held++], pool, lane, user, &gate);
}

static void hold(uint64_t lane)
{
        hold_for(0, lane);
}

static bool all_done(void)
{
        for (size_t i = 0; i < n_held; i++)
                if (!held[i].done)
                        return false;
        return true;
}

/* Lets what was held end. */
static void let_go(void)
{
        gate_open(&gate);
        core_until(all_done());
}

static void end(void)
{
        let_go();
        ck_assert(work_pool_stop(pool, now_ns() + 20 * SECOND));
        pool = work_pool_free(pool);
}

/* ---- recorded work ---- */

struct note {
        struct work work;
        char name;
        pthread_t ran_on, done_on;
        bool ran, done;
};

static pthread_mutex_t order_mutex = PTHREAD_MUTEX_INITIALIZER;
static char order[256]; /* names of notes as they ran */

static void note_run(struct work *work)
{
        struct note *note = container_of(work, struct note, work);
        pthread_mutex_lock(&order_mutex);
        order[strlen(order)] = note->name;
        pthread_mutex_unlock(&order_mutex);
        note->ran_on = pthread_self();
        note->ran = true;
}

static void note_done(struct work *work)
{
        struct note *note = container_of(work, struct note, work);
        note->done_on = pthread_self();
        note->done = true;
}

static void note_submit(struct note *note, uint64_t lane, char name)
{
        *note = (struct note){.name = name};
        work_submit(pool, lane, &note->work, note_run, note_done);
}

/* ---- results ---- */

CORE_FIXTURE(begin, end);

TEST(work_runs_on_a_thread_and_is_done_on_the_loop)
{
        struct note note;
        pool_begin(1, 1);
        note_submit(&note, 1, 'a');
        core_until(note.done);
        ck_assert(note.ran);
        ck_assert(!pthread_equal(note.ran_on, pthread_self()));
        ck_assert(pthread_equal(note.done_on, pthread_self()));
}

TEST(no_completion_runs_before_the_loop_iterates)
{
        struct note note;
        pool_begin(1, 1);
        note_submit(&note, 1, 'a');
        hold(1);
        gate_await(&gate, 1); /* the only thread has finished the first */
        ck_assert(!note.done);
        core_until(note.done);
}

static struct note resubmitted;
static unsigned rounds;

static void resubmitted_done(struct work *work)
{
        if (++rounds < 100)
                work_submit(pool, 1, work, note_run, resubmitted_done);
}

TEST(completed_work_may_be_resubmitted_at_once)
{
        pool_begin(2, 1);
        resubmitted.name = 'a';
        work_submit(pool, 1, &resubmitted.work, note_run, resubmitted_done);
        core_until(rounds == 100);
        ck_assert_uint_eq(strlen(order), 100);
}

/* ---- lanes ---- */

TEST(work_of_a_single_threaded_lane_runs_in_order)
{
        struct note notes[26];
        pool_begin(4, 1);
        for (size_t i = 0; i < ARRAY_SIZE(notes); i++)
                note_submit(&notes[i], 9, (char)('a' + i));
        core_until(notes[25].done);
        ck_assert_str_eq(order, "abcdefghijklmnopqrstuvwxyz");
}

TEST(a_lane_has_no_more_threads_than_it_may)
{
        struct note other;
        pool_begin(6, 2);
        for (size_t i = 0; i < 6; i++)
                hold(7);
        gate_await(&gate, 2);
        note_submit(&other, 8, 'o');
        core_until(other.done);
        threads_await_asleep(THREADS, threads_named(THREADS));
        ck_assert_uint_eq(gate_arrived(&gate), 2);
        gate_pass_more(&gate, 1);
        gate_await(&gate, 3);
}

TEST(reading_lanes_leave_a_thread_for_the_cpu_lane)
{
        struct note note;
        pool_begin(4, 1);
        for (size_t i = 0; i < 4; i++)
                hold(10 + i);
        gate_await(&gate, 3);
        note_submit(&note, WORK_LANE_CPU, 'n');
        core_until(note.done);
        ck_assert_uint_eq(gate_arrived(&gate), 3);
}

TEST(threads_that_hang_are_counted_out_and_replaced_up_to_the_cap)
{
        unsigned threads, hung;
        pool_begin(2, 1);
        for (unsigned i = 0; i < 8; i++) {
                hold(LOCAL(i));
                if (i < 6)
                        gate_await(&gate, i + 1);
                work_pool_watch(pool, now_ns() + SECOND, SECOND / 2);
        }
        threads_await_asleep(THREADS, 6);
        work_pool_count(pool, &threads, &hung);
        ck_assert_uint_eq(threads, 6);
        ck_assert_uint_eq(hung, 6);
        let_go();
        work_pool_count(pool, &threads, &hung);
        ck_assert_uint_eq(hung, 0);
}

TEST(a_lane_that_hangs_gets_no_more_threads)
{
        unsigned threads, hung;
        pool_begin(2, 1);
        for (size_t i = 0; i < 2; i++)
                hold(LOCAL(0));
        gate_await(&gate, 1);
        work_pool_watch(pool, now_ns() + SECOND, SECOND / 2);
        threads_await_asleep(THREADS, threads_named(THREADS));
        ck_assert_uint_eq(gate_arrived(&gate), 1);
        work_pool_count(pool, &threads, &hung);
        ck_assert_uint_eq(hung, 1);
}

TEST(slow_work_without_reads_is_not_reported_as_hanging, .to = 2)
{
        unsigned threads, hung;
        pool_begin(2, 1);
        hold(_i == 0 ? WORK_LANE_CPU : WORK_LANE_DEVICE(3));
        gate_await(&gate, 1);
        work_pool_watch(pool, now_ns() + SECOND, SECOND / 2);
        work_pool_count(pool, &threads, &hung);
        ck_assert_uint_eq(hung, 0);
}

/* ---- shares ---- */

/* So many run, and the idle thread finds no other to run. */
static void await_held(unsigned n)
{
        gate_await(&gate, n);
        threads_await_asleep(THREADS, n + 1);
        ck_assert_uint_eq(gate_arrived(&gate), n);
}

TEST(the_cpu_lane_shares_its_entry_with_no_other)
{
        struct note note;
        pool_begin(4, 1);
        for (size_t i = 0; i < 300; i++)
                hold(i % 2 == 0 ? LOCAL(i) : REMOTE(i));
        gate_await(&gate, 4);
        note_submit(&note, WORK_LANE_CPU, 'n');
        core_until(note.done);
}

TEST(remote_lanes_use_half_of_the_threads)
{
        pool_begin(16, 4);
        for (size_t i = 0; i < 16; i++)
                hold_for(1 + i, REMOTE(i));
        await_held(8);
}

/* Hanging works, whose threads are replaced, count against their user. */
TEST(a_user_has_a_quarter_of_the_threads_in_remote_lanes)
{
        pool_begin(16, 4);
        for (size_t i = 0; i < 12; i++)
                hold_for(7, REMOTE(i));
        await_held(4);
        work_pool_watch(pool, now_ns() + SECOND, SECOND / 2);
        await_held(4);
        hold_for(8, REMOTE(0));
        await_held(5);
}

TEST(the_last_thread_of_a_lane_is_for_another_user, .to = 2)
{
        pool_begin(16, 4);
        for (size_t i = 0; i < 6; i++)
                hold_for(7, _i == 0 ? LOCAL(1) : WORK_LANE_INSPECT);
        await_held(3);
        for (size_t i = 0; i < 2; i++)
                hold_for(8, _i == 0 ? LOCAL(1) : WORK_LANE_INSPECT);
        await_held(4);
}

TEST(each_local_lane_has_a_thread_whatever_hangs)
{
        struct note note;
        pool_begin(8, 4);
        for (size_t i = 0; i < 40; i++)
                hold(i < 20 ? REMOTE(i) : LOCAL(i % 2));
        gate_await(&gate, 7); /* each local lane's first, four remote ones, and one more */
        note_submit(&note, LOCAL(9), 'n');
        core_until(note.done);
}

/* ---- routes ---- */

static uint64_t lane_seven(const char *source)
{
        ck_assert_str_eq(source, "source");
        return LOCAL(7);
}

TEST(routed_work_runs_in_the_lane_that_is_found)
{
        struct note routed = {.name = 'r'}, other;
        pool_begin(4, 1);
        hold(LOCAL(7));
        gate_await(&gate, 1);
        work_submit_routed(pool, lane_seven, "source", &routed.work, note_run, note_done);
        note_submit(&other, LOCAL(8), 'o');
        core_until(other.done);
        ck_assert(!routed.done);
        gate_open(&gate);
        core_until(routed.done);
        ck_assert_str_eq(order, "or");
}

TEST(lanes_take_turns)
{
        struct note notes[4];
        pool_begin(1, 1);
        hold(1);
        gate_await(&gate, 1);
        note_submit(&notes[0], 2, 'a');
        note_submit(&notes[1], 2, 'b');
        note_submit(&notes[2], 2, 'c');
        note_submit(&notes[3], 3, 'X');
        gate_open(&gate);
        core_until(notes[2].done && notes[3].done);
        ck_assert_str_eq(order, "aXbc");
}

/* ---- threads ---- */

TEST(threads_grow_to_the_cap_and_no_further)
{
        pool_begin(3, 8);
        for (size_t i = 0; i < 8; i++)
                hold(i);
        gate_await(&gate, 3);
        threads_await_asleep(THREADS, 3);
        ck_assert_uint_eq(gate_arrived(&gate), 3);
        let_go();
        ck_assert_uint_eq(threads_named(THREADS), 3);
}

TEST(an_idle_thread_is_reused)
{
        struct note note;
        pool_begin(4, 4);
        for (int i = 0; i < 3; i++) {
                note_submit(&note, 1, 'a');
                core_until(note.done);
                threads_await_asleep(THREADS, 2); /* one that ran it, one that is ready for the next */
        }
        ck_assert_uint_eq(threads_named(THREADS), 2);
}

TEST(two_submissions_that_find_one_idle_thread_both_run)
{
        pool_begin(4, 4);
        threads_await_asleep(THREADS, 1);
        hold(1);
        hold(1);
        gate_await(&gate, 2);
}

TEST(no_pool_exists_without_a_thread)
{
        pthread_attr_t attr;
        must(pthread_attr_init(&attr));
        must(pthread_attr_setstacksize(&attr, (size_t)1 << 60));
        must(pthread_setattr_default_np(&attr));
        ck_assert_ptr_null(work_pool_new(core_wake, THREADS, 4, 4));
        must(pthread_attr_setstacksize(&attr, 1 << 20));
        must(pthread_setattr_default_np(&attr));
        pool_begin(1, 1); /* which end() stops */
}

/* ---- the end ---- */

TEST(an_unused_pool_can_be_freed_without_a_stop)
{
        pool_begin(4, 4);
        pool = work_pool_free(pool);
        pool_begin(1, 1); /* which end() stops */
}

TEST(stopping_ends_idle_threads)
{
        struct note note;
        pool_begin(4, 4);
        note_submit(&note, 1, 'a');
        core_until(note.done);
        ck_assert(work_pool_stop(pool, now_ns() + 20 * SECOND));
        AWAIT(threads_named(THREADS) == 0); /* one that was joined may be listed for a moment more */
}

TEST(stop_gives_up_on_hanging_work_at_its_deadline)
{
        pool_begin(1, 1);
        hold(1);
        gate_await(&gate, 1);
        uint64_t deadline = now_ns() + SECOND / 50;
        ck_assert(!work_pool_stop(pool, deadline));
        ck_assert_uint_ge(now_ns(), deadline);
}

TEST(work_queued_at_the_stop_completes_without_running)
{
        pool_begin(1, 1);
        for (size_t i = 0; i < 4; i++)
                hold(i / 2);
        gate_await(&gate, 1);
        ck_assert(!work_pool_stop(pool, now_ns()));
        gate_open(&gate);
        ck_assert(work_pool_stop(pool, now_ns() + 20 * SECOND));
        core_until(all_done());
        for (size_t i = 0; i < 4; i++)
                ck_assert_msg(held[i].ran == (i == 0), "work %zu", i);
}
