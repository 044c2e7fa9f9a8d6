/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers with units, read strictly: no sign, no fraction, no space, and no unit that could mean
 * two things (GB may be a power of ten or of two, a bare 30 may be seconds or milliseconds).
 */
#include "daemon/config/settings/units.h"

#include "daemon/base/util.h"

#include <errno.h>
#include <string.h>

struct unit {
        const char *name;
        uint64_t factor;
};

static int parse(const char *text, const struct unit *units, size_t n, uint64_t *value)
{
        char *end;
        if (text[0] < '0' || text[0] > '9')
                return -1;
        errno = 0;
        uint64_t number = strtoull(text, &end, 10);
        if (errno != 0)
                return -1;
        for (size_t i = 0; i < n; i++)
                if (strcmp(end, units[i].name) == 0)
                        return __builtin_mul_overflow(number, units[i].factor, value) ? -1 : 0;
        return -1;
}

int config_parse_size(const char *text, uint64_t *bytes)
{
        static const struct unit units[] = {{"", 1}, {"KiB", KiB}, {"MiB", MiB}, {"GiB", GiB}, {"TiB", GiB << 10}};
        return parse(text, units, ARRAY_SIZE(units), bytes);
}

int config_parse_duration(const char *text, uint64_t *ns)
{
        static const struct unit units[] = {{"ms", UINT64_C(1000000)},
                                            {"s", UINT64_C(1000000000)},
                                            {"m", UINT64_C(60000000000)},
                                            {"h", UINT64_C(3600000000000)}};
        return parse(text, units, ARRAY_SIZE(units), ns);
}
