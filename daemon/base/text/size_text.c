/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/text/size_text.h"

#include "daemon/base/util.h"

char *size_text(char out[SIZE_TEXT], uint64_t bytes)
{
        static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
        double v = (double)bytes;
        size_t unit = 0;
        for (; v >= 1024 && unit < ARRAY_SIZE(units) - 1; unit++)
                v /= 1024;
        snprintf(out, SIZE_TEXT, "%.*f %s", unit > 0, v, units[unit]);
        return out;
}
