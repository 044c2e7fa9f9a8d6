/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/terminal.h"

#include "tests/lib/base.h"

#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>

/* ---- the terminal ---- */

static void erase_cells(struct terminal *s, int row, int from, int to)
{
        if (row < s->rows && from < to)
                memset(s->cells[row] + from, ' ', (size_t)(to - from));
}

static void clear(struct terminal *s)
{
        for (int i = 0; i < SCREEN_ROWS; i++) {
                memset(s->cells[i], ' ', SCREEN_COLUMNS);
                s->cells[i][s->columns] = '\0';
        }
        s->row = s->column = s->top = 0;
        s->bottom = s->rows - 1;
}

/* Moves down one line, and scrolls up at the end of the scroll region; and the reverse. */
static void line_feed(struct terminal *s)
{
        if (s->row != s->bottom) {
                s->row += s->row + 1 < s->rows;
                return;
        }
        memmove(s->cells[s->top], s->cells[s->top + 1], (size_t)(s->bottom - s->top) * sizeof(s->cells[0]));
        erase_cells(s, s->bottom, 0, s->columns);
}

static void reverse_feed(struct terminal *s)
{
        if (s->row != s->top) {
                s->row -= s->row > 0;
                return;
        }
        memmove(s->cells[s->top + 1], s->cells[s->top], (size_t)(s->bottom - s->top) * sizeof(s->cells[0]));
        erase_cells(s, s->top, 0, s->columns);
}

static int within(int value, int size)
{
        return value < 0 ? 0 : value >= size ? size - 1 : value;
}

/* ESC [ numbers letter. */
static void control(struct terminal *s)
{
        int a = 0, b = 0, n = sscanf(s->escape + 1, "%d;%d", &a, &b);
        int by = n > 0 && a > 0 ? a : 1;
        switch (s->escape[s->escape_len - 1]) {
        case 'H':
                s->row = within(n > 0 ? a - 1 : 0, s->rows);
                s->column = within(n > 1 ? b - 1 : 0, s->columns);
                break;
        case 'A':
                s->row = within(s->row - by, s->rows);
                break;
        case 'B':
                s->row = within(s->row + by, s->rows);
                break;
        case 'C':
                s->column = within(s->column + by, s->columns);
                break;
        case 'D':
                s->column = within(s->column - by, s->columns);
                break;
        case 'r':
                s->top = within(n > 0 ? a - 1 : 0, s->rows);
                s->bottom = within(n > 1 ? b - 1 : s->rows - 1, s->rows);
                s->row = s->column = 0;
                break;
        case 'K':
                if (a == 1)
                        erase_cells(s, s->row, 0, s->column + 1);
                else
                        erase_cells(s, s->row, s->column, s->columns);
                break;
        case 'J':
                erase_cells(s, s->row, s->column, s->columns);
                for (int i = s->row + 1; i < s->rows; i++)
                        erase_cells(s, i, 0, s->columns);
        }
}

/* True while the sequence is incomplete. */
static bool in_escape(struct terminal *s, char c)
{
        if (s->escape_len == sizeof(s->escape) - 1)
                die("screen: a sequence without end");
        s->escape[s->escape_len++] = c;
        s->escape[s->escape_len] = '\0';
        if (s->escape_len == 1 && c == 'M')
                reverse_feed(s);
        if (s->escape_len == 1)
                return strchr("[()#", c) != NULL;
        if (s->escape[0] != '[')
                return false;
        if (c < '@')
                return true;
        control(s);
        return false;
}

static void take(struct terminal *s, char c)
{
        if (s->in_escape) {
                s->in_escape = in_escape(s, c);
        } else if (c == '\033') {
                s->in_escape = true;
                s->escape_len = 0;
        } else if (c == '\r') {
                s->column = 0;
        } else if (c == '\n') {
                line_feed(s);
        } else if (c == '\b') {
                s->column = within(s->column - 1, s->columns);
        } else if (c == '\t') {
                s->column = within((s->column / 8 + 1) * 8, s->columns);
        } else if ((unsigned char)c >= ' ' && ((unsigned char)c & 0xc0) != 0x80) {
                if (s->column == s->columns) { /* the next character wraps */
                        s->column = 0;
                        line_feed(s);
                }
                s->cells[s->row][s->column++] = (char)((unsigned char)c < 0x80 ? c : '?');
        }
}

