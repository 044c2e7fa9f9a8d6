/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans: placement of tensors, and block boundaries.
 */
#include "tests/unit/plan_files.h"

#define MIB (UINT64_C(1) << 20)
#define BLOCK (8 * MIB)

static const struct plan_layout host = {.page = 4096, .align = 1, .granularity = 2 * MIB};
static const struct plan_layout cuda = {.page = 0, .align = 256, .granularity = 2 * MIB};

static struct made_file made[3];
static struct plan_file files[3];
static uint64_t chunks[3]; /* of files that are encrypted */
static struct plan plan;

static struct error error;

static void make(size_t n, const struct plan_layout *layout)
{
        for (size_t i = 0; i < n; i++)
                files[i] = (struct plan_file){.header = made[i].header, .chunk = chunks[i]};
        ck_assert_msg(plan_make(&plan, files, n, layout, BLOCK, &error) == 0, "%s", error.text);
}

/* Runs of tensors that are as contiguous in their segment as in their file. */
static size_t count_extents(void)
{
        size_t n = 0;
        for (size_t i = 0; i < plan.n_tensors; i++) {
                const struct plan_tensor *t = &plan.tensors[i];
                n += i == 0 || t[-1].file != t->file || t[-1].file_off + t[-1].bytes != t->file_off ||
                     t[-1].segment != t->segment || t[-1].offset + t[-1].bytes != t->offset;
        }
        return n;
}

/* ---- the host ---- */

TEST(an_aligned_file_is_one_extent_in_place)
{
        file_begin(&made[0]);
        file_tensor(&made[0], "a", DTYPE_F32, 20 * MIB);
        file_tensor(&made[0], "b", DTYPE_BF16, 6);
        file_tensor(&made[0], "c", DTYPE_U8, 3);
        file_end(&made[0], 4096, 1024 + 8);
        make(1, &host);
        ck_assert_uint_eq(count_extents(), 1);
        ck_assert_uint_eq(plan.n_segments, 1);
        ck_assert_uint_eq(plan.segments[0], 22 * MIB);
        ck_assert_uint_eq(plan.copied_bytes, 0);
        ck_assert_uint_eq(plan.bytes, 20 * MIB + 9);
        ck_assert_uint_eq(plan.tensors[0].offset, 1024 + 8);
        ck_assert_uint_eq(plan.tensors[1].offset, 1024 + 8 + 20 * MIB);
        for (size_t i = 0; i < plan.n_blocks; i++)
                ck_assert(plan.blocks[i].in_place);
}

/* bytes of the tensor: the segment, whose tensor begins at 1024 + 8 */
static const struct {
        uint64_t bytes, segment;
} smalls[] = {
        {1, 4096}, {4096 - 1032, 4096}, {4096 - 1031, 8192}, {MIB / 2 - 1032, MIB / 2}, {MIB / 2 - 1031, 2 * MIB},
};

TEST(a_small_segment_is_of_pages, EACH(smalls))
{
        struct plan_layout layout = host;
        layout.small = MIB / 2;
        file_begin(&made[0]);
        file_tensor(&made[0], "a", DTYPE_U8, smalls[_i].bytes);
        file_end(&made[0], 4096, 1024 + 8);
        make(1, &layout);
        ck_assert_uint_eq(plan.n_segments, 1);
        ck_assert_uint_eq(plan.segments[0], smalls[_i].segment);
}

TEST(only_misaligned_tensors_are_copied)
{
        file_begin(&made[0]);
        file_tensor(&made[0], "a", DTYPE_U8, 2 * MIB + 1);
        file_tensor(&made[0], "b", DTYPE_F32, 4 * MIB);
        file_tensor(&made[0], "c", DTYPE_U8, 2 * MIB);
        file_end(&made[0], 4096, 8);
        make(1, &host);
        ck_assert_uint_eq(count_extents(), 3);
        ck_assert_uint_eq(plan.copied_bytes, 4 * MIB);
        ck_assert_uint_eq(plan.tensors[1].offset % 4, 0);
        ck_assert_uint_eq(plan.tensors[1].offset, 2 * MIB + 12);
        ck_assert_uint_eq(plan.n_blocks, 3);
        ck_assert(plan.blocks[0].in_place && !plan.blocks[1].in_place && plan.blocks[2].in_place);
}

