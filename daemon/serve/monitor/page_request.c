/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/monitor/page_request.h"

#include "daemon/base/text/percent.h"
#include "daemon/base/util.h"

#include <strings.h>

#define LINE_END "\r\n"
#define HEAD_END "\r\n\r\n"
#define BEARER "Bearer "

/* The text up to `separator`, which it ends there; moves past it. NULL: there is none. */
static char *take_until(char **text, char separator)
{
        char *begin = *text, *end = strchr(begin, separator);
        if (end == NULL)
                return NULL;
        *end = '\0';
        *text = end + 1;
        return begin;
}

/* The value of the first argument "model"; false: its encoding is invalid. */
static bool parse_query(struct page_request *request, char *query)
{
        for (char *next = query; next != NULL && request->model == NULL;) {
                char *argument = strsep(&next, "&"), *value = argument;
                if (strcmp(strsep(&value, "="), "model") != 0)
                        continue;
                if (value != NULL && !percent_decode(value, ' '))
                        return false;
                request->model = value ?: "";
        }
        return true;
}

/* "GET /readyz?model=NAME HTTP/1.1" */
static bool parse_line(struct page_request *request, char *line)
{
        const char *method = take_until(&line, ' ');
        char *target = method != NULL ? take_until(&line, ' ') : NULL;
        if (target == NULL || method[0] == '\0' || target[0] != '/')
                return false;
        if (strncmp(line, "HTTP/1.", 7) != 0 || line[7] < '0' || line[7] > '9' || line[8] != '\0')
                return false;
        request->method = strcmp(method, "GET") == 0 ? PAGE_GET : strcmp(method, "HEAD") == 0 ? PAGE_HEAD : PAGE_OTHER;
        request->path = strsep(&target, "?");
        return target == NULL || parse_query(request, target);
}

/* "Authorization: Bearer TOKEN". A name that ends with a space, and a line that continues another one, are refused:
 * servers disagree on what these are. */
static bool parse_field(struct page_request *request, char *line)
{
        const char *name = take_until(&line, ':');
        if (name == NULL || name[0] == '\0' || strpbrk(name, " \t") != NULL)
                return false;
        if (strcasecmp(name, "Authorization") != 0)
                return true;
        line += strspn(line, " \t");
        if (request->token != NULL)
                return false;
        if (strncasecmp(line, BEARER, strlen(BEARER)) != 0)
                return true;
        line += strlen(BEARER);
        line += strspn(line, " ");
        line[trimmed_len(line, ' ')] = '\0';
        request->token = line;
        return true;
}

enum page_parsed page_request_parse(struct page_request *request, char *head, size_t size)
{
        char *end = memmem(head, size, HEAD_END, strlen(HEAD_END)), *next = head;
        struct page_request parsed = {0};
        if (end == NULL)
                return PAGE_INCOMPLETE;
        end[0] = '\0';
        if (strlen(head) != (size_t)(end - head))
                return PAGE_INVALID;
        for (bool first = true; next != NULL; first = false) {
                char *line = next, *stop = strstr(line, LINE_END);
                if (stop != NULL)
                        *stop = '\0';
                next = stop != NULL ? stop + strlen(LINE_END) : NULL;
                if (strpbrk(line, LINE_END) != NULL)
                        return PAGE_INVALID;
                if (!(first ? parse_line(&parsed, line) : parse_field(&parsed, line)))
                        return PAGE_INVALID;
        }
        require(parsed.path != NULL && parsed.path[0] == '/');
        *request = parsed;
        return PAGE_COMPLETE;
}

bool page_request_is_health(const struct page_request *request)
{
        static const char *const pages[] = {"/livez", "/healthz", "/startupz"};
        for (size_t i = 0; i < ARRAY_SIZE(pages); i++)
                if (strcmp(request->path, pages[i]) == 0)
                        return true;
        return strcmp(request->path, "/readyz") == 0 && request->model == NULL;
}