/* ---- the program ---- */

const char *terminal_unavailable(void)
{
        int fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
        const char *name = fd >= 0 && grantpt(fd) == 0 && unlockpt(fd) == 0 ? ptsname(fd) : NULL;
        int slave = name ? open(name, O_RDWR | O_NOCTTY | O_CLOEXEC) : -1;
        if (fd >= 0)
                close(fd);
        if (slave >= 0)
                close(slave);
        return slave >= 0 ? NULL : "no pseudo-terminals";
}

void terminal_start(struct terminal *s, int rows, int columns, const char *const *argv, const char *const *environment)
{
        struct winsize size = {.ws_row = (unsigned short)rows, .ws_col = (unsigned short)columns};
        *s = (struct terminal){.rows = rows, .columns = columns};
        clear(s);
        s->pid = must(forkpty(&s->fd, NULL, NULL, &size));
        if (s->pid == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                unsetenv("NO_COLOR");
                setenv("TERM", "vt100", 1);
                for (; environment && *environment; environment++)
                        putenv(strdup(*environment));
                execv(argv[0], (char *const *)(uintptr_t)argv);
                _exit(127);
        }
}

/* Reads the output that arrives within the time. */
static void read_output(struct terminal *s, int timeout_ms)
{
        char data[4096];
        struct pollfd p = {.fd = s->fd, .events = POLLIN};
        if (s->over || poll(&p, 1, timeout_ms) <= 0)
                return;
        ssize_t n = read(s->fd, data, sizeof(data));
        if (n <= 0) { /* EIO: the last writer has exited */
                s->over = true;
                return;
        }
        s->raw = must_realloc(s->raw, s->raw_len + (size_t)n + 1);
        memcpy(s->raw + s->raw_len, data, (size_t)n);
        s->raw_len += (size_t)n;
        s->raw[s->raw_len] = '\0';
        for (ssize_t i = 0; i < n; i++)
                take(s, data[i]);
}

bool terminal_has(const struct terminal *s, const char *text)
{
        for (int i = 0; i < s->rows; i++)
                if (strstr(s->cells[i], text) != NULL)
                        return true;
        return false;
}

/* On this line; -1: on any. */
static void await(struct terminal *s, int line, const char *text, bool there)
{
        uint64_t deadline = clock_ns() + (uint64_t)PATIENCE_MS * 1000000;
        while ((line < 0 ? terminal_has(s, text) : strncmp(s->cells[line], text, strlen(text)) == 0) != there) {
                if (!s->over && clock_ns() < deadline) {
                        read_output(s, 100);
                        continue;
                }
                static char all[4000];
                for (int i = 0, len = 0; i < s->rows && len < 3500; i++)
                        len += snprintf(all + len, sizeof(all) - (size_t)len, "%.100s|\n", s->cells[i]);
                die("'%s' %s:\n%s", text, there ? "does not come" : "stays", all);
        }
}

void terminal_until(struct terminal *s, const char *text)
{
        await(s, -1, text, true);
}

void terminal_until_line(struct terminal *s, int line, const char *text)
{
        await(s, line, text, true);
}

void terminal_until_not(struct terminal *s, const char *text)
{
        await(s, -1, text, false);
}

void terminal_type(struct terminal *s, const char *keys)
{
        must(write(s->fd, keys, strlen(keys)));
}

void terminal_resize(struct terminal *s, int rows, int columns)
{
        struct winsize size = {.ws_row = (unsigned short)rows, .ws_col = (unsigned short)columns};
        s->rows = rows;
        s->columns = columns;
        clear(s);
        must(ioctl(s->fd, TIOCSWINSZ, &size)); /* and sends SIGWINCH to the program */
}

int terminal_finish(struct terminal *s)
{
        uint64_t deadline = clock_ns() + (uint64_t)PATIENCE_MS * 1000000;
        while (!s->over && clock_ns() < deadline)
                read_output(s, 100);
        if (!s->over)
                die("screen: the program does not end");
        int status = child_wait(s->pid);
        close(s->fd);
        return status;
}
