/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/distance.h"

#include <stdint.h>
#include <string.h>

static size_t stem_length(const char *name)
{
        static const char suffix[] = ".safetensors";
        size_t n = strlen(name), m = sizeof(suffix) - 1;
        return n > m && memcmp(name + n - m, suffix, m) == 0 ? n - m : n;
}

static size_t least(size_t a, size_t b)
{
        return a < b ? a : b;
}

size_t name_distance(const char *a, const char *b)
{
        size_t la = stem_length(a), lb = stem_length(b), rows[3][DISTANCE_MAX + 1];
        if (la > DISTANCE_MAX || lb > DISTANCE_MAX)
                return SIZE_MAX;
        for (size_t i = 0; i <= la; i++) {
                size_t *row = rows[i % 3];
                const size_t *above = rows[(i + 2) % 3], *second = rows[(i + 1) % 3];
                row[0] = i;
                for (size_t j = 1; j <= lb; j++) {
                        if (i == 0) {
                                row[j] = j;
                                continue;
                        }
                        row[j] = least(least(above[j], row[j - 1]) + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
                        if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                                row[j] = least(row[j], second[j - 2] + 1);
                }
        }
        return rows[la % 3][lb];
}

size_t name_distance_limit(const char *name)
{
        return stem_length(name) / 3 + 1;
}

const char *name_nearest(const char *name, const char *const *names, size_t n)
{
        const char *nearest = NULL;
        size_t best = name_distance_limit(name);
        for (size_t i = 0; i < n; i++) {
                size_t distance = name_distance(name, names[i]);
                if (distance < best) {
                        best = distance;
                        nearest = names[i];
                }
        }
        return nearest;
}
