/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/sys/sysfile.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

const char *sysfile_root = "";

__attribute__((format(printf, 1, 0))) static FILE *open_file(const char *format, va_list ap)
{
        char path[PATH_MAX];
        int n = snprintf(path, sizeof(path), "%s", sysfile_root);
        vsnprintf(path + n, sizeof(path) - (size_t)n, format, ap);
        return fopen(path, "re");
}

FILE *sysfile_open(const char *format, ...)
{
        va_list ap;
        va_start(ap, format);
        FILE *f = open_file(format, ap);
        va_end(ap);
        return f;
}

__attribute__((format(printf, 3, 0))) static bool read_line(char *line, size_t size, const char *format, va_list ap)
{
        FILE *f = open_file(format, ap);
        bool read = f != NULL && fgets(line, (int)size, f) != NULL;
        if (f != NULL)
                fclose(f);
        line[read ? strcspn(line, "\n") : 0] = '\0';
        return read;
}

bool sysfile_line(char *line, size_t size, const char *format, ...)
{
        va_list ap;
        va_start(ap, format);
        bool read = read_line(line, size, format, ap);
        va_end(ap);
        return read;
}

void sysfile_comm(char comm[SYSFILE_COMM], pid_t pid)
{
        sysfile_line(comm, SYSFILE_COMM, "/proc/%d/comm", (int)pid);
        for (char *p = comm; *p != '\0'; p++)
                if (*p < ' ' || *p > '~')
                        *p = '?';
}

bool sysfile_number(int64_t *number, const char *format, ...)
{
        char line[64], *end;
        va_list ap;
        va_start(ap, format);
        bool read = read_line(line, sizeof(line), format, ap);
        va_end(ap);
        if (!read)
                return false;
        errno = 0;
        int64_t value = strtoll(line, &end, 10);
        if (errno != 0 || end == line || end[strspn(end, " \t")] != '\0')
                return false;
        *number = value;
        return true;
}

bool sysfile_chosen(char *word, size_t size, const char *path)
{
        char line[256];
        word[0] = '\0';
        if (!sysfile_line(line, sizeof(line), "%s", path))
                return false;
        const char *begin = strchr(line, '['), *end = begin != NULL ? strchr(begin, ']') : NULL;
        if (end == NULL)
                return false;
        snprintf(word, size, "%.*s", (int)(end - begin - 1), begin + 1);
        return true;
}
