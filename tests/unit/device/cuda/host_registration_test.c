/* SPDX-License-Identifier: Apache-2.0
 *
 * Registration of host memory in pieces that drivers accept. The addresses are not mapped: the fake runtime only counts
 * registered bytes.
 */
#include "daemon/device/cuda/device_private.h"
#include "tests/unit/fake_cuda_fixture.h"

#define REFUSED (512 * GiB) /* in one call, by drivers from 580 on */
#define SLOT (24 * MiB)     /* no divisor of 256 GiB */

static struct fake_state *state;
static struct cuda cuda;
static struct cuda_device device = {.cuda = &cuda};
static void *base;

static void begin(void)
{
        state = share_state();
        start();
        cuda.api = api;
        base = (void *)(uintptr_t)(4096 * GiB);
}

static const struct {
        uint64_t size;
        unsigned pieces;
} sizes[] = {
        {2 * MiB, 1},
        {200 * GiB, 1},
        {256 * GiB, 2}, /* a piece of whole slots is less than that */
        {1100 * GiB, 5},
};

TEST(memory_is_registered_in_pieces_and_given_back, EACH(sizes))
{
        begin();
        ck_assert_int_eq(cuda_host_register(api, base, sizes[_i].size, SLOT), CUDA_OK);
        ck_assert_uint_eq(state->pinned, sizes[_i].size);
        ck_assert_uint_eq(state->registrations, sizes[_i].pieces);
        ck_assert_uint_lt(state->registered_most, REFUSED);
        cuda_host_unregister(&device, base, sizes[_i].size, SLOT);
        ck_assert_uint_eq(state->pinned, 0);
}

/* A copy from a slot that spans two registrations fails. */
TEST(no_slot_spans_two_pieces)
{
        begin();
        ck_assert_int_eq(cuda_host_register(api, base, 600 * GiB, SLOT), CUDA_OK);
        uint64_t piece = round_down(256 * GiB, SLOT);
        for (uint64_t at = piece; at < 600 * GiB; at += piece)
                ck_assert_int_eq(api->cudaHostUnregister((char *)base + at), CUDA_OK);
        ck_assert_uint_eq(state->pinned, piece);
}

TEST(a_refused_piece_leaves_none_registered)
{
        begin();
        fake_arm(state, "cudaHostRegister", 4, CUDA_OUT_OF_MEMORY);
        ck_assert_int_eq(cuda_host_register(api, base, 1100 * GiB, SLOT), CUDA_OUT_OF_MEMORY);
        ck_assert_uint_eq(state->pinned, 0);
}
