/* SPDX-License-Identifier: Apache-2.0
 *
 * The rates of this machine without the daemon: reads of a file, copies to a GPU, both at once, and copies of the read
 * blocks.
 *
 *   gpu-rates CUDART ORDINAL FILE
 *
 * Reads one case a line from standard input ("readers=16 block=8388608 hash=1") and answers each with one JSON
 * object a line: rates in GiB/s, CPU seconds per GiB, or the error. The context, the file and the memory are reused, so
 * a case costs its `seconds` and no setup.
 *
 * A reader takes the next block of the file, preads it into its slot and, with hash=1, hashes it as the daemon does: a
 * cached block in pieces, each while it is in the processor's cache. A copier fills one of its two slots while the
 * other is being copied. With through=1 a reader is both: it copies the slot it has filled, which is all that a load
 * does.
 */
#include "daemon/base/hash.h"
#include "daemon/base/util.h"
#include "daemon/device/cuda/api.h"
#include "proto/codec.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define PAGE 4096
#define THREADS_MAX 256
#define POLL_NS 20000
#define PIECE (512 * KiB) /* of a buffered read in the daemon */
#define LEAF MiB          /* unit of its hashes */

struct parameters {
        uint64_t readers, copiers, block;
        uint64_t ms;                    /* how long */
        uint64_t through, hash, direct; /* readers */
        uint64_t pageable, batch, poll; /* copies */
        uint64_t from_shift, to_shift;  /* bytes beyond a page at which copies begin: in the slot, on the GPU */
};

static const struct {
        const char *name;
        size_t offset;
} names[] = {
#define NAME(name)                                                                                                     \
        {                                                                                                              \
#name, offsetof(struct parameters, name)                                                               \
        }
        NAME(readers), NAME(copiers),  NAME(block), NAME(ms),   NAME(through),    NAME(hash),
        NAME(direct),  NAME(pageable), NAME(batch), NAME(poll), NAME(from_shift), NAME(to_shift),
#undef NAME
};

struct arena {
        unsigned char *base;
        uint64_t size;
};

static struct {
        const char *library, *path;
        int ordinal;
        struct cuda_api *api; /* NULL until a case copies */
        struct arena host[2]; /* registered, pageable */
        unsigned char *device;
        uint64_t device_size;
        int fd[2]; /* buffered, direct */
        uint64_t file_size;
} machine = {.fd = {-1, -1}};

/* ---- one case ---- */

struct run {
        struct parameters p;
        pthread_barrier_t begin;
        _Atomic uint64_t next; /* block of the file */
        _Atomic bool stop;
        _Atomic uint64_t read, copied; /* bytes */
        pthread_mutex_t mutex;
        char error[256]; /* the first one; under mutex */
};

struct lane {
        struct run *run;
        pthread_t thread;
        bool reads, copies;
        unsigned char *slots[2];
        unsigned char *to[2]; /* on the GPU */
        struct CUstream_st *stream;
        struct CUevent_st *events[2];
        struct hash hash; /* of the current leaf */
        bool hashes;
};

__attribute__((format(printf, 2, 3))) static void fail(struct run *run, const char *format, ...)
{
        va_list ap;
        va_start(ap, format);
        pthread_mutex_lock(&run->mutex);
        if (run->error[0] == '\0')
                vsnprintf(run->error, sizeof(run->error), format, ap);
        pthread_mutex_unlock(&run->mutex);
        va_end(ap);
        run->stop = true;
}

static bool cuda_ok(struct run *run, const char *call, enum cuda_error e)
{
        if (e != CUDA_OK)
                fail(run, "%s: %s", call, machine.api->cudaGetErrorName(e));
        return e == CUDA_OK;
}

/* ---- copies ---- */

static bool stream_make(struct lane *l)
{
        const struct cuda_api *api = machine.api;
        unsigned flags = CUDA_EVENT_DISABLE_TIMING | (l->run->p.poll ? 0 : CUDA_EVENT_BLOCKING_SYNC);
        if (!cuda_ok(l->run, "cudaSetDevice", api->cudaSetDevice(machine.ordinal)) ||
            !cuda_ok(l->run, "cudaStreamCreate", api->cudaStreamCreateWithFlags(&l->stream, CUDA_STREAM_NON_BLOCKING)))
                return false;
        for (size_t i = 0; i < ARRAY_SIZE(l->events); i++)
                if (!cuda_ok(l->run, "cudaEventCreate", api->cudaEventCreateWithFlags(&l->events[i], flags)))
                        return false;
        return true;
}

