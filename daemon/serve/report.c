/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/report.h"

#include "daemon/base/notify.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#define LOADS_NAMED 3u

struct text_line {
        char *at;
        size_t left;
};

static void add(struct text_line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(struct text_line *line, const char *format, ...)
{
        va_list args;
        va_start(args, format);
        int n = vsnprintf(line->at, line->left, format, args);
        va_end(args);
        size_t used = n < 0 ? 0 : (size_t)n < line->left ? (size_t)n : line->left - 1;
        line->at += used;
        line->left -= used;
}

static void add_load(struct text_line *line, struct load *load, bool first)
{
        struct load_progress p;
        load_progress(load, &p);
        add(line, "%s%s", first ? "loading " : ", ", load->name);
        if (p.total > 0)
                add(line, " %" PRIu64 "%%", (uint64_t)(100.0 * (double)p.bytes / (double)p.total));
        if (p.stalled)
                add(line, " (stalled)");
}

static size_t add_loads(struct text_line *line, const struct loads *loads)
{
        size_t n = 0;
        list_each (pos, &loads->all) {
                struct load *load = container_of(pos, struct load, link);
                if (load_ended(load->state) || load->dry_run)
                        continue;
                if (n++ < LOADS_NAMED)
                        add_load(line, load, n == 1);
        }
        if (n > LOADS_NAMED)
                add(line, " and %zu more", n - LOADS_NAMED);
        return n;
}

static size_t count_ready(const struct resident *resident)
{
        size_t n = 0;
        list_each (pos, &resident->generations)
                n += container_of(pos, struct generation, link)->state == GENERATION_READY;
        return n;
}

static void add_preload(struct text_line *line, const struct preload *preload)
{
        struct preload_summary p;
        preload_summarize(preload, &p);
        if (p.ready == p.n)
                return;
        add(line, "; preload: %zu of %zu ready", p.ready, p.n);
        if (p.failed > 0)
                add(line, ", %zu failed (%s)", p.failed, p.title);
}

void report_line(const struct server *server, char *text, size_t size)
{
        struct text_line line = {text, size};
        size_t ready = count_ready(server->resident), leases = server->leases.n;
        if (add_loads(&line, server->loads) > 0)
                add(&line, "; ");
        add(&line, "%zu model%s resident, %zu lease%s", ready, ready == 1 ? "" : "s", leases, leases == 1 ? "" : "s");
        add_preload(&line, &server->preload);
}

void report_tell(struct server *server)
{
        char line[sizeof(server->told_manager)];
        if (!notify_manager())
                return;
        report_line(server, line, sizeof(line));
        if (strcmp(line, server->told_manager) == 0)
                return;
        if (notify_status("%s", line))
                strcpy(server->told_manager, line);
}
