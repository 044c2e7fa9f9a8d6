/* SPDX-License-Identifier: Apache-2.0
 *
 * Why none is forgotten: the one who posts pushes, and then tries the lock; the one who lets it go unlocks,
 * and then looks at the stack. In whatever order these four come, one of the two sees what the other did. That
 * takes one order of all four for everybody, hence the strongest order here.
 */
#include "daemon/base/errand.h"

#include <stddef.h>

bool errand_post(struct errands *errands, struct errand *errand)
{
        struct errand *before = __atomic_load_n(&errands->newest, __ATOMIC_RELAXED);
        do
                errand->next = before;
        while (!__atomic_compare_exchange_n(&errands->newest, &before, errand, true, __ATOMIC_SEQ_CST,
                                            __ATOMIC_RELAXED));
        return before == NULL;
}

static struct errand *oldest_first(struct errand *newest)
{
        struct errand *oldest = NULL;
        while (newest != NULL) {
                struct errand *older = newest->next;
                newest->next = oldest;
                oldest = newest;
                newest = older;
        }
        return oldest;
}

void errands_run(struct errands *errands)
{
        if (!errands_left(errands))
                return;
        struct errand *errand = oldest_first(__atomic_exchange_n(&errands->newest, NULL, __ATOMIC_SEQ_CST));
        while (errand != NULL) {
                struct errand *next = errand->next;
                errand->run(errand);
                errand = next;
        }
}

bool errands_left(const struct errands *errands)
{
        return __atomic_load_n(&errands->newest, __ATOMIC_SEQ_CST) != NULL;
}
