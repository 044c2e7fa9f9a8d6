/* SPDX-License-Identifier: Apache-2.0
 *
 * By the processor's instruction where it has one, else by tables of eight bytes at once.
 */
#include "daemon/base/crc32c.h"

#include <endian.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/auxv.h>

#define POLYNOMIAL 0x82f63b78u /* reflected */

static uint32_t tables[8][256];
static bool has_instruction;

static void init(void)
{
        for (uint32_t i = 0; i < 256; i++) {
                uint32_t crc = i;
                for (int bit = 0; bit < 8; bit++)
                        crc = (crc & 1) != 0 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
                tables[0][i] = crc;
        }
        for (int t = 1; t < 8; t++)
                for (uint32_t i = 0; i < 256; i++)
                        tables[t][i] = tables[t - 1][i] >> 8 ^ tables[0][tables[t - 1][i] & 255];
#if defined(__x86_64__)
        has_instruction = __builtin_cpu_supports("sse4.2") != 0;
#elif defined(__aarch64__)
        has_instruction = (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#endif
}

static uint64_t load_word(const unsigned char *data)
{
        uint64_t word;
        memcpy(&word, data, sizeof(word));
        return le64toh(word);
}

static uint32_t by_tables(uint32_t crc, const unsigned char *data, size_t size)
{
        for (; size >= 8; data += 8, size -= 8) {
                uint64_t word = load_word(data) ^ crc;
                crc = 0;
                for (int i = 0; i < 8; i++)
                        crc ^= tables[7 - i][word >> 8 * i & 255];
        }
        for (; size > 0; data++, size--)
                crc = crc >> 8 ^ tables[0][(crc ^ *data) & 255];
        return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const unsigned char *data, size_t size)
{
        uint64_t wide = crc;
        for (; size >= 8; data += 8, size -= 8)
                wide = __builtin_ia32_crc32di(wide, load_word(data));
        crc = (uint32_t)wide;
        for (; size > 0; data++, size--)
                crc = __builtin_ia32_crc32qi(crc, *data);
        return crc;
}
#elif defined(__aarch64__)
static uint32_t by_instruction(uint32_t crc, const unsigned char *data, size_t size)
{
        for (; size >= 8; data += 8, size -= 8)
                __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(load_word(data)));
        for (; size > 0; data++, size--)
                __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)*data));
        return crc;
}
#else
#define by_instruction by_tables
#endif

uint32_t crc32c(uint32_t crc, const void *data, size_t size)
{
        static pthread_once_t once = PTHREAD_ONCE_INIT;
        pthread_once(&once, init);
        return ~(has_instruction ? by_instruction(~crc, data, size) : by_tables(~crc, data, size));
}
