/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/ended.h"

#include "daemon/base/error.h"
#include "daemon/base/util.h"

#include <stdio.h>
#include <string.h>

#define FORMAT_SIZE 2048

const char *end_name(enum end end)
{
        static const char *const names[] = {
                [END_UNLOADED] = "unloaded", [END_REPLACED] = "replaced", [END_EXPIRED] = "expired",
                [END_EVICTED] = "evicted",   [END_FAILED] = "failed",     [END_DAMAGED] = "damaged",
        };
        return names[end];
}

void end_reason_set(struct end_reason *reason, enum end end, const char *format, ...)
{
        char text[FORMAT_SIZE];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        reason->end = end;
        error_escape(reason->text, sizeof(reason->text), text);
}

void ended_add(struct ended_ring *ring, const char *name, uint64_t generation, const char *device,
               const struct end_reason *reason)
{
        struct ended *e = &ring->entries[ring->n++ % ENDED_MAX];
        *e = (struct ended){.reason = *reason, .generation = generation, .at_ns = now_ns(), .device = device};
        snprintf(e->name, sizeof(e->name), "%s", name);
}

const struct ended *ended_find(const struct ended_ring *ring, const char *name, const struct ended *last)
{
        uint64_t oldest = ring->n > ENDED_MAX ? ring->n - ENDED_MAX : 0;
        bool passed = last == NULL;
        for (uint64_t i = ring->n; i-- > oldest;) {
                const struct ended *e = &ring->entries[i % ENDED_MAX];
                if (passed && strcmp(e->name, name) == 0)
                        return e;
                passed = passed || e == last;
        }
        return NULL;
}