static void stream_free(struct lane *l)
{
        if (l->stream == NULL)
                return;
        machine.api->cudaStreamSynchronize(l->stream);
        for (size_t i = 0; i < ARRAY_SIZE(l->events); i++)
                if (l->events[i] != NULL)
                        machine.api->cudaEventDestroy(l->events[i]);
        machine.api->cudaStreamDestroy(l->stream);
}

/* Until the slot's last copy is done; an event that was never recorded is. */
static bool slot_wait(struct lane *l, unsigned i)
{
        enum cuda_error e;
        if (!l->run->p.poll)
                return cuda_ok(l->run, "cudaEventSynchronize", machine.api->cudaEventSynchronize(l->events[i]));
        while ((e = machine.api->cudaEventQuery(l->events[i])) == CUDA_NOT_READY)
                nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
        return cuda_ok(l->run, "cudaEventQuery", e);
}

static bool slot_copy(struct lane *l, unsigned i, size_t size)
{
        const struct cuda_api *api = machine.api;
        void *to = l->to[i] + l->run->p.to_shift;
        const void *from = l->slots[i] + l->run->p.from_shift;
        bool started =
                l->run->p.batch
                        ? cuda_ok(l->run, "cudaMemcpyBatchAsync", cuda_copy_batch(api, &to, &from, &size, 1, l->stream))
                        : cuda_ok(l->run, "cudaMemcpyAsync",
                                  api->cudaMemcpyAsync(to, from, size, CUDA_COPY_HOST_TO_DEVICE, l->stream));
        return started && cuda_ok(l->run, "cudaEventRecord", api->cudaEventRecord(l->events[i], l->stream));
}

/* ---- reads ---- */

static void hash_leaves(struct lane *l, const unsigned char *data, uint64_t size, uint64_t position)
{
        unsigned char digest[DIGEST_SIZE];
        for (uint64_t done = 0, n; l->hashes && done < size; done += n) {
                uint64_t of_leaf = (position + done) % LEAF;
                n = size - done < LEAF - of_leaf ? size - done : LEAF - of_leaf;
                if (of_leaf == 0)
                        hash_init(&l->hash);
                hash_update(&l->hash, data + done, n);
                if (of_leaf + n == LEAF)
                        hash_final(&l->hash, digest);
        }
}

static bool slot_read(struct lane *l, unsigned i)
{
        struct run *run = l->run;
        uint64_t blocks = machine.file_size / run->p.block; /* whole ones: a partial block at the end is not read */
        uint64_t at = atomic_fetch_add(&run->next, 1) % blocks * run->p.block;
        uint64_t piece = l->hashes && !run->p.direct ? PIECE : run->p.block;
        unsigned char *to = l->slots[i] + run->p.from_shift;
        for (uint64_t done = 0, n; done < run->p.block; done += n) {
                n = piece < run->p.block - done ? piece : run->p.block - done;
                ssize_t got = pread(machine.fd[run->p.direct], to + done, n, (off_t)(at + done));
                if (got != (ssize_t)n) {
                        fail(run, "pread of %" PRIu64 " bytes at %" PRIu64 ": %s", n, at + done,
                             got < 0 ? strerror(errno) : "the file has become shorter");
                        return false;
                }
                hash_leaves(l, to + done, n, done);
        }
        return true;
}

static void *lane_run(void *argument)
{
        struct lane *l = argument;
        struct run *run = l->run;
        bool good = !l->copies || stream_make(l);
        l->hashes = l->reads && run->p.hash;
        pthread_barrier_wait(&run->begin);
        for (unsigned i = 0; good && !run->stop; i ^= l->copies) { /* a case that only reads needs one slot */
                good = (!l->copies || slot_wait(l, i)) && (!l->reads || slot_read(l, i)) &&
                       (!l->copies || slot_copy(l, i, run->p.block));
                if (good && l->reads)
                        run->read += run->p.block;
                if (good && l->copies)
                        run->copied += run->p.block;
        }
        for (unsigned i = 0; good && l->copies && i < 2; i++)
                good = slot_wait(l, i);
        if (l->copies)
                stream_free(l);
        return NULL;
}

