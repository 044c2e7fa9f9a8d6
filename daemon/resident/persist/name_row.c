/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/persist/name_row.h"

#include "daemon/base/util.h"

#include <string.h>

/* Of a name that stands for the charges of its model, where these have passed to another than its caller. */
static uint64_t charged_to(const struct model_name *name)
{
        const struct quota_user *user = name->charges.name.user;
        const struct quota_user *payer =
                name->generation->standing == name ? name->generation->model_charge.user : NULL;
        if (user == NULL && payer != NULL && payer->uid != model_name_caller(name)->uid)
                user = payer;
        return user != NULL ? (uint64_t)user->uid + 1 : 0;
}

int name_row_of(struct name_row *row, const struct model_name *name)
{
        const struct generation *g = name->generation;
        const char *source = model_name_source(name);
        char *persisted = source_without_query(source);
        if (persisted == NULL)
                return STREAMER_ENOMEM;
        *row = (struct name_row){.name = (char *)(uintptr_t)name->text,
                                 .device = g->device->uuid,
                                 .source = persisted,
                                 .pattern = g->pattern,
                                 .number = g->number,
                                 .verified = g->verified,
                                 .stale = g->stale,
                                 .loadable = g->published == NULL && !source_has_query(source),
                                 .caller = *model_name_caller(name),
                                 .settings = name->settings,
                                 .owner = name->owner,
                                 .charged = charged_to(name),
                                 .rank = g->rank,
                                 .n_ranks = g->n_ranks > 1 ? g->n_ranks : 0,
                                 .order = name->sequence};
        return 0;
}

void name_row_deinit(struct name_row *row)
{
        free(row->name);
        free(row->device);
        free(row->source);
        free(row->pattern);
        *row = (struct name_row){.name = NULL};
}

struct name_row *name_row_append(struct name_row **rows, size_t *n)
{
        struct name_row *grown = array_grow(*rows, *n, sizeof(*grown));
        if (grown == NULL)
                return NULL;
        *rows = grown;
        grown[*n] = (struct name_row){.name = NULL};
        return &grown[(*n)++];
}
