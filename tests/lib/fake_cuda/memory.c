/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory: a memfd for each allocation, mapped at the "device" pointer. A handle
 * names the exporter and its descriptor, and is opened through /proc. So, as with CUDA, it does not open
 * in another PID namespace, nor in the exporting process, and the memory of a killed
 * process is freed (with its last mapping, where CUDA defines nothing).
 */
#include "tests/lib/fake_cuda/machine.h"

#include <linux/memfd.h>

#define MAGIC 0x65646e6148656b61u

struct allocation {
        struct allocation *next;
        char *base;
        size_t size;
        int gpu, fd;
        uint64_t cookie;
        unsigned opens; /* 0: allocated by this process */
};

struct wire { /* the 64 bytes of a handle */
        uint64_t magic, cookie, size;
        int32_t pid, fd, gpu;
};
_Static_assert(sizeof(struct wire) <= CUDA_HANDLE_SIZE, "a handle has 64 bytes");

static struct allocation *all;
static uint64_t used[FAKE_GPUS], cookies;

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

int fake_memfd(int gpu, uint64_t cookie, size_t size)
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

int fake_memfd_gpu(int fd)
{
        char link[64];
        int gpu;
        uint64_t cookie;
        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
        return memfd_name(link, &gpu, &cookie) ? gpu : -1;
}

/* ---- the list ---- */

static struct allocation *add(int fd, size_t size, int gpu, uint64_t cookie)
{
        struct allocation *a = calloc(1, sizeof(*a));
        char *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (!a || base == MAP_FAILED) {
                free(a);
                return NULL;
        }
        *a = (struct allocation){.next = all, .base = base, .size = size, .gpu = gpu, .fd = fd, .cookie = cookie};
        all = a;
        return a;
}

static void drop(struct allocation *a)
{
        struct allocation **at = &all;
        while (*at != a)
                at = &(*at)->next;
        *at = a->next;
        munmap(a->base, a->size);
        close(a->fd);
        free(a);
}

static struct allocation *find(const void *pointer)
{
        for (struct allocation *a = all; a; a = a->next)
                if ((const char *)pointer >= a->base && (const char *)pointer < a->base + a->size)
                        return a;
        return NULL;
}

/* ---- own memory ---- */

uint64_t fake_used(int gpu)
{
        LOCKED(&fake_lock);
        return used[gpu] + fake_vmm_used(gpu);
}

int fake_alloc(int gpu, size_t size, void **pointer)
{
        const struct fake_settings *s = fake_settings();
        if (size == 0) {
                *pointer = NULL;
                return E_OK;
        }
        LOCKED(&fake_lock);
        uint64_t taken = used[gpu] + fake_vmm_used(gpu) + s->others;
        struct allocation *a = NULL;
        if (taken <= s->memory && size <= s->memory - taken) {
                int fd = fake_memfd(gpu, ++cookies, size);
                a = fd < 0 ? NULL : add(fd, size, gpu, cookies);
                if (!a && fd >= 0)
                        close(fd);
        }
        if (a) {
                used[gpu] += size;
                fake_resources()->allocations++;
                *pointer = a->base;
        }
        return a ? E_OK : E_MEMORY;
}

int fake_free(void *pointer)
{
        if (!pointer)
                return E_OK;
        LOCKED(&fake_lock);
        struct allocation *a = find(pointer);
        bool ours = a && a->opens == 0 && a->base == pointer;
        if (ours) {
                used[a->gpu] -= a->size;
                fake_resources()->allocations--;
                drop(a);
        }
        return ours ? E_OK : E_VALUE;
}

static void drop_all(int gpu, bool own)
{
        for (struct allocation *a = all, *next; a; a = next) {
                next = a->next;
                if (a->gpu != gpu || (a->opens == 0) != own)
                        continue;
                if (own)
                        fake_resources()->allocations--;
                else
                        fake_resources()->opened--;
                drop(a);
        }
}

void fake_memory_reset(int gpu)
{
        LOCKED(&fake_lock);
        drop_all(gpu, true);
        drop_all(gpu, false);
        used[gpu] = 0;
}

void fake_ipc_reset(int gpu)
{
        LOCKED(&fake_lock);
        drop_all(gpu, false);
}

int fake_gpu_of(const void *pointer, size_t size, void **base, size_t *whole)
{
        LOCKED(&fake_lock);
        struct allocation *a = find(pointer);
        int gpu;
        if (!a)
                gpu = fake_vmm_gpu_of(pointer, size, base, whole);
        else
                gpu = size <= a->size - (size_t)((const char *)pointer - a->base) ? a->gpu : -1;
        if (a && base)
                *base = a->base;
        if (a && whole)
                *whole = a->size;
        return gpu;
}

/* ---- handles ---- */

int fake_ipc_export(const void *pointer, struct cuda_ipc_handle *handle)
{
        LOCKED(&fake_lock);
        const struct allocation *a = find(pointer);
        bool ours = a && a->opens == 0;
        if (ours) {
                struct wire wire = {.magic = MAGIC,
                                    .cookie = a->cookie,
                                    .size = a->size,
                                    .pid = getpid(),
                                    .fd = a->fd,
                                    .gpu = a->gpu};
                *handle = (struct cuda_ipc_handle){{0}};
                memcpy(handle->bytes, &wire, sizeof(wire));
        }
        return ours ? E_OK : E_VALUE;
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

static struct allocation *opened(const struct wire *wire)
{
        for (struct allocation *a = all; a; a = a->next)
                if (a->opens > 0 && a->cookie == (wire->cookie ^ (uint64_t)wire->pid << 32))
                        return a;
        return NULL;
}

static int open_new(const struct wire *wire, void **pointer)
{
        int fd = exported_fd(wire);
        if (fd < 0)
                return E_HANDLE;
        struct allocation *a = add(fd, wire->size, wire->gpu, wire->cookie ^ (uint64_t)wire->pid << 32);
        if (!a) {
                close(fd);
                return E_MAP;
        }
        a->opens = 1;
        fake_resources()->opened++;
        fake_state()->opens++;
        *pointer = a->base;
        return E_OK;
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
        LOCKED(&fake_lock);
        int error = E_OK;
        struct allocation *a = opened(&wire);
        if (a) {
                a->opens++;
                *pointer = a->base;
        } else {
                error = open_new(&wire, pointer);
        }
        return error;
}

int fake_ipc_close(void *pointer)
{
        LOCKED(&fake_lock);
        struct allocation *a = find(pointer);
        bool is_open = a && a->opens > 0 && a->base == pointer;
        if (is_open && --a->opens == 0) {
                fake_resources()->opened--;
                drop(a);
        }
        return is_open ? E_OK : E_VALUE;
}
