/* SPDX-License-Identifier: Apache-2.0
 *
 * What may be a credential.
 */
#include "tests/lib/suite.h"

#include "daemon/source/store/credential.h"

static struct credential credential;
static struct error error;

static const char *const unusable[] = {"", "a b", "a\nb", "a\r", "\xc3\xbc"};

TEST(a_token_that_no_header_may_hold_is_refused, EACH(unusable))
{
        FAILS_SAYING(error, credential_init_token(&credential, CREDENTIAL_BEARER, unusable[_i], 0, "here", &error),
                     STREAMER_EFAILED, "an empty token, or one with bytes that no request may hold (here)");
        ck_assert_ptr_null(credential.origin);
}

TEST(a_copy_is_the_same)
{
        struct credential other;
        ck_assert_int_eq(credential_init_keys(&credential, "access", "secret", "token", "here", &error),
                         CREDENTIAL_FOUND);
        credential.number = 7;
        ck_assert_int_eq(credential_copy(&other, &credential, &error), 0);
        ck_assert(credential_same(&other, &credential));
        ck_assert_uint_eq(other.number, 7);
        ck_assert_str_eq(other.origin, "here");
        other.token[0] = 'x';
        ck_assert(!credential_same(&other, &credential));
        credential_deinit(&other);
        credential_deinit(&credential);
}

static const struct {
        const char *text;
        time_t time;
} times[] = {{"2031-02-28T12:00:00Z", 1930046400},
             {"2031-02-28T12:00:00.123456789Z", 1930046400},
             {"2031-02-28T12:00:00+00:00", 1930046400},
             {"2031-02-28T12:00:00+01:00", -1},
             {"2031-02-28", -1},
             {"", -1}};

TEST(the_time_of_an_answer, EACH(times))
{
        ck_assert_int_eq(credential_time(times[_i].text), times[_i].time);
}