/* A page of padding around every small tensor would cost more than copying it. */
TEST(small_neighbours_of_misaligned_tensors_are_copied_too)
{
        file_begin(&made[0]);
        for (int i = 0; i < 1000; i++) {
                char name[2][16];
                sprintf(name[0], "a%d", i);
                sprintf(name[1], "b%d", i);
                file_tensor(&made[0], name[0], DTYPE_U8, 64);
                file_tensor(&made[0], name[1], DTYPE_F32, 64);
        }
        file_end(&made[0], 4096, 9);
        make(1, &host);
        ck_assert_uint_eq(count_extents(), 2);
        ck_assert_uint_eq(plan.copied_bytes, 128000 - 64);
        ck_assert_uint_eq(plan.segments[0], 2 * MIB);
        ck_assert_uint_eq(plan.tensors[1999].offset + 64, 128000 + 9 + 3);
}

TEST(reading_in_place_continues_for_more_than_a_page)
{
        file_begin(&made[0]);
        file_tensor(&made[0], "a", DTYPE_U8, 1);
        file_tensor(&made[0], "misaligned", DTYPE_F32, 64);
        file_tensor(&made[0], "small", DTYPE_U8, 64);
        file_tensor(&made[0], "stale", DTYPE_U8, 64);
        file_tensor(&made[0], "half", DTYPE_U8, MIB / 2);
        file_tensor(&made[0], "other half", DTYPE_U8, MIB / 2);
        file_end(&made[0], 4096, 0);
        file_remove(&made[0], 3);
        make(1, &host);
        ck_assert_uint_eq(count_extents(), 3);
        ck_assert_uint_eq(plan.copied_bytes, 128);
        ck_assert_uint_eq(plan.tensors[3].offset % 4096, 193);
}

/* ---- CUDA ---- */

TEST(an_ordinary_checkpoint_is_one_extent)
{
        file_begin(&made[0]);
        file_tensor(&made[0], "a", DTYPE_BF16, 4 * MIB);
        file_tensor(&made[0], "b", DTYPE_BF16, 8192);
        file_tensor(&made[0], "c", DTYPE_BF16, 4 * MIB);
        file_end(&made[0], 8, 1); /* the offset of the data in the file does not matter */
        make(1, &cuda);
        ck_assert_uint_eq(count_extents(), 1);
        ck_assert_uint_eq(plan.tensors[0].offset, 0);
        ck_assert_uint_eq(plan.tensors[2].offset, 4 * MIB + 8192);
        ck_assert_uint_eq(plan.n_blocks, 2);
        ck_assert(!plan.blocks[0].in_place);
        ck_assert_uint_eq(plan.copied_bytes, plan.bytes);
}

/* ---- segments ---- */

TEST(segments_begin_between_tensors)
{
        struct plan_layout layout = cuda;
        layout.max_segment = 10 * MIB;
        file_begin(&made[0]);
        file_tensor(&made[0], "a", DTYPE_U8, 6 * MIB);
        file_tensor(&made[0], "b", DTYPE_U8, 4 * MIB);
        file_tensor(&made[0], "c", DTYPE_U8, 1);
        file_tensor(&made[0], "large", DTYPE_U8, 25 * MIB);
        file_tensor(&made[0], "d", DTYPE_U8, 1);
        file_end(&made[0], 8, 0);
        make(1, &layout);
        static const uint64_t sizes[] = {10 * MIB, 2 * MIB, 26 * MIB, 2 * MIB};
        ck_assert_uint_eq(plan.n_segments, 4);
        for (size_t i = 0; i < 4; i++)
                ck_assert_uint_eq(plan.segments[i], sizes[i]);
        ck_assert_uint_eq(plan.tensors[1].segment, 0);
        ck_assert_uint_eq(plan.tensors[4].segment, 3);
        ck_assert_uint_eq(plan.tensors[4].offset, 0);
}

TEST(a_model_without_bytes_has_no_segment_in_its_plan)
{
        file_begin(&made[0]);
        file_end(&made[0], 8, 0);
        make(1, &host);
        ck_assert_uint_eq(plan.n_tensors + plan.n_blocks + plan.n_segments, 0);

        file_begin(&made[0]);
        file_tensor(&made[0], "empty", DTYPE_F32, 0);
        file_end(&made[0], 8, 0);
        make(1, &cuda);
        ck_assert_uint_eq(plan.n_tensors, 1);
        ck_assert_uint_eq(plan.n_blocks + plan.n_segments, 0);
        make(0, &host);
        ck_assert_uint_eq(plan.n_tensors, 0);
}

