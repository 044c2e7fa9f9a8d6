/* SPDX-License-Identifier: Apache-2.0
 *
 * Progress of a load, for people or as JSON. The rate is the average since the first bytes arrived; the ETA follows
 * from it.
 */
#include "client/streamerctl/ctl.h"
#include "client/streamerctl/output.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BAR 24
#define NAME_MAX_BYTES 24
#define LINE_NS UINT64_C(1000000000)

void progress_init(struct progress *p, const struct ctl *ctl)
{
        bool json = ctl->format == FORMAT_JSON;
        *p = (struct progress){.silent = ctl->quiet || ctl->no_progress,
                               .json = json,
                               .terminal = !json && isatty(STDERR_FILENO),
                               .last_ns = clock_now_ns()};
}

static void figures(const struct progress *p, const streamer_progress *now, uint64_t at)
{
        char done[HUMAN_MAX], total[HUMAN_MAX], rate[HUMAN_MAX], left[HUMAN_MAX];
        uint64_t bytes = now->bytes - p->first_bytes, ns = at - p->first_ns;
        fprintf(stderr, "%s of %s", human_size(done, now->bytes), human_size(total, now->total));
        if (bytes == 0 || ns == 0)
                return;
        double to_go = (double)(now->total - now->bytes) * (double)ns / (double)bytes;
        fprintf(stderr, "  %s", human_rate(rate, bytes, ns));
        if (to_go < 1e17)
                fprintf(stderr, "  ETA %s", human_time(left, (uint64_t)to_go));
}

/* Long names differ at their ends; a bar that wraps cannot be redrawn. */
static void put_name(const char *name)
{
        size_t len = strlen(name), cut = len > NAME_MAX_BYTES ? len - NAME_MAX_BYTES : 0;
        while (cut > 0 && ((unsigned char)name[cut] & 0xc0) == 0x80)
                cut++;
        fputs(cut > 0 ? "..." : "", stderr);
        put_escaped(stderr, name + cut);
}

static void draw_bar(const struct progress *p, const streamer_progress *now, uint64_t at)
{
        char bar[BAR + 1];
        size_t full = now->total == 0 ? 0 : (size_t)((double)now->bytes / (double)now->total * BAR);
        memset(bar, ' ', BAR);
        memset(bar, '=', full < BAR ? full : BAR);
        bar[BAR] = 0;
        fputs("\r\033[K", stderr);
        put_name(now->name);
        fprintf(stderr, " [%s] ", bar);
        figures(p, now, at);
}

static void draw_line(const struct progress *p, const streamer_progress *now, uint64_t at)
{
        put_escaped(stderr, now->name);
        fputs(": ", stderr);
        figures(p, now, at);
        fputc('\n', stderr);
}

static void print_object(const streamer_progress *now)
{
        char *name = escape(now->name);
        json_auto_t *o =
                json_pack("{s:i, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "schema", JSON_SCHEMA, "event",
                          "progress", "name", name, "state", now->state, "generation", (json_int_t)now->generation,
                          "bytes", (json_int_t)now->bytes, "total", (json_int_t)now->total, "tensors",
                          (json_int_t)now->tensors, "tensors_total", (json_int_t)now->tensors_total, "load_ns",
                          (json_int_t)now->load_ns, "restarts", (json_int_t)now->restarts);
        if (o)
                json_dumpf(o, stderr, JSON_COMPACT);
        fputc('\n', stderr);
        free(name);
}

void progress_show(struct progress *p, const streamer_progress *now)
{
        uint64_t at = clock_now_ns();
        if (p->json && !p->silent && at - p->last_ns >= LINE_NS) {
                p->last_ns = at;
                print_object(now);
        }
        if (p->json || p->silent || now->total == 0 || now->bytes > now->total)
                return;
        if (p->first_ns == 0) {
                p->first_ns = at;
                p->first_bytes = now->bytes;
        }
        if (!p->terminal && at - p->last_ns < LINE_NS)
                return;
        p->last_ns = at;
        if (p->terminal)
                draw_bar(p, now, at);
        else
                draw_line(p, now, at);
        p->drawn = true;
}

void progress_clear(struct progress *p)
{
        if (p->drawn && p->terminal)
                fputs("\r\033[K", stderr);
        p->drawn = false;
}
