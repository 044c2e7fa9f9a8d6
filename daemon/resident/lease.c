/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/lease.h"

#include "daemon/base/log.h"
#include "daemon/base/metric.h"
#include "daemon/base/pidfd.h"
#include "daemon/resident/keep.h"

#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

void leases_init(struct leases *leases)
{
        *leases = (struct leases){0};
        list_init(&leases->processes);
        list_init(&leases->without_pid);
        buckets_init(&leases->by_pid);
        buckets_init(&leases->by_token);
}

static struct list *among(struct leases *leases, pid_t pid)
{
        return pid > 0 ? bucket(&leases->by_pid, (uint64_t)pid) : &leases->without_pid;
}

/* A client of another PID namespace has no pid here: its pidfd alone tells it from others, one by one. Where that
 * does not, each of its leases has a process of its own. */
static struct process *find(struct leases *leases, pid_t pid, int pidfd, uint64_t began)
{
        const struct list *all = among(leases, pid);
        list_each (pos, all) {
                struct process *p = container_of(pos, struct process, by_pid);
                /* A pid is not given to another process while its pidfd has not told of the exit; where it is looked
                 * at instead, it may be for a moment. */
                if (!p->exited && p->pid == pid && p->began == began && (pid > 0 || pidfd_same(p->pidfd, pidfd)))
                        return p;
        }
        return NULL;
}

struct process *leases_process_consume_fd(struct leases *leases, pid_t pid, uid_t uid, int pidfd, uint64_t began)
{
        cleanup_close int fd = pidfd;
        struct process *process = find(leases, pid, fd, began);
        if (process != NULL)
                return process;
        process = calloc(1, sizeof(*process));
        if (process == NULL)
                return NULL;
        process->leases = leases;
        process->pid = pid;
        process->uid = uid;
        process->pidfd = take_fd(&fd);
        process->began = began;
        list_init(&process->held);
        list_append(&leases->processes, &process->link);
        list_append(among(leases, pid), &process->by_pid);
        if (leases->watch(process) < 0) {
                process_settle(process);
                return NULL;
        }
        return process;
}

void process_settle(struct process *process)
{
        if (!list_empty(&process->held))
                return;
        keep_process_gone(process->leases->keep, process);
        process->leases->unwatch(process);
        list_remove(&process->link);
        list_remove(&process->by_pid);
        close(process->pidfd);
        free(process->client);
        free(process);
}

static void log_lease(const struct lease *lease, const char *what)
{
        const struct generation *g = lease->generation;
        log_event(LOG_LEVEL_DEBUG, LOG_NO_ID,
                  LOG_FIELDS(LOG_TEXT("model", generation_name(g)), LOG_NUMBER("generation", g->number),
                             LOG_NUMBER("lease", lease->id), LOG_NUMBER("client_pid", (uint64_t)lease->process->pid)),
                  "%s: lease %" PRIu64 " of process %d %s", generation_name(g), lease->id, (int)lease->process->pid,
                  what);
}

/* A token is of random bytes: any of them spread as well as all. */
static struct list *among_tokens(struct leases *leases, const unsigned char token[BOOK_TOKEN])
{
        uint64_t key;
        memcpy(&key, token, sizeof(key));
        return bucket(&leases->by_token, key);
}

static struct lease *lease_make(struct leases *leases, struct process *process, struct generation *generation,
                                const unsigned char token[BOOK_TOKEN])
{
        struct lease *lease = calloc(1, sizeof(*lease));
        if (lease == NULL)
                return NULL;
        lease->generation = generation;
        lease->process = process;
        lease->looked = generation->changes; /* whoever gets it hears how its model is */
        lease->since_ns = now_ns();
        list_init(&lease->in_owner);
        memcpy(lease->token, token, sizeof(lease->token));
        list_append(among_tokens(leases, token), &lease->by_token);
        list_append(&generation->leases, &lease->in_generation);
        list_append(&process->held, &lease->in_process);
        generation->n_leases++;
        generation_used(generation);
        leases->n++;
        return lease;
}

struct lease *lease_new(struct leases *leases, struct process *process, struct generation *generation, void *owner)
{
        unsigned char token[BOOK_TOKEN];
        /* Never waits once the machine has booted. */
        if (getrandom(token, sizeof(token), GRND_NONBLOCK) != sizeof(token))
                return NULL;
        struct lease *lease = lease_make(leases, process, generation, token);
        if (lease == NULL)
                return NULL;
        lease->id = ++leases->last_id;
        lease->owner = owner;
        keep_lease(leases->keep, lease);
        metric_add(METRIC_ATTACHES, 1);
        log_lease(lease, "granted");
        return lease;
}

struct lease *lease_restore(struct leases *leases, struct process *process, struct generation *generation,
                            struct book_lease *row)
{
        struct user_charge charge = {.user = NULL};
        if (leases->users != NULL && user_charge_again(leases->users, process->uid, &charge, USER_LEASES, 1) < 0)
                return NULL;
        struct lease *lease = lease_make(leases, process, generation, row->token);
        if (lease == NULL) {
                user_discharge(&charge);
                return NULL;
        }
        lease->charge = charge;
        lease->id = row->id;
        if (leases->last_id < row->id)
                leases->last_id = row->id;
        lease->since_ns = row->since_ns;
        lease->row = row;
        log_lease(lease, "taken back");
        return lease;
}

struct lease *leases_by_token(struct leases *leases, const unsigned char token[BOOK_TOKEN])
{
        const struct list *all = among_tokens(leases, token);
        list_each (pos, all) {
                struct lease *lease = container_of(pos, struct lease, by_token);
                if (memcmp(lease->token, token, sizeof(lease->token)) == 0)
                        return lease;
        }
        return NULL;
}

bool lease_is_orphan(const struct lease *lease, uint64_t now)
{
        return lease->owner == NULL && now >= lease->claim_until_ns;
}

void lease_end(struct leases *leases, struct lease *lease)
{
        struct generation *generation = lease->generation;
        struct process *process = lease->process;
        log_lease(lease, "ended");
        list_remove(&lease->in_generation);
        list_remove(&lease->in_process);
        list_remove(&lease->in_owner);
        list_remove(&lease->by_token);
        user_discharge(&lease->charge);
        keep_lease_gone(leases->keep, lease);
        free(lease);
        leases->n--;
        generation->n_leases--;
        generation_used(generation);
        process_settle(process);
        generation_settle(generation);
}

unsigned leases_count_processes(const struct generation *generation)
{
        unsigned n = 0;
        list_each (pos, &generation->leases)
                container_of(pos, struct lease, in_generation)->process->counted = false;
        list_each (pos, &generation->leases) {
                struct process *process = container_of(pos, struct lease, in_generation)->process;
                n += !process->counted;
                process->counted = true;
        }
        return n;
}

void lease_abandon(struct leases *leases, struct lease *lease)
{
        list_remove(&lease->in_owner);
        lease->owner = NULL;
        if (lease->process->exited)
                lease_end(leases, lease);
}

void process_exited(struct process *process)
{
        struct leases *leases = process->leases;
        process->exited = true;
        /* The last lease_end() frees the process: walk by a count taken before. */
        size_t n = 0;
        list_each (pos, &process->held)
                n++;
        struct list *pos = process->held.next;
        while (n-- > 0) {
                struct lease *lease = container_of(pos, struct lease, in_process);
                pos = pos->next;
                if (lease->owner == NULL)
                        lease_end(leases, lease);
        }
}