/* Those of the order of the file, though an empty one has an element that its place does not fit. */
TEST(an_empty_tensor_lies_between_its_neighbours)
{
        file_begin(&made[0]);
        file_tensor(&made[0], "a", DTYPE_U8, 3);
        file_tensor(&made[0], "e", DTYPE_I64, 0);
        file_tensor(&made[0], "v", DTYPE_U8, 7);
        file_end(&made[0], 8, 0);
        make(1, &host);
        ck_assert_uint_eq(plan.tensors[0].offset + 3, plan.tensors[1].offset);
        ck_assert_uint_le(plan.tensors[1].offset, plan.tensors[2].offset);
}

/* ---- invalid models ---- */

TEST(a_name_in_two_files_is_refused)
{
        for (size_t i = 0; i < 3; i++) {
                static const char *const names[] = {"a", "b", "a"}, *const paths[] = {"x", "y", "z"};
                file_begin(&made[i]);
                file_tensor(&made[i], names[i], DTYPE_U8, 1);
                file_end(&made[i], 8, 0);
                files[i] = (struct plan_file){.header = made[i].header, .path = paths[i]};
        }
        struct plan_names names = {.n_files = 0};
        for (size_t i = 0; i < 2; i++)
                ck_assert_int_eq(plan_names_add(&names, files, &error), 0);
        FAILS_SAYING(error, plan_names_add(&names, files, &error), STREAMER_EFAILED,
                     "tensor 'a' is in two files (x, z)");
        plan_names_deinit(&names);

        file_remove(&made[2], 0); /* but not if one of them is stale */
        files[2].header = made[2].header;
        for (size_t i = 0; i < 3; i++)
                ck_assert_int_eq(plan_names_add(&names, files, &error), 0);
        plan_names_deinit(&names);
        make(3, &host);
        ck_assert_uint_eq(plan.n_tensors, 2);
}

static struct plan_file many[41];

/* Also in a set that has grown, and among files without tensors. */
TEST(a_name_of_any_earlier_file_is_found)
{
        struct plan_names names = {.n_files = 0};
        char name[16];
        for (size_t i = 0; i < 40; i++) {
                file_begin(&made[0]);
                for (size_t k = 0; i % 3 != 1 && k < 5; k++) {
                        snprintf(name, sizeof(name), "%zu.%zu", i, k);
                        file_tensor(&made[0], name, DTYPE_U8, 1);
                }
                file_end(&made[0], 8, 0);
                many[i] = (struct plan_file){.header = made[0].header, .path = "many"};
                ck_assert_int_eq(plan_names_add(&names, many, &error), 0);
        }
        file_begin(&made[0]);
        file_tensor(&made[0], "0.4", DTYPE_U8, 1);
        file_end(&made[0], 8, 0);
        many[40] = (struct plan_file){.header = made[0].header, .path = "last"};
        FAILS_SAYING(error, plan_names_add(&names, many, &error), STREAMER_EFAILED,
                     "tensor '0.4' is in two files (many, last)");
        plan_names_deinit(&names);
}

TEST(sizes_that_overflow_are_refused)
{
        for (size_t i = 0; i < 2; i++) {
                file_begin(&made[i]);
                file_tensor(&made[i], i == 0 ? "a" : "b", DTYPE_U8, UINT64_C(1) << 60);
                file_tensor(&made[i], i == 0 ? "c" : "d", DTYPE_U8, UINT64_C(1) << 60);
                file_end(&made[i], 8, 0);
                files[i] = (struct plan_file){.header = made[i].header};
        }
        FAILS_SAYING(error, plan_make(&plan, files, 2, &host, BLOCK, &error), STREAMER_EFAILED,
                     "the files' sizes overflow");
}

/* Names are numbered by 32 bits. */
TEST(more_tensors_than_numbers_are_refused)
{
        size_t n = UINT32_MAX, size = n * sizeof(struct st_tensor); /* of which the last is read: one page */
        void *tensors = mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        ck_assert_ptr_ne(tensors, MAP_FAILED);
        files[0] = (struct plan_file){.header = {.tensors = tensors, .n_tensors = n}};
        FAILS_SAYING(error, plan_make(&plan, files, 1, &host, BLOCK, &error), STREAMER_EFAILED, "too many tensors");
}

