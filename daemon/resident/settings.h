/* SPDX-License-Identifier: Apache-2.0
 *
 * The settings of a name on a device, and what several names of one generation make together. Each name has its own:
 * they stay with it when another generation takes it, and end with it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct model_settings {
        uint64_t keep_alive_ns;    /* it expires after so long without a lease; 0: never */
        uint64_t drain_timeout_ns; /* the generation it replaces is unloaded by force after so long; 0: never */
        uint32_t priority;         /* PROTO_PRIORITY_MAX: the most; lower is evicted first */
        bool pinned;               /* never evicted, and does not expire; in a snapshot: on any of its devices */
};

enum model_setting { SETTING_PINNED = 1, SETTING_KEEP_ALIVE = 2, SETTING_DRAIN_TIMEOUT = 4, SETTING_PRIORITY = 8 };

/* What the next generation under a name takes over. The time to drain is for what that generation itself replaces. */
#define SETTINGS_OF_NAME (SETTING_PINNED | SETTING_KEEP_ALIVE | SETTING_PRIORITY)

/* What a request or a verb changes, and to which values. */
struct settings_change {
        unsigned asks; /* of enum model_setting */
        struct model_settings to;
};

static inline void settings_apply(struct model_settings *settings, const struct settings_change *change)
{
        if (change->asks & SETTING_PINNED)
                settings->pinned = change->to.pinned;
        if (change->asks & SETTING_KEEP_ALIVE)
                settings->keep_alive_ns = change->to.keep_alive_ns;
        if (change->asks & SETTING_DRAIN_TIMEOUT)
                settings->drain_timeout_ns = change->to.drain_timeout_ns;
        if (change->asks & SETTING_PRIORITY)
                settings->priority = change->to.priority;
}

static inline bool settings_equal(const struct model_settings *a, const struct model_settings *b)
{
        return a->keep_alive_ns == b->keep_alive_ns && a->drain_timeout_ns == b->drain_timeout_ns &&
               a->priority == b->priority && a->pinned == b->pinned;
}

/* Of a generation that has both names: pinned if either is, the longer keep-alive, and the higher priority. The time to
 * drain is each name's own: 0. */
static inline struct model_settings settings_combine(const struct model_settings *a, const struct model_settings *b)
{
        bool unlimited = a->keep_alive_ns == 0 || b->keep_alive_ns == 0;
        uint64_t longer = a->keep_alive_ns > b->keep_alive_ns ? a->keep_alive_ns : b->keep_alive_ns;
        return (struct model_settings){.keep_alive_ns = unlimited ? 0 : longer,
                                       .priority = a->priority > b->priority ? a->priority : b->priority,
                                       .pinned = a->pinned || b->pinned};
}
