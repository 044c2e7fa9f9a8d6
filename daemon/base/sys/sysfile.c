/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/sys/sysfile.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

const char *sysfile_root = "";

FILE *sysfile_open(const char *format, ...)
{
        char path[PATH_MAX];
        va_list ap;
        int n = snprintf(path, sizeof(path), "%s", sysfile_root);
        va_start(ap, format);
        vsnprintf(path + n, sizeof(path) - (size_t)n, format, ap);
        va_end(ap);
        return fopen(path, "re");
}

bool sysfile_line_consume(char *line, size_t size, FILE *f)
{
        bool read = f != NULL && fgets(line, (int)size, f) != NULL;
        if (f != NULL)
                fclose(f);
        line[read ? strcspn(line, "\n") : 0] = '\0';
        return read;
}

void sysfile_comm(char comm[SYSFILE_COMM], pid_t pid)
{
        sysfile_line(comm, SYSFILE_COMM, "/proc/%d/comm", (int)pid);
        for (char *p = comm; *p != '\0'; p++)
                if (*p < ' ' || *p > '~')
                        *p = '?';
}

bool sysfile_number_consume(int64_t *number, FILE *f)
{
        char line[64], *end;
        if (!sysfile_line_consume(line, sizeof(line), f))
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
