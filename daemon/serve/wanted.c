/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/wanted.h"

#include "daemon/serve/server.h"

/* Those that were pinned before the list of the settings; a name may come twice. */
bool wanted_find(const struct server *server, const char *name, struct wanted *wanted)
{
        return again_find(&server->again, name, wanted) || preload_find(&server->preload, name, wanted);
}

size_t wanted_count(const struct server *server)
{
        return again_left(&server->again) + server->preload.n_unready;
}

size_t wanted_collect(const struct server *server, struct wanted *all)
{
        size_t n = again_left(&server->again);
        for (size_t i = 0; i < n; i++)
                again_wanted(&server->again, i, &all[i]);
        return n + preload_collect(&server->preload, all + n);
}

/* The state file speaks of them, and no generation may tell. */
static bool noted(struct server *server, bool changed)
{
        if (changed)
                remember_changed(&server->remember);
        return changed;
}

bool wanted_forget(struct server *server, const char *name, const char *device)
{
        const struct device *on = device != NULL ? resident_device(server->resident, device, NULL) : NULL;
        bool pinned = again_forget(&server->again, name, device), listed = false;
        if (device == NULL)
                listed = preload_give_up(&server->preload, name);
        else if (on != NULL)
                listed = preload_give_up_on(&server->preload, name, on);
        return noted(server, pinned || listed);
}

bool wanted_pin(struct server *server, const char *name, bool pin)
{
        struct wanted wanted;
        bool known = wanted_find(server, name, &wanted);
        preload_pin(&server->preload, name, pin);
        if (!pin)
                again_forget(&server->again, name, NULL);
        return noted(server, known);
}

bool wanted_set_priority(struct server *server, const char *name, unsigned priority)
{
        bool pinned = again_set_priority(&server->again, name, priority);
        bool listed = preload_set_priority(&server->preload, name, priority);
        return noted(server, pinned || listed);
}
