/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory: a memfd for each allocation, mapped at the "device" pointer.
 *
 * An IPC handle names the exporter and its descriptor, and is opened through /proc. So, as with CUDA, it does not open
 * in another PID namespace, nor in the exporting process, and the memory of a killed process is freed (with its last
 * mapping, where CUDA defines nothing).
 *
 * Virtual memory management has allocations without an address, addresses without memory, and mappings of allocations
 * at addresses. An allocation lasts until its handle is released and its mappings are unmapped; the memfd behind it
 * until its last descriptor is closed. Access is set by mprotect(), so that a test that writes to memory for reading
 * alone gets a signal.
 */
#include "tests/lib/fake_cuda/machine.h"

#include <linux/memfd.h>
#include <sys/stat.h>

#define RESULT(e) ((enum cu_result)(e))
#define ENTER(name, gpu)                                                                                               \
        int error = fake_enter(#name, gpu);                                                                            \
        if (error)                                                                                                     \
        return RESULT(error)

#define FAKE_GRANULARITY ((size_t)2 << 20)

#define MAGIC 0x65646e6148656b61u

struct wire { /* the 64 bytes of a handle */
        uint64_t magic, cookie, size;
        int32_t pid, fd, gpu;
};
_Static_assert(sizeof(struct wire) <= CUDA_HANDLE_SIZE, "a handle has 64 bytes");

struct memory {
        struct memory *next;
        cu_allocation id; /* 0: none, or released and still mapped */
        uint64_t cookie;  /* of memory that IPC shares */
        size_t size;
        int gpu, fd;
        unsigned mappings;
        bool imported;
};

struct range { /* addresses, and what is mapped there */
        struct range *next;
        char *base;
        size_t size;
        struct memory *memory; /* NULL: nothing */
        bool reserved;         /* by cuMemAddressReserve() */
        unsigned opens;        /* of an IPC handle; 0: allocated by this process */
};

static struct memory *memories;
static struct range *ranges;
static cu_allocation last_id;
static uint64_t cookies;

/* ---- memfds ---- */

static bool make_dirty(int fd, size_t size)
{
        void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
                return false;
        memset(map, 0xa5, size);
        munmap(map, size);
        return true;
}

static int fake_memfd(int gpu, uint64_t cookie, size_t size)
{
        char name[64];
        snprintf(name, sizeof(name), "gpu-%d-%llu", gpu, (unsigned long long)cookie);
        int fd = memfd_create(name, MFD_CLOEXEC);
        if (fd >= 0 && (ftruncate(fd, (off_t)size) < 0 || (fake_settings()->dirty && !make_dirty(fd, size)))) {
                close(fd);
                return -1;
        }
        return fd;
}

static bool memfd_name(const char *link, int *gpu, uint64_t *cookie)
{
        char text[128];
        unsigned long long n;
        ssize_t len = readlink(link, text, sizeof(text) - 1);
        if (len < 0)
                return false;
        text[len] = '\0';
        if (sscanf(text, "/memfd:gpu-%d-%llu", gpu, &n) != 2)
                return false;
        *cookie = n;
        return true;
}

static int fake_memfd_gpu(int fd)
{
        char link[64];
        int gpu;
        uint64_t cookie;
        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
        return memfd_name(link, &gpu, &cookie) ? gpu : -1;
}

/* ---- the lists, under the lock ---- */

static struct memory *memory_new_consume_fd(int fd, size_t size, int gpu, uint64_t cookie, bool imported)
{
        struct memory *m = fd < 0 ? NULL : calloc(1, sizeof(*m));
        if (m) {
                *m = (struct memory){memories, 0, cookie, size, gpu, fd, 0, imported};
                memories = m;
        } else if (fd >= 0) {
                close(fd);
        }
        return m;
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

/* NULL if there is no address space. */
static struct range *range_new(size_t size, bool reserved)
{
        struct range *r = calloc(1, sizeof(*r));
        char *base = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (!r || base == MAP_FAILED) {
                free(r);
                return NULL;
        }
        *r = (struct range){.next = ranges, .base = base, .size = size, .reserved = reserved};
        ranges = r;
        return r;
}

static bool map(struct range *r, struct memory *m, int prot)
{
        if (mmap(r->base, r->size, prot, MAP_SHARED | MAP_FIXED, m->fd, 0) == MAP_FAILED)
                return false;
        r->memory = m;
        m->mappings++;
        return true;
}

static void unmap(struct range *r)
{
        struct memory *m = r->memory;
        mmap(r->base, r->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        r->memory = NULL;
        m->mappings--;
        drop_if_unused(m);
}

static void range_free(struct range *r)
{
        struct range **at = &ranges;
        if (r->memory)
                unmap(r);
        while (*at != r)
                at = &(*at)->next;
        *at = r->next;
        munmap(r->base, r->size);
        free(r);
}

/* At an address of its own; the memory is dropped where that fails. */
static struct range *map_new(struct memory *m)
{
        struct range *r = m ? range_new(m->size, false) : NULL;
        if (r && !map(r, m, PROT_READ | PROT_WRITE)) {
                range_free(r);
                r = NULL;
        }
        if (m && !r)
                drop_if_unused(m);
        return r;
}

/* Memory that is mapped there; NULL if none is. */
static struct range *find(const void *pointer, size_t size)
{
        const char *p = pointer;
        for (struct range *r = ranges; r; r = r->next)
                if (r->memory && p >= r->base && p < r->base + r->size && size <= r->size - (size_t)(p - r->base))
                        return r;
        return NULL;
}

static uint64_t used(int gpu)
{
        uint64_t n = 0;
        for (struct memory *m = memories; m; m = m->next)
                if (m->gpu == gpu && !m->imported)
                        n += m->size;
        return n;
}

static bool fits(int gpu, size_t size)
{
        const struct fake_settings *s = fake_settings();
        uint64_t taken = used(gpu) + s->others;
        return taken <= s->memory && size <= s->memory - taken;
}

/* ---- own memory ---- */

uint64_t fake_used(int gpu)
{
        lock_scope(&fake_lock);
        return used(gpu);
}

int fake_alloc(int gpu, size_t size, void **pointer)
{
        *pointer = NULL;
        if (size == 0)
                return E_OK;
        lock_scope(&fake_lock);
        if (!fits(gpu, size))
                return E_MEMORY;
        uint64_t cookie = ++cookies;
        struct range *r = map_new(memory_new_consume_fd(fake_memfd(gpu, cookie, size), size, gpu, cookie, false));
        if (!r)
                return E_MEMORY;
        fake_resources()->allocations++;
        *pointer = r->base;
        return E_OK;
}

int fake_free(void *pointer)
{
        if (!pointer)
                return E_OK;
        lock_scope(&fake_lock);
        struct range *r = find(pointer, 1);
        if (!r || r->reserved || r->opens > 0 || r->base != pointer)
                return E_VALUE;
        fake_resources()->allocations--;
        range_free(r);
        return E_OK;
}

static void drop_all(int gpu, bool own)
{
        for (struct range *r = ranges, *next; r; r = next) {
                next = r->next;
                if (r->reserved || r->memory->gpu != gpu || (r->opens == 0) != own)
                        continue;
                if (own)
                        fake_resources()->allocations--;
                else
                        fake_resources()->opened--;
                range_free(r);
        }
}

void fake_memory_reset(int gpu)
{
        lock_scope(&fake_lock);
        drop_all(gpu, true);
        drop_all(gpu, false);
}

void fake_ipc_reset(int gpu)
{
        lock_scope(&fake_lock);
        drop_all(gpu, false);
}

int fake_gpu_of(const void *pointer, size_t size, void **base, size_t *whole)
{
        lock_scope(&fake_lock);
        const struct range *r = find(pointer, size);
        if (r && base)
                *base = r->base;
        if (r && whole)
                *whole = r->size;
        return r ? r->memory->gpu : -1;
}

/* ---- IPC handles ---- */

int fake_ipc_export(const void *pointer, struct cuda_ipc_handle *handle)
{
        lock_scope(&fake_lock);
        const struct range *r = find(pointer, 1);
        if (!r || r->reserved || r->opens > 0)
                return E_VALUE;
        const struct memory *m = r->memory;
        struct wire wire = {MAGIC, m->cookie, m->size, getpid(), m->fd, m->gpu};
        *handle = (struct cuda_ipc_handle){{0}};
        memcpy(handle->bytes, &wire, sizeof(wire));
        return E_OK;
}

/* A duplicate of the exporter's descriptor; -1 if the exporter has freed the memory. */
static int exported_fd(const struct wire *wire)
{
        char link[64];
        int gpu;
        uint64_t cookie;
        snprintf(link, sizeof(link), "/proc/%d/fd/%d", wire->pid, wire->fd);
        if (!memfd_name(link, &gpu, &cookie) || gpu != wire->gpu || cookie != wire->cookie)
                return -1;
        return open(link, O_RDWR | O_CLOEXEC);
}

int fake_ipc_open(const struct cuda_ipc_handle *handle, int current_gpu, void **pointer)
{
        struct wire wire;
        memcpy(&wire, handle->bytes, sizeof(wire));
        if (wire.magic != MAGIC || wire.gpu < 0 || wire.gpu >= FAKE_GPUS)
                return E_HANDLE;
        if (wire.pid == getpid())
                return E_CONTEXT;
        if (fake_ordinal_of(wire.gpu) < 0)
                return E_DEVICE;
        /* CUDA would use peer access, at the cost of a second context: the product must not. */
        if (wire.gpu != current_gpu)
                return E_PEER;
        lock_scope(&fake_lock);
        uint64_t cookie = wire.cookie ^ (uint64_t)wire.pid << 32;
        struct range *r = ranges;
        while (r && (r->opens == 0 || r->memory->cookie != cookie))
                r = r->next;
        if (!r) {
                int fd = exported_fd(&wire);
                if (fd < 0)
                        return E_HANDLE;
                r = map_new(memory_new_consume_fd(fd, wire.size, wire.gpu, cookie, true));
                if (!r)
                        return E_MAP;
                fake_resources()->opened++;
                fake_state()->opens++;
        }
        r->opens++;
        *pointer = r->base;
        return E_OK;
}

int fake_ipc_close(void *pointer)
{
        lock_scope(&fake_lock);
        struct range *r = find(pointer, 1);
        if (!r || r->opens == 0 || r->base != pointer)
                return E_VALUE;
        if (--r->opens == 0) {
                fake_resources()->opened--;
                range_free(r);
        }
        return E_OK;
}

/* ---- virtual memory management: under the lock ---- */

static struct memory *memory_of(cu_allocation id)
{
        struct memory *m = memories;
        while (m && (id == 0 || m->id != id))
                m = m->next;
        return m;
}

/* A reserved one. */
static struct range *range_at(cu_pointer pointer, size_t size)
{
        struct range *r = ranges;
        while (r && (!r->reserved || r->base != (char *)(uintptr_t)pointer || r->size != size))
                r = r->next;
        return r;
}

/* Gives it a handle; NULL: no memory. */
static int handle_new(struct memory *m, cu_allocation *id)
{
        if (!m)
                return E_MEMORY;
        m->id = *id = ++last_id;
        fake_resources()->handles++;
        return E_OK;
}

/* ---- the GPU of a call; -1: none ---- */

static int current_gpu(void)
{
        return fake_current() ? fake_current()->gpu : -1;
}

static int gpu_of_allocation(cu_allocation id)
{
        lock_scope(&fake_lock);
        const struct memory *m = memory_of(id);
        return m ? m->gpu : -1;
}

static int gpu_of_range(cu_pointer pointer, size_t size)
{
        lock_scope(&fake_lock);
        const struct range *r = range_at(pointer, size);
        return r && r->memory ? r->memory->gpu : -1;
}

/* ---- allocations ---- */

enum cu_result cuMemGetAllocationGranularity(size_t *granularity, const struct cu_allocation_prop *prop,
                                             enum cu_granularity option)
{
        ENTER(cuMemGetAllocationGranularity, fake_gpu(prop->location.id));
        if (prop->location.type != CU_LOCATION_DEVICE || fake_gpu(prop->location.id) < 0)
                return RESULT(E_DEVICE);
        *granularity = FAKE_GRANULARITY;
        return CU_OK;
}

enum cu_result cuMemCreate(cu_allocation *allocation, size_t size, const struct cu_allocation_prop *prop,
                           unsigned long long flags)
{
        ENTER(cuMemCreate, fake_gpu(prop->location.id));
        int gpu = fake_gpu(prop->location.id);
        if (gpu < 0)
                return RESULT(E_DEVICE);
        if (!fake_settings()->vmm)
                return RESULT(E_NOT_SUPPORTED);
        if (flags != 0 || size == 0 || size % FAKE_GRANULARITY != 0 || prop->type != CU_ALLOCATION_PINNED ||
            prop->location.type != CU_LOCATION_DEVICE)
                return RESULT(E_VALUE);
        lock_scope(&fake_lock);
        if (!fits(gpu, size))
                return RESULT(E_MEMORY);
        return RESULT(handle_new(memory_new_consume_fd(fake_memfd(gpu, 0, size), size, gpu, 0, false), allocation));
}

enum cu_result cuMemRelease(cu_allocation allocation)
{
        ENTER(cuMemRelease, gpu_of_allocation(allocation));
        lock_scope(&fake_lock);
        struct memory *m = memory_of(allocation);
        if (m) {
                m->id = 0;
                fake_resources()->handles--;
                drop_if_unused(m);
        }
        return RESULT(m ? E_OK : E_VALUE);
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
                return RESULT(E_VALUE);
        *(int *)handle = fd;
        return CU_OK;
}

enum cu_result cuMemImportFromShareableHandle(cu_allocation *allocation, void *handle, enum cu_handle_type type)
{
        ENTER(cuMemImportFromShareableHandle, fake_memfd_gpu((int)(uintptr_t)handle));
        struct stat st;
        int from = (int)(uintptr_t)handle, gpu = fake_memfd_gpu(from);
        if (type != CU_HANDLE_POSIX_FD || gpu < 0 || fstat(from, &st) < 0)
                return RESULT(E_VALUE);
        if (fake_ordinal_of(gpu) < 0)
                return RESULT(E_DEVICE);
        int fd = fcntl(from, F_DUPFD_CLOEXEC, 3);
        lock_scope(&fake_lock);
        return RESULT(handle_new(memory_new_consume_fd(fd, (size_t)st.st_size, gpu, 0, true), allocation));
}

/* ---- addresses ---- */

enum cu_result cuMemAddressReserve(cu_pointer *pointer, size_t size, size_t alignment, cu_pointer hint,
                                   unsigned long long flags)
{
        ENTER(cuMemAddressReserve, current_gpu());
        if (size == 0 || size % FAKE_GRANULARITY != 0 || flags != 0)
                return RESULT(E_VALUE);
        lock_scope(&fake_lock);
        struct range *r = range_new(size, true);
        if (!r)
                return RESULT(E_MEMORY);
        fake_resources()->reserved++;
        *pointer = (cu_pointer)(uintptr_t)r->base;
        return CU_OK;
}

enum cu_result cuMemAddressFree(cu_pointer pointer, size_t size)
{
        ENTER(cuMemAddressFree, current_gpu());
        lock_scope(&fake_lock);
        struct range *r = range_at(pointer, size);
        if (!r || r->memory)
                return RESULT(E_VALUE);
        range_free(r);
        fake_resources()->reserved--;
        return CU_OK;
}

enum cu_result cuMemMap(cu_pointer pointer, size_t size, size_t offset, cu_allocation allocation,
                        unsigned long long flags)
{
        ENTER(cuMemMap, gpu_of_allocation(allocation));
        lock_scope(&fake_lock);
        struct memory *m = memory_of(allocation);
        struct range *r = range_at(pointer, size);
        bool good = m && r && !r->memory && offset == 0 && flags == 0 && size <= m->size && map(r, m, PROT_NONE);
        fake_resources()->mapped += good;
        return RESULT(good ? E_OK : E_VALUE);
}

enum cu_result cuMemUnmap(cu_pointer pointer, size_t size)
{
        ENTER(cuMemUnmap, gpu_of_range(pointer, size));
        lock_scope(&fake_lock);
        struct range *r = range_at(pointer, size);
        if (!r || !r->memory)
                return RESULT(E_VALUE);
        unmap(r);
        fake_resources()->mapped--;
        return CU_OK;
}

enum cu_result cuMemSetAccess(cu_pointer pointer, size_t size, const struct cu_access_desc *access, size_t n)
{
        ENTER(cuMemSetAccess, gpu_of_range(pointer, size));
        if (fake_current() && !fake_current()->alive)
                return RESULT(E_DESTROYED);
        if (n == 1 && access->flags == CU_ACCESS_READ && fake_settings()->read_only != E_OK)
                return RESULT(fake_settings()->read_only);
        lock_scope(&fake_lock);
        struct range *r = range_at(pointer, size);
        bool good = n == 1 && r && r->memory && access->location.type == CU_LOCATION_DEVICE &&
                    fake_gpu(access->location.id) == r->memory->gpu;
        if (good) {
                int prot = access->flags == CU_ACCESS_READ ? PROT_READ : PROT_READ | PROT_WRITE;
                good = mprotect(r->base, size, prot) == 0;
        }
        return RESULT(good ? E_OK : E_VALUE);
}
