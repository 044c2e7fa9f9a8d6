/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables of tensors, their contents and digests: see model.h.
 *
 * Contents are splitmix64 run as a counter: word k of a tensor is splitmix(key + k * GAMMA), which has
 * random access, no state, and is fast enough to write a gigabyte in about a second.
 */
#include "tests/lib/model.h"
#include "proto/manifest.h"
#include "tests/lib/base.h"

#include <pthread.h>
#include <xxhash.h>

#define LEAF (UINT64_C(1) << 20)

/* ---- the table ---- */

struct model *model_new(uint64_t seed)
{
        struct model *m = must_alloc(sizeof(*m));
        m->seed = seed;
        m->modulus = 8;
        return m;
}

struct model *model_free(struct model *m)
{
        if (!m)
                return NULL;
        for (size_t i = 0; i < m->n; i++)
                free(m->tensors[i].name);
        free(m->tensors);
        free(m->metadata);
        free(m);
        return NULL;
}

void model_add(struct model *m, const char *name, const char *dtype, const uint64_t *shape, uint32_t rank)
{
        int code = dtype_find(dtype, strlen(dtype));
        uint64_t elements = 1;
        if (code < 0 || rank > MODEL_RANK_MAX)
                die("tensor %s: no such dtype or rank", name);
        if (m->n == m->cap) {
                m->cap = m->cap ? m->cap * 2 : 16;
                m->tensors = must_realloc(m->tensors, m->cap * sizeof(*m->tensors));
        }
        struct model_tensor *t = &m->tensors[m->n++];
        *t = (struct model_tensor){.name = format_text("%s", name), .dtype = dtype, .rank = rank};
        for (uint32_t d = 0; d < rank; d++) {
                t->shape[d] = shape[d];
                elements *= shape[d];
        }
        t->bytes = elements * dtype_bits((unsigned)code) / 8;
        t->key = XXH3_64bits_withSeed(name, strlen(name), m->seed);
        m->bytes += t->bytes;
}

void model_add_many(struct model *m, const char *prefix, size_t n, uint64_t bytes)
{
        char name[256];
        for (size_t i = 0; i < n; i++) {
                snprintf(name, sizeof(name), "%s.%06zu", prefix, i);
                model_add(m, name, "U8", &bytes, 1);
        }
}

void model_place_data(struct model *m, uint64_t modulus, uint64_t residue)
{
        m->modulus = modulus;
        m->residue = residue;
}

void model_set_metadata(struct model *m, const char *json)
{
        free(m->metadata);
        m->metadata = format_text("%s", json);
}

struct model *model_mixed(uint64_t seed, uint64_t bytes)
{
        struct model *m = model_new(seed);
        uint64_t row = bytes / 8 / 64; /* elements in a row of 16 */
        model_add(m, "embed.weight", "BF16", (uint64_t[]){16, row * 2}, 2);
        model_add(m, "layers.0.attn.bias", "F32", (uint64_t[]){17}, 1);
        model_add(m, "layers.0.attn.weight", "F16", (uint64_t[]){4, 4, row * 2}, 3);
        model_add(m, "layers.0.mlp.scale", "F8_E4M3", (uint64_t[]){13}, 1);
        model_add(m, "layers.0.mlp.weight", "I8", (uint64_t[]){16, row * 8}, 2);
        model_add(m, "layers.0.norm", "F64", (uint64_t[]){3}, 1);
        model_add(m, "step", "I64", NULL, 0);
        model_add(m, "unused", "F32", (uint64_t[]){0, 128}, 2);
        model_add(m, "head.weight", "F32", (uint64_t[]){16, row * 4}, 2);
        return m;
}

size_t model_index(const struct model *m, const char *name)
{
        size_t i = 0;
        while (i < m->n && strcmp(m->tensors[i].name, name) != 0)
                i++;
        return i;
}

/* ---- contents ---- */

