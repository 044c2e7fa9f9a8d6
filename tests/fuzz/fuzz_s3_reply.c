/* SPDX-License-Identifier: Apache-2.0
 *
 * Replies of a store: errors, pages of keys, STS sessions. In an accepted page every key is complete, and a truncated
 * page has a continuation token.
 */
#include "daemon/source/aws/aws_answer.h"
#include "daemon/source/s3/s3_reply.h"
#include "daemon/source/store/fault.h"
#include "tests/fuzz/fuzz.h"

static void fuzz_page(const uint8_t *data, size_t size)
{
        char *text = fuzz_copy(data, size, 1);
        char *next;
        struct error error = {0};
        struct listing list = {.shown = "fuzz", .sidecars = true};
        if (s3_page_parse(&next, text, size, "", &list, &error) < 0)
                holds(error.code < 0 && next == NULL);
        for (size_t i = 0; i < list.n; i++)
                holds(list.v[i].name != NULL && list.v[i].tag != NULL);
        listing_deinit(&list);
        free(next);
        free(text);
}

static void fuzz_fault(const uint8_t *data, size_t size)
{
        char *text = fuzz_copy(data, size, 1);
        struct store_fault fault;
        store_fault_parse_xml(&fault, text, size);
        holds(strlen(fault.code) < sizeof(fault.code) && strlen(fault.message) < sizeof(fault.message));
        free(text);
}

static void fuzz_session(const uint8_t *data, size_t size)
{
        char *text = fuzz_copy(data, size, 1);
        struct credential keys = {.access = NULL};
        struct error error = {0};
        if (aws_keys_parse_xml(&keys, text, size, "fuzz", &error) == 1)
                holds(keys.access[0] != '\0' && keys.secret[0] != '\0');
        else
                holds(error.code < 0 && keys.access == NULL);
        credential_deinit(&keys);
        free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        fuzz_page(data, size);
        fuzz_fault(data, size);
        fuzz_session(data, size);
        return 0;
}
