/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/wanted.h"

#include "daemon/serve/server.h"

#include <string.h>

/* Those that were pinned before the list of the settings; a name may come twice. */
static bool next(const struct server *server, size_t i, struct wanted *wanted)
{
        size_t n = again_left(&server->again);
        return i < n ? again_wanted(&server->again, i, wanted) : preload_wanted(&server->preload, i - n, wanted);
}

bool wanted_find(const struct server *server, const char *name, struct wanted *wanted)
{
        for (size_t i = 0; next(server, i, wanted); i++)
                if (strcmp(wanted->name, name) == 0)
                        return true;
        return false;
}

static bool came_before(const struct server *server, size_t i, const char *name)
{
        struct wanted before;
        for (size_t k = 0; k < i && next(server, k, &before); k++)
                if (strcmp(before.name, name) == 0)
                        return true;
        return false;
}

bool wanted_at(const struct server *server, size_t i, struct wanted *wanted)
{
        for (size_t k = 0; next(server, k, wanted); k++)
                if (!came_before(server, k, wanted->name) && i-- == 0)
                        return true;
        return false;
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
