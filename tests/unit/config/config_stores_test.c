/* SPDX-License-Identifier: Apache-2.0
 *
 * The stores that the configuration creates: which entry of `s3.sources` applies to a source.
 */
#include "daemon/config/build/build.h"

#include "daemon/base/log/log.h"
#include "daemon/base/util.h"
#include "daemon/config/settings/setting.h"
#include "daemon/source/s3/endpoint.h"
#include "tests/lib/suite.h"

static struct config config;
static struct sources sources;
static struct error error;

static void begin(void)
{
        log_set_level(LOG_LEVEL_ERROR);
}

static void end(void)
{
        stores_free(&sources);
        config_deinit(&config);
}

static void make(const char *s3)
{
        char *path = suite_path("config.yaml");
        char *text = format_text("roots: [/]\ndevices: [host=1GiB]\ns3: %s\n", s3);
        char *argv[] = {(char *)(uintptr_t) "streamerd", (char *)(uintptr_t) "--config", path, NULL};
        enum config_action action;
        file_write(path, text, strlen(text));
        ck_assert_int_eq(config_load(&config, 3, argv, &action, &error), 0);
        ck_assert_int_eq(stores_make(&config, &sources, &error), 0);
        free(text);
}

static bool is_signed(const char *source)
{
        return s3_endpoints_find(sources.s3, source)->credentials != NULL;
}

FIXTURE(.all = {begin, end});

TEST(a_source_set_to_sign_is_signed_despite_an_unsigned_default)
{
        make("{unsigned: true, sources: [{source: 's3://own/', unsigned: false}, {source: 's3://other/'}]}");
        ck_assert(is_signed("s3://own/model"));
        ck_assert(!is_signed("s3://other/model"));
        ck_assert(!is_signed("s3://third/model"));
}

TEST(a_source_set_to_unsigned_is_unsigned_despite_a_signed_default)
{
        make("{unsigned: false, sources: [{source: 's3://own/', unsigned: true}, {source: 's3://other/'}]}");
        ck_assert(!is_signed("s3://own/model"));
        ck_assert(is_signed("s3://other/model"));
        ck_assert(is_signed("s3://third/model"));
}
