/* SPDX-License-Identifier: Apache-2.0
 *
 * Leases end by detach, or when the connection is closed and the process has exited, in either order. A process is
 * watched once, whatever the number of its connections and leases.
 */
#include "tests/unit/resident_fixture.h"

#include "daemon/base/fallback/peer.h"
#include "tests/lib/kernel_counters.h"

#include <sys/syscall.h>

static struct generation *model;
static unsigned fds_before;

static struct lease_owner owner_a, owner_b; /* sessions */

static void begin_leases(void)
{
        begin();
        lease_owner_init(&owner_a);
        lease_owner_init(&owner_b);
        model = ready(loading_with("m", 2 * MiB));
        fds_before = process_fds(getpid());
}

/* Each test ends its leases; then no process record is left and the memory is freed. */
static void end_leases(void)
{
        ck_assert_uint_eq(leases.n, 0);
        ck_assert_uint_eq(owner_a.n + owner_b.n, 0);
        ck_assert(list_empty(&leases.processes));
        ck_assert_uint_eq(watched, unwatched);
        if (!list_empty(&resident.generations))
                ck_assert_uint_eq(process_fds(getpid()), fds_before);
        end();
}

static struct lease *lease_of(pid_t pid, struct lease_owner *owner)
{
        struct process *process = process_of(pid);
        ck_assert_ptr_nonnull(process);
        struct lease *lease = lease_new(&leases, process, model, owner);
        ck_assert_ptr_nonnull(lease);
        return lease;
}

static bool has_memory(void)
{
        return model->n_leases > 0;
}

/* ---- how a lease ends ---- */

CORE_FIXTURE(begin_leases, end_leases);

/* The end of one that is looked at is seen when its number may have been given on. */
TEST(a_reused_pid_is_detected_by_its_start_time)
{
        struct process *first = leases_process_consume_fd(&leases, 100, 1000, must(eventfd(0, EFD_CLOEXEC)), 7);
        struct process *second = leases_process_consume_fd(&leases, 100, 1000, must(eventfd(0, EFD_CLOEXEC)), 8);
        struct process *third = leases_process_consume_fd(&leases, 100, 1000, must(eventfd(0, EFD_CLOEXEC)), 8);
        ck_assert_ptr_ne(first, second);
        ck_assert_ptr_eq(second, third);
        process_reap(first);
        process_reap(second);
}

TEST(an_orphan_of_one_process_outlives_the_exit_of_another)
{
        struct lease *mine = lease_of(100, &owner_a), *other = lease_of(200, &owner_b);
        struct process *process = mine->process;
        lease_abandon(&leases, mine);
        process_exited(other->process);
        lease_abandon(&leases, other);
        ck_assert_uint_eq(leases.n, 1);
        process_exited(process);
        ck_assert(!has_memory());
}

TEST(a_lease_is_found_by_its_number_among_its_owners)
{
        struct lease *mine[3], *other = lease_of(200, &owner_b);
        for (size_t i = 0; i < 3; i++)
                mine[i] = lease_of(100, &owner_a);
        ck_assert_uint_eq(owner_a.n, 3);
        for (size_t i = 0; i < 3; i++) {
                ck_assert_ptr_eq(lease_of_owner(&leases, &owner_a, mine[i]->id), mine[i]);
                ck_assert_ptr_null(lease_of_owner(&leases, &owner_b, mine[i]->id));
        }
        ck_assert_ptr_null(lease_of_owner(&leases, &owner_a, other->id));
        ck_assert_ptr_null(lease_of_owner(&leases, &owner_a, other->id + 100));
        uint64_t ended = mine[1]->id;
        lease_end(&leases, mine[1]);
        ck_assert_ptr_null(lease_of_owner(&leases, &owner_a, ended));
        ck_assert_uint_eq(owner_a.n, 2);
        process_exited(mine[0]->process);
        lease_abandon(&leases, mine[2]);
        lease_abandon(&leases, mine[0]);
        lease_end(&leases, other);
}

/* ---- reclaiming a lease ---- */

TEST(an_orphan_that_is_claimed_survives_the_exit)
{
        struct lease *lease = lease_of(100, &owner_a);
        lease_abandon(&leases, lease);
        ck_assert(lease_is_orphan(lease, now_ns()));
        lease_claim(lease, &owner_b, LEASE_HELD);
        ck_assert(!lease_is_orphan(lease, now_ns()));
        process_exited(lease->process);
        ck_assert_ptr_eq(lease->owner, &owner_b);
        lease_end(&leases, lease);
}

TEST(a_lease_is_claimed_before_its_old_connection_closes)
{
        struct lease *lease = lease_of(100, &owner_a);
        lease_claim(lease, &owner_b, LEASE_REVOKED);
        ck_assert(list_empty(&owner_a.held));
        ck_assert_uint_eq(owner_a.n, 0);
        ck_assert_uint_eq(owner_b.n, 1);
        ck_assert_int_eq(lease->state, LEASE_REVOKED);
        lease_end(&leases, lease);
}

TEST(a_restored_lease_is_an_orphan_when_the_time_to_reclaim_is_over)
{
        static const unsigned char token[LEASE_TOKEN] = {1};
        struct lease *lease = lease_restore(&leases, process_of(100), model, 7, token);
        ck_assert_int_eq(lease->state, LEASE_UNCLAIMED);
        lease->claim_until_ns = 1000;
        ck_assert(!lease_is_orphan(lease, 999));
        ck_assert(lease_is_orphan(lease, 1000));
        process_exited(lease->process);
        ck_assert(!has_memory());
}

