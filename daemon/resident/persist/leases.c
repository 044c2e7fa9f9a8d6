/* SPDX-License-Identifier: Apache-2.0
 *
 * Leases that outlive the daemon: a row in the journal for each lease, written when it is granted, and a pidfd in
 * the store for each process, sent a few times a second. See persist.h.
 *
 * A row is complete up to the last store before a kill -9; a pidfd may be missing, and for a process that is polled
 * it always is, since the descriptor that replaces it ends with this daemon. Then the next run knows the lease by
 * its row alone, for as long as a client may take to reclaim it.
 */
#include "daemon/resident/persist/persist.h"

#include "daemon/base/log/log.h"
#include "daemon/base/systemd/fdstore.h"

#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

_Static_assert(JOURNAL_TOKEN == LEASE_TOKEN, "a row holds a token");

#define JOBS_MAX 4096

/* ---- rows ---- */

void persist_lease(struct persist *persist, struct lease *lease)
{
        struct persisted *persisted = lease->generation->persisted;
        struct process *process = lease->process;
        if (!persist_is_on(persist) || persisted == NULL || lease->row != NULL)
                return;
        if (process->persisted_id == 0)
                process->persisted_id = journal_next(persist->journal, JOURNAL_PROCESS);
        struct journal_lease row = {.id = lease->id,
                                    .model = persisted->id,
                                    .process = process->persisted_id,
                                    .since_ns = lease->since_ns,
                                    .pid = (uint32_t)process->pid,
                                    .uid = process->uid};
        memcpy(row.token, lease->token, sizeof(row.token));
        journal_raise(persist->journal, JOURNAL_LEASE, lease->id);
        lease->row = journal_add_lease(persist->journal, &row);
        if (lease->row == NULL)
                persist_full(persist, "leases");
        persist->processes_due |= !process->stored;
}

static void lease_ended(struct persist *persist, struct lease *lease)
{
        if (persist_is_on(persist) && lease->row != NULL)
                journal_drop_lease(persist->journal, lease->row);
        lease->row = NULL;
}

/* 1: already revoked. */
void persisted_write_leases(struct persisted *persisted)
{
        const struct generation *g = persisted->generation;
        if (g->state != GENERATION_DRAINING)
                return;
        list_each (pos, &g->leases) {
                struct journal_lease *row = container_of(pos, struct lease, in_generation)->row;
                if (row != NULL)
                        __atomic_store_n(&row->revoked_ns, g->quarantined ? 1 : g->drained_by_ns, __ATOMIC_RELEASE);
        }
}

void persisted_read_lease(struct lease *lease)
{
        struct generation *g = lease->generation;
        if (g->state == GENERATION_DRAINING)
                g->drained_by_ns = lease->row->revoked_ns;
        else
                __atomic_store_n(&lease->row->revoked_ns, 0, __ATOMIC_RELEASE); /* it was restored with its name */
}

/* ---- processes ---- */

/* One message: a pidfd to store, or (-1) one to remove. */
struct job {
        struct work work;
        struct persist *persist;
        uint64_t id;
        int fd, result;
};

static void job_run(struct work *work)
{
        struct job *job = container_of(work, struct job, work);
        char name[PERSIST_NAME_MAX];
        persist_process_name(name, job->id);
        job->result = job->fd >= 0 ? fdstore_add(name, job->fd) : fdstore_remove(name);
}

static void job_done(struct work *work)
{
        struct job *job = container_of(work, struct job, work);
        if (job->result < 0)
                log_debug("process %" PRIu64 " of the fd store: %s", job->id, strerror(-job->result));
        job->persist->jobs--;
        close_p(&job->fd);
        free(job);
}

/* Takes over fd. */
static bool submit(struct persist *persist, uint64_t id, int fd)
{
        struct job *job = calloc(1, sizeof(*job));
        if (job == NULL) {
                close_p(&fd);
                return false;
        }
        *job = (struct job){.persist = persist, .id = id, .fd = fd};
        persist->jobs++;
        work_submit(persist->thread, WORK_LANE_CPU, &job->work, job_run, job_done);
        return true;
}

