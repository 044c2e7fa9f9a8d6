/* SPDX-License-Identifier: Apache-2.0
 *
 * Models from web servers: valid and refused sources, redirects, and the recipients of credentials. Each
 * test compares every byte or the error.
 */
#include "tests/integration/http_fixture.h"

#include <fcntl.h>
#include <sys/stat.h>

/* ---- good servers ---- */

FIXTURE(.all = {begin, end}, .each = {before, after}, .unavailable = nginx_unavailable);

TEST(a_name_with_spaces_and_signs)
{
        model_write(model, suite_path("www/a b+c%%=ü.safetensors"));
        serves(url(web.http, "/a b+c%25=ü.safetensors"));
}

TEST(an_index_names_shards_beside_it)
{
        static const char index[] =
                "{\"weight_map\": {\"first.000000\": \"one-1.safetensors\", "
                "\"first.000001\": \"one-1.safetensors\", \"first.000002\": \"one-1.safetensors\", "
                "\"second.000000\": \"two 2.safetensors\", \"second.000001\": \"two 2.safetensors\"}}";
        struct model *a = model_new(1), *b = model_new(1), *whole = model_new(1);
        model_add_many(a, "first", 3, 700000);
        model_add_many(b, "second", 2, 900000);
        model_add_many(whole, "first", 3, 700000);
        model_add_many(whole, "second", 2, 900000);
        must(mkdir(suite_path("www/sharded"), 0755));
        model_write(a, suite_path("www/sharded/one-1.safetensors"));
        model_write(b, suite_path("www/sharded/two 2.safetensors"));
        suite_file("www/sharded/model.safetensors.index.json", index);
        client_load_equals(client, url(web.http, "/sharded/model.safetensors.index.json"), "sharded", whole);
}

TEST(an_index_whose_shard_is_missing_fails)
{
        const char *index = "{\"weight_map\": {\"a\": \"gone.safetensors\"}}";
        suite_file("www/broken.safetensors.index.json", index);
        assert_fails(url(web.http, "/broken.safetensors.index.json"), STREAMER_EFAILED, "named by the index");
}

TEST(a_server_without_ranges_is_refused)
{
        client_load_fails(client, url(web.rangeless, "/m.safetensors"), "m", STREAMER_EUNSUPPORTED,
                          "the server does not support range requests: it answers 200 to a Range header");
        ctl_says(test_daemon.socket, 1, "range requests", "load", "--dry-run", url(web.rangeless, "/m.safetensors"),
                 NULL);
}

TEST(the_query_of_a_url_is_redacted)
{
        client_load(client, url(web.http, "/m.safetensors?signature=the-secret-query"), "m");
        char *reply = NULL;
        client_ok(client, streamer_call(client, "list", NULL, &reply), "list");
        ck_assert_msg(strstr(reply, "/m.safetensors") != NULL, "%s", reply);
        ck_assert_msg(strstr(reply, "the-secret-query") == NULL, "%s", reply);
        client_unload(client, "m");
}

/* Neither in a URL, nor in the target of a redirect. */
TEST(an_error_contains_no_secret)
{
        struct ctl c;
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_REDIRECT,
                                                .what = PROXY_ALL,
                                                .text = "https://me:the-secret-word@localhost/x?the-secret-query"});
        ctl(&c, test_daemon.socket, "load", url(web.http, "/m.safetensors?the-secret-query"), "--layout", "rank", NULL);
        ck_assert_msg(c.code != 0 && strstr(c.err, "/m.safetensors") != NULL, "%s", c.err);
        ck_assert_msg(strstr(c.err, "the-secret") == NULL, "%s", c.err);
        ctl(&c, test_daemon.socket, "load", through("/r.safetensors"), NULL);
        ck_assert_msg(c.code != 0 && strstr(c.err, "to an invalid URL is refused: https://localhost/x (") != NULL, "%s",
                      c.err);
        ck_assert_ptr_null(strstr(log_text(), "the-secret"));
        client_unload(client, "m");
        client_unload(client, "r");
}

/* One thread, which could serve two loads of sixteen requests each; the latency of the first reply shows that the
 * server is distant. */
TEST(the_setting_bounds_the_requests_in_flight)
{
        const char *config = suite_file("many.yaml", "io: {block_size: 1MiB, concurrency: 40}\n"
                                                     "http: {threads: 1, request_max: 1MiB}\n");
        struct model *large = model_mixed(79, 64 << 20);
        model_write(large, suite_path("www/large.safetensors"));
        streamer_client *c = start_own("many", config);
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_LATENCY, .nth = 1, .ms = 300});
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_HOLD});
        streamer_op *op = client_load_begin(c, through("/large.safetensors"), "m");
        AWAIT(strcmp(proxy_held(&proxy), "GET /large.safetensors range x40") == 0);
        proxy_clear(&proxy);
        proxy_release(&proxy);
        client_ok(c, client_load_end(op), "load");
        client_equals(c, "m", large);
        ck_assert_uint_le(proxy_most_asking(&proxy, PROXY_BLOCKS), 40);
        stop_own(c);
}

