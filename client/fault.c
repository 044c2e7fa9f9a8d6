/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts live in thread-local slots, so that they need no lock, go with their thread, and cannot be
 * changed under a reader by another thread. When a thread fails on more clients than it has slots,
 * the one that failed longest ago is forgotten.
 */
#include "client/fault.h"

#include <stdarg.h>
#include <stdio.h>

#define SLOTS 4

struct slot {
        uint64_t age; /* 0: unused */
        uint64_t serial;
        char text[1024];
};

static __thread struct slot slots[SLOTS];
static __thread uint64_t clock_of_thread;

static struct slot *find(uint64_t serial)
{
        for (unsigned i = 0; i < SLOTS; i++)
                if (slots[i].age != 0 && slots[i].serial == serial)
                        return &slots[i];
        return NULL;
}

static struct slot *oldest(void)
{
        struct slot *s = &slots[0];
        for (unsigned i = 1; i < SLOTS; i++)
                if (slots[i].age < s->age)
                        s = &slots[i];
        return s;
}

int fault_set(uint64_t serial, int code, const char *format, ...)
{
        struct slot *s = find(serial);
        if (!s)
                s = oldest();
        s->age = ++clock_of_thread;
        s->serial = serial;
        va_list ap;
        va_start(ap, format);
        vsnprintf(s->text, sizeof(s->text), format, ap);
        va_end(ap);
        return code;
}

const char *fault_text(uint64_t serial)
{
        const struct slot *s = find(serial);
        return s ? s->text : "";
}
