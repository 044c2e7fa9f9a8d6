/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/chore.h"

#include "daemon/base/util.h"

/* It has so long of one turn of the loop, and goes on in the next. */
#define CHORE_NS (5 * UINT64_C(1000000))

static void on_turn(uv_idle_t *idle)
{
        struct chore *chore = container_of(idle, struct chore, idle);
        uint64_t until = now_ns() + CHORE_NS;
        while (chore->step(chore))
                if (now_ns() >= until)
                        return;
        uv_idle_stop(idle);
}

void chore_init(struct chore *chore, uv_loop_t *loop, bool (*step)(struct chore *chore))
{
        chore->step = step;
        uv_idle_init(loop, &chore->idle);
}

void chore_begin(struct chore *chore)
{
        uv_idle_start(&chore->idle, on_turn);
}
