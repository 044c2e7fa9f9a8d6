/* SPDX-License-Identifier: Apache-2.0
 *
 * The head of an HTTP request: its line, and of its fields the bearer token. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define PAGE_HEAD_MAX ((size_t)16 * 1024) /* bytes, with the empty line at its end */

enum page_method { PAGE_GET, PAGE_HEAD, PAGE_OTHER };

/* The texts are parts of the head. */
struct page_request {
        enum page_method method;
        const char *path;  /* without its query, and as it was sent */
        const char *model; /* of the query, decoded; NULL: none */
        const char *token; /* of "Authorization: Bearer"; NULL: none */
};

enum page_parsed { PAGE_INVALID = -1, PAGE_INCOMPLETE, PAGE_COMPLETE };

/* The first `size` bytes of a head, after which one more may be written. A complete one is changed, by NULs after its
 * parts; an incomplete one is unchanged. */
enum page_parsed page_request_parse(struct page_request *request, char *head, size_t size);

/* A page about the daemon's own state that names no model: it is served to everyone who reaches the listener. */
bool page_request_is_health(const struct page_request *request);
