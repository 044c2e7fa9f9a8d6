/* SPDX-License-Identifier: Apache-2.0
 *
 * A part: what is planned and read once for one target or several. Its files and its plan, made on a worker. How it is
 * read: reading.c.
 */
#include "daemon/load/load_private.h"

#include "daemon/base/text/secret.h"
#include "daemon/model/ranks.h"

#include <string.h>

void part_set_state(struct load_part *part, enum part_state state)
{
#define TO(state) (1u << PART_##state)
        static const unsigned allowed[] = {
                [PART_IDLE] = TO(PLANNED),
                [PART_PLANNED] = TO(READING),
                [PART_READING] = TO(READ) | TO(FAILED),
        };
#undef TO
        change_state(part->state, state, allowed);
}

bool part_lives(const struct load_part *part)
{
        for (size_t i = 0; i < part->n_targets; i++)
                if (target_lives(part->targets[i]))
                        return true;
        return false;
}

/* ---- opening, on a worker ---- */

/* The files of each rank, selected by their names. An index would cover all files, by their number: it is not used. */
static int split_ranks(struct load *load, struct error *error)
{
        const struct source_set *set = &load->opened;
        cleanup_free const char **names = calloc(set->n_objects + 1, sizeof(*names));
        cleanup_free struct rank_file *files = calloc(set->n_objects + 1, sizeof(*files));
        size_t n;
        struct error why;
        char shown[REDACTED_SOURCE];
        load->ranked = calloc(set->n_objects + 1, sizeof(*load->ranked));
        if (names == NULL || files == NULL || load->ranked == NULL)
                return error_no_memory(error);
        for (size_t i = 0; i < set->n_objects; i++) {
                const char *slash = strrchr(set->objects[i].path, '/');
                names[i] = slash != NULL ? slash + 1 : set->objects[i].path;
        }
        redact_source(shown, load->source);
        if (ranks_list(files, &n, names, set->n_objects, load->pattern, load->n_targets, &why) < 0)
                return error_set(error, why.code, "%s (%s)", why.text, shown);
        for (size_t i = 0; i < n; i++) {
                struct source_set *rank = &load->parts[files[i].rank].resolved.set;
                load->ranked[i] = set->objects[files[i].file];
                if (rank->n_objects++ == 0)
                        rank->objects = &load->ranked[i];
        }
        return 0;
}

int load_open_parts(struct load *load, struct error *error)
{
        struct {
                struct source_identity files;
                uint64_t rank, n_ranks;
        } ranked = {.n_ranks = load->n_parts};
        int r = load->pattern != NULL ? split_ranks(load, error) : 0;
        for (size_t i = 0; r == 0 && i < load->n_parts; i++) {
                struct load_part *part = &load->parts[i];
                if (load->pattern == NULL)
                        part->resolved.set = load->opened;
                r = source_identity(&part->resolved.set, &part->identity, error);
                if (r == 0 && !load->request.dry_run && (part->files = source_files_new(&part->resolved.set)) == NULL)
                        r = error_no_memory(error);
                if (r < 0 || load->pattern == NULL)
                        continue;
                /* A rank's identity differs from that of its files as a model of their own. */
                ranked.files = part->identity;
                ranked.rank = i;
                hash_bytes(&ranked, sizeof(ranked), part->identity.digest);
        }
        return r;
}

/* ---- plan and publishing, on a worker ---- */

int part_plan(struct load_part *part, struct error *error)
{
        const struct load *load = part->load;
        bool sha256 = load->request.sha256 && !load->request.dry_run;
        size_t n = part->resolved.set.n_objects;
        if (sha256 && (part->sha_steps = calloc(n + 1, sizeof(*part->sha_steps))) == NULL)
                return error_no_memory(error);
        for (size_t i = 0; sha256 && i < n; i++)
                part->sha_steps[i] = (struct sha_step){.part = part, .file = i};
        int r = resolve_plan(&part->resolved, &part->targets[0]->device->layout, load->loads->block_size, sha256,
                             error);
        if (r < 0 || load->request.dry_run)
                return r;
        return publish_init(&part->publish, &part->resolved, part->job.targets, part->n_targets, load->request.sha256,
                            error);
}

void part_deinit(struct load_part *part)
{
        publish_deinit(&part->publish);
        for (size_t i = 0; i < part->n_targets; i++) {
                table_drop(&part->targets[i]->manifest);
                table_drop(&part->targets[i]->arrival);
        }
        resolve_deinit(&part->resolved);
        source_files_free(part->files);
        free(part->sha_steps);
}