/* ---- requests ---- */

/* Blocks, requests at a time, the largest; the expected size. */
static const struct {
        size_t blocks;
        unsigned parts;
        size_t most, size;
} requests[] = {
        {24, 4, 24, 6}, {25, 4, 24, 7}, {24, 4, 2, 2},
        {3, 4, 24, 1},  {0, 4, 24, 1},  {24, 4, 0, 1}, /* less than a block */
};

TEST(a_request_is_an_even_part_within_the_limit, EACH(requests))
{
        const struct plan of = {.n_blocks = requests[_i].blocks};
        ck_assert_uint_eq(plan_request_blocks(&of, requests[_i].parts, requests[_i].most), requests[_i].size);
}

/* Where tensors are left out, and with the file. */
TEST(a_request_ends_at_a_gap_and_with_its_file)
{
        struct plan_block blocks[] = {{.len = 8},
                                      {.file_off = 8, .len = 8},
                                      {.file_off = 17, .len = 7},
                                      {.file_off = 24, .len = 8},
                                      {.file_off = 32, .file = 1}};
        const struct plan of = {.blocks = blocks, .n_blocks = 5};
        static const size_t ends[] = {2, 2, 4, 4, 5};
        for (size_t i = 0; i < 5; i++)
                ck_assert_uint_eq(plan_request_end(&of, i, 5), ends[i]);
        ck_assert_uint_eq(plan_request_end(&of, 0, 1), 1);
}

/* ---- encrypted files ---- */

static const struct {
        uint64_t chunk;
        size_t n;         /* blocks */
        uint64_t lens[3]; /* MiB, of the first ones */
        bool continues;   /* the second one */
        size_t end;       /* of the first request */
} chunked[] = {
        {65536, 3, {8, 8, 4}, false, 1},   {2 * MIB, 3, {8, 8, 4}, false, 1},     {3 * MIB, 3, {6, 6, 8}, false, 1},
        {5 * MIB, 4, {5, 5, 5}, false, 1}, {3 * MIB / 2, 3, {6, 6, 8}, false, 1}, {16 * MIB, 3, {8, 8, 4}, true, 2},
        {MIB + 1, 3, {8, 8, 4}, true, 3},  {UINT64_MAX, 3, {8, 8, 4}, true, 3},
};

TEST(blocks_end_with_chunks_that_fit_them, EACH(chunked))
{
        chunks[0] = chunked[_i].chunk;
        file_begin(&made[0]);
        file_tensor(&made[0], "a", DTYPE_U8, 20 * MIB);
        file_end(&made[0], 4096, 8);
        make(1, &host);
        ck_assert_uint_eq(plan.n_blocks, chunked[_i].n);
        for (size_t i = 0; i < 3; i++)
                ck_assert_uint_eq(plan.blocks[i].len, chunked[_i].lens[i] * MIB);
        ck_assert_int_eq(plan.blocks[1].continues, chunked[_i].continues);
        ck_assert(!plan.blocks[0].continues);
        ck_assert_uint_eq(plan_request_end(&plan, 0, 1), chunked[_i].end);
        ck_assert_uint_eq(plan_chunk_begin(&plan, 1, plan.n_blocks), chunked[_i].end);
}

/* A small tensor joins the block before it whole, and one that is longer than the rest begins another. */
TEST(a_tensor_that_is_one_chunk_is_not_split_for_the_rest_of_a_block)
{
        chunks[0] = UINT64_MAX;
        file_begin(&made[0]);
        file_tensor(&made[0], "a", DTYPE_U8, 3 * MIB);
        file_tensor(&made[0], "b", DTYPE_U8, 2 * MIB);
        file_tensor(&made[0], "c", DTYPE_U8, 6 * MIB);
        file_end(&made[0], 4096, 8);
        make(1, &host);
        ck_assert_uint_eq(plan.n_blocks, 2);
        ck_assert_uint_eq(plan.blocks[0].len, 5 * MIB);
        ck_assert_uint_eq(plan.blocks[1].len, 6 * MIB);
        ck_assert(!plan.blocks[1].continues);
}
