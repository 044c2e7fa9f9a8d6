/* SPDX-License-Identifier: Apache-2.0
 *
 * A whole safetensors file. The length before the header is checked as it is; the parsed header ends with the last
 * '}' instead, so that an input survives insertions.
 *
 * An accepted header obeys the rules, and its plan reads each byte once.
 */
#include "daemon/model/plan.h"
#include "proto/codec.h"
#include "proto/manifest.h"
#include "tests/fuzz/fuzz.h"

static void check_text(const struct st_header *h, uint32_t at, uint32_t len)
{
        holds(at > 0 && at < h->data_start - ST_PREFIX && len < h->data_start - ST_PREFIX - at);
        holds(h->text[at + len] == '\0');
        holds(codec_utf8(h->text + at, len));
}

static void check_tensor(const struct st_header *h, const struct st_tensor *t)
{
        uint64_t dims[ST_RANK_MAX], n = 1;
        check_text(h, t->name, t->name_len);
        holds(strlen(st_name(h, t)) == t->name_len);
        holds(t->rank <= ST_RANK_MAX && t->shape < h->data_start - ST_PREFIX && h->text[t->shape] == '[');
        st_shape(h, t, dims);
        for (unsigned i = 0; i < t->rank; i++)
                holds(!__builtin_mul_overflow(n, dims[i], &n));
        holds(!__builtin_mul_overflow(n, dtype_bits(t->dtype), &n));
        holds(n % 8 == 0 && t->end >= t->begin && t->end - t->begin == n / 8);
}

static void check_header(const struct st_header *h, uint64_t data)
{
        uint64_t end = 0;
        for (size_t i = 0; i < h->n_tensors; end = h->tensors[i++].end) {
                check_tensor(h, &h->tensors[i]);
                holds(h->tensors[i].begin == end);
        }
        holds(end == data);
        for (size_t i = 0; i < h->n_metadata; i++) {
                const struct st_pair *p = &h->metadata[i];
                check_text(h, p->key, p->key_len);
                check_text(h, p->value, p->value_len);
                holds(strlen(h->text + p->key) == p->key_len);
        }
}

static void check_names(const struct plan *plan, const struct plan_file *file)
{
        uint32_t *order = plan_sort_names(plan);
        holds(order != NULL);
        for (size_t i = 1; i < plan->n_tensors; i++) {
                const struct st_tensor *a = &file->header.tensors[plan->tensors[order[i - 1]].index];
                const struct st_tensor *b = &file->header.tensors[plan->tensors[order[i]].index];
                holds(strcmp(st_name(&file->header, a), st_name(&file->header, b)) < 0);
        }
        free(order);
}

static void check_plan(const struct st_header *h, const struct plan_layout *layout)
{
        struct plan plan;
        struct error error;
        struct plan_file file = {.header = *h};
        uint64_t bytes = 0;
        if (plan_make(&plan, &file, 1, layout, 2 * PLAN_LEAF, &error) < 0)
                return;
        for (size_t i = 0; i < plan.n_blocks; i++) {
                struct plan_cursor cursor;
                struct plan_piece piece;
                plan_pieces_begin(&plan.blocks[i], &cursor);
                while (plan_pieces_next(&plan, &plan.blocks[i], &cursor, &piece)) {
                        holds(piece.segment < plan.n_segments);
                        holds(piece.offset + piece.len <= plan.segments[piece.segment]);
                        bytes += piece.len;
                }
        }
        holds(bytes == plan.bytes && plan.n_segments <= PLAN_MAX_SEGMENTS);
        check_names(&plan, &file);
        plan_deinit(&plan);
}

static void check_error(const struct st_error *error, uint64_t end)
{
        const char *rule = st_rule_name(error->rule);
        holds(error->rule != ST_OK && error->offset <= end);
        holds(strncmp(error->text, rule, strlen(rule)) == 0);
        for (const char *c = error->text; *c; c++)
                holds((unsigned char)*c >= 0x20 && *c != 0x7f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static const struct plan_layout host = {.page = 4096, .align = 1, .granularity = 4096};
        static const struct plan_layout cuda = {.align = 256, .granularity = 4096, .max_segment = 512};
        struct st_header header;
        struct st_error error;
        uint64_t n;
        if (size < ST_PREFIX)
                return 0;
        if (st_parse_prefix(data, size, &n, &error) < 0)
                check_error(&error, 0);
        else
                holds(n <= size - ST_PREFIX);

        const uint8_t *last = memrchr(data + ST_PREFIX, '}', size - ST_PREFIX);
        n = last == NULL ? size - ST_PREFIX : (uint64_t)(last + 1 - data) - ST_PREFIX;
        char *text = fuzz_copy(data + ST_PREFIX, n, 0);
        if (st_parse(&header, text, n, size, &error) == 0) {
                check_header(&header, size - ST_PREFIX - n);
                if (size <= 1 << 20) {
                        check_plan(&header, &host);
                        check_plan(&header, &cuda);
                }
                st_header_deinit(&header);
        } else {
                check_error(&error, ST_PREFIX + n);
                holds(header.tensors == NULL && header.metadata == NULL);
        }
        free(text);
        return 0;
}
