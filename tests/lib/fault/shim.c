/* SPDX-License-Identifier: Apache-2.0
 *
 * Wraps the calls of calls.h in a program that was started with it (LD_PRELOAD), and makes the armed call fail. Only
 * calls from the program's own code count, or from the library that FAULT_OBJECT names. It does nothing without a page
 * in the environment. With FAULT_SITES each failed call is recorded as "PROGRAM CALL ADDRESS", where the address is the
 * one to which the call returns, relative to where the object was loaded.
 */
#define _GNU_SOURCE
#include "tests/lib/fault/calls.h"

#include <stdbool.h>
#include <stddef.h>

/* Declared here, because including their headers would conflict with the wrappers. */
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdarg.h>

extern char *getenv(const char *name);
extern char *strstr(const char *text, const char *part);
extern char *program_invocation_short_name;
extern int dprintf(int fd, const char *format, ...);
extern int vasprintf(char **out, const char *format, va_list args);
extern int close(int fd);
extern int raise(int number);
#define SIGKILL 9
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t size);

#define EXPORT __attribute__((visibility("default")))

static struct fault_page *page;
static uintptr_t begin, end, base; /* address range of the object's code, and where the object was loaded */
static const char *object, *sites, *object_path;

static const char *const names[] = {
#define CALL(name, result, error) #name,
        FAULT_CALLS(CALL) FAULT_VARIADIC_CALLS(CALL) FAULT_CLIENT_CALLS(CALL)
#undef CALL
};

extern long fault_open(long, long, long, long, long, long, long) __asm__("open");
extern long fault_mmap(long, long, long, long, long, long, long) __asm__("mmap");

static void record_site(enum fault_call call, uintptr_t at)
{
        if (sites == NULL)
                return;
        long fd = fault_open((long)sites, 02002101 /* O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC */, 0644, 0, 0, 0, 0);
        if ((int)fd < 0)
                return;
        dprintf((int)fd, "%s %s %lx\n", program_invocation_short_name, names[call], (unsigned long)(at - base));
        close((int)fd);
}

static int find_object(struct dl_phdr_info *info, size_t size, void *arg)
{
        /* The first entry is the program. */
        if (object != NULL && strstr(info->dlpi_name, object) == NULL)
                return 0;
        for (int i = 0; i < info->dlpi_phnum; i++) {
                const ElfW(Phdr) *p = &info->dlpi_phdr[i];
                if (p->p_type != PT_LOAD || !(p->p_flags & PF_X))
                        continue;
                base = info->dlpi_addr;
                object_path = info->dlpi_name;
                begin = base + p->p_vaddr;
                end = begin + p->p_memsz;
        }
        return 1;
}

static bool strikes(enum fault_call call, const void *caller)
{
        uintptr_t at = (uintptr_t)caller;
        if (page == NULL)
                return false;
        /* A library may be loaded later than this one. */
        if (end == 0 && atomic_load(&page->armed) == (uint32_t)call + 1)
                dl_iterate_phdr(find_object, NULL);
        if (at < begin || at >= end)
                return false;
        atomic_fetch_add(&page->seen[call], 1);
        if (atomic_load(&page->armed) != (uint32_t)call + 1)
                return false;
        /* The count runs down once; the call that finds it at zero fails. */
        if (atomic_fetch_sub(&page->until, 1) != 0)
                return false;
        atomic_store(&page->armed, 0);
        atomic_fetch_add(&page->failed[call], 1);
        atomic_store(&page->site, at - base);
        atomic_store(&page->struck, 1);
        if (atomic_load(&page->kills) != 0)
                raise(SIGKILL);
        record_site(call, at);
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
FAULT_CLIENT_CALLS(CALL)
#undef CALL

EXPORT int fault_asprintf(char **out, const char *format, ...) __asm__("asprintf");
int fault_asprintf(char **out, const char *format, ...)
{
        if (strikes(FAULT_asprintf, __builtin_return_address(0))) {
                errno = ENOMEM;
                return -1;
        }
        va_list args;
        va_start(args, format);
        int n = vasprintf(out, format, args);
        va_end(args);
        return n;
}

extern void *dlopen(const char *path, int flags);
extern void *dlsym(void *handle, const char *name);
extern int strcmp(const char *a, const char *b);

#define NEXT ((void *)-1L)
#define LOADED 5 /* RTLD_LAZY | RTLD_NOLOAD */

/* dlsym() may allocate, so the allocation functions are found by other names. */
static call_fn next_of(const char *name)
{
        if (strcmp(name, "malloc") == 0)
                return (call_fn)(uintptr_t)__libc_malloc;
        if (strcmp(name, "calloc") == 0)
                return (call_fn)(uintptr_t)__libc_calloc;
        if (strcmp(name, "realloc") == 0)
                return (call_fn)(uintptr_t)__libc_realloc;
        void *next = dlsym(NEXT, name);
        /* A library that was loaded for itself alone has its own libraries. */
        if (next == NULL && dl_iterate_phdr(find_object, NULL) != 0)
                next = dlsym(dlopen(object_path, LOADED), name);
        return (call_fn)(uintptr_t)next;
}

__attribute__((constructor)) static void set_up(void)
{
        const char *path = getenv(FAULT_PAGE);
        if (path == NULL)
                return;
        long fd = fault_open((long)path, 02000002 /* O_RDWR | O_CLOEXEC */, 0, 0, 0, 0, 0);
        if ((int)fd < 0)
                return;
        long at = fault_mmap(0, sizeof(struct fault_page), 3, 1 /* MAP_SHARED */, fd, 0, 0);
        object = getenv(FAULT_OBJECT);
        sites = getenv(FAULT_SITES);
        dl_iterate_phdr(find_object, NULL);
        page = at != -1 ? (struct fault_page *)at : NULL;
}
