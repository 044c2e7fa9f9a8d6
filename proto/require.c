/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/require.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

void (*invariant_broken_hook)(void);

void broken_invariant(const char *file, int line, const char *what)
{
        if (invariant_broken_hook != NULL)
                invariant_broken_hook();
        fprintf(stderr, "streamerd: %s:%d: broken invariant: %s\n", file, line, what);
        abort();
}
