/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the parser: the header and at most 128 bytes per tensor, all freed; at most 300 MiB for the worst header.
 *
 * The measure is the process's peak as the kernel counts it, from the point when only the text is in memory.
 */
#include "tests/lib/suite.h"
#include "tests/unit/header_text.h"

#include <malloc.h>

#define MIB ((size_t)1 << 20)
#define EMPTY "{'dtype':'U8','shape':[0],'data_offsets':[0,0]}"

static size_t status_bytes(const char *field)
{
        char line[256];
        size_t kib = 0;
        FILE *f = fopen("/proc/self/status", "r");
        ck_assert_ptr_nonnull(f);
        while (fgets(line, sizeof(line), f))
                if (strncmp(line, field, strlen(field)) == 0)
                        kib = strtoul(line + strlen(field), NULL, 10);
        fclose(f);
        return kib * 1024;
}

/* Resets the peak; returns the resident bytes. */
static size_t memory_now(void)
{
        file_write("/proc/self/clear_refs", "5", 1);
        return status_bytes("VmRSS:");
}

static size_t memory_peak(void)
{
        return status_bytes("VmHWM:");
}

/* As the daemon's main(): freed tables go back to the system at once. */
BEFORE_ALL()
{
        mallopt(M_MMAP_THRESHOLD, 128 * 1024);
        mallopt(M_TRIM_THRESHOLD, 128 * 1024);
}

TEST(a_tensor_takes_128_bytes_at_most, .slow = true)
{
        struct text text = repeated("{", 99999, "'layers.#.weight':" EMPTY ",", "'norm':" EMPTY "}");
        struct st_header header;
        struct st_error error;
        size_t before = memory_now();
        ck_assert_int_eq(parse_text(&header, &text, 0, &error), 0);
        ck_assert_uint_eq(header.n_tensors, 100000);
        ck_assert_uint_le(memory_peak() - before, 100000 * 128 + MIB);
        st_header_deinit(&header);
        ck_assert_uint_le(memory_now(), before + MIB);
}

/* As many items of this width as the largest header holds. */
#define MOST(width) ((ST_HEADER_MAX - 200) / (width))

static const struct {
        const char *before, *item;
        size_t n;
        const char *after;
        bool index;
        enum st_rule rule;
} worst[] = {
        /* tensors; in another order */
        {"{", "'#':" EMPTY ",", MOST(58), "'z':" EMPTY "}", false, ST_OK},
        {"{'z':{'dtype':'U8','shape':[1],'data_offsets':[9,10]},",
         "'#':{'dtype':'U8','shape':[1],'data_offsets':[0,1]},", MOST(61), "'y':" EMPTY "}", false, ST_HOLE_OR_OVERLAP},
        /* metadata; ignored keys; one string */
        {"{'__metadata__':{", "'#':'',", MOST(13), "'z':''}}", false, ST_TOO_MANY},
        {"{'a':{'x':{", "'#':0,", MOST(12), "'z':0}}}", false, ST_TOO_MANY},
        {"{'", "a\\u00e9\\n", MOST(9), "':" EMPTY "}", false, ST_OK},
        /* entries of an index */
        {"{'weight_map':{", "'#':'f',", MOST(14), "'z':'f'}}", true, ST_TOO_MANY},
        {"{'weight_map':{", "'layers.............................#':'f',", 2000000, "'z':'f'}}", true, ST_OK},
        {"{'weight_map':{", "'layers.#':'model-#.safetensors',", 2000000, "'z':'f'}}", true, ST_OK},
};

TEST(the_worst_headers, EACH(worst), .slow = true)
{
        struct text text = repeated(worst[_i].before, worst[_i].n, worst[_i].item, worst[_i].after);
        struct st_header header;
        struct st_index parsed;
        struct st_error error = {0};
        ck_assert_uint_le(text.size, ST_HEADER_MAX);
        ck_assert_uint_ge(text.size, ST_HEADER_MAX / 5 * 4);
        size_t before = memory_now();
        int r = worst[_i].index ? st_index_parse(&parsed, text.s, text.size, &error)
                                : parse_text(&header, &text, 0, &error);
        ck_assert_uint_le(memory_peak() - before + text.size, 300 * MIB);
        ck_assert_int_eq(r, worst[_i].rule == ST_OK ? 0 : -1);
        ck_assert_msg(error.rule == worst[_i].rule, "%s", error.text);
        if (worst[_i].rule != ST_OK)
                ck_assert_uint_le(memory_now(), before + MIB);
}
