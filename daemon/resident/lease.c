/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/lease.h"

#include "daemon/base/log/log.h"
#include "daemon/base/metric/metric.h"
#include "daemon/base/fallback/peer.h"

#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

/* Processes that are examined in one call, so that the loop is not held up by many. */
#define POLLED_PER_CALL 64

static struct lease *by_id(const struct tree_node *node)
{
        return container_of(node, struct lease, by_id);
}

static int compare_ids(const struct tree_node *a, const struct tree_node *b)
{
        return ORDER(by_id(a)->id, by_id(b)->id);
}

static int compare_id(const void *id, const struct tree_node *node)
{
        return ORDER(*(const uint64_t *)id, by_id(node)->id);
}

void leases_init(struct leases *leases)
{
        *leases = (struct leases){0};
        list_init(&leases->processes);
        list_init(&leases->polled);
        buckets_init(&leases->by_pid);
        buckets_init(&leases->by_token);
        tree_init(&leases->by_id, compare_ids);
}

void lease_owner_init(struct lease_owner *owner)
{
        *owner = (struct lease_owner){.n = 0};
        list_init(&owner->held);
}

struct process *leases_process_consume_fd(struct leases *leases, pid_t pid, uid_t uid, int pidfd, uint64_t began)
{
        cleanup_close int fd = pidfd;
        uint64_t inode = pid > 0 ? 0 : pidfd_inode(fd);
        struct list *all = bucket(&leases->by_pid, pid > 0 ? (uint64_t)pid : inode);
        bool identified = pid > 0 || inode > 0;
        /* A client of another PID namespace has no pid here: only its pidfd identifies it. Where pidfds cannot be
         * compared, each of its leases has a process entry of its own.
         *
         * The kernel does not reuse a pid before its pidfd has reported the exit. A process that is polled has no such
         * guarantee: `began` distinguishes it from its successor. */
        if (identified)
                list_each_item (struct process, p, all, by_pid)
                        if (!p->exited && p->pid == pid && p->inode == inode && p->began == began)
                                return p;
        struct process *process = calloc(1, sizeof(*process));
        if (process == NULL)
                return NULL;
        *process = (struct process){.magic = PROCESS_MAGIC,
                                    .leases = leases,
                                    .pid = pid,
                                    .inode = inode,
                                    .uid = uid,
                                    .pidfd = take_fd(&fd),
                                    .began = began};
        list_init(&process->held);
        list_init(&process->polled);
        list_init(&process->in_due);
        list_append(&leases->processes, &process->link);
        list_append(all, &process->by_pid);
        if (began != 0) {
                list_append(&leases->polled, &process->polled);
        } else if (leases->watch(process) < 0) {
                process_reap(process);
                return NULL;
        }
        return process;
}

void process_reap(struct process *process)
{
        require(process->magic == PROCESS_MAGIC);
        if (!list_empty(&process->held))
                return;
        if (process->leases->process_freed != NULL)
                process->leases->process_freed(process->leases->persist, process);
        if (process->began == 0)
                process->leases->unwatch(process);
        list_remove(&process->link);
        list_remove(&process->by_pid);
        list_remove(&process->polled);
        list_remove(&process->in_due);
        close_p(&process->pidfd);
        process->magic = 0;
        free(process->client);
        free(process);
}

void lease_set_state(struct lease *lease, enum lease_state state)
{
#define TO(state) (1u << LEASE_##state)
        static const unsigned claimed = TO(LOADING) | TO(HELD) | TO(REVOKED);
        static const unsigned allowed[] = {
                [LEASE_LOADING] = TO(HELD) | TO(ORPHAN),
                [LEASE_HELD] = TO(REVOKED) | TO(ORPHAN),
                [LEASE_REVOKED] = TO(ORPHAN),
                [LEASE_ORPHAN] = claimed,
                [LEASE_UNCLAIMED] = claimed,
        };
#undef TO
        change_state(lease->state, state, allowed);
}

