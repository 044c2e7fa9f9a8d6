/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks of a load: a part for each, a view of the files that are its own, told by their names. On a
 * worker, while the source is opened.
 */
#include "daemon/load/load_steps.h"

#include "daemon/base/shown.h"
#include "daemon/model/ranks.h"

#include <string.h>

static const char *file_name(const char *path)
{
        const char *slash = strrchr(path, '/');
        return slash != NULL ? slash + 1 : path;
}

int load_split_ranks(struct load *load, struct error *error)
{
        const struct source_set *set = &load->opened.set;
        cleanup_free const char **names = calloc(set->n_objects + 1, sizeof(*names));
        struct ranks ranks;
        struct ranks_error why;
        char shown[SHOWN_SOURCE];
        if (names == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        for (size_t i = 0; i < set->n_objects; i++)
                names[i] = file_name(set->objects[i].path);
        shown_source(shown, load->source);
        if (ranks_make(&ranks, names, set->n_objects, load->pattern, load->n_targets, &why) < 0)
                return error_set(error, STREAMER_EFAILED, "%s (%s)", why.text, shown);
        int r = 0;
        for (size_t i = 0; r == 0 && i < load->n_parts; i++)
                r = resolve_view(&load->parts[i].resolved, set, ranks.files + ranks.first[i],
                                 ranks.first[i + 1] - ranks.first[i], error);
        ranks_deinit(&ranks);
        return r;
}

/* A rank is one of a model: its files alone, as a model of their own, are another. */
static void tell_rank(struct source_identity *identity, uint64_t rank, uint64_t n_ranks)
{
        struct {
                struct source_identity files;
                uint64_t rank, n_ranks;
        } all = {*identity, rank, n_ranks};
        hash_bytes(&all, sizeof(all), identity->digest);
}

void load_tell_ranks(struct load *load)
{
        for (size_t i = 0; i < load->n_parts; i++)
                tell_rank(&load->parts[i].identity, i, load->n_parts);
}