static bool is_due(const struct process *process)
{
        if (process->stored || process->exited || process->began != 0 || process->persisted_id == 0)
                return false;
        list_each (pos, &process->held)
                if (container_of(pos, struct lease, in_process)->row != NULL)
                        return true;
        return false;
}

static void store_process(struct persist *persist, struct process *process)
{
        if (persist->used >= persist->max)
                persist_full(persist, "processes (FileDescriptorStoreMax=)");
        if (persist->used >= persist->max || persist->jobs >= JOBS_MAX) {
                persist->processes_due = true; /* tried again */
                return;
        }
        int fd = fcntl(process->pidfd, F_DUPFD_CLOEXEC, 3);
        if (fd < 0 || !submit(persist, process->persisted_id, fd))
                return;
        process->stored = true;
        persist->used++;
}

static int by_place(const void *a, const void *b)
{
        struct journal_lease *const *x = a, *const *y = b;
        return ORDER(*x, *y);
}

static size_t collect_rows(const struct leases *leases, struct journal_lease **rows)
{
        size_t n = 0;
        list_each (pos, &leases->processes)
                list_each (held, &container_of(pos, struct process, link)->held) {
                        struct journal_lease *row = container_of(held, struct lease, in_process)->row;
                        if (row != NULL)
                                rows[n++] = row;
                }
        return n;
}

/* Drops rows of processes that did not reclaim their leases and have no pidfd in the store. Both lists may be long:
 * sorted, they are walked side by side. False: no memory. */
static bool forget_unclaimed(struct persist *persist)
{
        cleanup_free struct journal_lease **held = calloc(persist->leases->n + 1, sizeof(struct journal_lease *));
        if (held == NULL)
                return false;
        size_t n = collect_rows(persist->leases, held), i = 0;
        qsort(held, n, sizeof(held[0]), by_place);
        for (struct journal_lease *row = NULL; (row = journal_each_lease(persist->journal, row)) != NULL;) {
                if (i < n && held[i] == row)
                        i++;
                else
                        journal_drop_lease(persist->journal, row);
        }
        return true;
}

void persist_leases_tick(struct persist *persist, uint64_t now)
{
        if (persist->claim_until_ns != 0 && now >= persist->claim_until_ns && forget_unclaimed(persist))
                persist->claim_until_ns = 0;
        if (!persist->processes_due)
                return;
        persist->processes_due = false;
        list_each_item (struct process, process, &persist->leases->processes, link)
                if (is_due(process))
                        store_process(persist, process);
}

static void process_freed(struct persist *persist, struct process *process)
{
        if (!persist_is_on(persist) || !process->stored)
                return;
        persist->used--;
        submit(persist, process->persisted_id, -1);
}

void persist_leases_init(struct persist *persist)
{
        struct leases *leases = persist->leases;
        leases->persist = persist;
        leases->granted = persist_lease;
        leases->ended = lease_ended;
        leases->process_freed = process_freed;
}

/* ---- restored leases ---- */

struct lease *persist_lease_restore(struct persist *persist, struct process *process, struct generation *generation,
                                    struct journal_lease *row)
{
        const struct restored_lease past = {.id = row->id, .since_ns = row->since_ns, .token = row->token, .row = row};
        return lease_restore(persist->leases, process, generation, &past);
}

struct journal_lease *persist_lease_row(struct persist *persist, const unsigned char token[JOURNAL_TOKEN])
{
        if (!persist_is_on(persist) || persist->claim_until_ns == 0)
                return NULL;
        for (struct journal_lease *row = NULL; (row = journal_each_lease(persist->journal, row)) != NULL;)
                if (memcmp(row->token, token, JOURNAL_TOKEN) == 0)
                        return row;
        return NULL;
}

void persist_adopt(struct persist *persist, struct lease *lease)
{
        struct process *process = lease->process;
        if (process->persisted_id == 0)
                process->persisted_id = lease->row->process;
        else
                lease->row->process = process->persisted_id;
        persist->processes_due |= !process->stored;
}
