/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/persist/snapshot.h"

#include "daemon/base/util.h"
#include "daemon/resident/persist/snapshot_v1.h"

#include <string.h>

#define ITEMS_MAX 1048576u /* more than SNAPSHOT_MAX has room for */
#define COUNTERS_SIZE (SNAPSHOT_COUNTERS * sizeof(uint64_t))

_Static_assert(sizeof(struct lease_record) == 64, "rows are part of the format");

void snapshot_deinit(struct snapshot *snapshot)
{
        for (size_t i = 0; i < snapshot->n_rows; i++)
                name_row_deinit(&snapshot->rows[i]);
        free(snapshot->rows);
        free(snapshot->leases);
        *snapshot = (struct snapshot){0};
}

/* ---- bytes ---- */

#define ROW_FACTS 19 /* of row_facts(), three of them the caller's */

static void model_facts(struct facts *f, void *list, size_t i)
{
        struct name_row *row = list;
        fact_number(f, NULL, &row->models[i], 0);
}

static void row_facts(struct facts *f, struct name_row *row)
{
        struct model_settings *settings = &row->settings;
        fact_text(f, "name", &row->name, 1, PROTO_NAME_MAX);
        fact_text(f, "device", &row->device, 0, FACT_DEVICE_MAX);
        fact_text(f, "source", &row->source, 0, 0);
        fact_text(f, "pattern", &row->pattern, 0, 0);
        fact_number(f, "generation", &row->number, 0);
        fact_bool(f, "verified", &row->verified);
        fact_bool(f, "loadable", &row->loadable);
        fact_caller(f, &row->caller);
        fact_number(f, "keep_alive_ns", &settings->keep_alive_ns, 0);
        fact_number(f, "drain_timeout_ns", &settings->drain_timeout_ns, 0);
        fact_number32(f, "priority", &settings->priority, PROTO_PRIORITY_MAX);
        fact_bool(f, "pinned", &settings->pinned);
        fact_number32(f, "owner", &row->owner, FACT_ID_MAX);
        fact_number(f, "charged", &row->charged, (uint64_t)FACT_ID_MAX + 1);
        fact_number32(f, "rank", &row->rank, NAME_ROW_RANKS - 1);
        fact_number32(f, "ranks", &row->n_ranks, NAME_ROW_RANKS);
        row->n_models = fact_list(f, "models", row->n_models, 0, NAME_ROW_MODELS, model_facts, row);
}

void name_row_pack(const struct name_row *row, struct items *rows)
{
        struct name_row writable = *row; /* the facts are read from it only */
        require(!row->loadable || (row->device != NULL && row->source != NULL));
        rows->n++;
        writer_map(&rows->w, ROW_FACTS);
        row_facts(&(struct facts){.w = &rows->w}, &writable);
}

bool packed_rows_equal(const struct packed_rows *a, const struct packed_rows *b)
{
        return a->n == b->n && a->bytes.size == b->bytes.size &&
               (a->n == 0 || memcmp(a->bytes.data, b->bytes.data, a->bytes.size) == 0);
}

int snapshot_begin(msgpack_sbuffer *out, const uint64_t counters[SNAPSHOT_COUNTERS])
{
        out->size = 0;
        return msgpack_sbuffer_write(out, (const char *)counters, COUNTERS_SIZE) == 0 ? 0 : STREAMER_ENOMEM;
}

int snapshot_add_lease(msgpack_sbuffer *out, const struct lease_record *lease)
{
        return msgpack_sbuffer_write(out, (const char *)lease, sizeof(*lease)) == 0 ? 0 : STREAMER_ENOMEM;
}

static int write_map(msgpack_sbuffer *out, uint64_t last_number, const struct packed_rows *rows)
{
        struct writer head;
        writer_init(&head);
        writer_map(&head, 2);
        writer_ku64(&head, "last_generation", last_number);
        writer_key(&head, "rows");
        writer_array(&head, rows->n);
        bool written = !head.failed && msgpack_sbuffer_write(out, head.buf.data, head.buf.size) == 0 &&
                       (rows->n == 0 || msgpack_sbuffer_write(out, rows->bytes.data, rows->bytes.size) == 0);
        writer_deinit(&head);
        return written ? 0 : STREAMER_ENOMEM;
}

int snapshot_end(msgpack_sbuffer *out, uint64_t last_number, const struct packed_rows *rows)
{
        size_t first = out->size;
        if (write_map(out, last_number, rows) < 0)
                return STREAMER_ENOMEM;
        const struct record_foot foot =
                record_foot(out->data, first, out->data + first, out->size - first, SNAPSHOT_MAGIC);
        return msgpack_sbuffer_write(out, (const char *)&foot, sizeof(foot)) == 0 ? 0 : STREAMER_ENOMEM;
}

/* ---- reading ---- */

static void read_row(struct facts *f, void *list, size_t i)
{
        struct snapshot *snapshot = list;
        struct name_row *row = name_row_append(&snapshot->rows, &snapshot->n_rows);
        if (row == NULL) {
                f->wrong = facts_no_memory;
                return;
        }
        row_facts(f, row);
        bool is_complete = row->device != NULL && row->source != NULL;
        if (f->wrong == NULL && row->loadable && !is_complete)
                f->wrong = "loadable";
}

/* NULL, or what is wrong with it. */
static const char *unpack_first(struct snapshot *snapshot, const char *first, size_t size)
{
        if (size < COUNTERS_SIZE || (size - COUNTERS_SIZE) % sizeof(*snapshot->leases) != 0)
                return "leases";
        size -= COUNTERS_SIZE;
        snapshot->leases = malloc(size + 1);
        if (snapshot->leases == NULL)
                return facts_no_memory;
        memcpy(snapshot->counters, first, COUNTERS_SIZE);
        memcpy(snapshot->leases, first + COUNTERS_SIZE, size);
        snapshot->n_leases = size / sizeof(*snapshot->leases);
        return NULL;
}

int snapshot_unpack(struct snapshot *snapshot, const void *data, size_t size, struct error *error)
{
        struct message map;
        struct facts facts = {.from = &map.unpacked.data};
        size_t first;
        *snapshot = (struct snapshot){0};
        bool v1 = record_is(data, size, SNAPSHOT_V1_MAGIC);
        const char *wrong = record_open(data, size, v1 ? SNAPSHOT_V1_MAGIC : SNAPSHOT_MAGIC, &first, &map);
        if (wrong == facts_no_memory)
                return error_no_memory(error);
        if (wrong != NULL)
                return error_set(error, STREAMER_ECORRUPT, "the snapshot is damaged: %s", wrong);
        fact_number(&facts, "last_generation", &snapshot->last_number, 0);
        if (v1)
                snapshot_v1_facts(&facts, &snapshot->rows, &snapshot->n_rows);
        else
                fact_list(&facts, "rows", 0, 0, ITEMS_MAX, read_row, snapshot);
        message_deinit(&map);
        wrong = facts.wrong ?: unpack_first(snapshot, data, first);
        if (wrong == NULL)
                return 0;
        snapshot_deinit(snapshot);
        if (wrong == facts_no_memory)
                return error_no_memory(error);
        return error_set(error, STREAMER_ECORRUPT, "the snapshot is damaged: '%s' is not valid", wrong);
}
