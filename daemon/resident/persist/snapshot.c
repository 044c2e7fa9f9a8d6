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

#define ROW_FACTS 21 /* of row_facts(), three of them the caller's */

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
        if (fact_exists(f, "order")) /* not in rows of the earlier form */
                fact_number(f, "order", &row->order, 0);
        if (fact_exists(f, "stale"))
                fact_bool(f, "stale", &row->stale);
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

void name_row_pack_removed(const char *name, const char *device, struct items *rows)
{
        const struct name_row removed = {.name = (char *)(uintptr_t)name, .device = (char *)(uintptr_t)device};
        require(!name_row_counts(&removed));
        name_row_pack(&removed, rows);
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

static int write_map(msgpack_sbuffer *out, uint64_t last_number, const struct items *rows)
{
        struct writer head;
        writer_init(&head);
        writer_map(&head, 2);
        writer_ku64(&head, "last_generation", last_number);
        writer_key(&head, "rows");
        writer_array(&head, rows->n);
        bool written = !head.failed && !rows->w.failed &&
                       msgpack_sbuffer_write(out, head.buf.data, head.buf.size) == 0 &&
                       (rows->n == 0 || msgpack_sbuffer_write(out, rows->w.buf.data, rows->w.buf.size) == 0);
        writer_deinit(&head);
        return written ? 0 : STREAMER_ENOMEM;
}

int snapshot_end(msgpack_sbuffer *out, uint64_t last_number, const struct items *rows)
{
        size_t first = out->size;
        if (write_map(out, last_number, rows) < 0)
                return STREAMER_ENOMEM;
        const struct record_foot foot =
                record_foot(out->data, first, out->data + first, out->size - first, SNAPSHOT_MAGIC);
        return msgpack_sbuffer_write(out, (const char *)&foot, sizeof(foot)) == 0 ? 0 : STREAMER_ENOMEM;
}

int snapshot_pack(msgpack_sbuffer *out, const struct snapshot *snapshot)
{
        struct items rows;
        items_init(&rows);
        for (size_t i = 0; i < snapshot->n_rows; i++)
                name_row_pack(&snapshot->rows[i], &rows);
        int r = snapshot_begin(out, snapshot->counters);
        for (size_t i = 0; i < snapshot->n_leases && r == 0; i++)
                r = snapshot_add_lease(out, &snapshot->leases[i]);
        r = r ?: snapshot_end(out, snapshot->last_number, &rows);
        items_deinit(&rows);
        return r;
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
        bool v1 = record_is(data, size, SNAPSHOT_V1_MAGIC), v2 = record_is(data, size, SNAPSHOT_V2_MAGIC);
        const char *magic = v1 ? SNAPSHOT_V1_MAGIC : v2 ? SNAPSHOT_V2_MAGIC : SNAPSHOT_MAGIC;
        const char *wrong = record_open(data, size, magic, &first, &map);
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

/* ---- a whole with changes ---- */

/* Grows the list for `more` elements, as reallocarray() doubles it. */
static void *reserve(void *list, size_t n, size_t more, size_t *capacity, size_t element)
{
        if (list != NULL && n + more <= *capacity)
                return list;
        size_t grown = 2 * (n + more) + 1;
        list = reallocarray(list, grown, element);
        if (list != NULL)
                *capacity = grown;
        return list;
}

/* What was read so far. */
struct sequence {
        struct snapshot all;
        size_t rows_capacity, leases_capacity;
};

/* Appends what the change has, and takes its rows over. STREAMER_ENOMEM. */
static int append(struct sequence *sequence, struct snapshot *change)
{
        struct snapshot *all = &sequence->all;
        struct name_row *rows =
                reserve(all->rows, all->n_rows, change->n_rows, &sequence->rows_capacity, sizeof(*rows));
        all->rows = rows ?: all->rows;
        struct lease_record *leases =
                reserve(all->leases, all->n_leases, change->n_leases, &sequence->leases_capacity, sizeof(*leases));
        all->leases = leases ?: all->leases;
        if (rows == NULL || leases == NULL)
                return STREAMER_ENOMEM;
        if (change->n_rows > 0)
                memcpy(rows + all->n_rows, change->rows, change->n_rows * sizeof(*rows));
        if (change->n_leases > 0)
                memcpy(leases + all->n_leases, change->leases, change->n_leases * sizeof(*leases));
        all->n_rows += change->n_rows;
        all->n_leases += change->n_leases;
        change->n_rows = 0;
        memcpy(all->counters, change->counters, sizeof(all->counters));
        all->last_number = change->last_number;
        return 0;
}

static const char *device_of(const struct name_row *row)
{
        return row->device != NULL ? row->device : "";
}

/* The address of an element of a list orders equal ones by age. */
static int compare_keys(const void *a, const void *b)
{
        const struct name_row *x = *(struct name_row *const *)a, *y = *(struct name_row *const *)b;
        int r = strcmp(x->name, y->name);
        if (r == 0)
                r = strcmp(device_of(x), device_of(y));
        return r != 0 ? r : ORDER(x, y);
}

static int compare_orders(const void *a, const void *b)
{
        const struct name_row *x = *(struct name_row *const *)a, *y = *(struct name_row *const *)b;
        int r = ORDER(x->order, y->order);
        return r != 0 ? r : ORDER(x, y);
}

static int compare_leases(const void *a, const void *b)
{
        const struct lease_record *x = *(struct lease_record *const *)a, *y = *(struct lease_record *const *)b;
        int r = ORDER(x->id, y->id);
        return r != 0 ? r : ORDER(x, y);
}

static bool same_key(const struct name_row *a, const struct name_row *b)
{
        return strcmp(a->name, b->name) == 0 && strcmp(device_of(a), device_of(b)) == 0;
}

/* The last row of each name and device, unless that says that it was removed. Returns how many are left of `rows`. */
static size_t drop_replaced(struct name_row **rows, size_t n)
{
        size_t left = 0;
        qsort(rows, n, sizeof(struct name_row *), compare_keys);
        for (size_t i = 0; i < n; i++) {
                bool is_last = i + 1 == n || !same_key(rows[i], rows[i + 1]);
                if (is_last && name_row_counts(rows[i]))
                        rows[left++] = rows[i];
                else
                        name_row_deinit(rows[i]);
        }
        return left;
}

static int settle_rows(struct snapshot *all, bool changed)
{
        size_t n = all->n_rows;
        cleanup_free struct name_row **by = calloc(n + 1, sizeof(struct name_row *));
        struct name_row *rows = calloc(n + 1, sizeof(*rows));
        if (by == NULL || rows == NULL) {
                free(rows);
                return STREAMER_ENOMEM;
        }
        for (size_t i = 0; i < n; i++)
                by[i] = &all->rows[i];
        if (changed)
                n = drop_replaced(by, n);
        qsort(by, n, sizeof(struct name_row *), compare_orders);
        for (size_t i = 0; i < n; i++)
                rows[i] = *by[i];
        free(all->rows);
        all->rows = rows;
        all->n_rows = n;
        return 0;
}

/* The last of each number, unless that has ended. */
static int settle_leases(struct snapshot *all)
{
        size_t n = all->n_leases, left = 0;
        cleanup_free struct lease_record **by = calloc(n + 1, sizeof(struct lease_record *));
        struct lease_record *leases = calloc(n + 1, sizeof(*leases));
        if (by == NULL || leases == NULL) {
                free(leases);
                return STREAMER_ENOMEM;
        }
        for (size_t i = 0; i < n; i++)
                by[i] = &all->leases[i];
        qsort(by, n, sizeof(struct lease_record *), compare_leases);
        for (size_t i = 0; i < n; i++)
                if ((i + 1 == n || by[i + 1]->id != by[i]->id) && by[i]->model != 0)
                        leases[left++] = *by[i];
        free(all->leases);
        all->leases = leases;
        all->n_leases = left;
        return 0;
}

/* The next of a sequence; NULL: nothing is behind `at` that can be one. */
static const char *next_of(const char *data, size_t size, size_t at, size_t *length)
{
        uint64_t n;
        if (size - at < sizeof(n))
                return NULL;
        memcpy(&n, data + at, sizeof(n));
        if (n == 0 || n > size - at - sizeof(n))
                return NULL;
        *length = (size_t)n;
        return data + at + sizeof(n);
}

/* 1: it was appended; 0: the sequence ends before it; STREAMER_ENOMEM. */
static int read_change(struct sequence *sequence, const char *bytes, size_t length)
{
        struct snapshot change;
        struct error error = {0};
        if (!record_is(bytes, length, SNAPSHOT_MAGIC))
                return 0;
        int r = snapshot_unpack(&change, bytes, length, &error);
        if (r < 0)
                return r == STREAMER_ENOMEM ? r : 0;
        bool follows = change.counters[SNAPSHOT_WRITES] > sequence->all.counters[SNAPSHOT_WRITES];
        r = follows ? append(sequence, &change) : 0;
        snapshot_deinit(&change);
        return r < 0 ? r : follows;
}

int snapshot_read(struct snapshot *snapshot, const void *data, size_t size, size_t *used, struct error *error)
{
        struct sequence sequence = {.rows_capacity = 0};
        struct snapshot *all = &sequence.all;
        size_t at = 0, length = 0;
        const char *bytes = next_of(data, size, 0, &length);
        *snapshot = (struct snapshot){0};
        if (bytes == NULL)
                return error_set(error, STREAMER_ECORRUPT, "the snapshot is damaged: wrong sizes");
        int r = snapshot_unpack(all, bytes, length, error);
        if (r < 0)
                return r;
        sequence.rows_capacity = all->n_rows;
        sequence.leases_capacity = all->n_leases;
        bool changed = false;
        do {
                at = (size_t)(bytes - (const char *)data) + length;
                bytes = next_of(data, size, at, &length);
                r = bytes != NULL ? read_change(&sequence, bytes, length) : 0;
                changed = changed || r == 1;
        } while (r == 1);
        r = r ?: settle_rows(all, changed) ?: settle_leases(all);
        if (r < 0) {
                snapshot_deinit(all);
                return error_no_memory(error);
        }
        *snapshot = *all;
        *used = at;
        return 0;
}
