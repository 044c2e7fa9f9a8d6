/* SPDX-License-Identifier: Apache-2.0
 *
 * Versions of remote objects: which answers are of the version that was opened, and which objects are the same.
 */
#include "tests/lib/endpoint.h"
#include "tests/lib/suite.h"

#include "daemon/base/hash.h"
#include "daemon/base/log/log.h"
#include "daemon/base/util.h"
#include "daemon/io/remote/http_object.h"

static struct http *http;
static struct endpoint server;
static struct error error;
static struct object object;
static char content[4096];

/* ---- the server ---- */

static const char *first, *later;            /* headers of the first answer and of the others */
static bool refuses_conditions;              /* 412 to each If-Match */
static bool alternates;                      /* the first headers come back, each second time */
static _Atomic unsigned conditions, answers; /* requests with If-Match, and those that were answered */

static void answer(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        bool condition = endpoint_header(request, "If-Match") != NULL;
        conditions += condition;
        if (condition && refuses_conditions) {
                reply->status = 412;
                reply->body = format_text("no such version here");
                return;
        }
        unsigned n = answers++;
        reply->headers = format_text("%s", n == 0 || (alternates && n % 2 == 0) ? first : later);
        endpoint_range(request, reply, content, sizeof(content));
}

static void start_server(void)
{
        const struct http_opts opts = {.connect_timeout_ns = 60 * SECOND,
                                       .stall_ns = 60 * SECOND,
                                       .backoff_ns = SECOND / 1000,
                                       .retry_after_ns = SECOND,
                                       .tries = 4,
                                       .threads = 1};
        log_set_level(LOG_LEVEL_ERROR);
        server.answer = answer;
        endpoint_start(&server);
        ck_assert_int_eq(http_new(&http, &opts, &error), 0);
}

static void end(void)
{
        object_deinit(&object);
        http_free(http);
}

FIXTURE(.each = {start_server, end});

static void open_object(const struct object_url *more)
{
        struct object_url url = more != NULL ? *more : (struct object_url){.url = NULL};
        url.url = url.url ?: server.url;
        url.shown = "the-object";
        ck_assert_msg(object_http_open(http, &url, 1, &object, &error) == 0, "%s", error.text);
        ck_assert_uint_eq(object.version.size, sizeof(content));
}

static int read_more(void)
{
        unsigned char bytes[100];
        return object_read_range(&object, 1000, sizeof(bytes), bytes, &error);
}

/* ---- answers of another version ---- */

#define JANUARY "Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n"
#define FEBRUARY "Last-Modified: Thu, 01 Feb 2024 00:00:00 GMT\r\n"

static const struct {
        const char *first, *later, *what; /* NULL: the same */
} versions[] = {
        {"ETag: \"1\"\r\n" JANUARY, "ETag: \"1\"\r\n" JANUARY, NULL},
        {"ETag: \"1\"\r\n", "ETag: W/\"1\"\r\n", "another ETag"},
        {"ETag: W/\"1\"\r\n", "ETag: \"1\"\r\n", "another ETag"},
        {"ETag: W/\"1\"\r\n" JANUARY, "ETag: W/\"1\"\r\n" JANUARY, NULL},
        {"ETag: W/\"1\"\r\n" JANUARY, "ETag: W/\"1\"\r\n" FEBRUARY, "another Last-Modified"},
        {"ETag: \"1\"\r\n" JANUARY, "ETag: \"1\"\r\n" FEBRUARY, "another Last-Modified"},
        {"ETag: \"1\"\r\n" JANUARY, "ETag: \"1\"\r\n", NULL}, /* left out of the answer to a range */
        {"ETag: \"1\"\r\n", "ETag: \"1\"\r\n" JANUARY, NULL},
        {"ETag: \"1\"\r\n", "ETag: \"1\"\r\nETag: \"2\"\r\n", "two values of ETag in one answer"},
        {"ETag: \"1\"\r\n", "ETag: \"2\"\r\nETag: \"1\"\r\n", "two values of ETag in one answer"},
        {"ETag: \"1\"\r\n", "ETag: \"1\"\r\nETag: W/\"1\"\r\n", "two values of ETag in one answer"},
        {"ETag: \"1\"\r\n", "ETag: \"1\"\r\nETag: \"1\"\r\n", NULL},
        {"ETag: \"1\"\r\n", "ETag: \"1\"\r\n" JANUARY FEBRUARY, "two values of Last-Modified in one answer"},
        {"ETag: \"1\"\r\n", "ETag: \"1\", \"2\"\r\n", "another ETag"},
        {"ETag: \"1\"\r\n", "ETag: 1\r\n", NULL},
        {"ETag: \"1\"\r\n", "ETag: \"2\"\r\n", "another ETag"},
        {"ETag: \"1\"\r\n" JANUARY, JANUARY, "no ETag"},
        {"ETag: \"1\"\r\n" JANUARY, "ETag: \"\"\r\n" JANUARY, "no ETag"},
        {JANUARY, "ETag: \"1\"\r\n" JANUARY, "an ETag, which it had not"},
        {JANUARY, JANUARY, NULL},
        {JANUARY, FEBRUARY, "another Last-Modified"},
        {JANUARY, "", "another Last-Modified"},
        {"ETag: \"\"\r\n" JANUARY, "ETag: \"\"\r\n" FEBRUARY, "another Last-Modified"},
        {"", JANUARY, "another Last-Modified"},
        {"", "", NULL},
};