/* As the list has it, not as the URL. */
TEST(an_encoded_name_is_found_in_a_list_of_digests)
{
        char digest[65];
        must(mkdir(suite_path("www/sums"), 0755));
        model_write(model, suite_path("www/sums/we ird%%.safetensors"));
        file_sha256(suite_path("www/sums/we ird%%.safetensors"), digest);
        suite_file("www/sums/SHA256SUMS", format_text("%s  we ird%%.safetensors\n", digest));
        assert_verified(url(web.http, "/sums/we%20ird%25.safetensors"), model);
        ck_assert_uint_eq(proxy.faults, 0);
}

/* Each load reads it, since its time is not over, and tells no versions apart. */
TEST(a_source_without_a_version_is_loaded_again)
{
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_DROP, .what = PROXY_ALL, .text = "\r\nETag"});
        model_write(model, suite_path("www/new.safetensors"));
        const struct timespec times[] = {{.tv_sec = time(NULL) + 3600}, {.tv_sec = time(NULL) + 3600}};
        must(utimensat(AT_FDCWD, suite_path("www/new.safetensors"), times, 0));
        client_load(client, through("/new.safetensors"), "m");
        unsigned requests = proxy.seen[PROXY_BLOCKS];
        ck_assert_uint_gt(requests, 0);
        client_load(client, through("/new.safetensors"), "m");
        ck_assert_uint_gt(proxy.seen[PROXY_BLOCKS], requests);
        ck_assert(log_wait_for(test_daemon.log, "the server sends no "));
        client_unload(client, "m");
}

/* ---- refusals ---- */

static const struct {
        const char *name, *contents; /* of a file that is made; NULL: none is */
        int code;
        const char *text;
} bad_files[] = {
        {"nothing", NULL, STREAMER_ENOENT, "404 Not Found"},
        {"text", "some text that is no header", STREAMER_EFAILED, "text.safetensors"},
        {"empty", "", STREAMER_EFAILED, "empty.safetensors"},
};

TEST(a_file_that_is_no_model_is_refused, EACH(bad_files))
{
        const char *name = format_text("%s.safetensors", bad_files[_i].name);
        if (bad_files[_i].contents != NULL)
                suite_file(format_text("www/%s", name), bad_files[_i].contents);
        assert_fails(url(web.http, format_text("/%s", name)), bad_files[_i].code, bad_files[_i].text);
}

TEST(an_untrusted_certificate_is_refused)
{
        assert_fails(format_text("https://127.0.0.3:%u/m.safetensors", web.https), STREAMER_EFAILED, "");
}

static const struct {
        const char *source, *text;
} bad_urls[] = {
        {"https://me:secret@localhost/m.safetensors", "without user and password"},
        {"https://localhost/folder/", "a folder cannot be listed"},
        {"https://localhost", "a folder cannot be listed"},
        {"https:///m.safetensors", "not a URL"},
        {"https://localhost:99999/m.safetensors", "not a URL"},
};

TEST(an_invalid_url, EACH(bad_urls))
{
        char text[1024];
        ck_assert_int_eq(client_load_result(client, bad_urls[_i].source, "bad", text), STREAMER_EINVAL);
        ck_assert_msg(strstr(text, bad_urls[_i].text) != NULL, "%s", text);
        ck_assert_msg(strstr(text, "secret") == NULL, "%s", text);
}

static const struct {
        int status, code;
} statuses[] = {{400, STREAMER_EFAILED}, {401, STREAMER_EPERM}, {403, STREAMER_EPERM}, {410, STREAMER_ENOENT}};

TEST(a_refusal_fails_at_once_with_the_servers_message, EACH(statuses))
{
        const char *said = "<html><title>No\x1b[31m way to /m.safetensors?key=the-secret-query</title></html>";
        proxy_rule(&proxy,
                   &(struct proxy_rule){
                           .fault = PROXY_STATUS, .what = PROXY_OPENINGS, .status = statuses[_i].status, .text = said});
        assert_fails(through("/m.safetensors?key=the-secret-query"), statuses[_i].code,
                     "No\\x1b[31m way to /m.safetensors (");
        ck_assert_uint_eq(proxy.seen[PROXY_OPENINGS], 1);
        ck_assert_msg(strstr(log_text(), "the-secret-query") == NULL, "%s", log_text());
}

/* ---- redirects ---- */

TEST(blocks_are_requested_from_the_target_of_a_redirect)
{
        redirect(url(web.http, "/m.safetensors"));
        serves(through("/elsewhere.safetensors"));
        ck_assert_uint_le(proxy.seen[PROXY_BLOCKS], 0);
}

