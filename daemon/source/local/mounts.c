/* SPDX-License-Identifier: Apache-2.0
 *
 * One table for the process, sorted by mount point, so that a path is found by a search for itself and each of the
 * folders above it.
 */
#include "daemon/source/local/mounts.h"

#include "daemon/base/util.h"
#include "proto/scope.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct row {
        char *point; /* malloc'd */
        size_t order;
        struct mount mount;
};

static struct {
        pthread_mutex_t mutex;
        FILE *file; /* kept open: it reports changes since it was read or polled last; NULL: not opened yet */
        bool is_read;
        struct row *rows; /* malloc'd */
        size_t n, max;
} table = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* In place: \NNN of a mount point. */
static void octal_decode(char *text)
{
        char *to = text;
        for (const char *from = text; *from != '\0'; to++) {
                bool escape = *from == '\\' && strspn(from + 1, "01234567") >= 3;
                int octal = escape ? (from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0') : *from;
                *to = (char)octal;
                from += escape ? 4 : 1;
        }
        *to = '\0';
}

static void empty(void)
{
        while (table.n > 0)
                free(table.rows[--table.n].point);
        table.is_read = false;
}

/* False: no memory. A line of another form is left out. */
static bool add_line(char *line)
{
        struct row row = {.order = table.n};
        unsigned major, minor;
        int start = 0, end = 0;
        if (sscanf(line, "%*u %*u %u:%u %*s %n%*s%n", &major, &minor, &start, &end) < 2 || end == 0)
                return true;
        const char *type = strstr(line + end, " - ");
        line[end] = '\0';
        octal_decode(line + start);
        row.mount.dev = (uint64_t)major << 32 | minor;
        if (type != NULL)
                snprintf(row.mount.type, sizeof(row.mount.type), "%.*s", (int)strcspn(type + 3, " "), type + 3);
        if (table.n == table.max) {
                size_t max = table.max > 0 ? 2 * table.max : 64;
                struct row *rows = reallocarray(table.rows, max, sizeof(*rows));
                if (rows == NULL)
                        return false;
                table.rows = rows;
                table.max = max;
        }
        row.point = strdup(line + start);
        if (row.point == NULL)
                return false;
        table.rows[table.n++] = row;
        return true;
}

/* Of several on one point the last is on top: it comes first. */
static int by_point(const void *a, const void *b)
{
        const struct row *x = a, *y = b;
        int order = strcmp(x->point, y->point);
        return order != 0 ? order : (x->order < y->order) - (x->order > y->order);
}

static void read_table(void)
{
        cleanup_free char *line = NULL;
        size_t size = 0;
        bool complete = true;
        empty();
        rewind(table.file);
        while (complete && getline(&line, &size, table.file) > 0)
                complete = add_line(line);
        complete = complete && ferror(table.file) == 0;
        if (!complete)
                return empty();
        if (table.n > 0)
                qsort(table.rows, table.n, sizeof(*table.rows), by_point);
        table.is_read = true;
}

static bool is_current(void)
{
        struct pollfd changed = {.fd = fileno(table.file), .events = POLLPRI};
        return poll(&changed, 1, 0) == 0 && table.is_read;
}

static void refresh(void)
{
        if (table.file == NULL)
                table.file = fopen("/proc/self/mountinfo", "re");
        if (table.file != NULL && !is_current())
                read_table();
}

/* The first of the rows of this mount point; NULL: none. */
static const struct row *row_of(const char *point, size_t len)
{
        size_t from = 0, to = table.n;
        while (from < to) {
                size_t middle = from + (to - from) / 2;
                const char *other = table.rows[middle].point;
                int order = strncmp(other, point, len);
                if (order < 0)
                        from = middle + 1;
                else
                        to = middle;
        }
        bool found = from < table.n && strncmp(table.rows[from].point, point, len) == 0 &&
                     table.rows[from].point[len] == '\0';
        return found ? &table.rows[from] : NULL;
}

/* With the mutex. */
static struct mount find(const char *path)
{
        struct mount none = {.dev = 0};
        for (size_t len = strlen(path); len > 0; len--) {
                if (len > 1 && path[len] != '\0' && path[len] != '/')
                        continue;
                const struct row *row = row_of(path, len);
                if (row != NULL)
                        return row->mount;
        }
        return none;
}

struct mount mounts_find(const char *path)
{
        lock_scope(&table.mutex);
        refresh();
        return find(path);
}

/* What says that the table has changed says so once. */
bool mounts_find_known(const char *path, struct mount *mount)
{
        *mount = (struct mount){.dev = 0};
        if (pthread_mutex_trylock(&table.mutex) != 0)
                return false;
        table.is_read = table.file != NULL && is_current();
        if (table.is_read)
                *mount = find(path);
        pthread_mutex_unlock(&table.mutex);
        return mount->dev != 0;
}
