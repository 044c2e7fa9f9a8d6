/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/hash.h"

#include "proto/manifest.h"

#include <endian.h>
#include <string.h>
#include <sys/random.h>
#define XXH_STATIC_LINKING_ONLY /* the size of the state */
#if defined(__x86_64__)
#include <xxh_x86dispatch.h> /* the library's own choice of SSE2, AVX2 or AVX-512 at run time */
#else
#include <xxhash.h>
#endif

_Static_assert(sizeof(XXH128_canonical_t) == DIGEST_SIZE, "canonical form of XXH128");
_Static_assert(sizeof(XXH3_state_t) == sizeof(struct hash), "a running hash is the library's state");

static void canonical(XXH128_hash_t hash, unsigned char digest[DIGEST_SIZE])
{
        XXH128_canonical_t c;
        XXH128_canonicalFromHash(&c, hash);
        memcpy(digest, c.digest, DIGEST_SIZE);
}

void hex_encode(char *out, const unsigned char *bytes, size_t n)
{
        static const char digits[16] = "0123456789abcdef";
        for (size_t i = 0; i < n; i++) {
                out[2 * i] = digits[bytes[i] >> 4];
                out[2 * i + 1] = digits[bytes[i] & 15];
        }
        out[2 * n] = '\0';
}

bool hex_decode(unsigned char *bytes, const char *text, size_t n)
{
        static const char digits[] = "0123456789abcdef0123456789ABCDEF";
        if (strlen(text) != 2 * n || strspn(text, digits) != 2 * n)
                return false;
        for (size_t i = 0; i < n; i++) {
                size_t high = (size_t)(strchr(digits, text[2 * i]) - digits) % 16;
                size_t low = (size_t)(strchr(digits, text[2 * i + 1]) - digits) % 16;
                bytes[i] = (unsigned char)(high << 4 | low);
        }
        return true;
}

void hash_bytes(const void *data, size_t len, unsigned char digest[DIGEST_SIZE])
{
        canonical(XXH3_128bits(data, len), digest);
}

uint64_t hash_text(const char *text)
{
        static uint64_t key;
        /* Early at boot there may be no random bytes yet: addresses are secret, too. */
        if (key == 0 && (getrandom(&key, sizeof(key), GRND_NONBLOCK) != (ssize_t)sizeof(key) || key == 0))
                key = (uintptr_t)&key ^ (uintptr_t)&text << 20;
        return XXH3_64bits_withSeed(text, strlen(text), key);
}

void hash_init(struct hash *hash)
{
        XXH3_128bits_reset((XXH3_state_t *)hash);
}

void hash_update(struct hash *hash, const void *data, size_t len)
{
        XXH3_128bits_update((XXH3_state_t *)hash, data, len);
}

void hash_final(const struct hash *hash, unsigned char digest[DIGEST_SIZE])
{
        canonical(XXH3_128bits_digest((const XXH3_state_t *)hash), digest);
}

static void update_u64(struct hash *hash, uint64_t v)
{
        v = htole64(v);
        hash_update(hash, &v, sizeof(v));
}

void hash_model(const struct manifest_view *manifest, unsigned char digest[DIGEST_SIZE])
{
        struct hash hash;
        hash_init(&hash);
        for (uint64_t i = 0; i < manifest->header->n_records; i++) {
                const struct manifest_record *r = manifest_record(manifest, i);
                const char *dtype = dtype_name(r->dtype);
                update_u64(&hash, r->name_len);
                hash_update(&hash, manifest->strings + r->name_off, r->name_len);
                update_u64(&hash, strlen(dtype));
                hash_update(&hash, dtype, strlen(dtype));
                update_u64(&hash, r->rank);
                for (uint32_t k = 0; k < r->rank; k++)
                        update_u64(&hash, manifest->shapes[r->shape_off + k]);
                hash_update(&hash, r->digest, DIGEST_SIZE);
        }
        hash_final(&hash, digest);
}
