/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON Web Tokens. tests/unit/source/gcs/google_credentials_test.c verifies signatures.
 */
#include "tests/lib/suite.h"

#include "daemon/source/store/jwt.h"

static struct error error;

static const struct {
        const char *jwt;
        time_t expires;
} tokens[] = {
        {"e30.eyJleHAiOjE3MDAwMDAwMDB9.x", 1700000000},    /* {"exp":1700000000} */
        {"e30.eyJleHAiOiIxNzAwMDAwMDAwIn0.x", 1700000000}, /* a text */
        {"e30.e30.x", 0},
        {"e30.W10.x", 0}, /* [] */
        {"e30.*.x", 0},
        {"e30.eyJleHAiOjE3MDAwMDAwMDB9", 0},
        {"opaque", 0},
        {"", 0},
};

TEST(the_expiry_of_a_token, EACH(tokens))
{
        char note[JWT_NOTE];
        ck_assert_int_eq(jwt_expires(tokens[_i].jwt), tokens[_i].expires);
        ck_assert_int_eq(jwt_expired_note(tokens[_i].jwt, note)[0] == '\0', tokens[_i].expires == 0);
}

#define ED25519                                                                                                        \
        "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF\n"              \
        "-----END PRIVATE KEY-----\n"
static const char *const keys[] = {"", "thesecret", ED25519};

TEST(a_key_that_is_no_rsa_key_is_refused, EACH(keys))
{
        char *jwt = NULL;
        FAILS_SAYING(error, jwt_sign(&jwt, "{}", "{}", keys[_i], &error), STREAMER_EFAILED,
                     "the private key is not an RSA key in PEM");
        ck_assert_ptr_null(jwt);
}

TEST(texts_are_quoted_for_json)
{
        ck_assert_str_eq(json_quote("a\"b\\c\n\x01\xc3\xbc"), "\"a\\\"b\\\\c\\u000a\\u0001\xc3\xbc\"");
        ck_assert_str_eq(json_quote(""), "\"\"");
}

TEST(bytes_are_encoded_with_padding)
{
        ck_assert_str_eq(base64_new("", 0), "");
        ck_assert_str_eq(base64_new("a", 1), "YQ==");
        ck_assert_str_eq(base64_new("id:thesecret", 12), "aWQ6dGhlc2VjcmV0");
}
