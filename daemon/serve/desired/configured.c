/* SPDX-License-Identifier: Apache-2.0
 *
 * Desired models of the configuration: the list of `preload`, as read at start and by each reload.
 */
#include "daemon/serve/desired/desired_model.h"

#include "daemon/model/ranks.h"
#include "proto/hub.h"

#include <string.h>

void preload_list_deinit(struct preload_list *list)
{
        for (size_t i = 0; i < list->n; i++)
                model_record_deinit(&list->v[i]);
        free(list->v);
        *list = (struct preload_list){0};
}

/* As of a load without a name; of a Hub id without the revision, unless an earlier entry has another one. */
static char *derive_name(const struct desired *d, const struct model_record *entry)
{
        struct error error;
        char *name = NULL;
        if (entry->name != NULL)
                return strdup(entry->name);
        if (hub_is_id(entry->source)) {
                name = strndup(entry->source, strcspn(entry->source, "@"));
                const struct desired_model *other = name != NULL ? desired_find(d, name) : NULL;
                if (other == NULL || strcmp(other->spec->source, entry->source) == 0)
                        return name;
                free(name);
                return strdup(entry->source);
        }
        int r = loads_default_name(d->loads, entry->source, NULL, &name, &error);
        return r == 0 || r == STREAMER_ENOMEM ? name : strdup(entry->source); /* its load will report the error */
}

/* The load that the entry describes, under `name`, on all of its devices. */
static int set_request(struct desired_model *m, char *name)
{
        const struct device *only = resident_device(m->desired->loads->resident, NULL, NULL);
        char pattern[] = RANKS_PATTERN;
        struct model_record request = m->entry;
        request.name = name;
        request.caller = (struct caller){.uid = geteuid(), .gid = getegid()};
        request.owner = geteuid();
        if (request.ranks && request.pattern == NULL)
                request.pattern = pattern;
        if (request.settings.priority == 0)
                request.settings.priority = PROTO_PRIORITY_DEFAULT;
        int r = model_record_copy(&m->request, &request);
        for (size_t i = 0; r == 0 && i < m->entry.n_devices; i++)
                r = state_file_add_device(&m->request, m->entry.devices[i].uuid, false);
        if (r == 0 && m->entry.n_devices == 0 && only != NULL)
                r = state_file_add_device(&m->request, only->name, false);
        desired_set_pins(&m->request, true);
        return r;
}

static struct desired_model *configured_new_consume(struct desired *d, struct model_record *entry)
{
        cleanup_free char *name = derive_name(d, entry);
        struct desired_model *m = name != NULL ? desired_model_new(d, DESIRED_CONFIGURED) : NULL;
        if (m == NULL)
                return NULL;
        m->named = entry->name != NULL;
        m->entry = *entry;
        *entry = (struct model_record){.source = NULL};
        m->spec = &m->request;
        if (set_request(m, name) == 0)
                return m;
        desired_model_free(m);
        return NULL;
}

/* A configured model is desired on all of its devices again. */
static void rearm(struct desired_model *m)
{
        if (m->state == DESIRED_READY)
                return;
        if (m->origin == DESIRED_CONFIGURED)
                desired_set_pins(m->spec, true);
        if (m->state != DESIRED_GIVEN_UP)
                return;
        m->attempts = 0;
        m->error = (struct error){0};
        desired_set_state(m, DESIRED_WAITING);
}

int desired_configure_consume(struct desired *d, struct preload_list *list, struct error *error)
{
        struct list before;
        int r = 0;
        list_init(&before);
        list_each_item_safe (struct desired_model, m, &d->models, link) {
                rearm(m);
                if (m->origin == DESIRED_RESTORED)
                        continue;
                list_remove(&m->link);
                list_append(&before, &m->link);
        }
        for (size_t i = 0; i < list->n; i++) {
                struct desired_model *m = NULL;
                list_each_item (struct desired_model, known, &before, link)
                        if (m == NULL && model_record_equal(&known->entry, &list->v[i]))
                                m = known;
                if (m != NULL)
                        list_remove(&m->link);
                else
                        m = configured_new_consume(d, &list->v[i]);
                if (m == NULL)
                        r = error_no_memory(error);
                else
                        desired_insert(m);
        }
        list_each_item_safe (struct desired_model, m, &before, link) {
                list_remove(&m->link);
                if (m->state == DESIRED_RESOLVING)
                        desired_set_state(m, DESIRED_REMOVED);
                else
                        desired_model_free(m);
        }
        preload_list_deinit(list);
        desired_notify(d);
        return r;
}
