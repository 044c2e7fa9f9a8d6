/* SPDX-License-Identifier: Apache-2.0
 *
 * Sets of names: finds duplicates, finds one name, sorts all in byte order. The caller owns the
 * names, and its function returns name i. They are untrusted, so no choice of them may make this slow.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct name {
        const char *s;
        size_t len;
};
#define NAME_QUOTE 140 /* bytes for the start of a name in messages: error_escape_n() */

typedef struct name (*name_at)(const void *owner, uint32_t i);

/* A text and an array whose items begin with a name's offset in it and its length. */
struct names_in_text {
        const char *text;
        const void *items;
        size_t stride;
};
struct name names_in_text_at(const void *owner, uint32_t i); /* a name_at */

/* ---- a set ---- */

#define NAMES_NONE UINT32_MAX

struct nameset {
        struct nameset_slot *slots;
        size_t mask;  /* the number of slots, less one */
        uint64_t key; /* of the hash */
};

/* Empties the set and reserves space for n names. False: no memory. */
bool nameset_begin(struct nameset *set, size_t n);
void nameset_deinit(struct nameset *set);

/* Adds name i. NAMES_NONE, or the number of the equal name that is in the set already. */
uint32_t nameset_add(struct nameset *set, name_at at, const void *owner, uint32_t i);
uint32_t nameset_find(const struct nameset *set, name_at at, const void *owner, struct name name);

/* ---- order ---- */

/* Fills `order` with 0..n-1 in byte order of the names, a name before its extensions. Equal names
 * are adjacent. */
void names_sort(uint32_t *order, size_t n, name_at at, const void *owner);
