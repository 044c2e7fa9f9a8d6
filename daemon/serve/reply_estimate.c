/* SPDX-License-Identifier: Apache-2.0
 *
 * The reply to a load that is only tried (dry_run): what it would need, read and find.
 */
#include "daemon/serve/reply.h"

static const char *outcome_name(enum room_outcome outcome)
{
        static const char *const names[] = {
                [ROOM_FITS] = "fits", [ROOM_COMES] = "waits", [ROOM_EVICTS] = "evicts", [ROOM_BLOCKED] = "blocked"};
        return names[outcome];
}

/* That are named: any number of them has to fit a reply. */
#define EVICTS_MAX 256

/* What the load would find, and whom it would evict. */
static void write_outlook(struct writer *w, const struct load_target *target)
{
        const struct load *load = target->load;
        struct room_outlook outlook = {.outcome = ROOM_FITS};
        if (!target->estimate.resident)
                room_look(load->loads->resident->room, target->device, load->name, target->estimate.needed,
                          !load->no_evict, &outlook);
        writer_kstr(w, "room", outcome_name(outlook.outcome));
        writer_key(w, "evicts");
        size_t n = outlook.n_victims < EVICTS_MAX ? outlook.n_victims : EVICTS_MAX;
        writer_array(w, n);
        for (size_t i = 0; i < n; i++) {
                const struct generation *g = outlook.victims[i];
                writer_map(w, 3);
                writer_kstr(w, "model", generation_name(g));
                writer_ku64(w, "generation", g->number);
                writer_ku64(w, "bytes", g->charged);
        }
        room_outlook_deinit(&outlook);
}

static void write_estimate(struct writer *w, const struct load_target *target)
{
        const struct load_estimate *e = &target->estimate;
        writer_kstr(w, "device", target->device->name);
        writer_ku64(w, "needed", e->needed);
        writer_ku64(w, "free", e->unused);
        writer_ku64(w, "budget", e->budget);
        writer_kbool(w, "fits", e->fits);
        writer_ku64(w, "segments", e->segments);
        writer_ku64(w, "blocks", e->blocks);
        writer_ku64(w, "copied_bytes", e->copied);
        writer_kbool(w, "resident", e->resident);
        write_outlook(w, target);
}

#define ESTIMATE_FIELDS 11u

/* Replicas are of the same files, ranks each of their own. */
static void write_estimate_sums(struct writer *w, const struct load *load)
{
        uint64_t files = 0, tensors = 0, bytes = 0;
        bool streamed = false;
        for (size_t i = 0; i < (load->pattern != NULL ? load->n_targets : 1); i++) {
                files += load->targets[i].estimate.files;
                tensors += load->targets[i].estimate.tensors;
                bytes += load->targets[i].estimate.bytes;
                streamed |= load->targets[i].estimate.streamed;
        }
        writer_ku64(w, "files", files);
        writer_ku64(w, "tensors", tensors);
        writer_ku64(w, "bytes", bytes);
        writer_kbool(w, "streamed", streamed);
}

void reply_estimate(struct writer *w, const struct load *load, uint64_t id)
{
        bool several = load->n_targets > 1;
        writer_reply(w, id, 6 + (several ? 1 : ESTIMATE_FIELDS));
        writer_kstr(w, "model", load->name);
        reply_source(w, load->source);
        write_estimate_sums(w, load);
        if (!several) {
                write_estimate(w, &load->targets[0]);
                return;
        }
        writer_key(w, "devices");
        writer_array(w, load->n_targets);
        for (size_t i = 0; i < load->n_targets; i++) {
                writer_map(w, ESTIMATE_FIELDS);
                write_estimate(w, &load->targets[i]);
        }
}
