/* SPDX-License-Identifier: Apache-2.0
 *
 * Virtual memory management: allocations without an address, addresses without memory, and mappings
 * of allocations at addresses. An allocation lasts until its handle is released and its mappings are unmapped;
 * the memfd behind it until its last descriptor is closed. Access is set by mprotect(),
 * so that a test that writes to memory for reading alone gets a signal.
 */
#include "proto/cuda.h"
#include "tests/lib/fake_cuda/machine.h"

#include <sys/stat.h>

#define ENTER(name, gpu)                                                                                               \
        int error = fake_enter(#name, gpu);                                                                            \
        if (error)                                                                                                     \
        return (enum cu_result)error

struct memory {
        struct memory *next;
        cu_allocation id; /* 0: released, and still mapped */
        size_t size;
        int gpu, fd;
        unsigned mappings;
        bool imported;
};

struct range { /* reserved addresses and their mapping */
        struct range *next;
        char *base;
        size_t size;
        struct memory *memory; /* NULL: nothing */
};

static struct memory *memories;
static struct range *ranges;
static cu_allocation last_id;

/* ---- under the lock ---- */

static struct memory *memory_of(cu_allocation id)
{
        struct memory *m = memories;
        while (m && (id == 0 || m->id != id))
                m = m->next;
        return m;
}

static struct range *range_at(cu_pointer pointer, size_t size)
{
        struct range *r = ranges;
        while (r && (r->base != (char *)(uintptr_t)pointer || r->size != size))
                r = r->next;
        return r;
}

static void drop_if_unused(struct memory *m)
{
        if (m->id != 0 || m->mappings > 0)
                return;
        struct memory **at = &memories;
        while (*at != m)
                at = &(*at)->next;
        *at = m->next;
        close(m->fd);
        free(m);
}

static int memory_add(int fd, size_t size, int gpu, bool imported, cu_allocation *id)
{
        struct memory *m = calloc(1, sizeof(*m));
        if (!m)
                return E_MEMORY;
        *m = (struct memory){
                .next = memories, .id = ++last_id, .size = size, .gpu = gpu, .fd = fd, .imported = imported};
        memories = m;
        fake_resources()->handles++;
        *id = m->id;
        return E_OK;
}

uint64_t fake_vmm_used(int gpu)
{
        uint64_t n = 0;
        for (struct memory *m = memories; m; m = m->next)
                if (m->gpu == gpu && !m->imported)
                        n += m->size;
        return n;
}

int fake_vmm_gpu_of(const void *pointer, size_t size, void **base, size_t *whole)
{
        for (struct range *r = ranges; r; r = r->next) {
                const char *p = pointer;
                if (!r->memory || p < r->base || p >= r->base + r->size || size > r->size - (size_t)(p - r->base))
                        continue;
                if (base)
                        *base = r->base;
                if (whole)
                        *whole = r->size;
                return r->memory->gpu;
        }
        return -1;
}

/* ---- the GPU of a call; -1: none ---- */

static int current_gpu(void)
{
        return fake_current() ? fake_current()->gpu : -1;
}

static int gpu_of_allocation(cu_allocation id)
{
        LOCKED(&fake_lock);
        const struct memory *m = memory_of(id);
        return m ? m->gpu : -1;
}

static int gpu_of_range(cu_pointer pointer, size_t size)
{
        LOCKED(&fake_lock);
        const struct range *r = range_at(pointer, size);
        return r && r->memory ? r->memory->gpu : -1;
}

/* ---- allocations ---- */

enum cu_result cuMemGetAllocationGranularity(size_t *granularity, const struct cu_allocation_prop *prop,
                                             enum cu_granularity option)
{
        ENTER(cuMemGetAllocationGranularity, fake_gpu(prop->location.id));
        (void)option;
        if (prop->location.type != CU_LOCATION_DEVICE || fake_gpu(prop->location.id) < 0)
                return (enum cu_result)E_DEVICE;
        *granularity = FAKE_GRANULARITY;
        return CU_OK;
}

enum cu_result cuMemCreate(cu_allocation *allocation, size_t size, const struct cu_allocation_prop *prop,
                           unsigned long long flags)
{
        ENTER(cuMemCreate, fake_gpu(prop->location.id));
        const struct fake_settings *s = fake_settings();
        int gpu = fake_gpu(prop->location.id);
        if (gpu < 0)
                return (enum cu_result)E_DEVICE;
        if (!s->vmm)
                return (enum cu_result)E_NOT_SUPPORTED;
        if (flags != 0 || size == 0 || size % FAKE_GRANULARITY != 0 || prop->type != CU_ALLOCATION_PINNED ||
            prop->location.type != CU_LOCATION_DEVICE)
                return (enum cu_result)E_VALUE;
        uint64_t taken = fake_used(gpu) + s->others;
        if (taken > s->memory || size > s->memory - taken)
                return (enum cu_result)E_MEMORY;
        int fd = fake_memfd(gpu, 0, size);
        if (fd < 0)
                return (enum cu_result)E_MEMORY;
        pthread_mutex_lock(&fake_lock);
        error = memory_add(fd, size, gpu, false, allocation);
        pthread_mutex_unlock(&fake_lock);
        if (error)
                close(fd);
        return (enum cu_result)error;
}

enum cu_result cuMemRelease(cu_allocation allocation)
{
        ENTER(cuMemRelease, gpu_of_allocation(allocation));
        LOCKED(&fake_lock);
        struct memory *m = memory_of(allocation);
        if (m) {
                m->id = 0;
                fake_resources()->handles--;
                drop_if_unused(m);
        }
        return (enum cu_result)(m ? E_OK : E_VALUE);
}

enum cu_result cuMemExportToShareableHandle(void *handle, cu_allocation allocation, enum cu_handle_type type,
                                            unsigned long long flags)
{
        ENTER(cuMemExportToShareableHandle, gpu_of_allocation(allocation));
        pthread_mutex_lock(&fake_lock);
        struct memory *m = memory_of(allocation);
        int fd = m ? fcntl(m->fd, F_DUPFD_CLOEXEC, 3) : -1;
        pthread_mutex_unlock(&fake_lock);
        if (type != CU_HANDLE_POSIX_FD || flags != 0 || fd < 0)
                return (enum cu_result)E_VALUE;
        *(int *)handle = fd;
        return CU_OK;
}

enum cu_result cuMemImportFromShareableHandle(cu_allocation *allocation, void *handle, enum cu_handle_type type)
{
        ENTER(cuMemImportFromShareableHandle, fake_memfd_gpu((int)(uintptr_t)handle));
        struct stat st;
        int from = (int)(uintptr_t)handle, gpu = fake_memfd_gpu(from);
        if (type != CU_HANDLE_POSIX_FD || gpu < 0 || fstat(from, &st) < 0)
                return (enum cu_result)E_VALUE;
        if (fake_ordinal_of(gpu) < 0)
                return (enum cu_result)E_DEVICE;
        int fd = fcntl(from, F_DUPFD_CLOEXEC, 3);
        if (fd < 0)
                return (enum cu_result)E_MEMORY;
        pthread_mutex_lock(&fake_lock);
        error = memory_add(fd, (size_t)st.st_size, gpu, true, allocation);
        pthread_mutex_unlock(&fake_lock);
        if (error)
                close(fd);
        return (enum cu_result)error;
}

/* ---- addresses ---- */

enum cu_result cuMemAddressReserve(cu_pointer *pointer, size_t size, size_t alignment, cu_pointer hint,
                                   unsigned long long flags)
{
        ENTER(cuMemAddressReserve, current_gpu());
        (void)alignment;
        (void)hint;
        if (size == 0 || size % FAKE_GRANULARITY != 0 || flags != 0)
                return (enum cu_result)E_VALUE;
        struct range *r = calloc(1, sizeof(*r));
        char *base = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (!r || base == MAP_FAILED) {
                free(r);
                return (enum cu_result)E_MEMORY;
        }
        pthread_mutex_lock(&fake_lock);
        *r = (struct range){.next = ranges, .base = base, .size = size};
        ranges = r;
        fake_resources()->reserved++;
        pthread_mutex_unlock(&fake_lock);
        *pointer = (cu_pointer)(uintptr_t)base;
        return CU_OK;
}

enum cu_result cuMemAddressFree(cu_pointer pointer, size_t size)
{
        ENTER(cuMemAddressFree, current_gpu());
        LOCKED(&fake_lock);
        struct range *r = range_at(pointer, size), **at = &ranges;
        bool freed = r && !r->memory;
        if (freed) {
                while (*at != r)
                        at = &(*at)->next;
                *at = r->next;
                munmap(r->base, r->size);
                free(r);
                fake_resources()->reserved--;
        }
        return (enum cu_result)(freed ? E_OK : E_VALUE);
}

enum cu_result cuMemMap(cu_pointer pointer, size_t size, size_t offset, cu_allocation allocation,
                        unsigned long long flags)
{
        ENTER(cuMemMap, gpu_of_allocation(allocation));
        LOCKED(&fake_lock);
        struct memory *m = memory_of(allocation);
        struct range *r = range_at(pointer, size);
        bool good = m && r && !r->memory && offset == 0 && flags == 0 && size <= m->size &&
                    mmap(r->base, size, PROT_NONE, MAP_SHARED | MAP_FIXED, m->fd, 0) != MAP_FAILED;
        if (good) {
                r->memory = m;
                m->mappings++;
                fake_resources()->mapped++;
        }
        return (enum cu_result)(good ? E_OK : E_VALUE);
}

enum cu_result cuMemUnmap(cu_pointer pointer, size_t size)
{
        ENTER(cuMemUnmap, gpu_of_range(pointer, size));
        LOCKED(&fake_lock);
        struct range *r = range_at(pointer, size);
        struct memory *m = r ? r->memory : NULL;
        if (m) {
                mmap(r->base, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
                r->memory = NULL;
                m->mappings--;
                fake_resources()->mapped--;
                drop_if_unused(m);
        }
        return (enum cu_result)(m ? E_OK : E_VALUE);
}

enum cu_result cuMemSetAccess(cu_pointer pointer, size_t size, const struct cu_access_desc *access, size_t n)
{
        ENTER(cuMemSetAccess, gpu_of_range(pointer, size));
        if (fake_current() && !fake_current()->alive)
                return (enum cu_result)E_DESTROYED;
        if (n == 1 && access->flags == CU_ACCESS_READ && fake_settings()->read_only != E_OK)
                return (enum cu_result)fake_settings()->read_only;
        LOCKED(&fake_lock);
        struct range *r = range_at(pointer, size);
        bool good = n == 1 && r && r->memory && access->location.type == CU_LOCATION_DEVICE &&
                    fake_gpu(access->location.id) == r->memory->gpu;
        if (good) {
                int prot = access->flags == CU_ACCESS_READ ? PROT_READ : PROT_READ | PROT_WRITE;
                good = mprotect(r->base, size, prot) == 0;
        }
        return (enum cu_result)(good ? E_OK : E_VALUE);
}