static bool is_owned(const struct lease *lease)
{
        return lease->state <= LEASE_REVOKED;
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

/* A token is random: its first bytes serve as the hash. */
static struct list *among_tokens(struct leases *leases, const unsigned char token[LEASE_TOKEN])
{
        uint64_t key;
        memcpy(&key, token, sizeof(key));
        return bucket(&leases->by_token, key);
}

static struct lease *lease_make(struct leases *leases, struct process *process, struct generation *generation,
                                uint64_t id, const unsigned char token[LEASE_TOKEN], enum lease_state state)
{
        struct lease *lease = calloc(1, sizeof(*lease));
        if (lease == NULL)
                return NULL;
        lease->magic = LEASE_MAGIC;
        lease->id = id;
        lease->generation = generation;
        lease->process = process;
        lease->state = state;
        lease->since_ns = now_ns();
        list_init(&lease->in_owner);
        list_init(&lease->in_due);
        list_init(&lease->in_persist);
        memcpy(lease->token, token, sizeof(lease->token));
        list_append(among_tokens(leases, token), &lease->by_token);
        tree_node_init(&lease->by_id);
        tree_insert(&leases->by_id, &lease->by_id);
        list_append(&generation->leases, &lease->in_generation);
        list_append(&process->held, &lease->in_process);
        generation->n_leases++;
        generation_used(generation);
        leases->n++;
        if (leases->last_id < id)
                leases->last_id = id;
        log_lease(lease, state == LEASE_UNCLAIMED ? "restored" : "granted");
        if (leases->lease_made != NULL)
                leases->lease_made(leases->persist, lease);
        return lease;
}

static void own(struct lease *lease, struct lease_owner *owner)
{
        require(lease->owner == NULL);
        lease->owner = owner;
        if (owner == NULL)
                return;
        list_append(&owner->held, &lease->in_owner);
        owner->n++;
}

static void leave_owner(struct lease *lease)
{
        if (lease->owner == NULL)
                return;
        require(lease->owner->n > 0);
        lease->owner->n--;
        lease->owner = NULL;
        list_remove(&lease->in_owner);
        list_remove(&lease->in_due);
}

struct lease *lease_new(struct leases *leases, struct process *process, struct generation *generation,
                        struct lease_owner *owner)
{
        unsigned char token[LEASE_TOKEN];
        /* Never waits once the machine has booted. */
        if (getrandom(token, sizeof(token), GRND_NONBLOCK) != sizeof(token))
                return NULL;
        struct lease *lease = lease_make(leases, process, generation, leases->last_id + 1, token,
                                         generation->state == GENERATION_LOADING ? LEASE_LOADING : LEASE_HELD);
        if (lease == NULL)
                return NULL;
        own(lease, owner);
        metric_add(METRIC_ATTACHES, 1);
        return lease;
}

struct lease *lease_restore(struct leases *leases, struct process *process, struct generation *generation, uint64_t id,
                            const unsigned char token[LEASE_TOKEN])
{
        struct quota_charge charge = {.user = NULL};
        if (leases->users != NULL && quota_hold(leases->users, process->uid, &charge, QUOTA_LEASES, 1) < 0)
                return NULL;
        struct lease *lease = lease_make(leases, process, generation, id, token, LEASE_UNCLAIMED);
        if (lease != NULL)
                lease->charge = charge;
        else
                quota_discharge(&charge);
        return lease;
}

struct lease *lease_of_owner(struct leases *leases, const struct lease_owner *owner, uint64_t id)
{
        struct lease *lease = leases_from(leases, id);
        return lease != NULL && lease->id == id && lease->owner == owner ? lease : NULL;
}

struct lease *leases_from(const struct leases *leases, uint64_t id)
{
        return tree_item(tree_from(&leases->by_id, &id, compare_id), struct lease, by_id);
}

struct lease *lease_next(const struct lease *lease)
{
        return tree_item(tree_next(&lease->by_id), struct lease, by_id);
}

struct lease *leases_by_token(struct leases *leases, const unsigned char token[LEASE_TOKEN])
{
        const struct list *all = among_tokens(leases, token);
        list_each_item (struct lease, lease, all, by_token)
                if (memcmp(lease->token, token, sizeof(lease->token)) == 0)
                        return lease;
        return NULL;
}

bool lease_is_orphan(const struct lease *lease, uint64_t now)
{
        return lease->state == LEASE_ORPHAN || (lease->state == LEASE_UNCLAIMED && now >= lease->claim_until_ns);
}

void lease_end(struct leases *leases, struct lease *lease)
{
        struct generation *generation = lease->generation;
        struct process *process = lease->process;
        require(lease->magic == LEASE_MAGIC);
        log_lease(lease, "ended");
        list_remove(&lease->in_generation);
        list_remove(&lease->in_process);
        leave_owner(lease);
        list_remove(&lease->by_token);
        tree_remove(&leases->by_id, &lease->by_id);
        quota_discharge(&lease->charge);
        if (leases->lease_ended != NULL)
                leases->lease_ended(leases->persist, lease);
        lease->magic = 0;
        free(lease);
        leases->n--;
        generation->n_leases--;
        generation_used(generation);
        process_reap(process);
        generation_reap_later(generation);
}

static void disown(struct lease *lease)
{
        leave_owner(lease);
        lease_set_state(lease, LEASE_ORPHAN);
}

void lease_claim(struct lease *lease, struct lease_owner *owner, enum lease_state state)
{
        if (is_owned(lease))
                disown(lease);
        lease_set_state(lease, state);
        own(lease, owner);
}

void lease_abandon(struct leases *leases, struct lease *lease)
{
        disown(lease);
        if (lease->process->exited)
                lease_end(leases, lease);
}

void process_exited(struct process *process)
{
        struct leases *leases = process->leases;
        require(process->magic == PROCESS_MAGIC);
        process->exited = true;
        /* The last lease_end() frees the process, and with it the head of the list: it is not touched after that. */
        list_each_item_safe (struct lease, lease, &process->held, in_process)
                if (!is_owned(lease))
                        lease_end(leases, lease);
}

bool leases_poll(struct leases *leases)
{
        struct list alive;
        list_init(&alive);
        for (int i = 0; i < POLLED_PER_CALL && !list_empty(&leases->polled); i++) {
                struct process *process = container_of(leases->polled.next, struct process, polled);
                list_remove(&process->polled);
                if (pid_exited(process->pid, process->began))
                        process_exited(process);
                else
                        list_append(&alive, &process->polled);
        }
        list_append_all(&leases->polled, &alive);
        return !list_empty(&leases->polled);
}
