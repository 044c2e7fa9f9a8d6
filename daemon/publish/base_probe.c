/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/publish/base_probe.h"

#include "daemon/load/content/resolve.h"

#include <string.h>

int base_probe_init(struct base_probe *probe, const char *source, const struct caller *caller,
                    struct source_roots *roots)
{
        *probe = (struct base_probe){.source = strdup(source), .caller = *caller, .roots = source_roots_ref(roots)};
        return probe->source != NULL ? 0 : STREAMER_ENOMEM;
}

void base_probe_deinit(struct base_probe *probe)
{
        free(probe->source);
        source_roots_free(probe->roots);
        *probe = (struct base_probe){.source = NULL};
}

void base_probe_run(struct base_probe *probe, const struct sources *sources)
{
        const struct sources below = sources_with_roots(sources, probe->roots);
        struct resolved resolved;
        probe->error = (struct error){0};
        if (resolve_open(&resolved, &below, probe->source, &probe->caller, false, &probe->error) == 0)
                source_identity(&resolved.set, &probe->identity, &probe->error);
        resolve_deinit(&resolved);
}
