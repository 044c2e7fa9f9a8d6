/* SPDX-License-Identifier: Apache-2.0
 *
 * Progress of a load, for people or as JSON. The rate is the average since the first bytes arrived; the ETA follows
 * from it.
 */
#include "client/streamerctl/ctl.h"
#include "client/streamerctl/output.h"
#include "client/streamerctl/term.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BAR 24 /* characters, between the brackets */
#define BAR_LEAST 8
#define FRAME 3 /* a blank, two brackets */
#define NAME_LEAST 12
#define WIDTH_UNKNOWN 80
#define LINE_NS UINT64_C(1000000000)

void progress_init(struct progress *p, const struct ctl *ctl)
{
        bool json = ctl->format == FORMAT_JSON;
        *p = (struct progress){.silent = ctl->quiet || ctl->no_progress,
                               .json = json,
                               .terminal = !json && isatty(STDERR_FILENO),
                               .last_ns = clock_now_ns()};
}

/* The figures, from the most important one: "1.0 GiB of 2.0 GiB", the rate, the time that is left; "" if not known. */
enum { DONE, RATE, LEFT, FIGURES };
struct figures {
        char text[FIGURES][2 * HUMAN_MAX + 8];
};

static struct figures figures_of(const struct progress *p, const streamer_progress *now, uint64_t at)
{
        struct figures f = {0};
        char done[HUMAN_MAX], total[HUMAN_MAX];
        uint64_t bytes = now->bytes - p->first_bytes, ns = at - p->first_ns;
        snprintf(f.text[DONE], sizeof(f.text[DONE]), "%s of %s", human_size(done, now->bytes),
                 human_size(total, now->total));
        if (bytes == 0 || ns == 0)
                return f;
        snprintf(f.text[RATE], sizeof(f.text[RATE]), "  %s", human_rate(done, bytes, ns));
        if (human_left(done, bytes, now->total - p->first_bytes, ns)[0])
                snprintf(f.text[LEFT], sizeof(f.text[LEFT]), "  ETA %s", done);
        return f;
}

static int figures_width(const struct figures *f)
{
        return (int)(strlen(f->text[DONE]) + strlen(f->text[RATE]) + strlen(f->text[LEFT]));
}

/* One line that never wraps, since a line that wraps cannot be redrawn: a narrow terminal has a shorter bar, then a
 * shorter name, then no bar, then fewer figures. The last column stays empty: a cursor behind it may be on the next
 * line. */
static void draw_bar(const struct progress *p, const streamer_progress *now, uint64_t at)
{
        struct figures f = figures_of(p, now, at);
        char *whole = escape(now->name);
        int columns = term_width(STDERR_FILENO), width = (columns > 1 ? columns : WIDTH_UNKNOWN) - 1;
        for (int i = LEFT; i > DONE && NAME_LEAST + 1 + figures_width(&f) > width; i--)
                f.text[i][0] = '\0';
        int room = width - figures_width(&f) - 1; /* of the name, and of the bar with its brackets */
        int bar = room - text_width(whole) - FRAME;
        if (bar < BAR_LEAST)
                bar = room - NAME_LEAST - FRAME < BAR_LEAST ? 0 : BAR_LEAST;
        bar = bar < BAR ? bar : BAR;
        int full = (int)((double)now->bytes / (double)now->total * bar);
        int name_room = room - (bar > 0 ? bar + FRAME : 0);
        char *name = text_cut(whole, name_room > 0 ? name_room : 0), *line, marks[BAR + 1] = "";
        memset(marks, ' ', (size_t)bar);
        memset(marks, '=', (size_t)full);
        if (asprintf(&line, "%s%s%s%s %s%s%s", name, bar > 0 ? " [" : "", marks, bar > 0 ? "]" : "", f.text[DONE],
                     f.text[RATE], f.text[LEFT]) < 0)
                out_of_memory();
        fprintf(stderr, "\r\033[K%.*s", (int)text_bytes(line, width), line);
        free(whole);
        free(name);
        free(line);
}

static void draw_line(const struct progress *p, const streamer_progress *now, uint64_t at)
{
        struct figures f = figures_of(p, now, at);
        put_escaped(stderr, now->name);
        fprintf(stderr, ": %s%s%s\n", f.text[DONE], f.text[RATE], f.text[LEFT]);
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
