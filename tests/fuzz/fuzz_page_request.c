/* SPDX-License-Identifier: Apache-2.0
 *
 * The head of an HTTP request to the daemon's pages.
 */
#include "daemon/serve/monitor/page_request.h"
#include "tests/fuzz/fuzz.h"

/* A text is a part of the head, whose size it does not exceed. */
static void is_part(const char *text, const char *head, size_t size)
{
        if (text != NULL && text[0] != '\0')
                holds(text >= head && text + strlen(text) <= head + size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        char *head = fuzz_copy(data, size, 1), *before = fuzz_copy(data, size, 1);
        struct page_request request = {.path = "untouched"};
        enum page_parsed parsed = page_request_parse(&request, head, size);
        if (parsed == PAGE_INCOMPLETE)
                holds(memcmp(head, before, size) == 0);
        if (parsed != PAGE_COMPLETE) {
                holds(strcmp(request.path, "untouched") == 0);
        } else {
                holds(request.path[0] == '/' && strpbrk(request.path, " ?\r\n") == NULL);
                is_part(request.path, head, size);
                is_part(request.model, head, size);
                is_part(request.token, head, size);
                holds(request.token == NULL || strpbrk(request.token, "\r\n") == NULL);
                page_request_is_health(&request);
        }
        free(head);
        free(before);
        return 0;
}