/* ---- memory ---- */

/* For error_set(), in place of proto/codec.c, which needs msgpack: the texts here are ASCII. */
bool codec_utf8(const char *s, size_t len)
{
        return true;
}

static bool open_cuda(char *error, size_t size)
{
        if (machine.api != NULL)
                return true;
        struct error why;
        if (cuda_api_open(machine.library, &machine.api, &why) < 0) {
                snprintf(error, size, "%.500s", why.text);
                return false;
        }
        enum cuda_error e = machine.api->cudaSetDevice(machine.ordinal);
        if (e != CUDA_OK)
                snprintf(error, size, "cudaSetDevice: %s", machine.api->cudaGetErrorName(e));
        return e == CUDA_OK;
}

/* Fully populated, in huge pages if available. */
static bool arena_grow(struct arena *arena, uint64_t size, bool registered, char *error, size_t error_size)
{
        const struct cuda_api *api = machine.api;
        if (arena->size >= size)
                return true;
        if (arena->size > 0 && registered && api != NULL)
                api->cudaHostUnregister(arena->base);
        if (arena->size > 0)
                munmap(arena->base, arena->size);
        *arena = (struct arena){0};
        size = round_up(size, 2 * MiB);
        void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base == MAP_FAILED) {
                snprintf(error, error_size, "%" PRIu64 " bytes of memory: %s", size, strerror(errno));
                return false;
        }
        madvise(base, size, MADV_HUGEPAGE);
        memset(base, 1, size);
        enum cuda_error e = registered ? api->cudaHostRegister(base, size, CUDA_HOST_REGISTER_PORTABLE) : CUDA_OK;
        if (e != CUDA_OK) {
                snprintf(error, error_size, "cudaHostRegister: %s", api->cudaGetErrorName(e));
                munmap(base, size);
                return false;
        }
        *arena = (struct arena){.base = base, .size = size};
        return true;
}

static bool device_grow(uint64_t size, char *error, size_t error_size)
{
        if (machine.device_size >= size)
                return true;
        if (machine.device_size > 0)
                machine.api->cudaFree(machine.device);
        machine.device_size = 0;
        enum cuda_error e = machine.api->cudaMalloc((void **)&machine.device, size);
        if (e != CUDA_OK)
                snprintf(error, error_size, "cudaMalloc: %s", machine.api->cudaGetErrorName(e));
        else
                machine.device_size = size;
        return e == CUDA_OK;
}

static bool open_file(unsigned direct, char *error, size_t size)
{
        struct stat st;
        if (machine.fd[direct] >= 0)
                return true;
        machine.fd[direct] = open(machine.path, O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0));
        if (machine.fd[direct] < 0 || fstat(machine.fd[direct], &st) < 0) {
                snprintf(error, size, "%s: %s", machine.path, strerror(errno));
                return false;
        }
        machine.file_size = (uint64_t)st.st_size;
        return true;
}

/* ---- a case ---- */

static bool parse(char *line, struct parameters *p, char *error, size_t size)
{
        *p = (struct parameters){.block = 8 * MiB, .ms = 500};
        for (char *rest = line, *word; (word = strtok_r(rest, " \n", &rest)) != NULL;) {
                char *equals = strchr(word, '='), *end;
                size_t i = 0;
                if (equals != NULL)
                        *equals = '\0';
                while (i < ARRAY_SIZE(names) && strcmp(names[i].name, word) != 0)
                        i++;
                if (equals == NULL || i == ARRAY_SIZE(names)) {
                        snprintf(error, size, "unknown parameter '%s'", word);
                        return false;
                }
                *(uint64_t *)(void *)((char *)p + names[i].offset) = strtoull(equals + 1, &end, 10);
        }
        bool valid = p->block > 0 && p->block % PAGE == 0 && p->from_shift < PAGE && p->to_shift < PAGE &&
                     p->direct <= 1 && p->readers <= THREADS_MAX && p->copiers <= THREADS_MAX &&
                     p->readers + p->copiers > 0;
        if (!valid)
                snprintf(error, size, "a parameter is out of range");
        return valid;
}

