/* SPDX-License-Identifier: Apache-2.0
 *
 * The time that each stage of a load takes. The times of all threads are summed, so that they may be longer
 * than the load.
 */
#ifndef DAEMON_BASE_METRIC_STAGES_H
#define DAEMON_BASE_METRIC_STAGES_H

#include <stdint.h>

/*        name     what took the time */
#define STAGES(X)                                                                                                      \
        X(begin)   /* from the request until the first block may be read: opening, planning, memory */                 \
        X(storage) /* threads: direct reads, and blocks of the network from request to last byte */                    \
        X(read)    /* threads: reads from the page cache */                                                            \
        X(memory)  /* threads: finding pages of host memory */                                                         \
        X(hash)    /* threads: hashing blocks of files */                                                              \
        X(copy)    /* threads: waiting for copies to devices */                                                        \
        X(slot)    /* a block was due and no slot of the ring was free */                                              \
        X(end)     /* from the last block until the model serves: digests, the source's version */

enum stage {
#define X(name) STAGE_##name,
        STAGES(X)
#undef X
                STAGE_COUNT
};

struct stages {
        uint64_t ns[STAGE_COUNT]; /* atomic while the load reads */
};

static inline const char *stage_name(enum stage of)
{
        static const char *const names[] = {
#define X(name) #name,
                STAGES(X)
#undef X
        };
        return names[of];
}

static inline void stages_add(struct stages *stages, enum stage of, uint64_t ns)
{
        __atomic_add_fetch(&stages->ns[of], ns, __ATOMIC_RELAXED);
}

static inline uint64_t stages_get(const struct stages *stages, enum stage of)
{
        return __atomic_load_n(&stages->ns[of], __ATOMIC_RELAXED);
}

#endif
