/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests, by the table of verbs and fields. Decoding: the bytes are proven well-formed, verb and
 * id are found, then each field is checked against its row and copied, NUL-terminated, into one
 * block of memory. An unknown verb or field is refused as unsupported, so that nothing is dropped silently; in
 * "hello", which any version may send, unknown fields are ignored. Errors name the verb and the field, and quote the
 * other side's bytes in printable ASCII only.
 */
#include "proto/bytes.h"
#include "proto/codec.h"
#include "proto/codes.h"
#include "proto/require.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_VALUES 256 /* of an honest request: two for each field, one for each string of a list */
#define LIST_ITEM_MAX 255

struct decoder {
        struct request *out;
        const struct verb_desc *verb;
        char *text;
        size_t text_size;
        const char **pointers; /* lists of strings are cut from here */
        char *strings;         /* copies of strings are cut from here */
};

__attribute__((format(printf, 3, 4))) static int refuse(const struct decoder *d, int code, const char *format, ...)
{
        va_list ap;
        va_start(ap, format);
        if (d->text_size > 0)
                vsnprintf(d->text, d->text_size, format, ap);
        va_end(ap);
        return code;
}
#define invalid(d, ...) refuse((d), STREAMER_EINVAL, __VA_ARGS__)

#define QUOTE_SIZE 256

/* The other side's words, made safe for a message; cut if they are long. */
static const char *quote(char out[QUOTE_SIZE], const char *s, size_t len)
{
        static const char digits[] = "0123456789abcdef";
        size_t n = 0;
        for (size_t i = 0; i < len && n < QUOTE_SIZE - 8; i++) {
                unsigned char c = (unsigned char)s[i];
                if (c >= 0x20 && c < 0x7f) {
                        out[n++] = s[i];
                        continue;
                }
                memcpy(out + n, (char[]){'\\', 'x', digits[c >> 4], digits[c & 15]}, 4);
                n += 4;
        }
        out[n] = 0;
        return out;
}

static int bad_field(const struct decoder *d, const struct field_desc *f, const char *fault)
{
        return invalid(d, "%s: field '%s' %s", d->verb->name, f->name, fault);
}

/* NULL, or what is wrong with the string, in `text`, too. */
static const char *string_fault(const struct value *v, uint64_t limit, char text[QUOTE_SIZE + 32])
{
        if (v->kind != VALUE_TEXT)
                return "must be a string";
        if (v->number > limit)
                return "is too long";
        if (memchr(v->data, 0, v->number))
                return "holds a NUL";
        if (codec_utf8(v->data, v->number))
                return NULL;
        char q[QUOTE_SIZE];
        snprintf(text, QUOTE_SIZE + 32, "is not valid UTF-8: %s", quote(q, v->data, v->number));
        return text;
}

static const char *copy_string(struct decoder *d, const struct value *v)
{
        char *s = d->strings;
        memcpy(s, v->data, v->number);
        s[v->number] = 0;
        d->strings += v->number + 1;
        return s;
}

/* Of bytes that are well-formed. */
static struct value next(struct bytes *bytes)
{
        struct value v;
        bool whole = bytes_next(bytes, &v);
        require(whole);
        return v;
}

static void skip(struct bytes *bytes)
{
        bool whole = bytes_skip(bytes);
        require(whole);
}

static int take_str(struct decoder *d, const struct field_desc *f, const struct value *v, const char **to)
{
        char text[QUOTE_SIZE + 32];
        const char *fault = string_fault(v, f->limit, text);
        if (fault && v->kind == VALUE_TEXT && v->number > f->limit)
                return invalid(d, "%s: field '%s' is longer than %llu bytes", d->verb->name, f->name,
                               (unsigned long long)f->limit);
        if (fault)
                return bad_field(d, f, fault);
        *to = copy_string(d, v);
        return 0;
}

static int take_u64(struct decoder *d, const struct field_desc *f, const struct value *v, uint64_t *to)
{
        if (v->kind != VALUE_U64)
                return bad_field(d, f, "must be an integer, 0 or larger");
        if (f->limit != 0 && v->number > f->limit)
                return bad_field(d, f, "is too large");
        *to = v->number;
        return 0;
}

