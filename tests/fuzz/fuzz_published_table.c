/* SPDX-License-Identifier: Apache-2.0
 *
 * A hostile table of a published model: in one that opens every storage lies in its segment and every tensor in its
 * storage, and nothing overlaps that is not declared.
 */
#include "proto/published/table.h"
#include "tests/fuzz/fuzz.h"

#define PAIRS_MAX 40

static const uint64_t segments[] = {8192, 256, 1 << 20};
#define TABLE_SEGMENT 2

static bool ranges_meet(uint64_t a, uint64_t a_len, uint64_t b, uint64_t b_len)
{
        return a_len > 0 && b_len > 0 && a < b + b_len && b < a + a_len;
}

static void check_storages(const struct published_view *view, size_t size)
{
        for (uint64_t i = 0; i < view->header->n_storages; i++) {
                const struct published_storage *s = published_storage(view, i);
                holds(s->segment < 3 && s->offset % PUBLISHED_ALIGN == 0);
                holds(s->offset <= segments[s->segment] && s->bytes <= segments[s->segment] - s->offset);
                holds(s->segment != TABLE_SEGMENT || !ranges_meet(s->offset, s->bytes, 0, size));
                for (uint64_t k = 0; k < i && k < PAIRS_MAX; k++) {
                        const struct published_storage *other = published_storage(view, k);
                        holds(other->segment != s->segment ||
                              !ranges_meet(s->offset, s->bytes, other->offset, other->bytes));
                }
        }
}

/* The offset of its last element, by walking each dimension to its end. */
static uint64_t extent_of(const struct published_view *view, const struct published_tensor *t)
{
        const uint64_t *shape = view->numbers + t->numbers_off, *strides = shape + t->rank;
        uint64_t last = 0;
        for (uint32_t k = 0; k < t->rank; k++) {
                if (shape[k] == 0)
                        return 0;
                last += (shape[k] - 1) * strides[k];
        }
        return (last + 1) * t->item;
}

static void check_tensors(const struct published_view *view)
{
        for (uint64_t i = 0; i < view->header->n_tensors; i++) {
                const struct published_tensor *t = published_tensor(view, i);
                const char *name = view->strings + t->name_off;
                uint64_t extent = extent_of(view, t);
                holds(strlen(name) == t->name_len && strlen(view->strings + t->dtype_off) == t->dtype_len);
                holds(t->item >= 1 && t->item <= PUBLISHED_MAX_ITEM && t->offset % t->item == 0);
                holds(t->storage < view->header->n_storages);
                uint64_t bytes = published_storage(view, t->storage)->bytes;
                holds(t->offset <= bytes && extent <= bytes - t->offset);
                for (uint64_t k = 0; k < i && k < PAIRS_MAX; k++) {
                        const struct published_tensor *other = published_tensor(view, k);
                        holds(strcmp(name, view->strings + other->name_off) != 0);
                        if (other->storage == t->storage &&
                            ranges_meet(t->offset, extent, other->offset, extent_of(view, other)))
                                holds(t->alias != 0 && t->alias == other->alias);
                }
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct published_view view;
        char text[200] = "";
        const struct published_place place = {segments, 3, {.bytes = size, .segment = TABLE_SEGMENT}, NULL};
        void *copy = fuzz_copy(data, size, 0); /* aligned as a mapping is */
        int r = published_open(&view, copy, size, &place, text, sizeof(text));
        holds(r == 0 || (r == -1 && text[0] != '\0'));
        if (r == 0) {
                check_storages(&view, size);
                check_tensors(&view);
                for (uint64_t i = 0; i < view.header->n_attributes; i++) {
                        const struct published_attribute *a = published_attribute(&view, i);
                        holds(strlen(view.strings + a->name_off) == a->name_len);
                        holds(strlen(view.strings + a->value_off) == a->value_len);
                }
        }
        free(copy);
        return 0;
}
