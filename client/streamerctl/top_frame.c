/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout. From the top: a line of the daemon, its devices, loads that run, models, leases. Each
 * part takes the room it needs; models, and then leases, take what is left.
 */
#include "client/streamerctl/output.h"
#include "client/streamerctl/term.h"
#include "client/streamerctl/top.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define BAR 20

/* ---- lines ---- */

/* The next line, cut at the frame's width; nothing where the frame is full. */
__attribute__((format(printf, 3, 4))) static void put(struct top_frame *f, bool title, const char *format, ...)
{
        char text[FRAME_COLUMNS * 4];
        va_list args;
        if (f->n >= f->height)
                return;
        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        struct top_line *line = &f->line[f->n++];
        line->title = title;
        snprintf(line->text, sizeof(line->text), "%.*s", (int)text_bytes(text, f->width), text);
}

/* A name in a column of `width` characters: escaped, cut with dots, padded. */
static const char *column(char out[FRAME_COLUMNS * 4], const char *name, int width)
{
        char *safe = escape(name);
        int have = text_width(safe);
        if (have > width)
                snprintf(out, FRAME_COLUMNS * 4, "%.*s...", (int)text_bytes(safe, width - 3), safe);
        else
                snprintf(out, FRAME_COLUMNS * 4, "%s%*s", safe, width - have, "");
        free(safe);
        return out;
}

static const char *bar(char out[BAR + 1], uint64_t part, uint64_t whole)
{
        size_t full = whole > 0 ? (size_t)((double)part / (double)whole * BAR) : 0;
        memset(out, '.', BAR);
        memset(out, '#', full < BAR ? full : BAR);
        out[BAR] = '\0';
        return out;
}

/* ---- parts ---- */

static void put_daemon(struct top_frame *f, const struct top *top)
{
        char up[HUMAN_MAX], ring[HUMAN_MAX];
        const json_t *s = top->now.status, *r = json_object_get(s, "ring");
        size_t models = json_array_size(top->now.models), leases = json_array_size(top->now.leases);
        put(f, false, "streamerd %s  up %s  ring %s (%s)  %zu model%s  %zu lease%s", json_str(s, "version"),
            human_time(up, json_u64(s, "uptime_ns")), human_size(ring, json_u64(r, "bytes")), json_str(r, "page_kind"),
            models, models == 1 ? "" : "s", leases, leases == 1 ? "" : "s");
}

static void put_devices(struct top_frame *f, const json_t *devices)
{
        const json_t *d;
        put(f, true, "%-12s %-22s %11s %11s %11s", "DEVICE", "", "USED", "FREE", "BUDGET");
        for (size_t i = 0; (d = json_array_get(devices, i)); i++) {
                char name[FRAME_COLUMNS * 4], used[HUMAN_MAX], left[HUMAN_MAX], budget[HUMAN_MAX], b[BAR + 1];
                put(f, false, "%s [%s] %11s %11s %11s", column(name, json_str(d, "device"), 12),
                    bar(b, json_u64(d, "used"), json_u64(d, "budget")), human_size(used, json_u64(d, "used")),
                    human_size(left, json_u64(d, "free")), human_size(budget, json_u64(d, "budget")));
        }
}

/* Bytes of this load in the sample before; its own where it was not there. */
static uint64_t bytes_before(const struct top *top, const json_t *load)
{
        const json_t *l;
        for (size_t i = 0; (l = json_array_get(json_object_get(top->before.status, "loads"), i)); i++)
                if (json_u64(l, "generation") == json_u64(load, "generation") &&
                    strcmp(json_str(l, "name"), json_str(load, "name")) == 0)
                        return json_u64(l, "bytes");
        return json_u64(load, "bytes");
}

static void put_load(struct top_frame *f, const struct top *top, const json_t *l)
{
        char name[FRAME_COLUMNS * 4], b[BAR + 1], rate[HUMAN_MAX] = "", left[HUMAN_MAX] = "";
        uint64_t bytes = json_u64(l, "bytes"), total = json_u64(l, "total"), before = bytes_before(top, l);
        uint64_t ns = top->before.status ? top->now.at_ns - top->before.at_ns : 0;
        uint64_t elapsed = json_u64(l, "load_ns");
        if (ns > 0 && bytes >= before)
                human_rate(rate, bytes - before, ns);
        else
                human_rate(rate, bytes, elapsed);
        human_left(left, bytes, total, elapsed);
        put(f, false, "%s [%s] %3d %% %13s  %9s  %s%s", column(name, json_str(l, "name"), 24), bar(b, bytes, total),
            total > 0 ? (int)((double)bytes / (double)total * 100) : 0, rate, left, json_str(l, "state"),
            json_bool(l, "stalled") ? ", stalled" : "");
}

