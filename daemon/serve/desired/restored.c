/* SPDX-License-Identifier: Apache-2.0
 *
 * Desired models of the state file: those that were pinned and are not resident.
 */
#include "daemon/serve/desired/desired_model.h"

#include "daemon/base/log/log.h"

#include <string.h>

static struct desired_model *restored_new(struct desired *d, size_t index)
{
        struct desired_model *m = desired_model_new(d, DESIRED_RESTORED);
        if (m == NULL)
                return NULL;
        m->index = index;
        m->spec = &d->restored.models[index];
        m->named = true;
        if (m->spec->ranks)
                desired_set_pins(m->spec, true);
        return m;
}

/* The oldest first; desired_insert() puts higher priorities before it. */
static int compare(const void *a, const void *b)
{
        const struct model_record *x = *(struct model_record *const *)a;
        const struct model_record *y = *(struct model_record *const *)b;
        int r = ORDER(x->number, y->number);
        return r != 0 ? r : ORDER(x, y);
}

void desired_restore(struct desired *d, const char *folder)
{
        struct resident *resident = d->loads->resident;
        struct error error = {0};
        int r = folder != NULL ? state_file_load(&d->restored, folder, &error) : STREAMER_ENOENT;
        if (r < 0 && r != STREAMER_ENOENT)
                log_error("%s; it is set aside, and pinned models are not restored (%s)", error.text, folder);
        if (r < 0)
                return;
        if (resident->last_number < d->restored.last_number)
                resident->last_number = d->restored.last_number;
        struct model_record *models = d->restored.models;
        size_t n_restored = 0;
        cleanup_free struct model_record **order = calloc(d->restored.n + 1, sizeof(*order));
        if (order == NULL)
                return;
        for (size_t i = 0; i < d->restored.n; i++)
                order[i] = &models[i];
        qsort(order, d->restored.n, sizeof(*order), compare);
        for (size_t i = 0; i < d->restored.n; i++) {
                struct desired_model *m =
                        order[i]->settings.pinned ? restored_new(d, (size_t)(order[i] - models)) : NULL;
                if (m != NULL && desired_is_complete(m)) { /* resident */
                        m->spec->settings.pinned = false;
                        desired_model_free(m);
                } else if (m != NULL) {
                        desired_insert(m);
                        n_restored++;
                }
        }
        if (n_restored > 0)
                log_info("restore: %zu pinned models are not resident and will be loaded", n_restored);
}

void desired_add(struct desired *d, const struct generation *generation, const char *name)
{
        struct desired_model *m = NULL;
        list_each_item (struct desired_model, known, &d->models, link)
                if (m == NULL && known->origin == DESIRED_RESTORED && strcmp(known->spec->name, name) == 0)
                        m = known;
        if (m == NULL) {
                bool added = state_file_add_generation(&d->restored, generation, name) != NULL;
                list_each_item (struct desired_model, known, &d->models, link) /* the array may have moved */
                        if (known->origin == DESIRED_RESTORED)
                                known->spec = &d->restored.models[known->index];
                m = added ? restored_new(d, d->restored.n - 1) : NULL;
                if (m != NULL)
                        desired_insert(m);
        }
        if (m == NULL || state_file_add_device(m->spec, generation->device->uuid, true) < 0)
                log_error("%s: was pinned, and is not restored: no memory", name);
}
