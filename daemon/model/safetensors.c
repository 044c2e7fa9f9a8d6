/* SPDX-License-Identifier: Apache-2.0
 *
 * One pass over the text fills the table of tensors, entry by entry; then the table as a whole is held against the
 * rules. The first broken rule ends the parse. Text positions are kept in 32 bits: a header is at most 100 MB.
 */
#include "daemon/base/error.h"
#include "daemon/base/util.h"
#include "daemon/model/safetensors.h"
#include "proto/manifest.h"

#include <endian.h>
#include <inttypes.h>

/* A file cannot hold more: an entry takes 50 bytes at least. */
#define TENSORS_MAX ((size_t)2 << 20)
#define METADATA_MAX ((size_t)1 << 20)

_Static_assert(sizeof(struct st_tensor) == 32, "memory for a tensor is promised");

struct parser {
        struct json json;
        struct st_header *header;
        struct json_string entry; /* the tensor that a fault is about */
        bool in_entry;            /* there is one */
        bool saw_metadata;
};

/* The fields of one entry, until it is whole. */
struct entry {
        struct st_tensor tensor;
        uint64_t elements;
        size_t offsets_at; /* 0: not given, as a dtype or the place of a shape */
};

/* ---- rules: one line of printable text, whatever bytes the header held ---- */

const char *st_rule_name(enum st_rule rule)
{
        static const char *const names[] = {
#define X(name, text) [ST_##name] = (text),
                ST_RULES(X)
#undef X
        };
        return names[rule];
}

int rule_refuse(struct st_error *error, enum st_rule rule, const char *detail)
{
        error->rule = rule;
        error->offset = 0;
        snprintf(error->text, sizeof(error->text), "%s: %s", st_rule_name(rule), detail);
        return -1;
}

void rule_report(struct st_error *error, const struct json *j, uint64_t start, const struct json_string *tensor)
{
        char quoted[NAME_QUOTE] = "", subject[NAME_QUOTE + 32] = "";
        if (tensor != NULL) {
                error_escape_n(quoted, sizeof(quoted), j->text + tensor->at, tensor->len);
                snprintf(subject, sizeof(subject), "tensor '%s': ", quoted);
        }
        error->rule = (enum st_rule)j->fault;
        error->offset = start + j->fault_at;
        snprintf(error->text, sizeof(error->text), "%s: %s%s (%s %zu)", st_rule_name(error->rule), subject, j->detail,
                 start > 0 ? "header offset" : "offset", j->fault_at);
}

/* ---- fields of an entry ---- */

static bool parse_dtype(struct json *j, struct entry *e)
{
        struct json_string code;
        if (json_peek(j) != '"')
                return json_fail(j, ST_BAD_ENTRY, j->at, "the dtype is not a string");
        size_t at = j->at;
        if (!json_take_string(j, &code))
                return false;
        int dtype = dtype_find(j->text + code.at, code.len);
        if (dtype < 0) {
                char quoted[NAME_QUOTE];
                error_escape_n(quoted, sizeof(quoted), j->text + code.at, code.len);
                return json_fail(j, ST_UNKNOWN_DTYPE, at, "the dtype '%s' is not known", quoted);
        }
        e->tensor.dtype = (uint8_t)dtype;
        return true;
}

/* Multiplied left to right, as everyone who reads the format does: an overflow counts even where a
 * zero follows. */
static bool parse_shape(struct json *j, struct entry *e)
{
        e->tensor.rank = 0;
        e->elements = 1;
        json_peek(j);
        e->tensor.shape = (uint32_t)j->at;
        if (!json_open(j, '['))
                return json_fail(j, ST_BAD_ENTRY, j->at, "the shape is not an array");
        for (; json_more(j, ']', e->tensor.rank); e->tensor.rank++) {
                json_peek(j);
                size_t at = j->at;
                uint64_t dim;
                if (!json_whole(j, ST_BAD_SHAPE, &dim))
                        return false;
                if (e->tensor.rank == ST_RANK_MAX)
                        return json_fail(j, ST_BAD_SHAPE, at, "more than %u dimensions", ST_RANK_MAX);
                if (__builtin_mul_overflow(e->elements, dim, &e->elements))
                        return json_fail(j, ST_BAD_SHAPE, at, "the number of elements overflows");
        }
        return j->fault == ST_OK;
}

