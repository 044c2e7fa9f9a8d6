/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies memory past the cache. A load writes each byte of a model once: through the cache every line would be fetched
 * before it is overwritten, and would evict what is still needed (the buffers of the next bytes).
 */
#ifndef DAEMON_BASE_COPY_H
#define DAEMON_BASE_COPY_H

#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define COPY_LINE 64u

#if defined(__SSE2__)
static inline void copy_lines(unsigned char *to, const unsigned char *from, size_t lines)
{
        for (; lines > 0; lines--, to += COPY_LINE, from += COPY_LINE) {
                const __m128i *f = (const __m128i *)from;
                __m128i a = _mm_loadu_si128(f), b = _mm_loadu_si128(f + 1), c = _mm_loadu_si128(f + 2),
                        d = _mm_loadu_si128(f + 3);
                _mm_stream_si128((__m128i *)to, a);
                _mm_stream_si128((__m128i *)to + 1, b);
                _mm_stream_si128((__m128i *)to + 2, c);
                _mm_stream_si128((__m128i *)to + 3, d);
        }
        _mm_sfence(); /* before the bytes are published */
}
#else
static inline void copy_lines(unsigned char *to, const unsigned char *from, size_t lines)
{
        memcpy(to, from, lines * COPY_LINE);
}
#endif

/* They do not overlap. */
static inline void copy_past_cache(unsigned char *to, const unsigned char *from, size_t n)
{
        size_t before = -(uintptr_t)to % COPY_LINE;
        if (before > n)
                before = n;
        size_t whole = (n - before) / COPY_LINE * COPY_LINE;
        memcpy(to, from, before);
        copy_lines(to + before, from + before, whole / COPY_LINE);
        memcpy(to + before + whole, from + before + whole, n - before - whole);
}

#endif
