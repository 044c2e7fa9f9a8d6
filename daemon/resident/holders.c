/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists what holds the memory of a device, for the message of a load that does not fit: leased models first,
 * then pinned ones, then the rest, the largest of each first. What does not fit the text is left off.
 *
 *   llama 8.0 GiB (ready, 2 leases by 1 process: pid 4711 uid 1000 python3), base 4.0 GiB (ready, pinned)
 */
#include "daemon/base/sys/machine.h"
#include "daemon/base/sys/sysfile.h"
#include "daemon/base/text/text.h"
#include "daemon/resident/lease.h"

#include <inttypes.h>

/* Of one model; ps names all. */
#define PROCESSES_NAMED 3

#define MODEL_TEXT 600 /* a name's share of it is 200 */

static void add_process(char text[MODEL_TEXT], const struct process *process)
{
        char comm[SYSFILE_COMM] = "";
        if (!process->exited && process->pid > 0)
                sysfile_comm(comm, process->pid);
        format_append(text, MODEL_TEXT, text[0] != '\0' ? "," : "");
        if (process->pid > 0)
                format_append(text, MODEL_TEXT, " pid %d uid %u%s%s", (int)process->pid, (unsigned)process->uid,
                              comm[0] != '\0' ? " " : "", comm);
        else
                format_append(text, MODEL_TEXT, " uid %u in another PID namespace", (unsigned)process->uid);
}

static void add_processes(char text[MODEL_TEXT], const struct generation *g)
{
        char named[MODEL_TEXT] = "";
        unsigned n = 0;
        list_each_item (const struct lease, lease, &g->leases, in_generation)
                lease->process->counted = false;
        list_each_item (const struct lease, lease, &g->leases, in_generation) {
                if (lease->process->counted)
                        continue;
                lease->process->counted = true;
                if (++n <= PROCESSES_NAMED)
                        add_process(named, lease->process);
        }
        format_append(text, MODEL_TEXT, ", %u lease%s by %u process%s:%s%s", g->n_leases, g->n_leases == 1 ? "" : "s",
                      n, n == 1 ? "" : "es", named, n > PROCESSES_NAMED ? ", ..." : "");
}

static void describe_model(char text[MODEL_TEXT], const struct generation *g)
{
        char size[SIZE_TEXT];
        snprintf(text, MODEL_TEXT, "%.200s %s (%s", generation_name(g), size_text(size, g->charged),
                 generation_state_name(g->state));
        if (g->n_leases > 0)
                add_processes(text, g);
        format_append(text, MODEL_TEXT, g->settings.pinned ? ", pinned)" : ")");
}

static int weight(const struct generation *g)
{
        return g->n_leases > 0 ? 2 : g->settings.pinned;
}

static bool comes_before(const struct generation *a, const struct generation *b)
{
        if (weight(a) != weight(b))
                return weight(a) > weight(b);
        if (a->charged != b->charged)
                return a->charged > b->charged;
        return a->number != b->number ? a->number < b->number : a < b;
}

/* More than fit a message. */
#define HOLDERS_MAX 32

/* The first of those that hold memory of the device, in order. How many. */
static size_t find_holders(const struct generation *holders[HOLDERS_MAX], const struct resident *resident,
                           const struct device *device)
{
        size_t n = 0;
        list_each_item (const struct generation, g, &resident->generations, link) {
                if (g->device != device || g->charged == 0 ||
                    (n == HOLDERS_MAX && !comes_before(g, holders[HOLDERS_MAX - 1])))
                        continue;
                n += n < HOLDERS_MAX ? 1 : 0;
                size_t at = n - 1;
                for (; at > 0 && comes_before(g, holders[at - 1]); at--)
                        holders[at] = holders[at - 1];
                holders[at] = g;
        }
        return n;
}

/* What would make the load fit, short of ending leases and other loads. */
static const char *remedy(const struct resident *resident, const struct device *device, uint64_t needed,
                          uint64_t unused)
{
        uint64_t pinned = resident->idle[device->number].pinned;
        uint64_t idle = unused + resident->idle[device->number].bytes;
        if (needed > device_budget(device))
                return "; more than the whole budget";
        if (idle >= needed)
                return "; it would if idle models were evicted";
        return idle + pinned >= needed ? "; unload or unpin pinned models" : "";
}

int resident_full_error(const struct resident *resident, const struct device *device, uint64_t needed, uint64_t unused,
                        struct error *error)
{
        char text[600] = "", model[MODEL_TEXT];
        const struct generation *holders[HOLDERS_MAX];
        size_t n = find_holders(holders, resident, device), named = 0;
        for (; named < n; named++) {
                describe_model(model, holders[named]);
                if (strlen(text) + strlen(", , ...") + strlen(model) >= sizeof(text))
                        break;
                format_append(text, sizeof(text), "%s%s", text[0] != '\0' ? ", " : "", model);
        }
        if (named < n)
                format_append(text, sizeof(text), ", ...");
        uint64_t budget = device_budget(device);
        char want[32], have[32], all[SIZE_TEXT];
        size_text(want, needed);
        size_text(have, unused);
        if (strcmp(want, have) == 0) { /* the difference does not show */
                snprintf(want, sizeof(want), "%" PRIu64 " bytes", needed);
                snprintf(have, sizeof(have), "%" PRIu64 " bytes", unused);
        }
        return error_set(error, STREAMER_ENOMEM, "does not fit: %s needed, %s of %s free%s%s%s (%s: %s)", want, have,
                         size_text(all, budget), budget < device->budget ? ", " : "",
                         budget < device->budget ? device->shared : "", remedy(resident, device, needed, unused),
                         device->name, text[0] != '\0' ? text : "nothing resident");
}

uint64_t generation_needs(const uint64_t *segments, size_t n, uint64_t manifest_size)
{
        uint64_t sum = round_up(manifest_size, machine_pages.small);
        for (size_t i = 0; i < n; i++)
                sum += segments[i];
        return sum;
}

int generation_charge(struct generation *generation, uint64_t bytes, struct error *error)
{
        struct device *device = generation->device;
        uint64_t unused = device_unused(device);
        if (bytes > unused)
                return resident_full_error(generation->resident, device, bytes, unused, error);
        device->used += bytes;
        generation->charged += bytes;
        generation_changed(generation);
        return 0;
}