static bool parse_offsets(struct json *j, struct entry *e)
{
        json_peek(j);
        size_t n = 0, at = j->at;
        uint64_t value[2];
        if (!json_open(j, '['))
                return json_fail(j, ST_BAD_ENTRY, j->at, "the data_offsets are not an array");
        for (; json_more(j, ']', n); n++) {
                if (n == 2)
                        return json_fail(j, ST_BAD_OFFSETS, j->at, "more than two data_offsets");
                if (!json_whole(j, ST_BAD_OFFSETS, &value[n]))
                        return false;
        }
        if (j->fault != ST_OK)
                return false;
        if (n < 2)
                return json_fail(j, ST_BAD_OFFSETS, at, "fewer than two data_offsets");
        if (value[0] > value[1])
                return json_fail(j, ST_BAD_OFFSETS, at, "the data_offsets end before they begin");
        e->tensor.begin = value[0];
        e->tensor.end = value[1];
        e->offsets_at = at;
        return true;
}

/* ---- an entry ---- */

/* All fields are given, and the shape makes up the bytes that the offsets span. */
static bool check_fields(struct json *j, size_t at, const struct entry *e)
{
        uint64_t bits, span = e->tensor.end - e->tensor.begin;
        const char *missing = e->tensor.dtype == 0   ? "dtype"
                              : e->tensor.shape == 0 ? "shape"
                              : e->offsets_at == 0   ? "data_offsets"
                                                     : NULL;
        if (missing != NULL)
                return json_fail(j, ST_BAD_ENTRY, at, "%s is missing", missing);
        if (__builtin_mul_overflow(e->elements, dtype_bits(e->tensor.dtype), &bits))
                return json_fail(j, ST_BAD_SHAPE, e->tensor.shape, "the number of bits overflows");
        if (bits % 8 != 0)
                return json_fail(j, ST_NOT_WHOLE_BYTES, e->tensor.shape, "%" PRIu64 " bits are no whole bytes", bits);
        if (bits / 8 != span)
                return json_fail(j, ST_SIZE_MISMATCH, e->offsets_at,
                                 "the data_offsets span %" PRIu64 " bytes, dtype and shape make %" PRIu64, span,
                                 bits / 8);
        return true;
}

static bool parse_entry(struct parser *p, struct json_string name)
{
        struct json *j = &p->json;
        struct entry e = {.tensor = {.name = name.at, .name_len = name.len}};
        if (memchr(j->text + name.at, 0, name.len) != NULL)
                return json_fail(j, ST_NUL_IN_NAME, name.at - 1, "a tensor's name holds a NUL");
        if (!json_open(j, '{'))
                return json_fail(j, ST_BAD_ENTRY, j->at, "the entry is not an object");
        size_t keys = j->n_keys;
        struct json_string key;
        for (size_t n = 0; json_member(j, &n, &key) && json_keys_add(j, keys, key);)
                if (!(JSON_IS(j, key, "dtype")          ? parse_dtype(j, &e)
                      : JSON_IS(j, key, "shape")        ? parse_shape(j, &e)
                      : JSON_IS(j, key, "data_offsets") ? parse_offsets(j, &e)
                                                        : json_skip(j)))
                        break;
        if (!json_keys_end(j, keys) || !check_fields(j, j->at - 1, &e))
                return false;
        struct st_header *h = p->header;
        return json_append(j, &h->tensors, &h->n_tensors, &e.tensor, sizeof(e.tensor), TENSORS_MAX, name.at - 1,
                           "tensors");
}

/* ---- __metadata__ ---- */

static bool parse_pair(struct parser *p, struct json_string key)
{
        struct json *j = &p->json;
        struct json_string value;
        if (memchr(j->text + key.at, 0, key.len) != NULL)
                return json_fail(j, ST_NUL_IN_NAME, key.at - 1, "a key of the metadata holds a NUL");
        if (json_peek(j) != '"')
                return json_fail(j, ST_BAD_METADATA, j->at, "a value of the metadata is not a string");
        if (!json_take_string(j, &value))
                return false;
        struct st_header *h = p->header;
        const struct st_pair pair = {key.at, key.len, value.at, value.len};
        return json_append(j, &h->metadata, &h->n_metadata, &pair, sizeof(pair), METADATA_MAX, key.at - 1,
                           "keys of metadata");
}

static bool parse_metadata(struct parser *p, struct json_string name)
{
        struct json *j = &p->json;
        if (p->saw_metadata)
                return json_fail(j, ST_DUPLICATE_KEY, name.at - 1, "the key '__metadata__' is given twice");
        p->saw_metadata = true;
        if (json_peek(j) == 'n') /* null: as if it were absent */
                return json_skip(j);
        if (!json_open(j, '{'))
                return json_fail(j, ST_BAD_METADATA, j->at, "the metadata is not an object");
        p->header->has_metadata = true;
        struct json_string key;
        for (size_t n = 0; json_member(j, &n, &key);)
                if (!parse_pair(p, key))
                        return false;
        return j->fault == ST_OK &&
               json_distinct(j, p->header->metadata, sizeof(struct st_pair), p->header->n_metadata);
}

