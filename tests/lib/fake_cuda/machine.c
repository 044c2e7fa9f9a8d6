/* SPDX-License-Identifier: Apache-2.0
 *
 * Settings, failures on demand, GPUs and contexts, and the report at the end of a process.
 *
 * A process's first call reads the environment, so that a test can set it before. As with CUDA, a
 * child of fork() cannot use it.
 */
#include "tests/lib/fake_cuda/machine.h"

#define RULES 32

struct rule {
        char call[48];
        unsigned nth, seen;
        int error;
};

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pid_t owner;
static struct fake_settings settings;
static struct fake_state *state, own_state;
static struct fake_resources resources;
static int visible[FAKE_GPUS], n_visible;
static struct rule rules[RULES];
static unsigned n_rules;
static struct CUctx_st primary[FAKE_GPUS];
static FAKE_THREAD struct CUctx_st *current;

/* ---- the environment ---- */

static long number(const char *name, long otherwise)
{
        const char *text = getenv(name);
        return text && *text ? strtol(text, NULL, 0) : otherwise;
}

static int gpu_named(const char *name)
{
        char uuid[41], *end;
        if (strncmp(name, "GPU-", 4) == 0) {
                for (int i = 0; i < settings.gpus; i++) {
                        fake_gpu_uuid(i, uuid);
                        if (strncmp(uuid, name, strlen(name)) == 0)
                                return i;
                }
                return -1;
        }
        long i = strtol(name, &end, 10);
        return end != name && *end == '\0' && i >= 0 && i < settings.gpus ? (int)i : -1;
}

/* As in CUDA, the first unknown name ends the list. */
static void read_visible(void)
{
        char text[1024], *rest = text;
        const char *list = getenv("CUDA_VISIBLE_DEVICES");
        if (!list) {
                for (n_visible = 0; n_visible < settings.gpus; n_visible++)
                        visible[n_visible] = n_visible;
                return;
        }
        snprintf(text, sizeof(text), "%s", list);
        for (char *name; (name = strsep(&rest, ",")) && n_visible < FAKE_GPUS;) {
                int gpu = gpu_named(name);
                if (gpu < 0)
                        return;
                visible[n_visible++] = gpu;
        }
}

static void read_rules(void)
{
        char text[2048], *rest = text;
        snprintf(text, sizeof(text), "%s", getenv("FAKECUDA_FAIL") ? getenv("FAKECUDA_FAIL") : "");
        for (char *one; (one = strsep(&rest, ",")) && n_rules < RULES;) {
                struct rule *r = &rules[n_rules];
                if (sscanf(one, "%47[^:]:%u:%d", r->call, &r->nth, &r->error) == 3)
                        n_rules++;
        }
}

static void begin(void)
{
        const char *name = getenv("FAKECUDA_NAME"), *file = getenv("FAKECUDA_STATE");
        long gpus = number("FAKECUDA_DEVICES", 1);
        owner = getpid();
        settings = (struct fake_settings){
                .gpus = gpus < 0           ? 0
                        : gpus > FAKE_GPUS ? FAKE_GPUS
                                           : (int)gpus,
                .version = (int)number("FAKECUDA_VERSION", 13000),
                .memory = (uint64_t)number("FAKECUDA_MEM_MIB", 1024) << 20,
                .others = (uint64_t)number("FAKECUDA_OTHERS_MIB", 0) << 20,
                .event_ns = (uint64_t)number("FAKECUDA_EVENT_MS", 0) * 1000000,
                .integrated = number("FAKECUDA_INTEGRATED", 0) != 0,
                .vmm = number("FAKECUDA_VMM", 1) != 0,
                .read_only = (int)number("FAKECUDA_READ_ONLY", 0),
                .damage =
                        number("FAKECUDA_DAMAGE", 0) == 1 ||
                        (number("FAKECUDA_DAMAGE", 0) == 2 && strcmp(program_invocation_short_name, "streamerd") != 0),
                .dirty = number("FAKECUDA_DIRTY", 0) != 0,
                .host_pointers = number("FAKECUDA_HOST_POINTERS", 1) != 0,
        };
        snprintf(settings.name, sizeof(settings.name), "%s", name ? name : "Fake GPU");
        state = file ? fake_state_map(file) : NULL;
        if (!state)
                state = &own_state;
        for (int i = 0; i < FAKE_GPUS; i++)
                primary[i] = (struct CUctx_st){.gpu = i};
        read_visible();
        read_rules();
}

