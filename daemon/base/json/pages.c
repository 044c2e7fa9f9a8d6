/* SPDX-License-Identifier: Apache-2.0
 *
 * Growable memory by mmap and mremap. Sizes are whole pages and at least double, so that a table
 * that grows by one element at a time costs a handful of system calls.
 */
#include "daemon/base/json/pages.h"

#include <stdint.h>
#include <sys/mman.h>

#define PAGE ((size_t)4096)
#define FIRST_SIZE ((size_t)65536)

static size_t whole_pages(size_t bytes)
{
        return (bytes + PAGE - 1) / PAGE * PAGE;
}

bool pages_reserve(struct pages *pages, size_t bytes)
{
        if (bytes <= pages->size)
                return true;
        if (bytes > SIZE_MAX / 4)
                return false;
        size_t size = pages->size == 0 ? FIRST_SIZE : 2 * pages->size;
        if (size < bytes)
                size = whole_pages(bytes);
        void *p = pages->size == 0 ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                                   : mremap(pages->p, pages->size, size, MREMAP_MAYMOVE);
        if (p == MAP_FAILED)
                return false;
        *pages = (struct pages){p, size};
        return true;
}

void pages_deinit(struct pages *pages)
{
        if (pages->size > 0)
                munmap(pages->p, pages->size);
        *pages = (struct pages){0};
}

void *pages_take(struct pages *pages, size_t bytes)
{
        size_t keep = whole_pages(bytes);
        void *p = keep > 0 ? pages->p : NULL;
        if (pages->size > keep)
                munmap((char *)pages->p + keep, pages->size - keep);
        *pages = (struct pages){0};
        return p;
}

void pages_drop(void *p, size_t bytes)
{
        if (p != NULL)
                munmap(p, whole_pages(bytes));
}
