/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/published/table.h"

#include "proto/manifest.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(struct published_header) == 120, "the header is part of the format");
_Static_assert(sizeof(struct published_storage) == 24, "storages are part of the format");
_Static_assert(sizeof(struct published_tensor) == 72, "tensors are part of the format");
_Static_assert(sizeof(struct published_attribute) == 24, "attributes are part of the format");

struct check {
        const struct published_view *view;
        const struct published_place *place;
        uint64_t *texts_len; /* so far */
        char *text;
        size_t text_size;
};

__attribute__((format(printf, 2, 3))) static int refuse(const struct check *check, const char *format, ...)
{
        va_list args;
        va_start(args, format);
        vsnprintf(check->text, check->text_size, format, args);
        va_end(args);
        return -1;
}

/* ---- sections ---- */

static int check_header(const struct check *check, const struct published_header *h, size_t size)
{
        if (memcmp(h->magic, PUBLISHED_MAGIC, sizeof(h->magic)) != 0)
                return refuse(check, "wrong magic");
        if (h->version != PUBLISHED_VERSION)
                return refuse(check, "version %u is unknown", h->version);
        if (!manifest_is_size(h->header_size, sizeof(*h)) ||
            !manifest_is_size(h->storage_size, sizeof(struct published_storage)) ||
            !manifest_is_size(h->tensor_size, sizeof(struct published_tensor)) ||
            !manifest_is_size(h->attribute_size, sizeof(struct published_attribute)))
                return refuse(check, "the size of the header or of an item is out of bounds");
        if (h->size < h->header_size || h->size != size || h->size > PUBLISHED_MAX_SIZE)
                return refuse(check, "its size is out of bounds");
        uint64_t end = h->header_size;
        if (!manifest_section(h->storages_off, h->n_storages, h->storage_size, h->size, &end) ||
            !manifest_section(h->tensors_off, h->n_tensors, h->tensor_size, h->size, &end) ||
            !manifest_section(h->attributes_off, h->n_attributes, h->attribute_size, h->size, &end) ||
            !manifest_section(h->numbers_off, h->n_numbers, sizeof(uint64_t), h->size, &end) ||
            !manifest_section(h->strings_off, h->strings_len, 1, h->size, &end))
                return refuse(check, "a section is out of bounds");
        if (h->n_storages > PUBLISHED_MAX_STORAGES)
                return refuse(check, "more than %u storages", PUBLISHED_MAX_STORAGES);
        return 0;
}

/* 0, or refuses the text of item i. */
static int check_text(const struct check *check, const char *item, uint64_t i, uint64_t off, uint64_t len)
{
        const struct published_view *view = check->view;
        if (len > PUBLISHED_MAX_TEXT)
                return refuse(check, "%s %" PRIu64 ": a text has more than %u bytes", item, i, PUBLISHED_MAX_TEXT);
        *check->texts_len += len;
        if (*check->texts_len > PUBLISHED_MAX_TEXTS)
                return refuse(check, "its texts have more than %" PRIu64 " bytes", (uint64_t)PUBLISHED_MAX_TEXTS);
        if (manifest_text(view->strings, view->header->strings_len, off, len) == NULL)
                return refuse(check, "%s %" PRIu64 ": a text is out of bounds", item, i);
        return 0;
}

static bool is_stopped(const struct check *check)
{
        return check->place->stop != NULL && __atomic_load_n(check->place->stop, __ATOMIC_RELAXED);
}

/* ---- extents ---- */

bool published_extent(uint32_t rank, const uint64_t *shape, const uint64_t *strides, uint32_t item, uint64_t *bytes)
{
        uint64_t last = 0;
        *bytes = 0;
        for (uint32_t i = 0; i < rank; i++)
                if (shape[i] == 0)
                        return true;
        for (uint32_t i = 0; i < rank; i++) {
                uint64_t steps;
                if (__builtin_mul_overflow(shape[i] - 1, strides[i], &steps) ||
                    __builtin_add_overflow(last, steps, &last))
                        return false;
        }
        return !__builtin_add_overflow(last, 1, &last) && !__builtin_mul_overflow(last, item, bytes);
}

