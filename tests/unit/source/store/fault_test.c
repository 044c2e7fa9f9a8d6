/* SPDX-License-Identifier: Apache-2.0
 *
 * What is read from the body of a refusal.
 */
#include "tests/lib/suite.h"

#include "daemon/source/store/fault.h"

TEST(an_error_reports_code_request_id_and_region)
{
        char text[] = "<?xml version='1.0'?><Error><Code>AuthorizationHeaderMalformed</Code><Message>wrong "
                      "region</Message><Region>eu-west-3</Region><RequestId>tx1</RequestId></Error>";
        struct store_fault fault;
        store_fault_parse_xml(&fault, text, strlen(text));
        ck_assert_str_eq(fault.code, "AuthorizationHeaderMalformed");
        ck_assert_str_eq(fault.message, "wrong region");
        ck_assert_str_eq(fault.request_id, "tx1");
        ck_assert_str_eq(fault.region, "eu-west-3");
}

TEST(an_error_that_is_no_xml_is_ignored)
{
        char text[] = "<html><br>502";
        struct store_fault fault;
        store_fault_parse_xml(&fault, text, strlen(text));
        ck_assert_str_eq(fault.code, "");
        ck_assert_str_eq(fault.request_id, "");
}

static const struct {
        const char *body, *code, *message;
} bodies[] = {
        {"{\"error\":{\"code\":403,\"message\":\"no access\",\"errors\":[{\"reason\":\"forbidden\"}]}}", "forbidden",
         "no access"},
        {" {\"error\":{\"code\":403,\"message\":\"no\",\"status\":\"PERMISSION_DENIED\"}}", "PERMISSION_DENIED", "no"},
        {"{\"error\":\"invalid_grant\",\"error_description\":\"Bad\\nRequest\"}", "invalid_grant", "Bad\\x0aRequest"},
        {"{\"error\":", "", ""},
        {"{\"error\":7}", "7", ""},
        {"Not Found", "", ""},
        {"<Error><Code>C</Code><Message>M</Message></Error>", "C", "M"},
};

TEST(a_refusal_is_read_in_each_form, EACH(bodies))
{
        struct http_answer answer = {.body = format_text("%s", bodies[_i].body)};
        struct store_fault fault;
        answer.body_len = strlen(answer.body);
        ck_assert(http_headers_append(&answer.headers, "x-request: R1"));
        store_fault_read(&fault, &answer, "X-Request");
        ck_assert_str_eq(fault.code, bodies[_i].code);
        ck_assert_str_eq(fault.message, bodies[_i].message);
        ck_assert_str_eq(fault.request_id, "R1");
}

static const struct {
        int status, code;
} codes[] = {{404, STREAMER_ENOENT}, {410, STREAMER_ENOENT},  {401, STREAMER_EPERM},
             {403, STREAMER_EPERM},  {400, STREAMER_EFAILED}, {409, STREAMER_EFAILED}};

TEST(a_status_has_an_error_code, EACH(codes))
{
        ck_assert_int_eq(store_fault_code(codes[_i].status), codes[_i].code);
}
