/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread's texts live in thread-local slots, so that they need no lock, are freed with their thread, and cannot be
 * changed under a reader by another thread. When a thread fails on more clients than it has slots, the text of the
 * oldest failure is overwritten. The client's own text is for callers that change threads between two calls.
 */
#include "client/fault.h"

#include "client/util.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define SLOTS 4
#define TEXT_MAX 1024

struct fault {
        atomic_uint refs;
        uint64_t serial; /* not 0; never reused, so that a slot outlives its client */
        pid_t pid;       /* in a forked child the lock may be held for ever */
        pthread_mutex_t lock;
        char text[TEXT_MAX];
};

struct slot {
        uint64_t age; /* 0: unused */
        uint64_t serial;
        char text[TEXT_MAX];
};

static __thread struct slot slots[SLOTS];
static __thread uint64_t clock_of_thread;

/* ---- lifecycle ---- */

struct fault *fault_new(void)
{
        static atomic_ullong serial;
        struct fault *fault = calloc(1, sizeof(*fault));
        if (!fault)
                return NULL;
        atomic_init(&fault->refs, 1);
        fault->serial = atomic_fetch_add(&serial, 1) + 1;
        fault->pid = getpid();
        pthread_mutex_init(&fault->lock, NULL);
        return fault;
}

struct fault *fault_ref(struct fault *fault)
{
        atomic_fetch_add(&fault->refs, 1);
        return fault;
}

void fault_unref(struct fault *fault)
{
        if (!fault || atomic_fetch_sub(&fault->refs, 1) != 1)
                return;
        pthread_mutex_destroy(&fault->lock);
        free(fault);
}

/* ---- of a thread ---- */

static uint64_t serial_of(const struct fault *fault)
{
        return fault ? fault->serial : 0;
}

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

int fault_set(struct fault *fault, int code, const char *format, ...)
{
        struct slot *s = find(serial_of(fault));
        if (!s)
                s = oldest();
        s->age = ++clock_of_thread;
        s->serial = serial_of(fault);
        va_list ap;
        va_start(ap, format);
        vsnprintf(s->text, sizeof(s->text), format, ap);
        va_end(ap);
        if (fault && fault->pid == getpid()) {
                lock_scope(&fault->lock);
                memcpy(fault->text, s->text, sizeof(fault->text));
        }
        return code;
}

const char *fault_text(const struct fault *fault)
{
        const struct slot *s = find(serial_of(fault));
        return s ? s->text : "";
}

/* ---- of a client ---- */

void fault_copy(struct fault *fault, char *text, size_t size)
{
        text[0] = 0;
        if (fault->pid != getpid())
                return;
        lock_scope(&fault->lock);
        snprintf(text, size, "%s", fault->text);
}
