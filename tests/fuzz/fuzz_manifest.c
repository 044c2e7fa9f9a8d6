/* SPDX-License-Identifier: Apache-2.0
 *
 * An untrusted manifest: one that opens is readable within its bounds, and each valid record lies in its segment.
 */
#include "proto/manifest.h"
#include "tests/fuzz/fuzz.h"

#define RECORDS_MAX 10000

static void check_record(const struct manifest_view *view, uint64_t i)
{
        const char *why = NULL;
        const struct manifest_record *r = manifest_record(view, i);
        if (manifest_check(view, i, &why) < 0) {
                holds(why);
                return;
        }
        uint64_t dims = 0;
        for (uint32_t k = 0; k < r->rank; k++)
                dims += view->shapes[r->shape_off + k];
        volatile uint64_t keep = dims + strlen(view->strings + r->name_off); /* reads are the test */
        (void)keep;
        holds(r->bytes == 0 || manifest_segment(view, r->segment)->size - r->bytes >= r->offset);
        int64_t found = manifest_find(view, view->strings + r->name_off, r->name_len, &why);
        if (found >= 0)
                holds(strcmp(view->strings + manifest_record(view, (uint64_t)found)->name_off,
                             view->strings + r->name_off) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct manifest_view view;
        const char *why = NULL;
        void *copy = fuzz_copy(data, size, 0); /* aligned as a mapping is */
        if (manifest_open(&view, copy, size, &why) == 0) {
                for (uint64_t i = 0; i < view.header->n_records && i < RECORDS_MAX; i++)
                        check_record(&view, i);
                manifest_find(&view, "weight", 6, &why);
                const char *value = manifest_metadata(&view, "format");
                holds(!value || strlen(value) < size);
                for (uint64_t i = 0; i < view.header->n_metadata && i < RECORDS_MAX; i++) {
                        const char *key;
                        if (manifest_pair_get(&view, i, &key, &value))
                                holds(strlen(key) < size && strlen(value) < size);
                }
        } else {
                holds(why);
        }
        free(copy);
        return 0;
}
