/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages of lists and checksums of Google Cloud Storage, and what settings and variables are worth.
 */
#include "tests/lib/suite.h"

#include "daemon/base/log/log.h"
#include "daemon/base/util.h"
#include "daemon/io/http/http.h"
#include "daemon/source/gcs/gcs.h"
#include "daemon/source/source.h"

static struct error error;

/* ---- lists ---- */

static char *listed;

/* "NAME BYTES GENERATION;" of each. */
static int parse(char **next, const char *text)
{
        struct listing list = {.shown = "a list", .sidecars = true};
        int r = gcs_page_parse(next, format_text("%s", text), strlen(text), "p/", &list, &error);
        listed = format_text("%s", "");
        for (size_t i = 0; i < list.n; i++)
                listed = format_text("%s%s %" PRIu64 " %s;", listed, list.v[i].name, list.v[i].bytes, list.v[i].tag);
        return r;
}

static const struct {
        const char *text, *listed, *next; /* NULL: the last page */
} pages[] = {
        {"{\"kind\":\"storage#objects\"}", "", NULL},
        {"{\"items\":[]}", "", NULL},
        {"{\"items\":[{\"name\":\"p/"
         "a\",\"size\":\"7\",\"generation\":\"12\",\"owner\":{\"x\":[1]}}],\"nextPageToken\":\"n+/=\"}",
         "a 7 12;", "n+/="},
        {"{\"nextPageToken\":\"n\"}", "", "n"},
        {"{\"nextPageToken\":\"\"}", "", NULL},
        {"{\"items\":[{\"name\":\"other/a\",\"size\":\"1\"},{\"name\":\"p/\\u00fc \\\"\",\"size\":\"2\"}]}",
         "\xc3\xbc \" 2 ;", NULL},
        {"{\"items\":[{\"name\":\"p/\",\"size\":\"0\",\"generation\":\"1\"}]}", "", NULL},
};

TEST(a_page_is_read, EACH(pages))
{
        char *next;
        ck_assert_msg(parse(&next, pages[_i].text) == 0, "%s", error.text);
        ck_assert_str_eq(listed, pages[_i].listed);
        ck_assert_int_eq(next == NULL, pages[_i].next == NULL);
        if (next != NULL)
                ck_assert_str_eq(next, pages[_i].next);
}

static const struct {
        const char *text, *why;
} wrong_pages[] = {
        {"", "the text ends where '{' is expected"},
        {"[]", "'{' is expected"},
        {"{\"items\":{}}", "'[' is expected"},
        {"{\"items\":[1]}", "'{' is expected"},
        {"{\"items\":[{\"name\":\"p/a\"}]}", "an object without its name or size"},
        {"{\"items\":[{\"size\":\"1\"}]}", "an object without its name or size"},
        {"{\"items\":[{\"name\":\"p/a\",\"size\":\"-1\"}]}", "an object without its name or size"},
        {"{\"items\":[{\"name\":\"p/a\",\"size\":\"1\",\"generation\":\"x\"}]}", "a generation that is not a number"},
        {"{} x", "bytes follow the object"},
};

TEST(a_page_that_is_not_valid_is_refused, EACH(wrong_pages))
{
        char *next;
        FAILS_SAYING(error, parse(&next, wrong_pages[_i].text), STREAMER_EFAILED,
                     format_text("the store's list of objects is not valid: %s (a list)", wrong_pages[_i].why));
        ck_assert_ptr_null(next);
}

TEST(too_many_files_are_refused)
{
        char *text = must_alloc(64 * (SIDECAR_FILES_MAX + 1)), *next;
        strcpy(text, "{\"items\":[");
        for (int i = 0; i <= SIDECAR_FILES_MAX; i++)
                sprintf(text + strlen(text), "%s{\"name\":\"p/a%d\",\"size\":\"1\"}", i > 0 ? "," : "", i);
        strcat(text, "]}");
        FAILS_WITH(error, parse(&next, text), STREAMER_EFAILED, "more than 1000 files beside the weights");
}

/* ---- checksums ---- */

