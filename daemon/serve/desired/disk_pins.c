/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/desired/disk_pins.h"

#include "daemon/base/util.h"

struct pins {
        char **v;
        size_t n;
        bool failed;
};

static void add(struct pins *pins, const char *source)
{
        char *prefix = source_stored_prefix(source);
        char **v = prefix != NULL ? array_grow(pins->v, pins->n, sizeof(*v)) : NULL;
        if (v == NULL) {
                pins->failed = true;
                free(prefix);
                return;
        }
        pins->v = v;
        pins->v[pins->n++] = prefix;
}

void disk_pins_update(struct disk_pins *made, const struct desired *desired)
{
        struct disk_cache *disk = desired->loads->sources->disk;
        const struct disk_pins now = {desired->loads->resident->n_changes, desired->n_changes};
        struct pins pins = {.n = 0};
        if (disk == NULL || (made->resident == now.resident && made->desired == now.desired))
                return;
        list_each_item (const struct generation, g, &desired->loads->resident->generations, link)
                list_each_item (const struct model_name, n, &g->names, link)
                        if (n->settings.pinned && g->state != GENERATION_FAILED)
                                add(&pins, model_name_source(n));
        desired_each (m, desired)
                if (m->spec.settings.pinned && m->state != DESIRED_REMOVED)
                        add(&pins, m->spec.source);
        if (!pins.failed) {
                disk_cache_set_pins(disk, pins.v, pins.n);
                disk_writer_trim(desired->loads->disk_writer);
                *made = now;
                return;
        }
        for (size_t i = 0; i < pins.n; i++)
                free(pins.v[i]);
        free(pins.v);
}