TEST(a_loop_of_redirects_ends)
{
        redirect(through("/m.safetensors"));
        assert_fails(through("/m.safetensors"), STREAMER_EFAILED, "of more than http.redirects steps");
        ck_assert_uint_eq(proxy.seen[PROXY_ALL], 4);
}

TEST(no_redirect_to_plain_http_on_another_host_is_followed)
{
        redirect("http://192.0.2.1/m.safetensors");
        assert_fails(through("/m.safetensors"), STREAMER_EPERM, "plain http is refused");
}

/* A daemon with credentials for this port of the proxy. */
static streamer_client *start_with_tokens(const char *name, unsigned port)
{
        const char *config = format_text("io: {block_size: 1MiB}\n"
                                         "http:\n"
                                         "  allow_plain: [basic.localhost]\n"
                                         "  hosts:\n"
                                         "    - {host: \"http://localhost:%u\", token: the-token-of-localhost}\n"
                                         "    - {host: \"http://basic.localhost:%u\", user: me, password: pass}\n"
                                         "    - {host: 127.0.0.1, token: the-token-for-https}\n",
                                         port, port);
        return start_own(name, suite_file(format_text("%s.yaml", name), config));
}

TEST(credentials_are_sent_to_their_origin_only)
{
        struct proxy other;
        proxy_start(&other, web.http);
        streamer_client *c = start_with_tokens("tokens", proxy.port);
        client_load_equals(c, format_text("http://localhost:%u/m.safetensors", proxy.port), "m", model);
        ck_assert_str_eq(proxy.last_authorization, "Bearer the-token-of-localhost");
        client_load_equals(c, format_text("http://basic.localhost:%u/m.safetensors", proxy.port), "m", model);
        ck_assert_str_eq(proxy.last_authorization, "Basic bWU6cGFzcw==");
        client_load_equals(c, through("/m.safetensors"), "m", model);
        ck_assert_str_eq(proxy.last_authorization, "");
        client_load_equals(c, format_text("http://localhost:%u/m.safetensors", other.port), "m", model);
        ck_assert_str_eq(other.last_authorization, "");
        ck_assert(log_wait_for(own.log,
                               "http.hosts: the credentials for 127.0.0.1 are for https://127.0.0.1:443 alone; "
                               "for plain http the entry names http://127.0.0.1"));
        proxy_rule(&other, &(struct proxy_rule){.fault = PROXY_STATUS, .what = PROXY_ALL, .status = 401});
        client_load_fails(c, format_text("http://localhost:%u/m.safetensors", other.port), "m", STREAMER_EPERM,
                          format_text("the server answers 401 without credentials: those of http.hosts for its host "
                                      "are for http://localhost:%u (",
                                      proxy.port));
        stop_own(c);
        proxy_stop(&other);
}

TEST(a_redirect_drops_the_credentials)
{
        struct proxy first;
        proxy_start(&first, web.http);
        streamer_client *c = start_with_tokens("dropped", first.port);
        proxy_rule(&first,
                   &(struct proxy_rule){.fault = PROXY_REDIRECT, .what = PROXY_ALL, .text = through("/m.safetensors")});
        client_load_equals(c, format_text("http://localhost:%u/m.safetensors", first.port), "m", model);
        ck_assert_str_eq(first.last_authorization, "Bearer the-token-of-localhost");
        ck_assert_str_eq(proxy.last_authorization, "");
        stop_own(c);
        proxy_stop(&first);
}

/* The other origin would choose what the credentials are used for. */
TEST(a_redirect_that_comes_back_brings_no_credentials)
{
        struct proxy first;
        proxy_start(&first, web.http);
        streamer_client *c = start_with_tokens("back", first.port);
        const char *back = format_text("http://localhost:%u/m.safetensors", first.port);
        proxy_rule(&first,
                   &(struct proxy_rule){
                           .fault = PROXY_REDIRECT, .what = PROXY_ALL, .nth = 1, .text = through("/m.safetensors")});
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_REDIRECT, .what = PROXY_ALL, .text = back});
        proxy_rule(&first, &(struct proxy_rule){.fault = PROXY_STATUS, .what = PROXY_ALL, .nth = 2, .status = 403});
        client_load_fails(c, back, "m", STREAMER_EPERM, "403");
        ck_assert_str_eq(first.last_authorization, "");
        stop_own(c);
        proxy_stop(&first);
}

TEST(no_log_line_contains_a_secret)
{
        assert_fails(secure("/nothing.safetensors"), STREAMER_ENOENT, "404");
        assert_fails(format_text("http://basic.localhost:%u/nothing.safetensors", web.http), STREAMER_ENOENT, "404");
        ck_assert_ptr_null(strstr(log_text(), "the-token-of-localhost"));
        ck_assert_ptr_null(strstr(log_text(), "the-password"));
}