/* Not instrumented: the memory is the caller's own, and most of the tests' time would pass here. */
__attribute__((no_sanitize_thread)) static void contents(uint64_t key, uint64_t from, unsigned char *to, size_t len)
{
        uint64_t k = from / 8;
        size_t skip = (size_t)(from % 8);
        if (skip > 0 && len > 0) {
                uint64_t word = splitmix(key + k++ * SPLITMIX_GAMMA);
                size_t n = len < 8 - skip ? len : 8 - skip;
                memcpy(to, (unsigned char *)&word + skip, n);
                to += n;
                len -= n;
        }
        for (; len >= 8; len -= 8, to += 8) {
                uint64_t word = splitmix(key + k++ * SPLITMIX_GAMMA);
                memcpy(to, &word, 8);
        }
        if (len > 0) {
                uint64_t word = splitmix(key + k * SPLITMIX_GAMMA);
                memcpy(to, &word, len);
        }
}

void model_contents(const struct model *m, size_t i, uint64_t from, void *to, size_t len)
{
        contents(m->tensors[i].key, from, to, len);
}

bool model_check(const struct model *m, size_t i, const void *data)
{
        unsigned char want[65536];
        const unsigned char *have = data;
        uint64_t bytes = m->tensors[i].bytes;
        for (uint64_t at = 0; at < bytes; at += sizeof(want)) {
                size_t n = bytes - at < sizeof(want) ? (size_t)(bytes - at) : sizeof(want);
                contents(m->tensors[i].key, at, want, n);
                if (memcmp(want, have + at, n) != 0)
                        return false;
        }
        return true;
}

static void compute_digest(struct model_tensor *t)
{
        cleanup_free unsigned char *leaf = must_alloc(t->bytes < LEAF ? (size_t)t->bytes : LEAF);
        XXH3_state_t *state = XXH3_createState();
        XXH128_canonical_t canonical;

        XXH3_128bits_reset(state);
        for (uint64_t at = 0; at < t->bytes; at += LEAF) {
                size_t n = t->bytes - at < LEAF ? (size_t)(t->bytes - at) : LEAF;
                contents(t->key, at, leaf, n);
                XXH128_canonicalFromHash(&canonical, XXH3_128bits(leaf, n));
                XXH3_128bits_update(state, &canonical, sizeof(canonical));
        }
        XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
        memcpy(t->digest, canonical.digest, 16);
        XXH3_freeState(state);
        t->has_digest = true;
}

void model_tensor_digest(const struct model *m, size_t i, unsigned char digest[16])
{
        static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
        pthread_mutex_lock(&mutex);
        if (!m->tensors[i].has_digest)
                compute_digest(&m->tensors[i]);
        memcpy(digest, m->tensors[i].digest, 16);
        pthread_mutex_unlock(&mutex);
}

static int by_name(const void *a, const void *b, void *arg)
{
        const struct model *m = arg;
        return strcmp(m->tensors[*(const size_t *)a].name, m->tensors[*(const size_t *)b].name);
}

static void update_u64(XXH3_state_t *state, uint64_t v)
{
        unsigned char le[8];
        for (int i = 0; i < 8; i++)
                le[i] = (unsigned char)(v >> (8 * i));
        XXH3_128bits_update(state, le, 8);
}

static void update_tensor(XXH3_state_t *state, const struct model *m, size_t i)
{
        const struct model_tensor *t = &m->tensors[i];
        unsigned char digest[16];
        update_u64(state, strlen(t->name));
        XXH3_128bits_update(state, t->name, strlen(t->name));
        update_u64(state, strlen(t->dtype));
        XXH3_128bits_update(state, t->dtype, strlen(t->dtype));
        update_u64(state, t->rank);
        for (uint32_t d = 0; d < t->rank; d++)
                update_u64(state, t->shape[d]);
        model_tensor_digest(m, i, digest);
        XXH3_128bits_update(state, digest, 16);
}

void model_digest(const struct model *m, char hex[33])
{
        cleanup_free size_t *order = must_alloc(m->n * sizeof(*order));
        XXH3_state_t *state = XXH3_createState();
        XXH128_canonical_t canonical;

        for (size_t i = 0; i < m->n; i++)
                order[i] = i;
        qsort_r(order, m->n, sizeof(*order), by_name, (void *)m);
        XXH3_128bits_reset(state);
        for (size_t i = 0; i < m->n; i++)
                update_tensor(state, m, order[i]);
        XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
        for (int i = 0; i < 16; i++)
                snprintf(hex + i * 2, 3, "%02x", canonical.digest[i]);
        XXH3_freeState(state);
}
