/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes a plan: lists the tensors of all files, checks that no name occurs twice, places each tensor (plan_place.c),
 * and cuts their bytes into blocks (plan_blocks.c). A failure leaves an empty plan.
 */
#include "daemon/model/plan_private.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the tensors ---- */

static bool skipped(const struct plan_file *file, size_t i)
{
        return file->skip != NULL && (file->skip[i / 8] >> (i % 8) & 1) != 0;
}

static void list_file(struct plan *plan, const struct plan_file *files, uint32_t f)
{
        const struct st_header *header = files[f].header;
        for (uint32_t i = 0; i < header->n_tensors; i++) {
                const struct st_tensor *t = &header->tensors[i];
                if (skipped(&files[f], i))
                        continue;
                plan->tensors[plan->n_tensors++] = (struct plan_tensor){
                        .file = f,
                        .index = i,
                        .file_off = header->data_start + t->begin,
                        .bytes = t->end - t->begin,
                        .leaf = plan->n_leaves,
                };
                plan->bytes += t->end - t->begin;
                plan->n_leaves += (t->end - t->begin + PLAN_LEAF - 1) / PLAN_LEAF;
        }
}

static int fail(struct plan_error *error, const char *text)
{
        snprintf(error->text, sizeof(error->text), "%s", text);
        return -1;
}

/* Files are as large as they say, but a few that claim 2^63 bytes would wrap every sum below. */
static bool sum_fits(const struct plan_file *files, size_t n_files)
{
        uint64_t sum = 0;
        for (size_t f = 0; f < n_files; f++) {
                const struct st_header *h = files[f].header;
                uint64_t end = h->n_tensors > 0 ? h->tensors[h->n_tensors - 1].end : 0;
                if (__builtin_add_overflow(sum, end, &sum) || sum > UINT64_MAX / 4)
                        return false;
        }
        return true;
}

static int list_tensors(struct plan *plan, const struct plan_file *files, size_t n_files, struct plan_error *error)
{
        if (!sum_fits(files, n_files))
                return fail(error, "the files' sizes overflow");
        size_t n = 0;
        for (size_t f = 0; f < n_files; f++)
                for (size_t i = 0; i < files[f].header->n_tensors; i++)
                        n += !skipped(&files[f], i);
        if (n >= NAMES_NONE)
                return fail(error, "too many tensors");
        struct pages memory = {0};
        if (!pages_reserve(&memory, n * sizeof(*plan->tensors)))
                return fail(error, "no memory for the plan");
        plan->tensors = pages_take(&memory, n * sizeof(*plan->tensors));
        for (uint32_t f = 0; f < n_files; f++)
                list_file(plan, files, f);
        return 0;
}

/* ---- names ---- */

struct named {
        const struct plan *plan;
        const struct plan_file *files;
};

static struct name tensor_name(const void *owner, uint32_t i)
{
        const struct named *named = owner;
        const struct plan_tensor *t = &named->plan->tensors[i];
        const struct st_header *header = named->files[t->file].header;
        const struct st_tensor *in_file = &header->tensors[t->index];
        return (struct name){st_name(header, in_file), in_file->name_len};
}

static int fail_twice(const struct named *named, uint32_t a, uint32_t b, struct plan_error *error)
{
        char quoted[NAME_QUOTE];
        name_quote(quoted, tensor_name(named, a));
        error->two_files = true;
        error->files[0] = named->plan->tensors[a].file;
        error->files[1] = named->plan->tensors[b].file;
        snprintf(error->text, sizeof(error->text), "tensor '%s' is in two files", quoted);
        return -1;
}

/* One file's names are distinct already. */
static int check_names(const struct plan *plan, const struct plan_file *files, size_t n_files, struct plan_error *error)
{
        if (n_files < 2)
                return 0;
        struct named named = {plan, files};
        struct nameset set = {0};
        int r = 0;
        if (!nameset_begin(&set, plan->n_tensors))
                return fail(error, "no memory to compare names");
        for (uint32_t i = 0; r == 0 && i < plan->n_tensors; i++) {
                uint32_t other = nameset_add(&set, tensor_name, &named, i);
                if (other != NAMES_NONE)
                        r = fail_twice(&named, other, i, error);
        }
        nameset_deinit(&set);
        return r;
}

uint32_t *plan_sort_names(const struct plan *plan, const struct plan_file *files)
{
        struct named named = {plan, files};
        uint32_t *order = malloc((plan->n_tensors > 0 ? plan->n_tensors : 1) * sizeof(*order));
        if (order != NULL && !names_sort(order, plan->n_tensors, tensor_name, &named)) {
                free(order);
                return NULL;
        }
        return order;
}

/* ---- the plan ---- */

int plan_make(struct plan *plan, const struct plan_file *files, size_t n_files, const struct plan_layout *layout,
              uint64_t block_size, struct plan_error *error)
{
        assert(block_size > 0 && block_size % PLAN_LEAF == 0 && block_size <= UINT32_MAX);
        assert(layout->align > 0 && layout->granularity > 0);
        *plan = (struct plan){0};
        int r = list_tensors(plan, files, n_files, error);
        if (r == 0)
                r = check_names(plan, files, n_files, error);
        if (r == 0)
                plan_place(plan, files, layout);
        if (r == 0 && !plan_cut(plan, layout, block_size))
                r = fail(error, "no memory for the plan's blocks");
        if (r < 0)
                plan_deinit(plan);
        return r;
}

void plan_deinit(struct plan *plan)
{
        pages_drop(plan->tensors, plan->n_tensors * sizeof(*plan->tensors));
        pages_drop(plan->blocks, plan->n_blocks * sizeof(*plan->blocks));
        *plan = (struct plan){0};
}