static void put_loads(struct top_frame *f, const struct top *top)
{
        const json_t *l, *loads = json_object_get(top->now.status, "loads");
        if (json_array_size(loads) == 0)
                return;
        put(f, true, "%-24s %-22s %5s %13s  %9s  %s", "LOADING", "", "DONE", "RATE", "ETA", "STATE");
        for (size_t i = 0; (l = json_array_get(loads, i)); i++)
                put_load(f, top, l);
}

static enum top_sort sorting;

static int by_order(const void *a, const void *b)
{
        const json_t *x = *(const json_t *const *)a, *y = *(const json_t *const *)b;
        const char *key = sorting == TOP_BY_SIZE ? "bytes" : "leases";
        uint64_t u = json_u64(x, key), v = json_u64(y, key);
        if (sorting != TOP_BY_NAME && u != v)
                return u < v ? 1 : -1;
        return strcmp(json_str(x, "name"), json_str(y, "name"));
}

static void put_model(struct top_frame *f, const json_t *m, int name_width)
{
        char name[FRAME_COLUMNS * 4], size[HUMAN_MAX], time[HUMAN_MAX] = "";
        uint64_t load_ns = json_u64(m, "load_ns");
        if (load_ns > 0)
                human_time(time, load_ns);
        const json_t *devices = json_object_get(m, "devices");
        char more[16] = "";
        if (json_array_size(devices) > 1)
                snprintf(more, sizeof(more), "+%zu", json_array_size(devices) - 1);
        put(f, false, "%s %-9s %11s %7" PRIu64 " %10s  %s%s", column(name, json_str(m, "name"), name_width),
            json_str(m, "state"), human_size(size, json_u64(m, "bytes")), json_u64(m, "leases"), time,
            json_str(json_array_get(devices, 0), "device"), more);
}

/* In `room` lines, its title and a line of what is not shown included. */
static void put_models(struct top_frame *f, struct top *top, int room)
{
        static const char *const sorts[] = {"name", "size", "leases"};
        char title[64];
        size_t n = json_array_size(top->now.models), shown = room > 1 ? (size_t)room - 1 : 0;
        const json_t **rows = calloc(n + 1, sizeof(*rows));
        if (!rows)
                out_of_memory();
        for (size_t i = 0; i < n; i++)
                rows[i] = json_array_get(top->now.models, i);
        sorting = top->sort;
        qsort(rows, n, sizeof(*rows), by_order);
        if (n > shown && shown > 0)
                shown--; /* for the line that says so */
        if (top->scroll + shown > n)
                top->scroll = n > shown ? n - shown : 0;
        int name_width = f->width > 76 ? f->width - 54 : 22;
        snprintf(title, sizeof(title), "MODEL (by %s)", sorts[top->sort]);
        put(f, true, "%-*s %-9s %11s %7s %10s  %s", name_width, title, "STATE", "SIZE", "LEASES", "LOADED IN",
            "DEVICE");
        for (size_t i = top->scroll; i < n && i < top->scroll + shown; i++)
                put_model(f, rows[i], name_width);
        if (n > shown && shown > 0)
                put(f, false, "  %zu to %zu of %zu", top->scroll + 1, top->scroll + shown, n);
        free(rows);
}

static void put_leases(struct top_frame *f, const json_t *leases)
{
        const json_t *l;
        put(f, true, "%-8s %-16s %-28s %11s %9s", "PID", "COMMAND", "MODEL", "SIZE", "AGE");
        for (size_t i = 0; (l = json_array_get(leases, i)); i++) {
                char comm[FRAME_COLUMNS * 4], model[FRAME_COLUMNS * 4], size[HUMAN_MAX], age[HUMAN_MAX];
                put(f, false, "%-8" PRIu64 " %s %s %11s %9s%s", json_u64(l, "pid"),
                    column(comm, json_str(l, "comm"), 16), column(model, json_str(l, "model"), 28),
                    human_size(size, json_u64(l, "bytes")), human_time(age, json_u64(l, "age_ns")),
                    json_bool(l, "orphan") ? "  orphan" : "");
        }
}

void top_compose(struct top *top, struct top_frame *f, int width, int height)
{
        f->width = width < FRAME_COLUMNS ? width : FRAME_COLUMNS;
        f->height = height < FRAME_LINES ? height : FRAME_LINES;
        f->n = 0;
        put_daemon(f, top);
        put_devices(f, json_object_get(top->now.status, "devices"));
        put_loads(f, top);
        /* Leases are left a third of what remains, and the models what leases do not need. */
        int left = f->height - f->n, n_leases = (int)json_array_size(top->now.leases);
        int for_leases = n_leases == 0 ? 0 : n_leases + 1 < left / 3 ? n_leases + 1 : left / 3;
        put_models(f, top, left - for_leases);
        if (for_leases > 1)
                put_leases(f, top->now.leases);
}
