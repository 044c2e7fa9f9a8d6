/* SPDX-License-Identifier: Apache-2.0
 *
 * A manifest from a stranger: whatever opens must be readable everywhere, in bounds, and each
 * record that holds together must lie in its segment.
 */
#include "proto/manifest.h"

#include <stdlib.h>
#include <string.h>

#define RECORDS_MAX 10000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_record(const struct manifest_view *view, uint64_t i)
{
        const char *why = NULL;
        const struct manifest_record *r = &view->records[i];
        if (manifest_check(view, i, &why) < 0) {
                if (!why)
                        abort();
                return;
        }
        uint64_t dims = 0;
        for (uint32_t k = 0; k < r->rank; k++)
                dims += view->shapes[r->shape_off + k];
        volatile uint64_t keep = dims + strlen(view->strings + r->name_off); /* reads are the test */
        (void)keep;
        if (r->bytes > 0 && view->segments[r->segment].size - r->bytes < r->offset)
                abort();
        int64_t found = manifest_find(view, view->strings + r->name_off, r->name_len, &why);
        if (found >= 0 && strcmp(view->strings + view->records[found].name_off, view->strings + r->name_off) != 0)
                abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct manifest_view view;
        const char *why = NULL;
        void *copy = malloc(size > 0 ? size : 1); /* aligned as a mapping is, watched to its last byte */
        if (!copy)
                return 0;
        memcpy(copy, data, size);
        if (manifest_open(&view, copy, size, &why) == 0) {
                for (uint64_t i = 0; i < view.header->n_records && i < RECORDS_MAX; i++)
                        check_record(&view, i);
                manifest_find(&view, "weight", 6, &why);
                const char *value = manifest_metadata(&view, "format");
                if (value && strlen(value) > size)
                        abort();
        } else if (!why) {
                abort();
        }
        free(copy);
        return 0;
}
