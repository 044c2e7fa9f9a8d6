/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the tests of access rules: a daemon with rules per user, and requests of these users.
 */
#pragma once

#include "tests/integration/users_fixture.h"
#include "tests/lib/wire.h"

/* Users that exist on no system. All are in the socket's group, so only the rules distinguish them. */
enum { VIEWER = 60101, TRAINER = 60102, OTHER = 60103, BOSS = 60104 };

static char *team, *outside, *sneaky, *large;

static void begin(void)
{
        char *root = suite_path("root-0");
        char *text = format_text("devices:\n  - host=256MiB\nroots: [%s]\naccess:\n  roles:\n"
                                 "    - {role: attach, users: %d}\n"
                                 "    - {role: load, users: %d, roots: [%s/team], buckets: [], connections: 4,\n"
                                 "       leases: 2, loads: 1, models: 2, bytes: 8MiB}\n"
                                 "    - {role: load, users: %d}\n"
                                 "    - {role: admin, users: %d}\n",
                                 root, VIEWER, TRAINER, root, OTHER, BOSS);
        mkdir(root, 0755);
        must(mkdir(format_text("%s/team", root), 0755));
        char *config = suite_file("roles.yaml", text);
        must(chmod(suite_folder(), 0755));
        fixture_begin((const char *const[]){"--config", config, NULL});
        team = fixture_write(model_mixed(2, 1 << 18), "team/team.safetensors");
        outside = fixture_write(model_mixed(3, 1 << 18), "outside.safetensors");
        large = fixture_write(model_mixed(4, 16 << 20), "team/large.safetensors");
        sneaky = fixture_path("team/sneaky.safetensors");
        must(symlink("../outside.safetensors", sneaky));
}

static void unload(const char *model)
{
        streamer_client *c = client_open(&test_daemon);
        client_unload(c, model);
        streamer_close(c);
}

static void loads(uid_t uid, const char *the_source, const char *model)
{
        ck_assert_int_eq(load_as(uid, the_source, model, NULL), 0);
}
