/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the next page begins is told by the last row of this one: a load's number, a preload's priority and place,
 * the number of one that is to be loaded again. So what comes or goes between two pages shifts nothing.
 */
#include "daemon/serve/status_rows.h"

#include "daemon/serve/reply.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>

/* What a page takes of its frame; its last row, and what comes before the rows, is far below the rest. */
#define PAGE_BYTES (FRAME_MAX / 2)

static const char *const names[] = {[STATUS_LOADS] = "loads", [STATUS_PRELOAD] = "preload", [STATUS_AGAIN] = "again"};

/* ---- where it begins ---- */

static void begin_list(struct status_rows *rows, enum status_list list)
{
        rows->list = list;
        rows->number = 0;
        rows->preload = (struct preload_row){.priority = UINT_MAX};
}

static bool parse(struct status_rows *rows, const char *after)
{
        int end = -1;
        char name[8];
        if (sscanf(after, "%7[a-z]:%u:%" SCNu64 "%n", name, &rows->preload.priority, &rows->preload.place, &end) < 3 ||
            after[end] != '\0')
                return false;
        for (unsigned i = 0; i < STATUS_LISTS; i++) {
                if (strcmp(name, names[i]) != 0)
                        continue;
                rows->list = (enum status_list)i;
                rows->number = rows->preload.place;
                return true;
        }
        return false;
}

int status_rows_init(struct status_rows *rows, const char *after, uint64_t limit, struct error *error)
{
        *rows = (struct status_rows){.left = limit > 0 ? limit : UINT64_MAX};
        begin_list(rows, STATUS_LOADS);
        if (after != NULL && !parse(rows, after))
                return error_set(error, STREAMER_EINVAL, "status: after: not the 'next' of a reply");
        for (size_t i = 0; i < STATUS_LISTS; i++)
                writer_init(&rows->lists[i].rows);
        return 0;
}

/* ---- loads ---- */

static void write_targets(struct writer *w, const struct load *load)
{
        uint64_t now = now_ns();
        writer_key(w, "targets");
        writer_array(w, load->n_targets);
        for (size_t i = 0; i < load->n_targets; i++) {
                const struct load_target *t = &load->targets[i];
                uint64_t waits_ns;
                const char *state = load_target_state(t, now, &waits_ns);
                writer_map(w, 4u + t->failed);
                writer_kstr(w, "device", t->device->name);
                writer_kstr(w, "state", state);
                writer_ku64(w, "bytes", load->rooms[i].bytes);
                writer_ku64(w, "waits_ns", waits_ns);
                if (t->failed)
                        writer_kstr(w, "error", t->error.text);
        }
}

static void write_load(struct writer *w, struct load *load)
{
        struct load_progress p;
        load_progress(load, &p);
        writer_map(w, 12);
        writer_kstr(w, "model", load->name);
        writer_key(w, "devices");
        writer_array(w, load->n_targets);
        for (size_t i = 0; i < load->n_targets; i++)
                writer_str(w, load->targets[i].device->name);
        write_targets(w, load);
        reply_progress(w, &p);
        writer_kbool(w, "stalled", p.stalled);
        writer_kbool(w, "streamed", p.streamed);
}

/* ---- pinned before ---- */

static void write_again(struct writer *w, const struct wanted *m, uint64_t now)
{
        writer_map(w, 4u + 2 * m->failed);
        writer_kstr(w, "name", m->name);
        reply_source(w, m->source);
        writer_kstr(w, "state", m->failed ? "failed" : m->tries > 0 ? "loading" : "waiting");
        writer_ku64(w, "tries", m->tries);
        if (!m->failed)
                return;
        writer_kstr(w, "error", m->error);
        writer_ku64(w, "retry_ns", m->retry_at_ns > now ? m->retry_at_ns - now : 0);
}

/* ---- rows ---- */

/* A row more, if there is room for it; else there are more of them. */
static struct writer *begin_row(struct status_rows *rows)
{
        size_t bytes = 0;
        for (size_t i = 0; i < STATUS_LISTS; i++)
                bytes += rows->lists[i].rows.buf.size;
        rows->more = rows->left == 0 || bytes >= PAGE_BYTES;
        if (rows->more)
                return NULL;
        rows->left--;
        rows->lists[rows->list].n++;
        return &rows->lists[rows->list].rows;
}

static void fill_loads(struct status_rows *rows, const struct loads *loads)
{
        list_each (pos, &loads->all) {
                struct load *load = container_of(pos, struct load, link);
                struct writer *w;
                if (load_ended(load->state) || load->id <= rows->number)
                        continue;
                if ((w = begin_row(rows)) == NULL)
                        return;
                write_load(w, load);
                rows->number = load->id;
        }
}

static void fill_preload(struct status_rows *rows, const struct preload *preload)
{
        uint64_t now = now_ns();
        struct preload_row row = rows->preload;
        for (struct writer *w; preload_next(preload, &row); rows->preload = row) {
                if ((w = begin_row(rows)) == NULL)
                        return;
                preload_write(w, &row, now);
        }
}

static void fill_again(struct status_rows *rows, const struct again *again)
{
        uint64_t now = now_ns();
        struct wanted wanted;
        for (size_t i; (i = again_next(again, rows->number, &wanted)) != SIZE_MAX; rows->number = i + 1) {
                struct writer *w = begin_row(rows);
                if (w == NULL)
                        return;
                write_again(w, &wanted, now);
        }
}

void status_rows_fill(struct status_rows *rows, const struct server *server)
{
        if (rows->list == STATUS_LOADS) {
                fill_loads(rows, server->loads);
                if (rows->more)
                        return;
                begin_list(rows, STATUS_PRELOAD);
        }
        if (rows->list == STATUS_PRELOAD) {
                fill_preload(rows, &server->preload);
                if (rows->more)
                        return;
                begin_list(rows, STATUS_AGAIN);
        }
        fill_again(rows, &server->again);
}

void status_rows_write(struct status_rows *rows, struct writer *w)
{
        char next[PROTO_CURSOR_MAX + 1];
        for (size_t i = 0; i < STATUS_LISTS; i++) {
                writer_key(w, names[i]);
                writer_array(w, rows->lists[i].n);
                writer_append(w, &rows->lists[i].rows);
                writer_deinit(&rows->lists[i].rows);
        }
        if (!rows->more)
                return;
        bool preload = rows->list == STATUS_PRELOAD;
        snprintf(next, sizeof(next), "%s:%u:%" PRIu64, names[rows->list], preload ? rows->preload.priority : 0,
                 preload ? rows->preload.place : rows->number);
        writer_kstr(w, "next", next);
}
