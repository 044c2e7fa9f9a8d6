/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests are counted by class, and the first rule that matches applies. A rule modifies headers and bytes in place:
 * only a cut changes a length.
 */
#include "tests/lib/proxy_conn.h"

#include "tests/lib/base.h"

/* ---- selection ---- */

const char *find_header(const struct bytes *b, const char *name)
{
        const char *at = b->data != NULL ? strcasestr(b->data, name) : NULL;
        const char *end = b->data != NULL ? strstr(b->data, "\r\n\r\n") : NULL;
        return at != NULL && end != NULL && at < end ? at : NULL;
}

static enum proxy_what request_class(struct conn *c, struct proxy_asked *asked)
{
        unsigned long long first = 0, last = 0;
        const char *range = find_header(&c->request, "\r\nRange: bytes=");
        bool ranged = range != NULL && sscanf(range + strlen("\r\nRange: bytes="), "%llu-%llu", &first, &last) == 2;
        *asked = ranged ? (struct proxy_asked){.first = first, .last = last} : (struct proxy_asked){.last = UINT64_MAX};
        if (strncmp(c->request.data, "HEAD", 4) == 0 || (ranged && last == 0))
                return PROXY_CHECKS;
        return ranged && first == 0 ? PROXY_OPENINGS : PROXY_BLOCKS;
}

static bool applies(const struct proxy_rule *r, unsigned number)
{
        unsigned count = r->count > 0 ? r->count : 1;
        if (r->nth > 0)
                return number >= r->nth && number < r->nth + count;
        return r->every == 0 || number % r->every == 0;
}

static uint64_t path_hash(const struct conn *c)
{
        const char *at = c->request.data + strcspn(c->request.data, " \r");
        uint64_t hash = 0;
        for (at += strspn(at, " "); *at != '\0' && strchr(" \r", *at) == NULL; at++)
                hash = hash * 31 + (unsigned char)*at;
        return hash;
}

/* The end of the bytes that the rule passes on; a client may ask again for all others. */
static uint64_t passed_until(const struct proxy_rule *rule, const struct proxy_asked *asked)
{
        uint64_t all = asked->last + 1, most = asked->first + rule->bytes;
        switch (rule->fault) {
        case PROXY_NONE:
        case PROXY_CORRUPT:
        case PROXY_DRIP:
        case PROXY_LATENCY:
        case PROXY_WINDOW:
                return all;
        case PROXY_HOLD:
                return rule->status > 0 ? asked->first : all;
        case PROXY_SHORT:
        case PROXY_STALL:
                return most < all ? most : all;
        default:
                return asked->first;
        }
}

static void note_asked(struct conn *c, struct proxy_asked asked)
{
        struct proxy *p = c->proxy;
        unsigned n = p->seen[PROXY_BLOCKS] - 1;
        asked.path = path_hash(c);
        asked.until = passed_until(&c->rule, &asked);
        for (unsigned i = 0; asked.last != UINT64_MAX && i < n && i < PROXY_ASKED; i++)
                asked.again |= p->asked[i].path == asked.path && p->asked[i].first <= asked.last &&
                               asked.first < p->asked[i].until;
        c->repeats = asked.again;
        if (n < PROXY_ASKED)
                p->asked[n] = asked;
}

static void note_authorization(struct conn *c)
{
        static const char name[] = "\r\nAuthorization: ";
        const char *at = find_header(&c->request, name);
        struct proxy *p = c->proxy;
        p->last_authorization[0] = '\0';
        if (at != NULL)
                snprintf(p->last_authorization, sizeof(p->last_authorization), "%.*s",
                         (int)strcspn(at + strlen(name), "\r"), at + strlen(name));
}

void rule_choose(struct conn *c)
{
        struct proxy *p = c->proxy;
        struct proxy_asked asked;
        enum proxy_what what = c->what = request_class(c, &asked);
        c->rule = (struct proxy_rule){.fault = PROXY_NONE};
        pthread_mutex_lock(&p->mutex);
        p->seen[what]++;
        p->seen[PROXY_ALL]++;
        note_authorization(c);
        for (unsigned i = 0; i < p->n_rules; i++) {
                struct proxy_rule *r = &p->rules[i];
                unsigned number = p->seen[r->what];
                if (r->what != what && r->what != PROXY_ALL)
                        continue;
                if (r->byte > 0 && !has_byte(&asked, r->byte))
                        continue;
                if (r->byte > 0)
                        number = ++r->matched;
                if (!applies(r, number))
                        continue;
                c->rule = *r;
                p->faults++;
                break;
        }
        c->releases = p->releases;
        c->repeats = false;
        if (what == PROXY_BLOCKS)
                note_asked(c, asked);
        pthread_mutex_unlock(&p->mutex);
}