const struct fake_settings *fake_settings(void)
{
        pthread_once(&once, begin);
        return &settings;
}

struct fake_state *fake_state(void)
{
        pthread_once(&once, begin);
        return state;
}

struct fake_resources *fake_resources(void)
{
        return &resources;
}

/* ---- failures ---- */

static int armed_failure(const char *call)
{
        if (state->fail_nth == 0 || strcmp(call, state->fail_call) != 0)
                return 0;
        return ++state->fail_seen == state->fail_nth ? (int)state->fail_error : 0;
}

static int failure(const char *call, int gpu)
{
        int error = armed_failure(call);
        for (unsigned i = 0; i < n_rules; i++) {
                struct rule *r = &rules[i];
                if (strcmp(r->call, call) == 0 && (++r->seen == r->nth || r->nth == 0))
                        error = r->error;
        }
        return error == 0 && gpu >= 0 ? (int)state->broken[gpu] : error;
}

static bool hangs(const char *call, int gpu)
{
        return (state->hang_gpus & fake_hang_bit(gpu)) != 0 && strcmp(call, state->hang_call) == 0;
}

static void hang(const char *call, int gpu)
{
        if (!hangs(call, gpu))
                return;
        state->hung++;
        while (hangs(call, gpu))
                nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        state->hung--;
}

int fake_enter(const char *call, int gpu)
{
        pthread_once(&once, begin);
        if (getpid() != owner) {
                if (strcmp(call, "cuInit") != 0)
                        state->after_fork++;
                return E_UNINITIALISED;
        }
        hang(call, gpu);
        lock_scope(&fake_lock);
        return failure(call, gpu);
}

static const struct error {
        int error;
        const char *name, *text;
} errors[] = {
#define X(error, number, name, text) {error, name, text},
        FAKE_ERRORS(X)
#undef X
};

static const struct error *error_of(int error)
{
        static const struct error unknown = {-1, "UNKNOWN", "unknown error"};
        for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
                if (errors[i].error == error)
                        return &errors[i];
        return &unknown;
}

const char *fake_error_name(int error)
{
        return error_of(error)->name;
}

const char *fake_error_text(int error)
{
        return error_of(error)->text;
}

/* ---- GPUs and contexts ---- */

int fake_count(void)
{
        pthread_once(&once, begin);
        return n_visible;
}

int fake_gpu(int ordinal)
{
        return ordinal >= 0 && ordinal < fake_count() ? visible[ordinal] : -1;
}

int fake_ordinal_of(int gpu)
{
        for (int i = 0; i < fake_count(); i++)
                if (visible[i] == gpu)
                        return i;
        return -1;
}

struct CUctx_st *fake_primary(int gpu, bool runtime)
{
        lock_scope(&fake_lock);
        struct CUctx_st *c = &primary[gpu];
        if (!c->alive)
                state->contexts[gpu]++;
        c->alive = true;
        c->runtime |= runtime;
        return c;
}

struct CUctx_st *fake_primary_or_null(int gpu)
{
        lock_scope(&fake_lock);
        return primary[gpu].alive ? &primary[gpu] : NULL;
}

struct CUctx_st *fake_current(void)
{
        return current;
}

void fake_set_current(struct CUctx_st *context)
{
        current = context;
}

/* ---- the end ---- */

__attribute__((destructor)) static void report(void)
{
        const char *path = getenv("FAKECUDA_REPORT");
        if (!path || owner != getpid())
                return;
        int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        if (fd < 0)
                return;
        dprintf(fd,
                "pid=%d allocations=%d opened=%d handles=%d reserved=%d mapped=%d streams=%d events=%d "
                "registered=%d retained=%d\n",
                (int)owner, resources.allocations, resources.opened, resources.handles, resources.reserved,
                resources.mapped, resources.streams, resources.events, resources.registered, resources.retained);
        close(fd);
}
