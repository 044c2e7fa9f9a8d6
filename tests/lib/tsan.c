/* SPDX-License-Identifier: Apache-2.0
 *
 * libuv closes descriptors by syscall(), which TSan does not see. When the number is used again by a call that it does
 * not see either (opendir), it takes the two files for one and reports a race. Here it sees the close.
 */
#include "tests/lib/base.h"

#ifdef __SANITIZE_THREAD__
#include <dlfcn.h>
#include <sys/syscall.h>

long syscall(long number, ...)
{
        long (*next)(long, ...) = NULL;
        long a[6];
        va_list list;

        va_start(list, number);
        for (size_t i = 0; i < sizeof(a) / sizeof(a[0]); i++)
                a[i] = va_arg(list, long);
        va_end(list);
        if (number == SYS_close)
                return close((int)a[0]);
        *(void **)&next = dlsym(RTLD_NEXT, "syscall");
        return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
#endif