static bool prepare(const struct parameters *p, char *error, size_t size)
{
        uint64_t lanes = p->readers + p->copiers;
        bool copies = p->through || p->copiers > 0;
        bool good = p->readers == 0 || open_file((unsigned)p->direct, error, size);
        if (good && p->readers > 0 && machine.file_size < p->block) {
                snprintf(error, size, "the file is smaller than a block");
                return false;
        }
        if (copies)
                good = good && open_cuda(error, size) && device_grow(lanes * 2 * (p->block + PAGE), error, size);
        bool registered = copies && !p->pageable;
        return good && arena_grow(&machine.host[!registered], lanes * 2 * (p->block + PAGE), registered, error, size);
}

static double seconds_of(struct timeval t)
{
        return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

static double cpu_seconds(void)
{
        struct rusage usage;
        getrusage(RUSAGE_SELF, &usage);
        return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

/* As a JSON string: texts of CUDA and the system have no other character to escape. */
static void print_error(char *error)
{
        for (char *c = error; *c != '\0'; c++)
                if (*c == '"' || *c == '\\' || *c == '\n')
                        *c = '\'';
        printf("{\"error\": \"%s\"}\n", error);
}

static void measure(struct run *run, struct lane *lanes, size_t n)
{
        pthread_barrier_init(&run->begin, NULL, (unsigned)n + 1);
        for (size_t i = 0; i < n; i++)
                if (pthread_create(&lanes[i].thread, NULL, lane_run, &lanes[i]) != 0)
                        broken_invariant(__FILE__, __LINE__, "a thread is started");
        pthread_barrier_wait(&run->begin);
        uint64_t begin = now_ns();
        double cpu = cpu_seconds();
        for (uint64_t end = begin + run->p.ms * 1000000; now_ns() < end && !run->stop;)
                nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        run->stop = true;
        for (size_t i = 0; i < n; i++)
                pthread_join(lanes[i].thread, NULL);
        double seconds = (double)(now_ns() - begin) / 1e9;
        cpu = cpu_seconds() - cpu;
        pthread_barrier_destroy(&run->begin);
        double read = (double)run->read / (double)GiB, copied = (double)run->copied / (double)GiB;
        double most = read > copied ? read : copied;
        if (run->error[0] == '\0' && most == 0)
                snprintf(run->error, sizeof(run->error), "no block was done in %" PRIu64 " ms", run->p.ms);
        if (run->error[0] != '\0')
                print_error(run->error);
        else
                printf("{\"read\": %.3f, \"copied\": %.3f, \"cpu\": %.4f}\n", read / seconds, copied / seconds,
                       cpu / most);
}

static void answer(char *line)
{
        struct run run = {.mutex = PTHREAD_MUTEX_INITIALIZER};
        static struct lane lanes[2 * THREADS_MAX];
        char error[600] = "";
        if (!parse(line, &run.p, error, sizeof(error)) || !prepare(&run.p, error, sizeof(error))) {
                print_error(error);
                return;
        }
        size_t n = run.p.readers + run.p.copiers;
        bool registered = (run.p.through || run.p.copiers > 0) && !run.p.pageable;
        uint64_t stride = run.p.block + PAGE;
        for (size_t i = 0; i < n; i++) {
                lanes[i] = (struct lane){.run = &run, .reads = i < run.p.readers};
                lanes[i].copies = !lanes[i].reads || run.p.through;
                for (size_t k = 0; k < 2; k++) {
                        lanes[i].slots[k] = machine.host[!registered].base + (2 * i + k) * stride;
                        lanes[i].to[k] = machine.device + (2 * i + k) * stride;
                }
        }
        measure(&run, lanes, n);
}

int main(int argc, char **argv)
{
        char line[1024];
        if (argc != 4) {
                fprintf(stderr, "usage: %s CUDART ORDINAL FILE\n", argv[0]);
                return 2;
        }
        machine.library = argv[1];
        machine.ordinal = atoi(argv[2]);
        machine.path = argv[3];
        setvbuf(stdout, NULL, _IOLBF, 0);
        while (fgets(line, sizeof(line), stdin) != NULL)
                answer(line);
        free(machine.api);
        return 0;
}
