/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/settings.h"

void settings_apply(struct model_settings *settings, const struct settings_change *change)
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

bool settings_equal(const struct model_settings *a, const struct model_settings *b)
{
        return a->keep_alive_ns == b->keep_alive_ns && a->drain_timeout_ns == b->drain_timeout_ns &&
               a->priority == b->priority && a->pinned == b->pinned;
}

/* 0 is without limit. */
static uint64_t longer(uint64_t a, uint64_t b)
{
        if (a == 0 || b == 0)
                return 0;
        return a > b ? a : b;
}

struct model_settings settings_combine(const struct model_settings *a, const struct model_settings *b)
{
        return (struct model_settings){.keep_alive_ns = longer(a->keep_alive_ns, b->keep_alive_ns),
                                       .priority = a->priority > b->priority ? a->priority : b->priority,
                                       .pinned = a->pinned || b->pinned};
}
