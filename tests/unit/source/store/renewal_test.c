/* SPDX-License-Identifier: Apache-2.0
 *
 * When a credential is fetched, for tokens of a provider of the test's own. tests/unit/source/aws/aws_expiry_test.c has
 * the same for keys of AWS.
 */
#include "tests/lib/suite.h"

#include "daemon/base/log/log.h"
#include "daemon/source/store/renewal.h"

static struct renewal *renewal;
static struct credential token;
static struct error error;
static _Atomic unsigned fetches, freed;
static _Atomic bool same, fails;

static int fetch(void *provider, struct credential *credential, struct error *why)
{
        unsigned n = ++fetches;
        if (fails)
                return error_set(why, STREAMER_EPERM, "none today");
        return credential_init_token(credential, CREDENTIAL_BEARER, same ? "T" : format_text("T%u", n), 0, "a test",
                                     why);
}

static void stop(void *provider)
{
}

static void free_provider(void *provider)
{
        freed++;
}

static void begin(void)
{
        static const struct renewal_ops ops = {.fetch = fetch, .stop = stop, .free = free_provider};
        log_set_level(LOG_LEVEL_ERROR);
        ck_assert_int_eq(renewal_new(&renewal, &ops, NULL, &error), 0);
}

static void end(void)
{
        credential_deinit(&token);
        renewal_free(renewal);
        ck_assert_uint_eq(freed, 1);
}

static int get(void)
{
        int r;
        credential_deinit(&token);
        while ((r = renewal_get(renewal, &token, &error)) == RENEWAL_LATER)
                usleep(1000); /* the pause between two questions, no more */
        return r;
}

FIXTURE(.each = {begin, end});

TEST(a_token_is_fetched_once)
{
        for (int i = 0; i < 10; i++)
                ck_assert_int_eq(get(), 0);
        ck_assert_str_eq(token.token, "T1");
        ck_assert_uint_eq(fetches, 1);
}

TEST(a_refused_token_is_replaced)
{
        ck_assert_int_eq(get(), 0);
        ck_assert(renewal_refused(renewal, token.number));
        ck_assert_int_eq(get(), 0);
        ck_assert_str_eq(token.token, "T2");
}

TEST(one_that_replaces_a_refused_token_is_not_replaced_at_once)
{
        ck_assert_int_eq(get(), 0);
        uint64_t first = token.number;
        ck_assert(renewal_refused(renewal, first));
        ck_assert_int_eq(get(), 0);
        ck_assert(!renewal_refused(renewal, token.number));
        ck_assert(renewal_refused(renewal, first)); /* of a request that was under way */
        ck_assert_uint_eq(fetches, 2);
}

TEST(the_same_token_again_is_refused_for_good)
{
        same = true;
        ck_assert_int_eq(get(), 0);
        ck_assert(renewal_refused(renewal, token.number));
        ck_assert_int_eq(get(), 0);
        ck_assert(!renewal_refused(renewal, token.number));
        ck_assert_uint_eq(fetches, 2);
}

TEST(what_it_is_from_is_described)
{
        char text[100];
        renewal_describe(renewal, text, sizeof(text));
        ck_assert_str_eq(text, "no credentials");
        ck_assert_int_eq(get(), 0);
        renewal_describe(renewal, text, sizeof(text));
        ck_assert_str_eq(text, "credentials from a test");
}

TEST(a_failure_is_returned)
{
        fails = true;
        FAILS_SAYING(error, get(), STREAMER_EPERM, "none today");
}