TEST(an_answer_with_another_validator_is_refused, EACH(versions))
{
        first = versions[_i].first;
        later = versions[_i].later;
        open_object(NULL);
        const char *what = versions[_i].what;
        FAILS_WITH(error, read_more(), what != NULL ? STREAMER_EFAILED : 0,
                   what != NULL ? format_text("the object was replaced while it was read: %s (the-object)", what) : "");
}

TEST(the_last_check_compares_as_well, EACH(versions))
{
        const struct object *one = &object;
        first = versions[_i].first;
        later = versions[_i].later;
        open_object(NULL);
        FAILS_WITH(error, object_check_versions(&one, 1, &error), versions[_i].what != NULL ? STREAMER_EFAILED : 0,
                   versions[_i].what ?: "");
}

static const char *const contradictions[] = {"ETag: \"1\"\r\nETag: \"2\"\r\n", "ETag: \"1\"\r\n" JANUARY FEBRUARY};

TEST(an_object_whose_first_answer_contradicts_itself_is_not_opened, EACH(contradictions))
{
        static const char *const names[] = {"ETag", "Last-Modified"};
        first = contradictions[_i];
        FAILS_SAYING(error,
                     object_http_open(http, &(struct object_url){.url = server.url, .shown = "the-object"}, 1, &object,
                                      &error),
                     STREAMER_EFAILED,
                     format_text("the server gives the object two values of %s in one answer (the-object)", names[_i]));
}

/* Copies of an object in a store may have been written at other times. */
TEST(in_a_store_a_strong_etag_decides_alone)
{
        first = "ETag: \"1\"\r\n" JANUARY;
        later = "ETag: \"1\"\r\n" FEBRUARY;
        open_object(&(struct object_url){.atomic = true});
        ck_assert_msg(read_more() == 0, "%s", error.text);
}

TEST(two_etags_in_turn_are_named)
{
        first = "ETag: \"1\"\r\n";
        later = "ETag: \"2\"\r\n";
        alternates = true;
        open_object(NULL);
        FAILS_SAYING(error, read_more(), STREAMER_EFAILED,
                     "the server gives the object two ETags in turn, as several servers of one name do that do not "
                     "agree (the-object)");
}

/* ---- conditions ---- */

TEST(a_server_that_refuses_each_condition_is_read_without)
{
        first = later = "ETag: \"1\"\r\n";
        refuses_conditions = true;
        open_object(NULL);
        for (int i = 0; i < 3; i++)
                ck_assert_msg(read_more() == 0, "%s", error.text);
        ck_assert_uint_eq(conditions, 1);
}

TEST(a_condition_that_is_refused_rightly_is_named)
{
        first = "ETag: \"1\"\r\n";
        later = "ETag: \"2\"\r\n";
        refuses_conditions = true;
        open_object(NULL);
        FAILS_WITH(error, read_more(), STREAMER_EFAILED,
                   "replaced while it was read: another ETag; before, the server answers 412 ");
        ck_assert_msg(strstr(error.text, "no such version here (the-object)") != NULL, "%s", error.text);
}

/* ---- lists ---- */

static const struct {
        const char *listed, *etag;
        bool another;
} lists[] = {{"\"1\"", "\"1\"", false}, {"\"1\"", "W/\"1\"", false}, {"\"1\"", "\"2\"", true}};

TEST(an_etag_is_compared_with_the_list, EACH(lists))
{
        first = later = format_text("ETag: %s\r\n", lists[_i].etag);
        open_object(&(struct object_url){.etag = lists[_i].listed});
        ck_assert_int_eq(object_http_listed_another(&object), lists[_i].another);
        ck_assert_msg(read_more() == 0, "%s", error.text);
}

TEST(a_listed_etag_counts_where_answers_have_none)
{
        first = later = JANUARY;
        open_object(&(struct object_url){.etag = "\"1\""});
        ck_assert(!object_http_listed_another(&object));
        ck_assert_msg(read_more() == 0, "%s", error.text);
        ck_assert_uint_eq(conditions, 2);
}

/* ---- encodings ---- */

static const struct {
        const char *first, *later;
        bool atomic;
        const char *text; /* NULL: it is read */
} encodings[] = {
        {"aws-chunked", "aws-chunked", false, NULL},
        {"identity", "", false, NULL},
        {"", "", false, NULL},
        {"gzip", "gzip", false, "the server sends it encoded: gzip (the-object)"},
        {"aws-chunked,gzip", "", false, "the server sends it encoded: aws-chunked,gzip (the-object)"},
        {"utf-8", "utf-8", true, NULL},
        {"utf-8", "", true, "the server sends it encoded: not any more (the-object)"},
        {"", "gzip", true, "the server sends it encoded: gzip (the-object)"},
};

