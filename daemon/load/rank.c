/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks of a load: a part for each, a view of its own files, selected by their names. On a worker, while the source
 * is opened.
 */
#include "daemon/load/load_private.h"

#include "daemon/base/text/redact.h"
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
        char shown[REDACTED_SOURCE];
        if (names == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        for (size_t i = 0; i < set->n_objects; i++)
                names[i] = file_name(set->objects[i].path);
        redact_source(shown, load->source);
        if (ranks_make(&ranks, names, set->n_objects, load->pattern, load->n_targets, &why) < 0)
                return error_set(error, STREAMER_EFAILED, "%s (%s)", why.text, shown);
        int r = 0;
        for (size_t i = 0; r == 0 && i < load->n_parts; i++)
                r = resolve_view(&load->parts[i].resolved, set, ranks.files + ranks.first[i],
                                 ranks.first[i + 1] - ranks.first[i], error);
        ranks_deinit(&ranks);
        return r;
}

void load_identify_ranks(struct load *load)
{
        struct {
                struct source_identity files;
                uint64_t rank, n_ranks;
        } all = {.n_ranks = load->n_parts};
        for (; all.rank < all.n_ranks; all.rank++) {
                struct source_identity *identity = &load->parts[all.rank].identity;
                all.files = *identity;
                hash_bytes(&all, sizeof(all), identity->digest);
        }
}
