/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon whose network namespace has no network: sources fail with the name that cannot be resolved.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/streamerctl.h"
#include "tests/lib/suite.h"

#include <sched.h>

static const struct {
        const char *source, *host;
} rows[] = {
        {"https://weights.invalid/m.safetensors", "weights.invalid"},
        {"s3://bucket/prefix/", "store.invalid"},
        {"hf://org/name", "hub.invalid"},
};

TEST(a_host_that_cannot_be_resolved_is_named, EACH(rows))
{
        struct daemon d;
        struct ctl result;
        if (unshare(CLONE_NEWNET) < 0)
                SKIP("network namespaces cannot be made here");
        setenv("AWS_ACCESS_KEY_ID", "the-key", 1);
        setenv("AWS_SECRET_ACCESS_KEY", "the-secret", 1);
        setenv("AWS_ENDPOINT_URL", "https://store.invalid", 1);
        setenv("HF_ENDPOINT", "https://hub.invalid", 1);
        const char *config = suite_file("no-network.yaml", "http: {tries: 3, backoff: 5ms}\n");
        DAEMON_START(&d, suite_path("d-%d", _i), "--device", "host=64MiB", "--root", suite_folder(), "--config",
                     config);
        ctl(&result, d.socket, "load", rows[_i].source, "--name", "x", NULL);
        ck_assert_msg(result.code == 1, "%d: %s", result.code, result.err);
        const char *expected = format_text("cannot resolve host %s ", rows[_i].host);
        ck_assert_msg(strstr(result.err, expected) != NULL, "%s", result.err);
        ctl_free(&result);
        ck_assert_int_eq(daemon_stop(&d), 0);
}
