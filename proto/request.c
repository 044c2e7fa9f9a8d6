/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests, by the table of verbs and fields. Decoding: the bytes are proven well-formed, verb and
 * id are found, then each field is checked against its row and copied, NUL-terminated, into one
 * block of memory. An unknown verb or field is refused as unsupported, so that nothing is dropped silently; in
 * "hello", which any version may send, unknown fields are ignored. Errors name the verb and the field, and quote the
 * other side's bytes in printable ASCII only.
 */
#include "proto/codec.h"
#include "proto/codes.h"

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
static const char *string_fault(const msgpack_object *o, uint64_t limit, char text[QUOTE_SIZE + 32])
{
        if (o->type != MSGPACK_OBJECT_STR)
                return "must be a string";
        if (o->via.str.size > limit)
                return "is too long";
        if (memchr(o->via.str.ptr, 0, o->via.str.size))
                return "holds a NUL";
        if (codec_utf8(o->via.str.ptr, o->via.str.size))
                return NULL;
        char q[QUOTE_SIZE];
        snprintf(text, QUOTE_SIZE + 32, "is not valid UTF-8: %s", quote(q, o->via.str.ptr, o->via.str.size));
        return text;
}

static const char *copy_string(struct decoder *d, const msgpack_object *o)
{
        char *s = d->strings;
        memcpy(s, o->via.str.ptr, o->via.str.size);
        s[o->via.str.size] = 0;
        d->strings += o->via.str.size + 1;
        return s;
}

static int take_str(struct decoder *d, const struct field_desc *f, const msgpack_object *o, const char **to)
{
        char text[QUOTE_SIZE + 32];
        const char *fault = string_fault(o, f->limit, text);
        if (fault && o->type == MSGPACK_OBJECT_STR && o->via.str.size > f->limit)
                return invalid(d, "%s: field '%s' is longer than %llu bytes", d->verb->name, f->name,
                               (unsigned long long)f->limit);
        if (fault)
                return bad_field(d, f, fault);
        *to = copy_string(d, o);
        return 0;
}

static int take_u64(struct decoder *d, const struct field_desc *f, const msgpack_object *o, uint64_t *to)
{
        if (o->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
                return bad_field(d, f, "must be an integer, 0 or larger");
        if (f->limit != 0 && o->via.u64 > f->limit)
                return bad_field(d, f, "is too large");
        *to = o->via.u64;
        return 0;
}

static int take_list(struct decoder *d, const struct field_desc *f, const msgpack_object *o, struct strlist *to)
{
        if (o->type != MSGPACK_OBJECT_ARRAY)
                return bad_field(d, f, "must be a list of strings");
        if (o->via.array.size > f->limit)
                return bad_field(d, f, "holds too many strings");
        to->v = d->pointers;
        for (uint32_t i = 0; i < o->via.array.size; i++) {
                const msgpack_object *item = &o->via.array.ptr[i];
                char text[QUOTE_SIZE + 32];
                const char *fault = string_fault(item, LIST_ITEM_MAX, text);
                if (fault)
                        return invalid(d, "%s: field '%s', item %u %s", d->verb->name, f->name, i, fault);
                to->v[to->n++] = copy_string(d, item);
        }
        d->pointers += to->n;
        return 0;
}

static int take_field(struct decoder *d, const struct field_desc *f, const msgpack_object *o)
{
        void *to = (char *)&d->out->u + f->offset;
        switch (f->type) {
        case FIELD_STR:
                return take_str(d, f, o, to);
        case FIELD_U64:
                return take_u64(d, f, o, to);
        case FIELD_BOOL:
                if (o->type != MSGPACK_OBJECT_BOOLEAN)
                        return bad_field(d, f, "must be true or false");
                *(bool *)to = o->via.boolean;
                return 0;
        case FIELD_STRLIST:
                return take_list(d, f, o, to);
        }
        return 0;
}

/* Verb and id first: every later complaint names the verb and answers the id. */
static int take_head(struct decoder *d, const msgpack_object *map)
{
        char q[QUOTE_SIZE];
        const char *verb;
        size_t len;
        if (map->type != MSGPACK_OBJECT_MAP)
                return invalid(d, "a request must be a map");
        for (uint32_t i = 0; i < map->via.map.size; i++)
                if (map->via.map.ptr[i].key.type != MSGPACK_OBJECT_STR)
                        return invalid(d, "a request's keys must be strings");
        bool has_id = object_u64(map, "id", &d->out->id);
        if (!object_str(map, "verb", &verb, &len))
                return invalid(d, "a request must have a verb");
        d->verb = verb_find(verb, len);
        if (!d->verb)
                return refuse(d, STREAMER_EUNSUPPORTED, "unknown verb '%s'", quote(q, verb, len));
        d->out->verb = d->verb->verb;
        if (!has_id)
                return invalid(d, "%s: a request must have an id, an integer", d->verb->name);
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

static int take_fields(struct decoder *d, const msgpack_object *map)
{
        char q[QUOTE_SIZE];
        bool seen[ROW_ID + 1] = {false};
        for (uint32_t i = 0; i < map->via.map.size; i++) {
                const msgpack_object_kv *kv = &map->via.map.ptr[i];
                const char *key = kv->key.via.str.ptr;
                size_t len = kv->key.via.str.size;
                int row = row_of(d->verb, key, len);
                if (row == ROW_NONE && d->verb->verb == VERB_hello)
                        continue;
                if (row == ROW_NONE)
                        return refuse(d, STREAMER_EUNSUPPORTED, "%s: unknown field '%s'", d->verb->name,
                                      quote(q, key, len));
                if (seen[row])
                        return invalid(d, "%s: duplicate field '%s'", d->verb->name, quote(q, key, len));
                seen[row] = true;
                if (row == ROW_VERB || row == ROW_ID)
                        continue;
                int rc = take_field(d, &d->verb->fields[row], &kv->val);
                if (rc != 0)
                        return rc;
        }
        for (size_t i = 0; i < d->verb->n_fields; i++)
                if (d->verb->fields[i].required && !seen[i])
                        return bad_field(d, &d->verb->fields[i], "is missing");
        return 0;
}

/* One block for every copy: a packed string is at least one byte longer than its text, so the
 * frame's length is room enough for all of them with their NULs, and a list of strings has no more
 * items than the frame has values. */
static int take_all(struct decoder *d, const msgpack_object *map, size_t len)
{
        int rc = take_head(d, map);
        if (rc != 0)
                return rc;
        d->out->memory = malloc(MAX_VALUES * sizeof(char *) + len);
        if (!d->out->memory)
                return refuse(d, STREAMER_ENOMEM, "%s: no memory", d->verb->name);
        d->pointers = d->out->memory;
        d->strings = (char *)d->out->memory + MAX_VALUES * sizeof(char *);
        return take_fields(d, map);
}

int request_decode(struct request *out, const void *data, size_t len, char *text, size_t text_size)
{
        *out = (struct request){.verb = VERB_COUNT};
        struct decoder d = {.out = out, .text = text, .text_size = text_size};
        const char *why;
        if (codec_check_limited(data, len, MAX_VALUES, &why) < 0)
                return invalid(&d, "malformed request: %s", why);

        msgpack_unpacked unpacked;
        msgpack_unpacked_init(&unpacked);
        size_t off = 0;
        /* It is well-formed: that was checked. */
        int rc = msgpack_unpack_next(&unpacked, data, len, &off) == MSGPACK_UNPACK_SUCCESS
                         ? take_all(&d, &unpacked.data, len)
                         : refuse(&d, STREAMER_ENOMEM, "no memory");
        msgpack_unpacked_destroy(&unpacked);
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
