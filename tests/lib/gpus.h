/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon on GPUs that are stand-ins (tests/lib/fake): `stage` is the daemon, its root the program's folder.
 */
#ifndef TESTS_LIB_GPUS_H
#define TESTS_LIB_GPUS_H

#include "tests/lib/fake/state.h"
#include "tests/lib/stage.h"

struct gpus {
        unsigned n, mib;        /* how many, of which memory; 0: one, 1 GiB */
        const char *runtime;    /* "libcudart.so.12"; NULL: 13 */
        const char *cuda;       /* further settings of cuda, "segment_size: 8MiB"; NULL: none */
        const char *more;       /* lines of other settings, each with its end; NULL: none */
        const char *devices[5]; /* entries of the list: "'cuda:0', budget: 64MiB"; ends with NULL */
};

/* Settings for it, as FOLDER/NAME.yaml, and what the stand-ins read of the environment. Returns the state that all
 * processes share. What else the stand-ins are to do stands in the environment before. */
struct fake_state *gpus_prepare(const struct gpus *gpus, const char *folder, const char *name, char config[PATH_SIZE]);

/* Starts it as well. */
struct fake_state *gpus_start(const struct gpus *gpus);

#endif