/* `left`: its items. */
static int take_list(struct decoder *d, const struct field_desc *f, const struct value *v, struct bytes *left,
                     struct strlist *to)
{
        if (v->kind != VALUE_ARRAY)
                return bad_field(d, f, "must be a list of strings");
        if (v->number > f->limit)
                return bad_field(d, f, "holds too many strings");
        to->v = d->pointers;
        for (unsigned i = 0; i < v->number; i++) {
                const struct value item = next(left);
                char text[QUOTE_SIZE + 32];
                const char *fault = string_fault(&item, LIST_ITEM_MAX, text);
                if (fault)
                        return invalid(d, "%s: field '%s', item %u %s", d->verb->name, f->name, i, fault);
                to->v[to->n++] = copy_string(d, &item);
        }
        d->pointers += to->n;
        return 0;
}

/* The next value: on success nothing of it is left. */
static int take_field(struct decoder *d, const struct field_desc *f, struct bytes *left)
{
        void *to = (char *)&d->out->u + f->offset;
        const struct value v = next(left);
        switch (f->type) {
        case FIELD_STR:
                return take_str(d, f, &v, to);
        case FIELD_U64:
                return take_u64(d, f, &v, to);
        case FIELD_BOOL:
                if (v.kind != VALUE_BOOL)
                        return bad_field(d, f, "must be true or false");
                *(bool *)to = v.number != 0;
                return 0;
        case FIELD_STRLIST:
                return take_list(d, f, &v, left, to);
        }
        return 0;
}

/* Verb and id first: every later complaint names the verb and answers the id. Of `left` the pairs remain. */
static int take_head(struct decoder *d, struct bytes *left, uint64_t *pairs)
{
        char q[QUOTE_SIZE];
        const struct value map = next(left);
        struct value verb = {.kind = VALUE_NIL};
        bool has_id = false, has_verb = false;
        if (map.kind != VALUE_MAP)
                return invalid(d, "a request must be a map");
        struct bytes rest = *left;
        for (uint64_t i = 0; i < map.number; i++) {
                const struct value key = next(&rest);
                struct bytes at = rest;
                if (key.kind != VALUE_TEXT)
                        return invalid(d, "a request's keys must be strings");
                skip(&rest);
                if (value_is_text(&key, "id") && !has_id) {
                        const struct value id = next(&at);
                        has_id = id.kind == VALUE_U64;
                        d->out->id = has_id ? id.number : 0;
                } else if (value_is_text(&key, "verb") && !has_verb) {
                        verb = next(&at);
                        has_verb = verb.kind == VALUE_TEXT;
                }
        }
        if (!has_verb)
                return invalid(d, "a request must have a verb");
        d->verb = verb_find(verb.data, verb.number);
        if (!d->verb)
                return refuse(d, STREAMER_EUNSUPPORTED, "unknown verb '%s'", quote(q, verb.data, verb.number));
        d->out->verb = d->verb->verb;
        if (!has_id)
                return invalid(d, "%s: a request must have an id, an integer", d->verb->name);
        *pairs = map.number;
        return 0;
}

#define ROW_VERB 64
#define ROW_ID 65
#define ROW_NONE (-1)

static int row_of(const struct verb_desc *verb, const char *s, size_t len)
{
        if (len == 4 && memcmp(s, "verb", 4) == 0)
                return ROW_VERB;
        if (len == 2 && memcmp(s, "id", 2) == 0)
                return ROW_ID;
        for (size_t i = 0; i < verb->n_fields; i++)
                if (strlen(verb->fields[i].name) == len && memcmp(verb->fields[i].name, s, len) == 0)
                        return (int)i;
        return ROW_NONE;
}

static int take_fields(struct decoder *d, struct bytes *left, uint64_t pairs)
{
        char q[QUOTE_SIZE];
        bool seen[ROW_ID + 1] = {false};
        for (; pairs > 0; pairs--) {
                const struct value key = next(left);
                int row = row_of(d->verb, key.data, key.number), rc = 0;
                if (row == ROW_NONE && d->verb->verb != VERB_hello)
                        return refuse(d, STREAMER_EUNSUPPORTED, "%s: unknown field '%s'", d->verb->name,
                                      quote(q, key.data, key.number));
                if (row != ROW_NONE && seen[row])
                        return invalid(d, "%s: duplicate field '%s'", d->verb->name, quote(q, key.data, key.number));
                if (row != ROW_NONE)
                        seen[row] = true;
                if (row == ROW_NONE || row == ROW_VERB || row == ROW_ID)
                        skip(left);
                else
                        rc = take_field(d, &d->verb->fields[row], left);
                if (rc != 0)
                        return rc;
        }
        for (size_t i = 0; i < d->verb->n_fields; i++)
                if (d->verb->fields[i].required && !seen[i])
                        return bad_field(d, &d->verb->fields[i], "is missing");
        return 0;
}

