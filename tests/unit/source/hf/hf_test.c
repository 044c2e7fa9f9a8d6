/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers of the Hub that cannot be used, and refusals with and without a token. hub_test loads models.
 */
#include "tests/unit/answer_fixture.h"

#include "daemon/source/hf/hf.h"

static struct source_set set;

static void begin(void)
{
        unsetenv("HOME");
        unsetenv("XDG_CACHE_HOME");
        start_server();
}

static void end(void)
{
        source_set_deinit(&set);
        hf_free(sources.hf);
        http_free(sources.http);
}

static void assert_fails(const char *token, int code, const char *text)
{
        ck_assert_int_eq(hf_new(&sources.hf, server.url, token, &error), 0);
        ck_assert_int_eq(source_open(&sources, "hf://org/name@main", false, &set, &error), code);
        ck_assert_str_eq(error.text, text);
}

FIXTURE(.each = {begin, end});

static const struct {
        const char *body, *text;
} answers[] = {
        {"", "an empty answer (hf://org/name@main)"},
        {"<html>", "the answer is not as the Hub's: '{' is expected (hf://org/name@main)"},
        {"{\"sha\":\"0123456789abcdef\",\"siblings\":{}}",
         "the answer is not as the Hub's: '[' is expected (hf://org/name@main)"},
        {"{}", "the answer names no commit (hf://org/name@main)"},
        {"{\"sha\":\"../0123456789abcdef\",\"siblings\":[]}", "the answer names no commit (hf://org/name@main)"},
};

TEST(an_answer_that_is_not_the_hubs_fails_the_source, EACH(answers))
{
        status = 200;
        body = answers[_i].body;
        assert_fails(NULL, STREAMER_EFAILED, answers[_i].text);
}

TEST(a_refusal_says_whether_a_token_was_sent)
{
        status = 403;
        body = "";
        assert_fails(NULL, STREAMER_EPERM, "the Hub answers 403 (hf://org/name@main, without a token)");
        sources.hf = hf_free(sources.hf);
        assert_fails("hf_thetoken", STREAMER_EPERM, "the Hub answers 403 (hf://org/name@main, with a token)");
}
