/* SPDX-License-Identifier: Apache-2.0
 *
 * The verification of a resident model: its bytes are intact, but the digest of the whole is another's.
 */
#include "daemon/resident/digest_check.h"
#include "tests/lib/load_fixture.h"

CORE_FIXTURE(load_fixture_begin, load_fixture_end);

TEST(a_model_of_another_digest_is_refused)
{
        bool stop = false;
        struct error error = {0};
        struct generation *g = load_ready(small_file("small.safetensors", 1), "m");
        struct digest_job job;
        verify_begin(&job, g, loads.reader, &stop);
        ck_assert_msg(verify_run(&job, &error) == 0, "%s", error.text);
        g->digest[0] ^= 1;
        verify_begin(&job, g, loads.reader, &stop);
        FAILS_SAYING(error, verify_run(&job, &error), STREAMER_EFAILED, "the model's digest differs");
}