static bool takes_lists(const struct verb_desc *verb)
{
        for (size_t i = 0; i < verb->n_fields; i++)
                if (verb->fields[i].type == FIELD_STRLIST)
                        return true;
        return false;
}

/* One block for every copy: a packed string is at least one byte longer than its text, so the
 * frame's length is room enough for all of them with their NULs, and a list of strings has no more
 * items than the frame has values. */
static int take_all(struct decoder *d, struct bytes *left, size_t len)
{
        uint64_t pairs = 0;
        int rc = take_head(d, left, &pairs);
        if (rc != 0)
                return rc;
        size_t lists = takes_lists(d->verb) ? MAX_VALUES * sizeof(char *) : 0;
        d->out->memory = malloc(lists + len);
        if (!d->out->memory)
                return refuse(d, STREAMER_ENOMEM, "%s: no memory", d->verb->name);
        d->pointers = d->out->memory;
        d->strings = (char *)d->out->memory + lists;
        return take_fields(d, left, pairs);
}

int request_decode(struct request *out, const void *data, size_t len, char *text, size_t text_size)
{
        *out = (struct request){.verb = VERB_COUNT};
        struct decoder d = {.out = out, .text = text, .text_size = text_size};
        struct bytes left = {data, (const unsigned char *)data + len};
        const char *why;
        if (codec_check_limited(data, len, MAX_VALUES, &why) < 0)
                return invalid(&d, "malformed request: %s", why);
        int rc = take_all(&d, &left, len);
        if (rc != 0)
                request_deinit(out);
        return rc;
}

void request_deinit(struct request *request)
{
        free(request->memory);
        request->memory = NULL;
}

/* ---- encoding ---- */

bool request_has(const struct request *request, const struct field_desc *f)
{
        const void *from = (const char *)&request->u + f->offset;
        switch (f->type) {
        case FIELD_STR:
                return *(const char *const *)from != NULL;
        case FIELD_U64:
                return f->required || *(const uint64_t *)from != 0;
        case FIELD_BOOL:
                return f->required || *(const bool *)from;
        case FIELD_STRLIST:
                return ((const struct strlist *)from)->n > 0;
        }
        return false;
}

static void put_field(struct writer *w, const struct field_desc *f, const void *from)
{
        const struct strlist *list = from;
        writer_key(w, f->name);
        switch (f->type) {
        case FIELD_STR:
                writer_str(w, *(const char *const *)from);
                break;
        case FIELD_U64:
                writer_u64(w, *(const uint64_t *)from);
                break;
        case FIELD_BOOL:
                writer_bool(w, *(const bool *)from);
                break;
        case FIELD_STRLIST:
                writer_array(w, list->n);
                for (size_t i = 0; i < list->n; i++)
                        writer_str(w, list->v[i]);
                break;
        }
}

int request_encode(const struct request *request, msgpack_sbuffer *out)
{
        const struct verb_desc *verb = verb_desc(request->verb);
        const char *base = (const char *)&request->u;
        struct writer w = {.buf = *out};
        size_t n = 2;
        for (size_t i = 0; i < verb->n_fields; i++)
                n += request_has(request, &verb->fields[i]);

        msgpack_packer_init(&w.pk, &w.buf, msgpack_sbuffer_write);
        writer_map(&w, n);
        writer_kstr(&w, "verb", verb->name);
        writer_ku64(&w, "id", request->id);
        for (size_t i = 0; i < verb->n_fields; i++) {
                const struct field_desc *f = &verb->fields[i];
                if (request_has(request, f))
                        put_field(&w, f, base + f->offset);
        }
        *out = w.buf;
        return w.failed ? STREAMER_ENOMEM : 0;
}