static bool parse_object(struct parser *p)
{
        struct json *j = &p->json;
        if (!json_open(j, '{'))
                return json_fail(j, ST_NOT_JSON, j->at, "the header does not begin with '{'");
        struct json_string key;
        for (size_t n = 0; json_member(j, &n, &key);) {
                bool metadata = JSON_IS(j, key, "__metadata__");
                p->entry = key;
                p->in_entry = !metadata; /* and stays so where it fails */
                if (!(metadata ? parse_metadata(p, key) : parse_entry(p, key)))
                        return false;
                p->in_entry = false;
        }
        return json_end(j) && json_distinct(j, p->header->tensors, sizeof(struct st_tensor), p->header->n_tensors);
}

/* ---- the table ---- */

/* By range; equal ranges, which are empty, in the order of the file. */
static int compare_tensors(const void *a, const void *b)
{
        const struct st_tensor *x = a, *y = b;
        return ORDER(x->begin, y->begin) ?: ORDER(x->end, y->end) ?: ORDER(x->name, y->name);
}

static void sort_tensors(struct st_tensor *tensors, size_t n)
{
        for (size_t i = 1; i < n; i++)
                if (compare_tensors(&tensors[i - 1], &tensors[i]) > 0) {
                        qsort(tensors, n, sizeof(*tensors), compare_tensors);
                        return;
                }
}

static bool check_cover(struct parser *p, uint64_t data_bytes)
{
        const struct st_tensor *t = p->header->tensors;
        uint64_t end = 0;
        for (size_t i = 0; i < p->header->n_tensors; end = t[i++].end) {
                if (t[i].begin == end)
                        continue;
                p->entry = (struct json_string){t[i].name, t[i].name_len};
                p->in_entry = true;
                return json_fail(&p->json, ST_HOLE_OR_OVERLAP, t[i].name - 1,
                                 "its bytes begin at %" PRIu64 ", %s the tensor before it ends at %" PRIu64, t[i].begin,
                                 t[i].begin < end ? "but" : "a hole:", end);
        }
        if (end == data_bytes)
                return true;
        return json_fail(&p->json, ST_FILE_SIZE, p->json.size,
                         "the tensors take %" PRIu64 " bytes, the file has %" PRIu64 " after its header", end,
                         data_bytes);
}

/* ---- the whole header ---- */

int st_parse_prefix(const unsigned char prefix[8], uint64_t file_size, uint64_t *n, struct st_error *error)
{
        if (file_size < ST_PREFIX)
                return rule_refuse(error, ST_FILE_TOO_SMALL, "the file has fewer than 8 bytes");
        uint64_t raw;
        memcpy(&raw, prefix, sizeof(raw));
        *n = le64toh(raw);
        if (*n > ST_HEADER_MAX)
                return rule_refuse(error, ST_HEADER_TOO_LARGE, "the header is longer than 100,000,000 bytes");
        if (*n > file_size - ST_PREFIX)
                return rule_refuse(error, ST_HEADER_BEYOND_FILE, "the header is longer than the file");
        return 0;
}

int st_parse(struct st_header *header, char *text, size_t n, uint64_t file_size, struct st_error *error)
{
        require(n <= ST_HEADER_MAX && file_size >= ST_PREFIX && n <= file_size - ST_PREFIX);
        struct parser p = {.header = header};
        *header = (struct st_header){.text = text, .data_start = ST_PREFIX + n};
        json_init(&p.json, text, n);
        bool ok = parse_object(&p);
        if (ok) {
                sort_tensors(header->tensors, header->n_tensors);
                ok = check_cover(&p, file_size - ST_PREFIX - n);
        }
        if (!ok) {
                rule_report(error, &p.json, ST_PREFIX, p.in_entry ? &p.entry : NULL);
                st_header_deinit(header);
        }
        json_deinit(&p.json);
        return ok ? 0 : -1;
}

void st_header_deinit(struct st_header *header)
{
        free(header->tensors);
        free(header->metadata);
        *header = (struct st_header){0};
}

/* The text was checked when it was parsed: numbers, commas and white space. */
void st_shape(const struct st_header *header, const struct st_tensor *tensor, uint64_t *dims)
{
        const char *s = header->text + tensor->shape;
        for (unsigned i = 0; i < tensor->rank; i++) {
                while (*s < '0' || *s > '9')
                        s++;
                for (dims[i] = 0; *s >= '0' && *s <= '9'; s++)
                        dims[i] = 10 * dims[i] + (uint64_t)(*s - '0');
        }
}