static const struct {
        const char *header;
        bool has;
        uint32_t crc;
} sums[] = {
        {"crc32c=AAAAAQ==", true, 1},
        {"crc32c=n03x6A==,md5=AAAAAAAAAAAAAAAAAAAAAA==", true, 0x9f4df1e8},
        {"md5=AAAAAAAAAAAAAAAAAAAAAA==, crc32c=AQIDBA==", true, 0x01020304},
        {"md5=AAAAAAAAAAAAAAAAAAAAAA==", false, 0},
        {"xcrc32c=AAAAAQ==", false, 0},
        {"crc32c=AAAA", false, 0},
        {"crc32c=********", false, 0},
        {"", false, 0},
};

TEST(the_crc32c_of_a_header, EACH(sums))
{
        uint32_t crc = 0;
        ck_assert_int_eq(gcs_crc32c(sums[_i].header, &crc), sums[_i].has);
        ck_assert_uint_eq(crc, sums[_i].crc);
}

/* ---- settings and variables ---- */

static struct sources sources;
static struct source_set set;

static void begin(void)
{
        const struct http_opts opts = {.connect_timeout_ns = SECOND,
                                       .stall_ns = SECOND,
                                       .backoff_ns = SECOND / 1000,
                                       .retry_after_ns = SECOND,
                                       .tries = 1,
                                       .threads = 1};
        log_set_level(LOG_LEVEL_ERROR);
        setenv("HOME", suite_folder(), 1);
        setenv("NO_GCE_CHECK", "true", 1);
        ck_assert_int_eq(http_new(&sources.http, &opts, &error), 0);
}

static void end(void)
{
        gcs_stores_free(sources.gcs);
        http_free(sources.http);
}

static void make(const struct gcs_opts *defaults, const struct gcs_opts *own)
{
        int r = gcs_stores_new(&sources.gcs, defaults, own, own != NULL ? 1 : 0, NULL, 0, NULL, &error);
        ck_assert_msg(r == 0, "%s", error.text);
}

static int open_source(const char *source)
{
        int r = source_open(&sources, source, false, &set, &error);
        source_set_deinit(&set);
        return r;
}

FIXTURE(.each = {begin, end});

TEST(a_wrong_variable_fails_the_loads_that_need_it)
{
        static const struct gcs_opts rest,
                own = {.source = "gs://own", .endpoint = "http://127.0.0.1:1", .is_anonymous = true};
        setenv("STORAGE_EMULATOR_HOST", "http://a:b@host", 1);
        make(&rest, &own);
        FAILS_SAYING(error, open_source("gs://bucket/x/"), STREAMER_EINVAL,
                     "STORAGE_EMULATOR_HOST: not http(s)://host[:port], without user and password");
        FAILS_WITH(error, open_source("gs://own/x/"), STREAMER_EFAILED, "(gs://own/x/)");
}

TEST(without_credentials_the_error_says_so)
{
        static const struct gcs_opts rest = {.endpoint = "http://127.0.0.1:1"};
        make(&rest, NULL);
        FAILS_WITH(error, open_source("gs://bucket/x/"), STREAMER_EPERM, "no credentials: none in the settings, ");
}

TEST(a_source_may_have_credentials_where_others_have_none)
{
        static const struct gcs_opts rest = {.endpoint = "http://127.0.0.1:1", .is_anonymous = true};
        static const struct gcs_opts own = {.source = "gs://own/", .is_authorized = true};
        make(&rest, &own);
        FAILS_WITH(error, open_source("gs://own/x/"), STREAMER_EPERM, "no credentials: ");
        FAILS_WITH(error, open_source("gs://bucket/x/"), STREAMER_EFAILED, "(gs://bucket/x/)");
}

TEST(a_wrong_endpoint_of_the_settings_is_refused)
{
        static const struct gcs_opts rest = {.endpoint = "https://host/?x"};
        FAILS_SAYING(error, gcs_stores_new(&sources.gcs, &rest, NULL, 0, NULL, 0, NULL, &error), STREAMER_EINVAL,
                     "gcs.endpoint: not http(s)://host[:port], without user and password");
}

TEST(the_host_is_that_of_the_universe)
{
        static const struct gcs_opts rest = {
                .credentials = "{\"type\":\"authorized_user\",\"universe_domain\":\"u.invalid\"}"};
        static const struct gcs_opts own = {.source = "gs://own", .is_anonymous = true};
        make(&rest, &own);
        FAILS_WITH(error, open_source("gs://own/x/"), STREAMER_EFAILED, "cannot resolve host storage.u.invalid");
}
