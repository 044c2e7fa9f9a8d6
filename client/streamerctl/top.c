/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop of top: ask, lay out, draw, wait for a key or for the next second. The terminal is given
 * back before anything is said of a failure.
 */
#include "client/streamerctl/output.h"
#include "client/streamerctl/top.h"

#include <curses.h>
#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <term.h>
#include <unistd.h>

#define ONCE_WIDTH 100
#define INTERVAL_MS 1000

/* ---- samples ---- */

static void sample_deinit(struct top_sample *s)
{
        json_decref(s->status);
        json_decref(s->models);
        json_decref(s->leases);
        *s = (struct top_sample){0};
}

static void top_deinit(struct top *top)
{
        sample_deinit(&top->now);
        sample_deinit(&top->before);
}

/* One list out of a reply. */
static int ask_list(struct ctl *ctl, const char *verb, const char *key, json_t **list)
{
        json_auto_t *reply = NULL;
        int rc = ask(ctl->client, verb, json_object(), &reply);
        *list = json_incref(key ? json_object_get(reply, key) : reply);
        return rc == 0 && !*list ? STREAMER_EPROTO : rc;
}

/* Asks the daemon: 0, or STREAMER_E*. */
static int top_take(struct top *top)
{
        struct top_sample s = {0};
        int rc = ask_list(top->ctl, "status", NULL, &s.status)
                         ?: ask_list(top->ctl, "list", "models", &s.models)
                         ?: ask_list(top->ctl, "ps", "leases", &s.leases);
        if (rc != 0) {
                sample_deinit(&s);
                return rc;
        }
        s.at_ns = clock_now_ns();
        sample_deinit(&top->before);
        top->before = top->now;
        top->now = s;
        return 0;
}

/* ---- drawing ---- */

static void draw(struct top *top, struct top_frame *frame)
{
        int height, width;
        getmaxyx(stdscr, height, width);
        top_compose(top, frame, width, height);
        erase();
        for (int i = 0; i < frame->n; i++) {
                if (frame->line[i].title)
                        attron(A_REVERSE);
                mvaddstr(i, 0, frame->line[i].text);
                /* The bar of a title goes to the edge. */
                for (int x = getcurx(stdscr); frame->line[i].title && x > 0 && x < width && getcury(stdscr) == i; x++)
                        addch(' ');
                attroff(A_REVERSE);
        }
        refresh();
}

/* False: enough. */
static bool obey(struct top *top, int key)
{
        if (key == 'q' || key == 'Q')
                return false;
        if (key == 's')
                top->sort = (enum top_sort)((top->sort + 1) % TOP_SORTS);
        if (key == 'j' || key == KEY_DOWN)
                top->scroll++;
        if ((key == 'k' || key == KEY_UP) && top->scroll > 0)
                top->scroll--;
        return true;
}

static int watch(struct top *top, struct top_frame *frame, int interval_ms)
{
        int rc = 0;
        for (bool more = true; more && rc == 0;) {
                rc = top_take(top);
                if (rc != 0)
                        break;
                /* Keys are obeyed at once; a second goes by all the same. */
                uint64_t began = clock_now_ns();
                for (int left = interval_ms; more && left > 0;) {
                        draw(top, frame);
                        timeout(left);
                        more = obey(top, getch());
                        left = interval_ms - (int)((clock_now_ns() - began) / 1000000);
                }
        }
        return rc;
}

static int on_terminal(struct top *top, struct top_frame *frame, int interval_ms)
{
        int known;
        setlocale(LC_ALL, "");
        /* Asked first: newterm() leaves things behind where it fails. */
        bool there = setupterm(NULL, STDOUT_FILENO, &known) == OK;
        if (there)
                del_curterm(cur_term);
        SCREEN *screen = there ? newterm(NULL, stdout, stdin) : NULL;
        if (!screen)
                return usage_error(top->ctl, "top: the terminal '%.80s' is not known ($TERM)",
                                   getenv("TERM") ? getenv("TERM") : "");
        cbreak();
        noecho();
        keypad(stdscr, TRUE);
        curs_set(0);
        int rc = watch(top, frame, interval_ms);
        endwin();
        delscreen(screen);
        return rc != 0 ? ctl_fail(top->ctl, rc, NULL) : 0;
}

/* ---- once ---- */

static int print_once(struct top *top, struct top_frame *frame)
{
        const char *wide = getenv("COLUMNS"), *high = getenv("LINES");
        int width = wide ? atoi(wide) : 0, height = high ? atoi(high) : 0;
        int rc = top_take(top);
        if (rc != 0)
                return ctl_fail(top->ctl, rc, NULL);
        top_compose(top, frame, width > 0 ? width : ONCE_WIDTH, height > 0 ? height : FRAME_LINES);
        for (int i = 0; i < frame->n; i++)
                puts(frame->line[i].text);
        return 0;
}

int verb_top(struct ctl *ctl)
{
        struct top top = {.ctl = ctl};
        int interval_ms = ctl->interval_ms > 0 ? (int)ctl->interval_ms : INTERVAL_MS, rc;
        if (!ctl->once && (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)))
                return usage_error(ctl, "top: needs a terminal; --once prints one frame without");
        struct top_frame *frame = calloc(1, sizeof(*frame));
        if (!frame)
                out_of_memory();
        rc = ctl->once ? print_once(&top, frame) : on_terminal(&top, frame, interval_ms);
        top_deinit(&top);
        free(frame);
        return rc;
}