TEST(an_encoding_is_refused_unless_it_is_a_note_of_the_store, EACH(encodings))
{
        struct object_url url = {.shown = "the-object", .url = server.url, .atomic = encodings[_i].atomic};
        first = format_text("ETag: \"1\"\r\nContent-Encoding: %s\r\n", encodings[_i].first);
        later = format_text("ETag: \"1\"\r\nContent-Encoding: %s\r\n", encodings[_i].later);
        int r = object_http_open(http, &url, 1, &object, &error);
        r = r < 0 ? r : read_more();
        FAILS_WITH(error, r, encodings[_i].text != NULL ? STREAMER_EFAILED : 0, encodings[_i].text ?: "");
}

/* ---- the same object ---- */

static const char *http_time(time_t when)
{
        char text[64];
        strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", gmtime(&when));
        return format_text("%s", text);
}

static void identify(unsigned char digest[DIGEST_SIZE], const struct object_url *url)
{
        struct hash hash;
        open_object(url);
        hash_init(&hash);
        object.ops->identify(&object, &hash);
        hash_final(&hash, digest);
        object_deinit(&object);
}

static bool is_same(const struct object_url *a, const struct object_url *b)
{
        unsigned char x[DIGEST_SIZE], y[DIGEST_SIZE];
        identify(x, a);
        identify(y, b);
        return memcmp(x, y, sizeof(x)) == 0;
}

/* Too recent to be a version, however long the answer takes. */
static time_t recently(void)
{
        return time(NULL) + 3600;
}

static const struct {
        const char *etag; /* NULL: none */
        int64_t changed;  /* INT64_MAX: no Last-Modified; else seconds since 1970; -1: recently */
        bool same;
} identities[] = {
        {"\"1\"", INT64_MAX, true},    {"\"1\"", -1, true},   {"W/\"1\"", INT64_MAX, true},
        {"W/\"1\"", 1700000000, true}, {"W/\"1\"", 0, false}, {NULL, 1700000000, true},
        {NULL, INT64_MAX, false},      {NULL, -1, false},     {NULL, 1, false},
        {"\"\"", INT64_MAX, false},    {"W/\"\"", -1, false}, {"\"\"", 1700000000, true},
};

TEST(only_an_object_with_a_version_is_the_same_again, EACH(identities))
{
        int64_t changed = identities[_i].changed;
        const char *etag = identities[_i].etag;
        time_t when = changed < 0 ? recently() : (time_t)changed;
        first = later = format_text("%s%s%s%s%s%s", etag != NULL ? "ETag: " : "", etag ?: "",
                                    etag != NULL ? "\r\n" : "", changed != INT64_MAX ? "Last-Modified: " : "",
                                    changed != INT64_MAX ? http_time(when) : "", changed != INT64_MAX ? "\r\n" : "");
        ck_assert_int_eq(is_same(NULL, NULL), identities[_i].same);
}

TEST(the_time_in_a_list_is_a_version)
{
        const struct object_url january = {.modified = "2024-01-01T00:00:00.000Z"},
                                february = {.modified = "2024-02-01T00:00:00Z"};
        char now[64];
        time_t t = recently();
        strftime(now, sizeof(now), "%Y-%m-%dT%H:%M:%S.000Z", gmtime(&t));
        const struct object_url recent = {.modified = now};
        first = later = "";
        ck_assert(is_same(&january, &january));
        ck_assert(!is_same(&january, &february));
        ck_assert(!is_same(&recent, &recent));
}

TEST(a_signature_is_no_part_of_the_identity)
{
        const struct object_url one = {.url = format_text("%s/m?X-Amz-Date=1&X-Amz-Signature=a&v=1", server.url)},
                                two = {.url = format_text("%s/m?v=1&X-Amz-Date=2&X-Amz-Signature=b", server.url)},
                                other = {.url = format_text("%s/m?v=2&X-Amz-Date=2&X-Amz-Signature=b", server.url)};
        first = later = "ETag: \"1\"\r\n";
        ck_assert(is_same(&one, &two));
        ck_assert(!is_same(&one, &other));
}

/* ---- pages instead of objects ---- */

static void answer_sign_in(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        bool page = strcmp(request->path, "/sign-in?from=m") == 0;
        reply->status = page ? 200 : 302;
        reply->headers = format_text(page ? "Content-Type: text/html\r\n" : "Location: /sign-in?from=m\r\n");
        reply->body = format_text("<html>Who are you?</html>");
}

TEST(a_page_to_sign_in_is_named)
{
        const struct http_opts opts = {
                .connect_timeout_ns = 60 * SECOND, .stall_ns = 60 * SECOND, .redirects = 1, .tries = 1, .threads = 1};
        const struct object_url url = {.shown = "the-object", .url = format_text("%s/m", server.url)};
        struct http *following;
        server.answer = answer_sign_in;
        ck_assert_int_eq(http_new(&following, &opts, &error), 0);
        FAILS_SAYING(error, object_http_open(following, &url, 1, &object, &error), STREAMER_EUNSUPPORTED,
                     format_text("the server does not support range requests: it answers 200 to a Range header "
                                 "(the-object, Content-Type text/html, redirected to %s/sign-in)",
                                 server.url));
        http_free(following);
}
