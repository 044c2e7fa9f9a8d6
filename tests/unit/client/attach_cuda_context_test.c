/* SPDX-License-Identifier: Apache-2.0
 *
 * Which of the application's contexts a segment is opened in, how long it is retained, and what a forked child may
 * do.
 */
#include "tests/unit/attach_cuda_fixture.h"

static struct CUctx_st *take_primary(int device)
{
        struct CUctx_st *c;
        ck_assert_int_eq(app.driver->cuDevicePrimaryCtxRetain(&c, device), CU_OK);
        ck_assert_int_eq(app.set_current(c), CU_OK);
        return c;
}

TEST(an_application_without_a_context_uses_the_primary_one_temporarily)
{
        unsigned flags;
        int active;
        export_memory(1, false);
        assert_map(&handle_kind_cuda_ipc, &mapping);
        application_start();
        ck_assert_ptr_null(current());
        ck_assert_uint_eq(state->contexts[1], 1);
        ck_assert_int_eq(app.held()->retained, 1);
        unmap(&mapping);
        assert_nothing_leaked();
        app.driver->cuDevicePrimaryCtxGetState(1, &flags, &active);
        ck_assert_int_eq(active, 0);
}

TEST(the_primary_context_of_the_application_is_used_and_retained)
{
        export_memory(0, false);
        application_start();
        struct CUctx_st *own = take_primary(0);
        assert_map(&handle_kind_cuda_ipc, &mapping);
        ck_assert_uint_eq(state->contexts[0], 1);
        ck_assert_ptr_eq(current(), own);

        /* The application releases it; its attached segments stay valid. */
        app.driver->cuDevicePrimaryCtxRelease_v2(0);
        assert_bytes(&mapping, 0);
        unmap(&mapping);
        ck_assert_int_eq(app.held()->retained, 0);
}

TEST(a_context_of_the_application_is_used)
{
        struct CUctx_st *own;
        export_memory(0, false);
        application_start();
        ck_assert_int_eq(app.create(&own, 0, 0), CU_OK);
        assert_map(&handle_kind_cuda_ipc, &mapping);
        ck_assert_uint_eq(state->contexts[0], 1); /* no primary one beside it */
        ck_assert_ptr_eq(current(), own);
        unmap(&mapping);
        ck_assert_ptr_eq(current(), own);
        ck_assert_int_eq(app.held()->opened + app.held()->retained, 0);
}

TEST(a_context_on_another_gpu_stays_current_and_is_not_used)
{
        export_memory(1, false);
        application_start();
        struct CUctx_st *own = take_primary(0);
        assert_map(&handle_kind_cuda_ipc, &mapping);
        ck_assert_int_eq(mapping.device_index, 1);
        ck_assert_ptr_eq(current(), own);
        unmap(&mapping);
        ck_assert_ptr_eq(current(), own);
        ck_assert_int_eq(app.held()->retained, 1);
}

TEST(a_segment_of_a_destroyed_context_is_reopened)
{
        struct CUctx_st *own;
        struct mapping second;
        export_memory(0, false);
        application_start();
        ck_assert_int_eq(app.create(&own, 0, 0), CU_OK);
        assert_map(&handle_kind_cuda_ipc, &mapping);
        ck_assert_int_eq(app.destroy(own), CU_OK);
        assert_map(&handle_kind_cuda_ipc, &second);
        ck_assert_uint_eq(state->opens, 2);
        assert_bytes(&second, 0);
        unmap(&mapping); /* nothing to close any more, and nothing of the second's */
        assert_bytes(&second, 0);
        unmap(&second);
        assert_nothing_leaked();
}

TEST(a_forked_child_does_not_touch_the_parents_context)
{
        export_memory(0, false);
        assert_map(&handle_kind_cuda_ipc, &mapping);
        application_start();
        pid_t pid = must(fork());
        if (pid == 0) {
                struct mapping m;
                int rc = map(&handle_kind_cuda_ipc, &m);
                unmap(&mapping);
                bool told = strstr(fault_text(NULL), "fork()") != NULL;
                _exit(rc == STREAMER_EUNSUPPORTED && told && app.held()->opened == 1 ? 0 : 1);
        }
        ck_assert_int_eq(child_wait(pid), 0);
        ck_assert_uint_eq(state->after_fork, 0);
        assert_bytes(&mapping, 0);
        unmap(&mapping);
        assert_nothing_leaked();
}
