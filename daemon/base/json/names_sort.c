/* SPDX-License-Identifier: Apache-2.0
 *
 * Order. Items are sorted by 64-bit keys in a merge sort that leaves ordered stretches alone: the
 * tables of real files are lists in order, or a few of them one behind the other. Names are sorted
 * eight bytes at a time as big-endian keys, each group of equals by the next eight, so that the
 * names themselves are touched once a level and not once a comparison.
 */
#include "daemon/base/json/names.h"

#include <endian.h>
#include <string.h>

#define SHORT 12 /* inserting beats merging up to here */

/* ---- items by key ---- */

/* Merges items[0, middle) and items[middle, n); the left half goes through scratch. */
static void merge(struct sort_item *items, struct sort_item *scratch, size_t middle, size_t n)
{
        if (items[middle - 1].key <= items[middle].key)
                return;
        memcpy(scratch, items, middle * sizeof(*items));
        size_t left = 0, right = middle, to = 0;
        while (left < middle && right < n) {
                bool take_right = items[right].key < scratch[left].key;
                items[to++] = take_right ? items[right] : scratch[left];
                right += take_right;
                left += !take_right;
        }
        memcpy(items + to, scratch + left, (middle - left) * sizeof(*items));
}

static void sort(struct sort_item *items, struct sort_item *scratch, size_t n)
{
        if (n <= SHORT) {
                for (size_t i = 1; i < n; i++) {
                        struct sort_item item = items[i];
                        size_t k = i;
                        for (; k > 0 && items[k - 1].key > item.key; k--)
                                items[k] = items[k - 1];
                        items[k] = item;
                }
                return;
        }
        sort(items, scratch, n / 2);
        sort(items + n / 2, scratch, n - n / 2);
        merge(items, scratch, n / 2, n);
}

void items_sort(struct sort_item *items, struct sort_item *scratch, size_t n)
{
        for (size_t i = 1; i < n; i++)
                if (items[i].key < items[i - 1].key) {
                        sort(items, scratch, n);
                        return;
                }
}

/* ---- names ---- */

struct sorter {
        name_at at;
        const void *owner;
        struct sort_item *scratch;
};

static int compare_tails(struct name a, struct name b, size_t from)
{
        size_t a_len = a.len > from ? a.len - from : 0, b_len = b.len > from ? b.len - from : 0;
        int c = a_len > 0 && b_len > 0 ? memcmp(a.s + from, b.s + from, a_len < b_len ? a_len : b_len) : 0;
        return c != 0 ? c : a_len < b_len ? -1 : a_len > b_len;
}

static void insert_names(const struct sorter *s, struct sort_item *items, size_t n, size_t from)
{
        for (size_t i = 1; i < n; i++) {
                struct sort_item item = items[i];
                struct name name = s->at(s->owner, item.index);
                size_t k = i;
                for (; k > 0 && compare_tails(s->at(s->owner, items[k - 1].index), name, from) > 0; k--)
                        items[k] = items[k - 1];
                items[k] = item;
        }
}

/* The key is eight bytes as a number that sorts as they do. Names hold no NUL, so zeros behind the end put a name
 * before its extensions. False: all are equal. */
static bool take_keys(const struct sorter *s, struct sort_item *items, size_t n, size_t from)
{
        uint64_t longest = 0;
        for (size_t i = 0; i < n; i++) {
                struct name name = s->at(s->owner, items[i].index);
                uint64_t bytes = 0;
                if (name.len > from)
                        memcpy(&bytes, name.s + from, name.len - from < 8 ? name.len - from : 8);
                items[i].key = be64toh(bytes);
                longest = name.len > longest ? name.len : longest;
        }
        return longest > from;
}

/* Of the groups of equal keys the largest is left to the loop: each call within is for half of its
 * caller's names at most, which bounds the stack however the names are made. */
static void sort_names(const struct sorter *s, struct sort_item *items, size_t n, size_t from)
{
        while (n > SHORT) {
                if (!take_keys(s, items, n, from))
                        return;
                items_sort(items, s->scratch, n);
                from += 8;
                size_t largest = 0, largest_n = 0;
                for (size_t i = 0, end; i < n; i = end) {
                        for (end = i + 1; end < n && items[end].key == items[i].key;)
                                end++;
                        size_t rest = i, rest_n = end - i;
                        if (rest_n > largest_n) {
                                rest = largest, rest_n = largest_n;
                                largest = i, largest_n = end - i;
                        }
                        if (rest_n > 1)
                                sort_names(s, items + rest, rest_n, from);
                }
                items += largest;
                n = largest_n;
        }
        insert_names(s, items, n, from);
}

bool names_sort(uint32_t *order, size_t n, name_at at, const void *owner)
{
        bool ordered = true;
        for (uint32_t i = 0; i < n; i++) {
                order[i] = i;
                ordered = ordered && (i == 0 || compare_tails(at(owner, i - 1), at(owner, i), 0) <= 0);
        }
        if (ordered)
                return true;

        struct pages memory = {0};
        if (!pages_reserve(&memory, 2 * n * sizeof(struct sort_item)))
                return false;
        struct sort_item *items = memory.p;
        struct sorter s = {at, owner, items + n};
        for (uint32_t i = 0; i < n; i++)
                items[i].index = i;
        sort_names(&s, items, n, 0);
        for (size_t i = 0; i < n; i++)
                order[i] = items[i].index;
        pages_deinit(&memory);
        return true;
}