/* A range that an item takes in a space: a segment, or a storage. */
struct range {
        uint64_t space, from, to;
        uint64_t item; /* its number */
        uint32_t alias;
};

static int by_place(const void *a, const void *b)
{
        const struct range *x = a, *y = b;
        if (x->space != y->space)
                return x->space < y->space ? -1 : 1;
        if (x->from != y->from)
                return x->from < y->from ? -1 : 1;
        return (x->item > y->item) - (x->item < y->item);
}

/* The first range that overlaps one before it, in order of place, without the same alias number (0 is no number). Sets
 * *before to the one that it overlaps. */
static const struct range *find_overlap(struct range *ranges, size_t n, const struct range **before)
{
        if (n > 0)
                qsort(ranges, n, sizeof(*ranges), by_place);
        for (size_t i = 0, cluster = 0; i < n; i++) {
                const struct range *first = &ranges[cluster];
                /* first->to: the end of all that overlap so far. */
                if (i == cluster || ranges[i].space != first->space || ranges[i].from >= first->to) {
                        cluster = i;
                        continue;
                }
                *before = first;
                if (ranges[i].alias == 0 || ranges[i].alias != first->alias)
                        return &ranges[i];
                if (ranges[i].to > first->to)
                        ranges[cluster].to = ranges[i].to;
        }
        return NULL;
}

/* ---- storages ---- */

static bool is_placed(const struct published_place *place, const struct published_storage *storage)
{
        if (storage->segment >= place->n_segments || storage->offset % PUBLISHED_ALIGN != 0)
                return false;
        uint64_t size = place->segment_sizes[storage->segment];
        return storage->offset <= size && storage->bytes <= size - storage->offset;
}

static int check_storages(const struct check *check)
{
        const struct published_view *view = check->view;
        uint64_t n = view->header->n_storages;
        size_t used = 0;
        struct range *ranges = malloc((n + 1) * sizeof(*ranges));
        const struct range *overlap = NULL, *before = NULL;
        if (ranges == NULL)
                return -2;
        for (uint64_t i = 0; i <= n; i++) {
                const struct published_storage *s = i < n ? published_storage(view, i) : &check->place->table;
                if (!is_placed(check->place, s)) {
                        free(ranges);
                        return i < n ? refuse(check, "storage %" PRIu64 " is not aligned, or outside its segment", i)
                                     : refuse(check, "it is not aligned, or outside its segment");
                }
                if (s->bytes > 0)
                        ranges[used++] = (struct range){
                                .space = s->segment, .from = s->offset, .to = s->offset + s->bytes, .item = i};
        }
        overlap = find_overlap(ranges, used, &before);
        int r = overlap == NULL
                        ? 0
                        : refuse(check, "storages %" PRIu64 " and %" PRIu64 " overlap (%" PRIu64 " is the table)",
                                 before->item, overlap->item, n);
        free(ranges);
        return r;
}

/* ---- tensors ---- */

static int check_tensor(const struct check *check, uint64_t i, uint64_t *extent)
{
        const struct published_view *view = check->view;
        const struct published_tensor *t = published_tensor(view, i);
        uint64_t numbers = view->header->n_numbers;
        if (check_text(check, "tensor", i, t->name_off, t->name_len) < 0 ||
            check_text(check, "tensor", i, t->dtype_off, t->dtype_len) < 0)
                return -1;
        if (t->name_len == 0)
                return refuse(check, "tensor %" PRIu64 " has no name", i);
        const char *name = view->strings + t->name_off;
        if (t->rank > PUBLISHED_MAX_RANK || t->numbers_off > numbers ||
            UINT64_C(2) * t->rank > numbers - t->numbers_off)
                return refuse(check, "tensor '%.200s': its shape is out of bounds", name);
        if (t->item == 0 || t->item > PUBLISHED_MAX_ITEM)
                return refuse(check, "tensor '%.200s': elements of %u bytes", name, t->item);
        if (t->storage >= view->header->n_storages)
                return refuse(check, "tensor '%.200s': there is no storage %" PRIu64, name, t->storage);
        const uint64_t *shape = view->numbers + t->numbers_off;
        uint64_t bytes = published_storage(view, t->storage)->bytes;
        if (!published_extent(t->rank, shape, shape + t->rank, t->item, extent) || t->offset > bytes ||
            *extent > bytes - t->offset)
                return refuse(check, "tensor '%.200s' does not lie in its storage", name);
        if (t->offset % t->item != 0)
                return refuse(check, "tensor '%.200s' is not aligned to its elements", name);
        return 0;
}

