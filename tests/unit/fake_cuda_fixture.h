/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the tests of the fake CUDA libraries: the runtime, opened as the daemon opens it.
 */
#ifndef TESTS_UNIT_FAKE_CUDA_FIXTURE_H
#define TESTS_UNIT_FAKE_CUDA_FIXTURE_H

#include "daemon/device/cuda/api.h"
#include "tests/lib/fake_cuda/state.h"
#include "tests/lib/suite.h"

static struct cuda_api *api;

/* The fake of the runtime, under the environment of now. */
static void start(void)
{
        char path[PATH_SIZE], why[1024];
        fake_library("libcudart.so.13", path, sizeof(path));
        ck_assert_msg(cuda_api_open(path, &api, why, sizeof(why)) == 0, "%s", why);
}

static struct fake_state *share_state(void)
{
        char *path = suite_path("state.%d", (int)getpid());
        setenv("FAKECUDA_STATE", path, 1);
        return fake_state_map(path);
}

#endif
