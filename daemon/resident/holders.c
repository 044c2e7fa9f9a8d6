/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists what holds the memory of a device, for the message of a load that does not fit: leased models first,
 * then pinned ones, then the rest, the largest of each first. What does not fit the text is left off.
 *
 *   llama 8388608 (ready, 2 leases by 1 process: pid 4711 uid 1000 python3), base 4194304 (ready, pinned)
 */
#include "daemon/base/sys/sysfile.h"
#include "daemon/base/util.h"
#include "daemon/resident/lease.h"

#include <inttypes.h>
#include <string.h>

/* Of one model; ps names all. */
#define PROCESSES_NAMED 3

struct text_out {
        char *text;
        size_t used, size;
};

/* Appends all of the text or nothing. */
static bool out_add(struct text_out *out, const char *text)
{
        size_t len = strlen(text);
        if (len >= out->size - out->used)
                return false;
        memcpy(out->text + out->used, text, len + 1);
        out->used += len;
        return true;
}

/* ---- processes ---- */

/* Reads /proc, which does not block. */
static void name_process(struct text_out *out, const struct process *process, const char *before)
{
        char text[96], comm[32] = "";
        if (process->pid > 0 && !process->exited)
                sysfile_line(comm, sizeof(comm), "/proc/%d/comm", (int)process->pid);
        if (process->pid > 0)
                snprintf(text, sizeof(text), "%s pid %d uid %u%s%s", before, (int)process->pid, (unsigned)process->uid,
                         comm[0] != '\0' ? " " : "", comm);
        else
                snprintf(text, sizeof(text), "%s uid %u in another PID namespace", before, (unsigned)process->uid);
        out_add(out, text);
}

static void name_processes(struct text_out *out, const struct generation *g)
{
        unsigned named = 0;
        list_each (pos, &g->leases)
                container_of(pos, struct lease, in_generation)->process->counted = false;
        list_each (pos, &g->leases) {
                struct process *process = container_of(pos, struct lease, in_generation)->process;
                if (process->counted || named == PROCESSES_NAMED)
                        continue;
                process->counted = true;
                name_process(out, process, named++ == 0 ? ":" : ",");
        }
        if (leases_count_processes(g) > PROCESSES_NAMED)
                out_add(out, ", ...");
}

/* ---- models ---- */

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

/* The next after `last`, the first where that is NULL; NULL after the last. */
static const struct generation *next_holder(const struct resident *resident, const struct device *device,
                                            const struct generation *last)
{
        const struct generation *next = NULL;
        list_each_item (const struct generation, g, &resident->generations, link) {
                if (g->device != device || g->charged == 0 || (last != NULL && !comes_before(last, g)))
                        continue;
                if (next == NULL || comes_before(g, next))
                        next = g;
        }
        return next;
}

static bool name_holder(struct text_out *out, const struct generation *g)
{
        char text[600], figures[320];
        struct text_out model = {.text = text, .size = sizeof(text)};
        unsigned processes = leases_count_processes(g);
        snprintf(figures, sizeof(figures), "%s%.200s %" PRIu64 " (%s", out->used > 0 ? ", " : "", generation_name(g),
                 g->charged, generation_state_name(g->state));
        bool fits = out_add(&model, figures);
        if (fits && g->n_leases > 0) {
                snprintf(figures, sizeof(figures), ", %u lease%s by %u process%s", g->n_leases,
                         g->n_leases == 1 ? "" : "s", processes, processes == 1 ? "" : "es");
                fits = out_add(&model, figures);
                name_processes(&model, g);
        }
        return fits && out_add(&model, g->settings.pinned ? ", pinned)" : ")") && out_add(out, text);
}

void resident_holders(const struct resident *resident, const struct device *device, char *text, size_t size)
{
        struct text_out out = {.text = text, .size = size};
        const struct generation *g = next_holder(resident, device, NULL);
        snprintf(text, size, g == NULL ? "nothing resident" : "");
        while (g != NULL && name_holder(&out, g))
                g = next_holder(resident, device, g);
        if (g != NULL)
                out_add(&out, out.used > 0 ? ", ..." : "...");
}
