/* SPDX-License-Identifier: Apache-2.0
 *
 * Wraps the calls of calls.h in a daemon that was started with it (LD_PRELOAD), and makes the armed call fail. Only
 * calls from the daemon's own code count, not those from libraries. It does nothing without a page in the environment.
 */
#define _GNU_SOURCE
#include "tests/lib/fault/calls.h"

#include <stdbool.h>
#include <stddef.h>

/* Declared here, because including their headers would conflict with the wrappers. */
#include <elf.h>
#include <errno.h>
#include <link.h>

extern char *getenv(const char *name);
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t size);

#define EXPORT __attribute__((visibility("default")))

static struct fault_page *page;
static uintptr_t begin, end; /* address range address range of the program's own code */

static bool strikes(enum fault_call call, const void *caller)
{
        uintptr_t at = (uintptr_t)caller;
        if (page == NULL || at < begin || at >= end)
                return false;
        atomic_fetch_add(&page->seen[call], 1);
        if (atomic_load(&page->armed) != (uint32_t)call + 1)
                return false;
        /* The count runs down once; the call that finds it at zero fails. */
        if (atomic_fetch_sub(&page->until, 1) != 0)
                return false;
        atomic_store(&page->armed, 0);
        atomic_fetch_add(&page->failed[call], 1);
        atomic_store(&page->struck, 1);
        return true;
}

#define HUGE_MAP 0x40000 /* MAP_HUGETLB */
#define HUGE_FILE 4      /* MFD_HUGETLB */

/* Huge pages always fail: whether the machine has any varies between runs, and with it the daemon's other calls. */
static bool wants_huge_pages(enum fault_call call, long second, long fourth)
{
        return page != NULL && ((call == FAULT_mmap && (fourth & HUGE_MAP) != 0) ||
                                (call == FAULT_memfd_create && (second & HUGE_FILE) != 0));
}

typedef long (*call_fn)(long, long, long, long, long, long, long);

static call_fn next_of(const char *name);

#define CALL(name, result, error)                                                                                      \
        EXPORT long fault_##name(long a, long b, long c, long d, long e, long f, long g) __asm__(#name);               \
        long fault_##name(long a, long b, long c, long d, long e, long f, long g)                                      \
        {                                                                                                              \
                static call_fn next;                                                                                   \
                if (strikes(FAULT_##name, __builtin_return_address(0))) {                                              \
                        if ((error) != 0)                                                                              \
                                errno = (error);                                                                       \
                        return (result);                                                                               \
                }                                                                                                      \
                if (wants_huge_pages(FAULT_##name, b, d)) {                                                            \
                        errno = ENOMEM;                                                                                \
                        return -1;                                                                                     \
                }                                                                                                      \
                if (next == NULL)                                                                                      \
                        next = next_of(#name);                                                                         \
                return next(a, b, c, d, e, f, g);                                                                      \
        }
FAULT_CALLS(CALL)
#undef CALL

extern void *dlsym(void *handle, const char *name);
extern int strcmp(const char *a, const char *b);

#define NEXT ((void *)-1L)

/* dlsym() may allocate, so the allocation functions are found by other names. */
static call_fn next_of(const char *name)
{
        if (strcmp(name, "malloc") == 0)
                return (call_fn)(uintptr_t)__libc_malloc;
        if (strcmp(name, "calloc") == 0)
                return (call_fn)(uintptr_t)__libc_calloc;
        if (strcmp(name, "realloc") == 0)
                return (call_fn)(uintptr_t)__libc_realloc;
        return (call_fn)(uintptr_t)dlsym(NEXT, name);
}

static int note_program(struct dl_phdr_info *info, size_t size, void *arg)
{
        (void)size;
        (void)arg;
        for (int i = 0; i < info->dlpi_phnum; i++) {
                const ElfW(Phdr) *p = &info->dlpi_phdr[i];
                if (p->p_type != PT_LOAD || !(p->p_flags & PF_X))
                        continue;
                begin = info->dlpi_addr + p->p_vaddr;
                end = begin + p->p_memsz;
        }
        return 1; /* the first entry is the program */
}

extern long fault_open(long, long, long, long, long, long, long) __asm__("open");
extern long fault_mmap(long, long, long, long, long, long, long) __asm__("mmap");

__attribute__((constructor)) static void set_up(void)
{
        const char *path = getenv(FAULT_PAGE);
        if (path == NULL)
                return;
        long fd = fault_open((long)path, 02000002 /* O_RDWR | O_CLOEXEC */, 0, 0, 0, 0, 0);
        if ((int)fd < 0)
                return;
        long at = fault_mmap(0, sizeof(struct fault_page), 3, 1 /* MAP_SHARED */, fd, 0, 0);
        dl_iterate_phdr(note_program, NULL);
        page = at != -1 ? (struct fault_page *)at : NULL;
}
