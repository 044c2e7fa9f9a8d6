/* SPDX-License-Identifier: Apache-2.0
 *
 * The parser compared with jansson: plain loops apply the rules to jansson's tree. On random headers, most of them
 * damaged, both must accept the same and read the same.
 *
 * Four permitted differences are excluded: numbers beyond jansson's range, the number -0, a NUL in an ignored key,
 * and our limits on depth and keys. A failure prints the seed; STREAMERD_TEST_SEED repeats it.
 */
#include "proto/manifest.h"
#include "tests/lib/suite.h"
#include "tests/unit/header_text.h"

#include <jansson.h>

static uint64_t seed, state;

/* ---- headers, then damage ---- */

#define ROOM 16384

struct sample {
        char s[ROOM];
        size_t size;
        uint64_t data;
};

static void put(struct sample *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(struct sample *m, const char *format, ...)
{
        va_list args;
        va_start(args, format);
        m->size += (size_t)vsnprintf(m->s + m->size, ROOM / 2 - m->size, format, args);
        va_end(args);
}

static void put_tensor(struct sample *m, uint64_t number)
{
        static const char *const names[] = {"a", "b.\\u0061", "b.a", "\xc3\xa9", "model.layers", "\\ud83d\\ude00", ""};
        static const char *const extras[] = {"", "", ",\"x\":[1.5e-3,{\"y\":null}]", ",\"x\":{\"k\":\"\\u0000\"}"};
        unsigned dtype = 1 + (unsigned)draw_below(&state, DTYPE_END - 1);
        uint64_t rows = draw_below(&state, 3) * 4, columns = 1 + draw_below(&state, 4);
        uint64_t bytes = rows * columns * dtype_bits(dtype) / 8;
        put(m, "\"%s", names[draw_below(&state, 7)]);
        if (draw_below(&state, 10))
                put(m, "%" PRIu64, number);
        put(m, "\":{\"dtype\":\"%s\",\"shape\":[%" PRIu64 ", %" PRIu64 "]%s,", dtype_name(dtype), rows, columns,
            extras[draw_below(&state, 4)]);
        put(m, "\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", m->data, m->data + bytes);
        m->data += bytes;
}

/* Entries in order of their bytes, or the other way round. */
static void make_header(struct sample *m)
{
        struct sample entries[6] = {0};
        uint64_t n = draw_below(&state, 6), back = draw_below(&state, 2);
        m->size = 0;
        m->data = 0;
        put(m, "{");
        if (draw_below(&state, 4) == 0)
                put(m, "\n\"__metadata__\":{\"format\":\"pt\",\"x\":\"\\t\\u00e9\"}%s", n > 0 ? ",\n" : "");
        for (uint64_t i = 0; i < n; i++) {
                entries[i].data = m->data;
                put_tensor(&entries[i], i);
                m->data = entries[i].data;
        }
        for (uint64_t i = 0; i < n; i++) {
                const struct sample *entry = &entries[back ? n - 1 - i : i];
                put(m, "%.*s%s", (int)entry->size, entry->s, i + 1 < n ? ", " : "");
        }
        put(m, "}%s", draw_below(&state, 4) ? "" : " \n");
}

/* Writes `len` bytes over `cut` bytes at `at`. */
static void splice(struct sample *m, size_t at, size_t cut, const char *bytes, size_t len)
{
        char copy[ROOM];
        if (m->size - cut + len > ROOM || at + cut > m->size)
                return;
        memcpy(copy, bytes, len);
        memmove(m->s + at + len, m->s + at + cut, m->size - at - cut);
        memcpy(m->s + at, copy, len);
        m->size += len - cut;
}

static void damage(struct sample *m)
{
        static const char bytes[] = "{}[]\":,0123456789-.eE\\u/bntrfalsxUF \n\t\x01\x7f\xff\xc3\xa9\xed";
        static const char *const words[] = {"null", "true",    "-1", "\"a\":1,", "1e5",  "\"__metadata__\":{},",
                                            "[]",   "{}",      "01", "1.0",      "\\u",  "9223372036854775807",
                                            "F32",  "\\ud800", "\\", ",,",       "\"\"", "\"dtype\":\"U8\","};
        size_t at = draw_below(&state, m->size + 1), len = 1 + draw_below(&state, 12);
        uint64_t kind = draw_below(&state, 6);
        if (kind < 2) /* in the place of a byte, or before it */
                splice(m, at, kind == 0, &bytes[draw_below(&state, sizeof(bytes) - 1)], 1);
        else if (kind == 2)
                splice(m, at, len, "", 0);
        else if (kind == 3 && at + len <= m->size)
                splice(m, draw_below(&state, m->size + 1), 0, m->s + at, len);
        else if (kind == 4)
                splice(m, at, draw_below(&state, 3), words[len], strlen(words[len]));
        else if (kind == 5)
                m->data += draw_below(&state, 2) ? 1 : 0;
}

/* ---- the rules on jansson's tree ---- */

struct plain_tensor {
        const char *name, *dtype;
        const json_t *shape;
        uint64_t begin, end;
        size_t number;
};

static bool whole(const json_t *number, uint64_t *value)
{
        *value = (uint64_t)json_integer_value(number);
        return json_is_integer(number) && json_integer_value(number) >= 0;
}

static bool plain_entry(const json_t *entry, struct plain_tensor *t)
{
        const json_t *dtype = json_object_get(entry, "dtype"), *offsets = json_object_get(entry, "data_offsets");
        t->shape = json_object_get(entry, "shape");
        if (!json_is_string(dtype) || !json_is_array(t->shape) || !json_is_array(offsets))
                return false;
        if (json_array_size(offsets) != 2 || !whole(json_array_get(offsets, 0), &t->begin) ||
            !whole(json_array_get(offsets, 1), &t->end))
                return false;
        int code = dtype_find(json_string_value(dtype), json_string_length(dtype));
        if (code < 0)
                return false;
        t->dtype = dtype_name((unsigned)code);
        uint64_t n = 1, dim;
        for (size_t i = 0; i < json_array_size(t->shape); i++)
                if (!whole(json_array_get(t->shape, i), &dim) || __builtin_mul_overflow(n, dim, &n))
                        return false;
        if (__builtin_mul_overflow(n, dtype_bits((unsigned)code), &n))
                return false;
        return t->begin <= t->end && n % 8 == 0 && n / 8 == t->end - t->begin;
}

static int by_bytes(const void *a, const void *b)
{
        const struct plain_tensor *x = a, *y = b;
        if (x->begin != y->begin)
                return x->begin < y->begin ? -1 : 1;
        if (x->end != y->end)
                return x->end < y->end ? -1 : 1;
        return x->number < y->number ? -1 : 1;
}

static bool plain_metadata(const json_t *metadata)
{
        const char *key;
        json_t *value;
        if (json_is_null(metadata))
                return true;
        if (!json_is_object(metadata))
                return false;
        json_object_foreach((json_t *)metadata, key, value) if (!json_is_string(value)) return false;
        return true;
}

/* The number of tensors, or -1. */
static int plain_parse(json_t *root, uint64_t data, struct plain_tensor *tensors)
{
        size_t n = 0;
        const char *key;
        json_t *value;
        json_object_foreach(root, key, value)
        {
                if (strcmp(key, "__metadata__") == 0) {
                        if (!plain_metadata(value))
                                return -1;
                        continue;
                }
                tensors[n] = (struct plain_tensor){.name = key, .number = n};
                if (!json_is_object(value) || !plain_entry(value, &tensors[n++]))
                        return -1;
        }
        qsort(tensors, n, sizeof(*tensors), by_bytes);
        uint64_t end = 0;
        for (size_t i = 0; i < n; end = tensors[i++].end)
                if (tensors[i].begin != end)
                        return -1;
        return end == data ? (int)n : -1;
}

/* ---- both ---- */

#define holds(what)                                                                                                    \
        do {                                                                                                           \
                if (!(what))                                                                                           \
                        ck_abort_msg("seed %" PRIu64 ": broken: %s\n%.*s", seed, #what, (int)m->size, m->s);           \
        } while (0)

static void same_tensors(const struct sample *m, const struct st_header *header, const struct plain_tensor *plain)
{
        for (size_t i = 0; i < header->n_tensors; i++) {
                const struct st_tensor *t = &header->tensors[i];
                uint64_t dims[ST_RANK_MAX];
                holds(strcmp(st_name(header, t), plain[i].name) == 0);
                holds(strcmp(dtype_name(t->dtype), plain[i].dtype) == 0);
                holds(t->begin == plain[i].begin && t->end == plain[i].end);
                holds(t->rank == json_array_size(plain[i].shape));
                st_shape(header, t, dims);
                for (size_t k = 0; k < t->rank; k++)
                        holds(dims[k] == (uint64_t)json_integer_value(json_array_get(plain[i].shape, k)));
        }
}

static void same_metadata(const struct sample *m, const struct st_header *header, const json_t *metadata)
{
        holds(header->n_metadata == json_object_size(metadata));
        for (size_t i = 0; i < header->n_metadata; i++) {
                const struct st_pair *p = &header->metadata[i];
                const json_t *value = json_object_get(metadata, header->text + p->key);
                holds(value != NULL && json_string_length(value) == p->value_len);
                holds(memcmp(json_string_value(value), header->text + p->value, p->value_len) == 0);
        }
}

static bool may_differ(const struct sample *m, const struct st_error *error, const json_error_t *jansson)
{
        enum json_error_code code = json_error_code(jansson);
        bool minus_zero = memmem(m->s, m->size, "-0", 2) != NULL;
        return code == json_error_numeric_overflow || code == json_error_null_byte_in_key ||
               error->rule == ST_TOO_DEEP || error->rule == ST_TOO_MANY || (minus_zero && error->rule != ST_OK);
}

/* Whether both accept it. */
static bool compare(const struct sample *m)
{
        struct plain_tensor plain[ROOM / 8];
        struct st_header header;
        struct st_error error = {0};
        json_error_t jansson = {0};
        char *text = must_alloc(m->size); /* exactly: one byte beyond is a fault that sanitizers see */
        memcpy(text, m->s, m->size);
        json_t *root = json_loadb(m->s, m->size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &jansson);
        int n = json_is_object(root) ? plain_parse(root, m->data, plain) : -1;
        bool ok = st_parse(&header, text, m->size, ST_PREFIX + m->size + m->data, &error) == 0;
        if (!may_differ(m, &error, &jansson))
                holds(ok == (n >= 0));
        if (ok && n >= 0) {
                holds(header.n_tensors == (size_t)n);
                same_tensors(m, &header, plain);
                same_metadata(m, &header, json_object_get(root, "__metadata__"));
        }
        if (ok)
                st_header_deinit(&header);
        json_decref(root);
        free(text);
        return ok && n >= 0;
}

TEST(this_parser_and_jansson_agree, .to = 4)
{
        int accepted = 0, rounds = suite_short() ? 3000 : 30000;
        struct sample sample, *m = &sample;
        state = seed = env_number("STREAMERD_TEST_SEED", clock_ns() + (uint64_t)_i);
        for (int i = 0; i < rounds; i++) {
                make_header(m);
                for (uint64_t k = draw_below(&state, 4); k > 0; k--)
                        damage(m);
                accepted += compare(m);
        }
        holds(accepted > rounds / 10 && accepted < rounds * 9 / 10); /* otherwise the samples prove little */
}