void rule_log_held(struct conn *c)
{
        static const char *const whats[] = {" range", " first", " check"};
        struct proxy *p = c->proxy;
        char method[8], path[120];
        struct proxy_asked asked;
        enum proxy_what what = request_class(c, &asked);
        bool ranged = asked.last != UINT64_MAX;
        if (c->repeats)
                return;
        if (p->n_held == PROXY_HELD || sscanf(c->request.data, "%7s %119[^? ]", method, path) != 2)
                die("the proxy cannot hold: %.200s", c->request.data);
        size_t whole = strcspn(c->request.data + strlen(method) + 1, " ");
        snprintf(p->held[p->n_held++], sizeof(p->held[0]), "%s %s%s%s", method, path,
                 whole > strlen(path) ? "?list" : "", ranged ? whats[what] : "");
}

/* ---- answers without the server ---- */

static void answer_status(struct conn *c, int status, const char *header, const char *body)
{
        char *text = format_text("HTTP/1.1 %d %s\r\nContent-Length: %zu\r\n%s%s\r\n%s", status,
                                 status == 503 ? "Slow Down" : "Said So", strlen(body), header,
                                 header[0] != '\0' ? "\r\n" : "", body);
        bytes_add(&c->out, text, strlen(text));
        c->body = c->length = strlen(body);
        c->head = c->out.n - strlen(body);
        c->ended = true;
        free(text);
}

void rule_answer_status(struct conn *c)
{
        c->out.n = c->sent = 0;
        answer_status(c, c->rule.status, c->rule.header ?: "", c->rule.text ?: "");
}

bool rule_answers(struct conn *c)
{
        const struct proxy_rule *r = &c->rule;
        char header[1024];
        switch (r->fault) {
        case PROXY_STATUS:
                rule_answer_status(c);
                return true;
        case PROXY_REDIRECT:
                snprintf(header, sizeof(header), "Location: %s", r->text);
                answer_status(c, 302, header, "elsewhere");
                return true;
        default:
                return false;
        }
}

/* ---- accepted values ---- */

/* Replaces a header's value with another of the same length. */
static void scramble(struct conn *c, const char *name)
{
        char *at = (char *)(uintptr_t)find_header(&c->out, name);
        if (at == NULL)
                return;
        at += strlen(name);
        size_t digit = strcspn(at, "0123456789");
        at[digit] = at[digit] == '9' ? '8' : '9';
}

static void drop_header(struct conn *c, const char *name)
{
        char *at = (char *)(uintptr_t)find_header(&c->out, name);
        if (at != NULL)
                at[2] = 'X'; /* "\r\nE..." */
}

/* Adds "Connection: close", so that the answer ends with the connection; removes Range if the rule requires it. */
void rule_for_request(struct conn *c)
{
        char *at = c->rule.fault == PROXY_NO_RANGE ? (char *)(uintptr_t)find_header(&c->request, "\r\nRange: ") : NULL;
        if (at != NULL)
                memcpy(at, "\r\nX-Ask: ", 9);
        struct bytes changed = {0};
        size_t line = strcspn(c->request.data, "\r");
        bytes_add(&changed, c->request.data, line);
        bytes_add(&changed, "\r\nConnection: close", 19);
        bytes_add(&changed, c->request.data + line, c->request.n - line);
        free(c->request.data);
        c->request = changed;
}

void rule_for_head(struct conn *c)
{
        const struct proxy_rule *r = &c->rule;
        switch (r->fault) {
        case PROXY_WRONG_RANGE:
                scramble(c, "\r\nContent-Range: bytes ");
                break;
        case PROXY_REPLACED:
                scramble(c, "\r\nETag: \"");
                break;
        case PROXY_RESET:
        case PROXY_STALL:
                c->limit = r->bytes;
                break;
        case PROXY_SHORT:
                c->limit = r->bytes;
                if (r->text != NULL)
                        drop_header(c, r->text);
                break;
        case PROXY_DROP:
                drop_header(c, r->text);
                break;
        default:
                break;
        }
}

void rule_for_body(struct conn *c, size_t n)
{
        const struct proxy_rule *r = &c->rule;
        if (n > c->limit - c->body) {
                c->out.n -= n - (size_t)(c->limit - c->body);
                n = (size_t)(c->limit - c->body);
        }
        if (r->fault == PROXY_CORRUPT && c->body <= r->bytes && r->bytes < c->body + n)
                c->out.data[c->out.n - n + (size_t)(r->bytes - c->body)] ^= 0x20;
        c->body += n;
}
