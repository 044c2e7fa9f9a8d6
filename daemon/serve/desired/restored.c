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

/* The highest priority first, of equals the oldest. */
static int compare(const void *a, const void *b)
{
        const struct model_record *x = *(struct model_record *const *)a;
        const struct model_record *y = *(struct model_record *const *)b;
        int r = ORDER(y->settings.priority, x->settings.priority);
        if (r == 0)
                r = ORDER(x->number, y->number);
        return r != 0 ? r : ORDER(x, y);
}

/* False: it is resident, or there is no memory. */
static bool restore_model(struct desired *d, size_t index)
{
        struct desired_model *m = restored_new(d, index);
        if (m == NULL)
                return false;
        if (desired_is_complete(m)) {
                m->spec->settings.pinned = false;
                desired_model_free(m);
                return false;
        }
        desired_insert(m);
        return true;
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
        for (size_t i = 0; i < d->restored.n; i++)
                n_restored += order[i]->settings.pinned && restore_model(d, (size_t)(order[i] - models));
        if (n_restored > 0)
                log_info("restore: %zu pinned models are not resident and will be loaded", n_restored);
}

static struct desired_model *restored_add(struct desired *d, const struct generation *g, const char *name)
{
        const struct model_record *spec = state_file_add_generation(&d->restored, g, name);
        list_each_item (struct desired_model, m, &d->models, link) { /* the array may have moved */
                if (m->origin == DESIRED_RESTORED)
                        m->spec = &d->restored.models[m->index];
        }
        struct desired_model *m = spec != NULL ? restored_new(d, d->restored.n - 1) : NULL;
        if (m != NULL)
                desired_insert(m);
        return m;
}

void desired_add(struct desired *d, const struct generation *generation, const char *name)
{
        struct desired_model *m = NULL;
        list_each_item (struct desired_model, known, &d->models, link)
                if (m == NULL && known->origin == DESIRED_RESTORED && strcmp(known->spec->name, name) == 0)
                        m = known;
        if (m == NULL)
                m = restored_add(d, generation, name);
        if (m == NULL || state_file_add_device(m->spec, generation->device->uuid, true) < 0)
                log_error("%s: was pinned, and is not restored: no memory", name);
}
