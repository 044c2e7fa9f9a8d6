/* SPDX-License-Identifier: Apache-2.0
 *
 * Who holds what is kept: a row in the book for each lease, written as it is given, and a pidfd in the
 * store for each process that has one, sent a few times a second. See keep.h.
 *
 * A row is there to the last store before a kill -9; a pidfd may be missing, and of a process that is looked at it
 * always is: what it has in its place ends with this daemon. Then the next run knows
 * the lease by its row alone, for as long as a client may take to claim it.
 */
#include "daemon/resident/keep.h"

#include "daemon/base/fdstore.h"
#include "daemon/base/log.h"

#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#define JOBS_MAX 4096

/* ---- rows ---- */

void keep_lease(struct keep *keep, struct lease *lease)
{
        struct kept *kept = lease->generation->kept;
        struct process *process = lease->process;
        if (!keep_is_on(keep) || kept == NULL || lease->row != NULL)
                return;
        if (process->kept_id == 0)
                process->kept_id = book_next(keep->book, BOOK_PROCESS);
        struct book_lease row = {.id = lease->id,
                                 .model = kept->id,
                                 .process = process->kept_id,
                                 .since_ns = lease->since_ns,
                                 .pid = (uint32_t)process->pid,
                                 .uid = process->uid};
        memcpy(row.token, lease->token, sizeof(row.token));
        book_raise(keep->book, BOOK_LEASE, lease->id);
        lease->row = book_add_lease(keep->book, &row);
        if (lease->row == NULL)
                keep_full(keep, "leases");
        keep->processes_due |= !process->stored;
}

void keep_lease_gone(struct keep *keep, struct lease *lease)
{
        if (keep_is_on(keep) && lease->row != NULL)
                book_drop_lease(keep->book, lease->row);
        lease->row = NULL;
}

/* Of what has been taken already the time is over, whenever that was. */
void kept_write_leases(struct kept *kept)
{
        const struct generation *g = kept->generation;
        if (g->state != GENERATION_DRAINING)
                return;
        list_each (pos, &g->leases) {
                struct book_lease *row = container_of(pos, struct lease, in_generation)->row;
                if (row != NULL)
                        __atomic_store_n(&row->taken_ns, g->quarantined ? 1 : g->drained_by_ns, __ATOMIC_RELEASE);
        }
}

void kept_read_lease(struct lease *lease)
{
        struct generation *g = lease->generation;
        if (g->state == GENERATION_DRAINING)
                g->drained_by_ns = lease->row->taken_ns;
        else
                __atomic_store_n(&lease->row->taken_ns, 0, __ATOMIC_RELEASE); /* its name came back with it */
}

/* ---- processes ---- */

/* One message: a pidfd to keep, or (-1) one to let go. */
struct job {
        struct work work;
        struct keep *keep;
        uint64_t id;
        int fd, result;
};

static void job_run(struct work *work)
{
        struct job *job = container_of(work, struct job, work);
        char name[KEEP_NAME_MAX];
        keep_process_name(name, job->id);
        job->result = job->fd >= 0 ? fdstore_add(name, job->fd) : fdstore_remove(name);
}

static void job_done(struct work *work)
{
        struct job *job = container_of(work, struct job, work);
        if (job->result < 0)
                log_debug("process %" PRIu64 " of the fd store: %s", job->id, strerror(-job->result));
        job->keep->jobs--;
        close_p(&job->fd);
        free(job);
}

/* Takes over fd. */
static bool submit(struct keep *keep, uint64_t id, int fd)
{
        struct job *job = calloc(1, sizeof(*job));
        if (job == NULL) {
                close_p(&fd);
                return false;
        }
        *job = (struct job){.keep = keep, .id = id, .fd = fd};
        keep->jobs++;
        work_submit(keep->thread, WORK_LANE_CPU, &job->work, job_run, job_done);
        return true;
}

static bool is_due(const struct process *process)
{
        if (process->stored || process->exited || process->began != 0 || process->kept_id == 0)
                return false;
        list_each (pos, &process->held)
                if (container_of(pos, struct lease, in_process)->row != NULL)
                        return true;
        return false;
}

static void store_process(struct keep *keep, struct process *process)
{
        if (keep->used >= keep->max)
                keep_full(keep, "processes (FileDescriptorStoreMax=)");
        if (keep->used >= keep->max || keep->jobs >= JOBS_MAX) {
                keep->processes_due = true; /* when there is room */
                return;
        }
        int fd = fcntl(process->pidfd, F_DUPFD_CLOEXEC, 3);
        if (fd < 0 || !submit(keep, process->kept_id, fd))
                return;
        process->stored = true;
        keep->used++;
}

static int by_place(const void *a, const void *b)
{
        struct book_lease *const *x = a, *const *y = b;
        return (*x > *y) - (*x < *y);
}

static size_t collect_rows(const struct leases *leases, struct book_lease **rows)
{
        size_t n = 0;
        list_each (pos, &leases->processes)
                list_each (held, &container_of(pos, struct process, link)->held) {
                        struct book_lease *row = container_of(held, struct lease, in_process)->row;
                        if (row != NULL)
                                rows[n++] = row;
                }
        return n;
}

/* Rows of processes that never came back and of which nobody has a pidfd. Both lists may be long: they
 * are walked side by side. False where there is no memory for that. */
static bool forget_unclaimed(struct keep *keep)
{
        cleanup_free struct book_lease **held = calloc(keep->leases->n + 1, sizeof(struct book_lease *));
        if (held == NULL)
                return false;
        size_t n = collect_rows(keep->leases, held), i = 0;
        qsort(held, n, sizeof(held[0]), by_place);
        for (struct book_lease *row = NULL; (row = book_each_lease(keep->book, row)) != NULL;) {
                if (i < n && held[i] == row)
                        i++;
                else
                        book_drop_lease(keep->book, row);
        }
        return true;
}

void keep_leases_tick(struct keep *keep, uint64_t now)
{
        if (keep->claim_until_ns != 0 && now >= keep->claim_until_ns && forget_unclaimed(keep))
                keep->claim_until_ns = 0;
        if (!keep->processes_due)
                return;
        keep->processes_due = false;
        list_each (pos, &keep->leases->processes) {
                struct process *process = container_of(pos, struct process, link);
                if (is_due(process))
                        store_process(keep, process);
        }
}

void keep_process_gone(struct keep *keep, struct process *process)
{
        if (!keep_is_on(keep) || !process->stored)
                return;
        keep->used--;
        submit(keep, process->kept_id, -1);
}

/* ---- what was taken back ---- */

struct book_lease *keep_row(struct keep *keep, const unsigned char token[BOOK_TOKEN])
{
        if (!keep_is_on(keep) || keep->claim_until_ns == 0)
                return NULL;
        for (struct book_lease *row = NULL; (row = book_each_lease(keep->book, row)) != NULL;)
                if (memcmp(row->token, token, BOOK_TOKEN) == 0)
                        return row;
        return NULL;
}

void keep_adopt(struct keep *keep, struct lease *lease)
{
        struct process *process = lease->process;
        if (process->kept_id == 0)
                process->kept_id = lease->row->process;
        else
                lease->row->process = process->kept_id;
        keep->processes_due |= !process->stored;
}
