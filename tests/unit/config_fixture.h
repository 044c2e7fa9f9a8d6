/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the configuration tests: flags, environment and file, read as at a start.
 */
#ifndef TESTS_UNIT_CONFIG_FIXTURE_H
#define TESTS_UNIT_CONFIG_FIXTURE_H

#include "tests/lib/suite.h"

#include "daemon/base/util.h"
#include "daemon/config/config.h"
#include "daemon/config/settings/setting.h"

static struct config config;
static struct error error;

static void begin(void)
{
        for (size_t i = 0; i < n_settings; i++)
                if (settings[i].env != NULL)
                        unsetenv(settings[i].env);
        unsetenv("RUNAI_STREAMER_BLOCK_BYTESIZE");
}

static void end(void)
{
        config_deinit(&config);
}

static enum config_action action;

#define LOAD(...) load((char *[]){"streamerd", __VA_ARGS__, NULL})
#define NEEDED "--device=host=1GiB", "--root", "/"

static int load(char **argv)
{
        int argc = 0;
        while (argv[argc] != NULL)
                argc++;
        config_deinit(&config);
        return config_load(&config, argc, argv, &action, &error);
}

static char *write_file(const char *yaml)
{
        char *path = suite_path("config-%d.yaml", (int)getpid());
        file_write(path, yaml, strlen(yaml));
        return path;
}

static void assert_usage(int r, const char *what)
{
        ck_assert_int_eq(r, STREAMER_EINVAL);
        ck_assert_msg(strstr(error.text, what) != NULL, "%s", error.text);
}

#endif
