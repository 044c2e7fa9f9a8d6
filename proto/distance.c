/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/distance.h"

#include <stdint.h>
#include <string.h>

size_t name_distance(const char *a, const char *b)
{
        size_t la = strlen(a), lb = strlen(b), row[DISTANCE_MAX + 1];
        if (la > DISTANCE_MAX || lb > DISTANCE_MAX)
                return SIZE_MAX;
        for (size_t j = 0; j <= lb; j++)
                row[j] = j;
        for (size_t i = 1; i <= la; i++) {
                size_t corner = row[0];
                row[0] = i;
                for (size_t j = 1; j <= lb; j++) {
                        size_t change = corner + (a[i - 1] != b[j - 1]);
                        size_t other = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
                        corner = row[j];
                        row[j] = change < other ? change : other;
                }
        }
        return row[lb];
}
