/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/unload/evict.h"

#include "daemon/base/util.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
        const struct evict_candidate *x = a, *y = b;
        int r = ORDER(x->priority, y->priority);
        return r != 0 ? r : ORDER(x->last_used, y->last_used);
}

bool evict_choose(struct evict_candidate *candidates, size_t n, uint64_t needed)
{
        uint64_t left = 0;
        for (size_t i = 0; i < n; i++)
                left += candidates[i].bytes;
        bool enough = left >= needed;
        qsort(candidates, n, sizeof(*candidates), by_value);
        for (size_t i = n; i-- > 0;) {
                struct evict_candidate *c = &candidates[i];
                c->chosen = enough && left - c->bytes < needed;
                if (!c->chosen)
                        left -= c->bytes;
        }
        return enough;
}
