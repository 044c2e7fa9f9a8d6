/* SPDX-License-Identifier: Apache-2.0
 *
 * docs/json.md describes the JSON of streamerctl: tests/lib/json_page.py compares them.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

static void begin(void)
{
        fixture_begin((const char *const[]){"--device", "host=256MiB", "--disk-cache",
                                            format_text("%s=1MiB", suite_path("json-cache")), NULL});
}

FIXTURE(.all = {begin, fixture_end}, .each = {fixture_connect, fixture_disconnect});

TEST(each_member_is_documented_with_its_type)
{
        char *said;
        streamer_lease *lease = client_attach(client, "witness");
        fixture_write(model_mixed(1, 1 << 16), "m.safetensors");
        fixture_write(model_mixed(2, 1 << 16), "n.safetensors");
        file_put(fixture_root(), "bad.safetensors", "hello, world");
        file_put(fixture_root(), "config.json", "{}");
        int status = shell(&said, "python3 tests/lib/json_page.py %s %s %s", build_path("streamerctl"),
                           test_daemon.socket, fixture_root());
        ck_assert_msg(status == 0 && *said == '\0', "%s", said);
        streamer_detach(lease);
        client_unload(client, "m");
        client_unload(client, "n");
}