/* ---- processes ---- */

TEST(connections_of_one_process_share_its_record)
{
        struct lease *a = lease_of(100, &owner_a), *b = lease_of(100, &owner_b);
        ck_assert_ptr_eq(a->process, b->process);
        ck_assert_uint_eq(watched, 1);
        ck_assert_uint_eq(process_fds(getpid()), fds_before + 1); /* the second pidfd was closed */
        lease_end(&leases, a);
        ck_assert_uint_eq(unwatched, 0);
        lease_end(&leases, b);
        ck_assert_uint_eq(unwatched, 1);
}

TEST(a_reused_pid_is_another_process)
{
        struct lease *old = lease_of(100, &owner_a);
        process_exited(old->process);
        struct lease *new = lease_of(100, &owner_b);
        ck_assert_ptr_ne(old->process, new->process);
        struct process *process = new->process;
        lease_abandon(&leases, new);
        ck_assert_uint_eq(leases.n, 2);
        lease_abandon(&leases, old);
        ck_assert_uint_eq(leases.n, 1);
        process_exited(process);
}

/* An orphan of a process without a pidfd. */
static struct process *polled_process(uint64_t start)
{
        struct process *process = leases_process_consume_fd(&leases, getpid(), 1000, -1, start);
        lease_abandon(&leases, lease_new(&leases, process, model, &owner_a));
        return process;
}

/* More than are examined in one turn. */
TEST(processes_without_a_pidfd_are_examined_in_turn)
{
        enum { GONE = 100 };
        struct pid_stat own;
        ck_assert(pid_stat_read(&own, getpid()));
        struct process *alive = polled_process(own.start);
        for (uint64_t i = 1; i <= GONE; i++)
                polled_process(own.start + i);
        ck_assert_uint_eq(watched, 0);
        leases_poll(&leases);
        ck_assert_uint_gt(leases.n, 1);
        leases_poll(&leases);
        leases_poll(&leases);
        ck_assert_uint_eq(leases.n, 1);
        process_exited(alive);
}

TEST(a_process_without_a_lease_is_unwatched)
{
        struct process *process = process_of(100);
        ck_assert_uint_eq(watched, 1);
        process_reap(process);
        ck_assert_uint_eq(unwatched, 1);
}

TEST(a_process_that_cannot_be_watched_gets_no_lease)
{
        fail_watch = true;
        ck_assert_ptr_null(process_of(100));
        ck_assert_uint_eq(process_fds(getpid()), fds_before);
}

CORE_FIXTURE(begin_leases, end_leases, .timeout = 10);

/* One by one that would be ten thousand million comparisons. */
TEST(a_process_is_found_among_very_many)
{
        enum { MANY = 100000 };
        struct process **known = must_alloc(MANY * sizeof(struct process *));
        for (int i = 0; i < MANY; i++)
                known[i] = leases_process_consume_fd(&leases, 1 + i, 1000, -1, 0);
        for (int i = 0; i < MANY; i++)
                ck_assert_ptr_eq(leases_process_consume_fd(&leases, 1 + i, 1000, -1, 0), known[i]);
        for (int i = 0; i < MANY; i++)
                process_reap(known[i]);
}

/* Its descriptor alone tells. */
TEST(a_process_of_another_pid_namespace_is_found_among_very_many)
{
        enum { MANY = 100000 };
        struct process **others = must_alloc(MANY * sizeof(struct process *));
        pid_t pid = child_start(NULL);
        int first = must((int)syscall(SYS_pidfd_open, pid, 0)), second = must((int)syscall(SYS_pidfd_open, pid, 0));
        bool identified = pidfd_inode(first) != 0;
        struct process *known = leases_process_consume_fd(&leases, 0, 1000, first, 0);
        for (int i = 0; i < MANY; i++)
                others[i] = leases_process_consume_fd(&leases, 0, 1000, -1, 0);
        struct process *again = leases_process_consume_fd(&leases, 0, 1000, second, 0);
        ck_assert(identified == (again == known));
        for (int i = 0; i < MANY; i++)
                process_reap(others[i]);
        process_reap(known);
        if (again != known)
                process_reap(again);
        child_kill(pid);
}

TEST(a_lease_is_found_by_its_token_among_very_many)
{
        enum { MANY = 50000 };
        struct lease **given = must_alloc(MANY * sizeof(struct lease *));
        for (int i = 0; i < MANY; i++)
                given[i] = lease_of(100, &owner_a);
        for (int i = 0; i < MANY; i++)
                ck_assert_ptr_eq(leases_by_token(&leases, given[i]->token), given[i]);
        unsigned char token[LEASE_TOKEN];
        memcpy(token, given[0]->token, sizeof(token));
        for (int i = 0; i < MANY; i++)
                lease_end(&leases, given[i]);
        ck_assert_ptr_null(leases_by_token(&leases, token));
}

CORE_FIXTURE(begin_leases, end_leases);

TEST(leases_are_numbered_and_dated)
{
        uint64_t before = now_ns();
        struct lease *a = lease_of(100, &owner_a), *b = lease_of(200, &owner_a);
        ck_assert_uint_lt(a->id, b->id);
        ck_assert_uint_ge(a->since_ns, before);
        uint64_t last = b->id;
        lease_end(&leases, b);
        b = lease_of(200, &owner_a);
        ck_assert_uint_gt(b->id, last);
        lease_end(&leases, a);
        lease_end(&leases, b);
}
