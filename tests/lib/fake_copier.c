/* SPDX-License-Identifier: Apache-2.0
 *
 * Asynchronous copies of the fake device: data is held until the event passes its gate, and is then stored, or fails.
 */
#include "tests/lib/core.h"

struct fake_copier {
        struct copier copier;
        struct fake_device *fake;
};

struct fake_event {
        size_t n;
        struct device_span spans[];
};

static struct copier *copier_new(struct device *device, struct error *error)
{
        struct fake_copier *copier = must_alloc(sizeof(*copier));
        copier->copier.ops = device->ops;
        copier->fake = container_of(device, struct fake_device, device);
        return &copier->copier;
}

static void copier_free(struct copier *copier)
{
        free(container_of(copier, struct fake_copier, copier));
}

static int copy(struct copier *copier, const struct device_span *spans, size_t n, void **event, struct error *error)
{
        struct fake_device *fake = container_of(copier, struct fake_copier, copier)->fake;
        __atomic_add_fetch(&fake->copies, 1, __ATOMIC_SEQ_CST);
        gate_pass(&fake->put);
        struct fake_event *e = must_alloc(sizeof(*e) + n * sizeof(spans[0]));
        e->n = n;
        memcpy(e->spans, spans, n * sizeof(spans[0]));
        *event = e;
        return 0;
}

static int copied(struct copier *base, void *event, bool wait, struct error *error)
{
        struct fake_device *fake = container_of(base, struct fake_copier, copier)->fake;
        struct fake_event *e = event;
        if (wait)
                gate_pass(&fake->event);
        else if (!gate_try(&fake->event))
                return 0;
        unsigned n = __atomic_add_fetch(&fake->events, 1, __ATOMIC_SEQ_CST);
        bool fails = n == __atomic_load_n(&fake->fail_event, __ATOMIC_SEQ_CST);
        for (size_t i = 0; !fails && i < e->n; i++)
                memcpy(fake_memory(e->spans[i].segment) + e->spans[i].offset, e->spans[i].from, e->spans[i].len);
        free(e);
        return fails ? error_set(error, STREAMER_EFAILED, "%s: event %u fails", fake->device.name, n) : 1;
}

void fake_device_copies(struct fake_device *fake)
{
        static struct device_ops ops;
        ops = *fake->device.ops;
        ops.copier_new = copier_new;
        ops.copier_free = copier_free;
        ops.copy = copy;
        ops.copied = copied;
        fake->device.ops = &ops;
}
