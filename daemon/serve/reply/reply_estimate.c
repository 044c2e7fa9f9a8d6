/* SPDX-License-Identifier: Apache-2.0
 *
 * The reply to a dry run of a load: what it would need, read and find.
 */
#include "daemon/serve/reply/reply.h"

/* Named victims: the list has to fit a reply. */
#define EVICTS_MAX 256

/* The outcome of admission, and the models that would be evicted. */
static void write_outlook(struct writer *w, const struct load_target *target)
{
        static const char *const names[] = {[ADMISSION_FITS] = "fits",
                                            [ADMISSION_PENDING] = "waits",
                                            [ADMISSION_EVICTS] = "evicts",
                                            [ADMISSION_BLOCKED] = "blocked"};
        const struct load *load = target->load;
        struct admission_outlook outlook = {.outcome = ADMISSION_FITS};
        if (!target->estimate.resident)
                admission_estimate(load->loads->resident->admission, target->device, load->name,
                                   target->estimate.needed, !load->no_evict, &outlook);
        writer_kstr(w, "admission", names[outlook.outcome]);
        size_t n = outlook.n_victims < EVICTS_MAX ? outlook.n_victims : EVICTS_MAX;
        writer_karray(w, "evicts", n);
        for (size_t i = 0; i < n; i++) {
                const struct generation *g = outlook.victims[i];
                writer_map(w, 3);
                writer_kstr(w, "name", generation_name(g));
                writer_ku64(w, "generation", g->number);
                writer_ku64(w, "bytes", g->charged);
        }
        admission_outlook_deinit(&outlook);
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

void reply_estimate(struct writer *w, const struct load *load, uint64_t id)
{
        bool several = load->n_targets > 1;
        uint64_t files = 0, tensors = 0, bytes = 0;
        /* Replicas are of the same files, ranks each of their own. */
        for (size_t i = 0; i < (load->pattern != NULL ? load->n_targets : 1); i++) {
                files += load->targets[i].estimate.files;
                tensors += load->targets[i].estimate.tensors;
                bytes += load->targets[i].estimate.bytes;
        }
        writer_reply(w, id, 5 + (several ? 1 : ESTIMATE_FIELDS));
        writer_kstr(w, "name", load->name);
        reply_source(w, load->source);
        writer_ku64(w, "files", files);
        writer_ku64(w, "tensors", tensors);
        writer_ku64(w, "bytes", bytes);
        if (!several) {
                write_estimate(w, &load->targets[0]);
                return;
        }
        writer_karray(w, "devices", load->n_targets);
        load_each_target (t, load) {
                writer_map(w, ESTIMATE_FIELDS);
                write_estimate(w, t);
        }
}