static int by_name(const void *a, const void *b)
{
        return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sorts them. */
static const char *find_duplicate(const char **names, size_t n)
{
        if (n > 0)
                qsort(names, n, sizeof(*names), by_name);
        for (size_t i = 1; i < n; i++)
                if (strcmp(names[i - 1], names[i]) == 0)
                        return names[i];
        return NULL;
}

static int check_overlaps(const struct check *check, struct range *ranges, size_t n)
{
        const struct range *before = NULL, *overlap = find_overlap(ranges, n, &before);
        const struct published_view *view = check->view;
        if (overlap == NULL)
                return 0;
        return refuse(check, "tensors '%.200s' and '%.200s' overlap and are not declared as aliases",
                      view->strings + published_tensor(view, before->item)->name_off,
                      view->strings + published_tensor(view, overlap->item)->name_off);
}

static int check_tensors(const struct check *check)
{
        const struct published_view *view = check->view;
        uint64_t n = view->header->n_tensors;
        struct range *ranges = malloc((n + 1) * sizeof(*ranges));
        const char **names = malloc((n + 1) * sizeof(*names));
        size_t used = 0;
        int r = ranges != NULL && names != NULL ? 0 : -2;
        for (uint64_t i = 0; r == 0 && i < n; i++) {
                const struct published_tensor *t = published_tensor(view, i);
                uint64_t extent = 0;
                r = is_stopped(check) ? refuse(check, "given up") : check_tensor(check, i, &extent);
                if (r < 0)
                        break;
                names[i] = view->strings + t->name_off;
                if (extent > 0)
                        ranges[used++] = (struct range){.space = t->storage,
                                                        .from = t->offset,
                                                        .to = t->offset + extent,
                                                        .item = i,
                                                        .alias = t->alias};
        }
        if (r == 0)
                r = check_overlaps(check, ranges, used);
        const char *duplicate = r == 0 ? find_duplicate(names, n) : NULL;
        if (duplicate != NULL)
                r = refuse(check, "two tensors are named '%.200s'", duplicate);
        free(ranges);
        free(names);
        return r;
}

static int check_attributes(const struct check *check)
{
        const struct published_view *view = check->view;
        uint64_t n = view->header->n_attributes;
        const char **names = malloc((n + 1) * sizeof(*names));
        int r = names != NULL ? 0 : -2;
        for (uint64_t i = 0; r == 0 && i < n; i++) {
                const struct published_attribute *a = published_attribute(view, i);
                if (is_stopped(check))
                        r = refuse(check, "given up");
                else if (check_text(check, "attribute", i, a->name_off, a->name_len) < 0 ||
                         check_text(check, "attribute", i, a->value_off, a->value_len) < 0)
                        r = -1;
                else if (a->name_len == 0)
                        r = refuse(check, "attribute %" PRIu64 " has no name", i);
                names[i] = view->strings + a->name_off;
        }
        const char *duplicate = r == 0 ? find_duplicate(names, n) : NULL;
        if (duplicate != NULL)
                r = refuse(check, "two attributes are named '%.200s'", duplicate);
        free(names);
        return r;
}

int published_open(struct published_view *view, const void *base, size_t size, const struct published_place *place,
                   char *text, size_t text_size)
{
        const struct published_header *h = base;
        uint64_t texts_len = 0;
        const struct check check = {view, place, &texts_len, text, text_size};
        if (size < sizeof(*h) || (uintptr_t)base % 8 != 0)
                return refuse(&check, "it is too small");
        if (check_header(&check, h, size) < 0)
                return -1;
        const unsigned char *p = base;
        *view = (struct published_view){
                .header = h,
                .storages = p + h->storages_off,
                .tensors = p + h->tensors_off,
                .attributes = p + h->attributes_off,
                .numbers = (const void *)(p + h->numbers_off),
                .strings = (const char *)(p + h->strings_off),
        };
        int r = check_storages(&check);
        if (r == 0)
                r = check_tensors(&check);
        return r == 0 ? check_attributes(&check) : r;
}

/* ---- writing ---- */

void published_writer_deinit(struct published_writer *w)
{
        free(w->storages.data);
        free(w->tensors.data);
        free(w->attributes.data);
        free(w->numbers.data);
        free(w->strings.data);
        *w = (struct published_writer){.failed = false};
}

/* Where the bytes are in the section. */
static size_t append(struct published_writer *w, struct published_section *section, const void *data, size_t size)
{
        size_t at = section->used;
        if (size > section->capacity - section->used) {
                size_t capacity = 2 * section->capacity + size + 256;
                unsigned char *grown = capacity > section->capacity ? realloc(section->data, capacity) : NULL;
                if (grown == NULL) {
                        w->failed = true;
                        return 0;
                }
                section->data = grown;
                section->capacity = capacity;
        }
        if (size > 0)
                memcpy(section->data + at, data, size);
        section->used += size;
        return at;
}

static uint64_t append_text(struct published_writer *w, const char *text, uint32_t *len)
{
        size_t n = strlen(text);
        *len = (uint32_t)n;
        w->failed = w->failed || n > PUBLISHED_MAX_SIZE;
        return w->failed ? 0 : append(w, &w->strings, text, n + 1);
}

void published_add_storage(struct published_writer *w, const struct published_storage *storage)
{
        append(w, &w->storages, storage, sizeof(*storage));
}

void published_add_tensor(struct published_writer *w, const struct published_tensor *tensor,
                          const struct published_text *text, const uint64_t *shape, const uint64_t *strides)
{
        struct published_tensor t = *tensor;
        t.name_off = append_text(w, text->name, &t.name_len);
        t.dtype_off = append_text(w, text->dtype, &t.dtype_len);
        t.numbers_off = append(w, &w->numbers, shape, t.rank * sizeof(*shape)) / sizeof(uint64_t);
        append(w, &w->numbers, strides, t.rank * sizeof(*strides));
        append(w, &w->tensors, &t, sizeof(t));
}

void published_add_attribute(struct published_writer *w, const char *name, const char *value)
{
        struct published_attribute a;
        a.name_off = append_text(w, name, &a.name_len);
        a.value_off = append_text(w, value, &a.value_len);
        append(w, &w->attributes, &a, sizeof(a));
}

uint64_t published_size(const struct published_writer *w)
{
        return sizeof(struct published_header) + w->storages.used + w->tensors.used + w->attributes.used +
               w->numbers.used + w->strings.used;
}

/* Copies a section behind the others. */
static uint64_t put(unsigned char *to, uint64_t *end, const struct published_section *section)
{
        uint64_t at = *end;
        if (section->used > 0)
                memcpy(to + at, section->data, section->used);
        *end += section->used;
        return at;
}

void published_finish(const struct published_writer *w, void *to)
{
        struct published_header h = {.version = PUBLISHED_VERSION,
                                     .header_size = sizeof(h),
                                     .size = published_size(w),
                                     .n_storages = w->storages.used / sizeof(struct published_storage),
                                     .n_tensors = w->tensors.used / sizeof(struct published_tensor),
                                     .n_attributes = w->attributes.used / sizeof(struct published_attribute),
                                     .n_numbers = w->numbers.used / sizeof(uint64_t),
                                     .strings_len = w->strings.used,
                                     .storage_size = sizeof(struct published_storage),
                                     .tensor_size = sizeof(struct published_tensor),
                                     .attribute_size = sizeof(struct published_attribute)};
        uint64_t end = sizeof(h);
        memcpy(h.magic, PUBLISHED_MAGIC, sizeof(h.magic));
        h.storages_off = put(to, &end, &w->storages);
        h.tensors_off = put(to, &end, &w->tensors);
        h.attributes_off = put(to, &end, &w->attributes);
        h.numbers_off = put(to, &end, &w->numbers);
        h.strings_off = put(to, &end, &w->strings);
        memcpy(to, &h, sizeof(h));
}
