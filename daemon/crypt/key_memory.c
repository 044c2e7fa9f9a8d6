/* SPDX-License-Identifier: Apache-2.0
 *
 * The arena is divided into units; a piece is a run of them, found from the first. Pieces are few and short-lived: two
 * for each block that is being decrypted.
 */
#include "daemon/crypt/key_memory.h"

#include "daemon/base/log/log.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"

#include <openssl/crypto.h>
#include <pthread.h>

#define UNIT ((size_t)256)
#define UNITS ((size_t)1024)
#define PIECE_MAX UINT8_MAX /* units */

static struct {
        pthread_mutex_t mutex;
        unsigned char *memory; /* atomic; NULL: it is not open */
        uint8_t units[UNITS];  /* of the piece that begins here; 0: none does */
} arena = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local bool of_openssl;

/* ---- pieces ---- */

static bool is_inside(const void *memory)
{
        const unsigned char *begin = __atomic_load_n(&arena.memory, __ATOMIC_ACQUIRE), *at = memory;
        return begin != NULL && at >= begin && at < begin + UNITS * UNIT;
}

/* NULL: there is no room. */
static void *take(size_t size)
{
        size_t n = (size + UNIT - 1) / UNIT, unused = 0;
        unsigned char *memory = __atomic_load_n(&arena.memory, __ATOMIC_ACQUIRE);
        if (memory == NULL || n == 0 || n > PIECE_MAX)
                return NULL;
        lock_scope(&arena.mutex);
        size_t at = 0;
        while (at < UNITS && unused < n) {
                uint8_t piece = arena.units[at];
                unused = piece == 0 ? unused + 1 : 0;
                at += piece == 0 ? 1 : piece;
        }
        if (unused < n)
                return NULL;
        arena.units[at - n] = (uint8_t)n;
        return memory + (at - n) * UNIT;
}

static size_t size_of(const void *piece)
{
        size_t first = (size_t)((const unsigned char *)piece - arena.memory) / UNIT;
        lock_scope(&arena.mutex);
        require(arena.units[first] > 0);
        return arena.units[first] * UNIT;
}

static void give_back(void *piece)
{
        size_t first = (size_t)((unsigned char *)piece - arena.memory) / UNIT;
        explicit_bzero(piece, size_of(piece));
        lock_scope(&arena.mutex);
        arena.units[first] = 0;
}

void *key_memory_alloc(size_t size)
{
        return take(size) ?: malloc(size);
}

void key_memory_free(void *memory, size_t size)
{
        if (memory == NULL)
                return;
        if (is_inside(memory)) {
                give_back(memory);
                return;
        }
        explicit_bzero(memory, size);
        free(memory);
}

/* ---- OpenSSL's memory ---- */

static void *openssl_malloc(size_t size, const char *file, int line)
{
        if (size == 0)
                return NULL;
        return (of_openssl ? take(size) : NULL) ?: malloc(size);
}

static void openssl_free(void *memory, const char *file, int line)
{
        if (is_inside(memory))
                give_back(memory);
        else
                free(memory);
}

static void *openssl_realloc(void *memory, size_t size, const char *file, int line)
{
        if (size == 0)
                openssl_free(memory, file, line);
        if (size == 0 || !is_inside(memory))
                return size == 0 ? NULL : realloc(memory, size);
        size_t old = size_of(memory);
        void *longer = openssl_malloc(size, file, line);
        if (longer == NULL)
                return NULL;
        memcpy(longer, memory, old < size ? old : size);
        give_back(memory);
        return longer;
}

void key_memory_begin(void)
{
        require(!of_openssl);
        of_openssl = true;
}

void key_memory_end(void)
{
        require(of_openssl);
        of_openssl = false;
}

/* ---- lifecycle ---- */

void key_memory_init(void)
{
        CRYPTO_set_mem_functions(openssl_malloc, openssl_realloc, openssl_free);
}

static void map(void)
{
        void *memory = secret_map(UNITS * UNIT);
        if (memory == NULL)
                log_warn("no memory could be mapped for keys: they are in ordinary memory while they are used");
        __atomic_store_n(&arena.memory, memory, __ATOMIC_RELEASE);
}

void key_memory_open(void)
{
        static pthread_once_t once = PTHREAD_ONCE_INIT;
        pthread_once(&once, map);
}
