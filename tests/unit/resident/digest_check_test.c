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
        ck_assert_msg(verify_generation(g, loads.reader, &stop, &error) == 0, "%s", error.text);
        g->digest[0] ^= 1;
        ck_assert_int_eq(verify_generation(g, loads.reader, &stop, &error), STREAMER_EFAILED);
        ck_assert_str_eq(error.text, "the model's digest differs");
}
