/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of verbs and fields as data, for everything that walks it: decoder, encoder, the
 * library's JSON door.
 */
#include "proto/messages.h"

#include <string.h>

/* Every list has an empty row at its end, since a verb may have no field and C has no empty array. */
#define F(verb, type, name, required, limit) {#name, FIELD_##type, required, limit, offsetof(struct req_##verb, name)},
#define V(verb) static const struct field_desc fields_##verb[] = {FIELDS_##verb(F){NULL, FIELD_STR, false, 0, 0}};
VERBS(V)
#undef V
#undef F

static const struct verb_desc verbs[] = {
#define V(verb) {#verb, VERB_##verb, fields_##verb, sizeof(fields_##verb) / sizeof(fields_##verb[0]) - 1},
        VERBS(V)
#undef V
};

const struct verb_desc *verb_desc(enum verb verb)
{
        return (unsigned)verb < VERB_COUNT ? &verbs[verb] : NULL;
}

const struct verb_desc *verb_find(const char *name, size_t len)
{
        for (size_t i = 0; i < VERB_COUNT; i++)
                if (strlen(verbs[i].name) == len && memcmp(verbs[i].name, name, len) == 0)
                        return &verbs[i];
        return NULL;
}
