/* SPDX-License-Identifier: Apache-2.0
 *
 * Leases that outlive the daemon: a row in the journal for each lease, written when it is granted, and a pidfd in
 * the store for each process, sent a few times a second. See persist.h.
 *
 * A row is complete up to the last store before a kill -9; a pidfd may be missing, and a process that is polled has
 * none. Then the next run knows the lease by its row alone, for as long as a client may take to reclaim it.
 */
#include "daemon/resident/persist/persist.h"

#include "daemon/base/log/log.h"
#include "daemon/base/sys/systemd.h"

#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#define JOBS_MAX 4096

/* ---- rows ---- */

void persist_full(struct persist *persist, const char *what)
{
        if (!persist->full_logged)
                log_warn("fd store: full: further %s do not survive a restart", what);
        persist->full_logged = true;
}

void persist_lease(struct persist *persist, struct lease *lease)
{
        struct persisted *persisted = lease->generation->persisted;
        struct process *process = lease->process;
        if (!persist_is_on(persist) || persisted == NULL || lease->row != NULL)
                return;
        if (process->persisted_id == 0)
                process->persisted_id = ++persist->journal->counters[JOURNAL_PROCESS];
        struct journal_lease row = {.id = lease->id,
                                    .model = persisted->id,
                                    .process = process->persisted_id,
                                    .since_ns = lease->since_ns,
                                    .pid = (uint32_t)process->pid,
                                    .uid = process->uid};
        memcpy(row.token, lease->token, sizeof(row.token));
        journal_raise(persist->journal, JOURNAL_LEASE, lease->id);
        lease->row = journal_add(&persist->journal->leases, &row);
        if (lease->row == NULL)
                persist_full(persist, "leases");
        persist->processes_due |= !process->stored;
}

static void lease_ended(struct persist *persist, struct lease *lease)
{
        if (persist_is_on(persist) && lease->row != NULL)
                journal_drop(&persist->journal->leases, lease->row);
        lease->row = NULL;
}

/* 1: already revoked. */
void persisted_write_leases(struct persisted *persisted)
{
        const struct generation *g = persisted->generation;
        if (!generation_drains(g))
                return;
        list_each_item (const struct lease, lease, &g->leases, in_generation)
                if (lease->row != NULL)
                        __atomic_store_n(&lease->row->revoked_ns, g->state == GENERATION_REVOKED ? 1 : g->drained_by_ns,
                                         __ATOMIC_RELEASE);
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
        if (process->stored || process->exited || process->pidfd < 0 || process->persisted_id == 0)
                return false;
        list_each_item (const struct lease, lease, &process->held, in_process)
                if (lease->row != NULL)
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

void persist_leases_tick(struct persist *persist, uint64_t now)
{
        if (persist->claim_until_ns != 0 && now >= persist->claim_until_ns) {
                persist->claim_until_ns = 0;
                /* Rows of processes that did not reclaim their leases and have no pidfd in the store. */
                for (struct journal_lease *row = NULL; (row = journal_each(&persist->journal->leases, row)) != NULL;) {
                        const struct lease *lease = leases_by_token(persist->leases, row->token);
                        if (lease == NULL || lease->row != row)
                                journal_drop(&persist->journal->leases, row);
                }
        }
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
        struct lease *lease = lease_restore(persist->leases, process, generation, row->id, row->token);
        if (lease == NULL)
                return NULL;
        lease->since_ns = row->since_ns;
        lease->row = row;
        if (process->persisted_id == 0)
                process->persisted_id = row->process;
        else
                row->process = process->persisted_id;
        persist->processes_due |= !process->stored;
        return lease;
}

struct journal_lease *persist_lease_row(struct persist *persist, const unsigned char token[LEASE_TOKEN])
{
        if (!persist_is_on(persist) || persist->claim_until_ns == 0)
                return NULL;
        for (struct journal_lease *row = NULL; (row = journal_each(&persist->journal->leases, row)) != NULL;)
                if (memcmp(row->token, token, LEASE_TOKEN) == 0)
                        return row;
        return NULL;
}
