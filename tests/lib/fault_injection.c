/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/fault_injection.h"
#include "tests/lib/base.h"
#include "tests/lib/daemon.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static struct fault_page *page;
static char *path, *library;

void faults_begin(const char *folder)
{
        char *real = realpath(build_path("tests/fault/libfault.so"), NULL);
        if (real == NULL)
                die_errno("libfault.so");
        library = real;
        path = format_text("%s/faults", folder);
        int fd = must(open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
        must(ftruncate(fd, sizeof(*page)));
        page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (page == MAP_FAILED)
                die_errno("mmap");
        close(fd);
}

void faults_show(void)
{
        setenv(FAULT_PAGE, path, 1);
        setenv("LD_PRELOAD", library, 1);
}

void faults_hide(void)
{
        unsetenv(FAULT_PAGE);
        unsetenv("LD_PRELOAD");
}

const char *fault_name(enum fault_call call)
{
        static const char *const names[] = {
#define CALL(name, result, error) #name,
                FAULT_CALLS(CALL)
#undef CALL
        };
        return names[call];
}

void fault_arm(enum fault_call call, uint64_t nth)
{
        atomic_store(&page->struck, 0);
        atomic_store(&page->until, nth);
        atomic_store(&page->armed, (uint32_t)call + 1);
}

bool fault_disarm(void)
{
        atomic_store(&page->armed, 0);
        return atomic_load(&page->struck) != 0;
}

uint64_t fault_seen(enum fault_call call)
{
        return atomic_load(&page->seen[call]);
}

uint64_t fault_failed(enum fault_call call)
{
        return atomic_load(&page->failed[call]);
}
