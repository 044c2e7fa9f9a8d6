/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/process/pidstat.h"

#include "daemon/base/sys/sysfile.h"
#include "daemon/base/util.h"

#include <string.h>

#define NS_PER_S UINT64_C(1000000000)

/* Fields of /proc/PID/stat after the name, which is in parentheses and may hold anything. */
enum field { FIELD_STATE = 1, FIELD_THREADS = 18, FIELD_START = 20 };

static const char *field(const char *line, enum field number)
{
        const char *at = strrchr(line, ')');
        for (int i = 0; at != NULL && i < (int)number; i++)
                at = strchr(at + 1, ' ');
        return at != NULL ? at + 1 : NULL;
}

bool pid_stat_read(struct pid_stat *stat, pid_t pid)
{
        char line[1024];
        if (!sysfile_line(line, sizeof(line), "/proc/%d/stat", (int)pid))
                return false;
        const char *start = field(line, FIELD_START);
        if (start == NULL)
                return false;
        *stat = (struct pid_stat){*field(line, FIELD_STATE), strtoull(field(line, FIELD_THREADS), NULL, 10),
                                  strtoull(start, NULL, 10)};
        return stat->start > 0;
}

pid_t pid_of_thread(pid_t thread)
{
        char path[512], line[256];
        int pid = 0;
        snprintf(path, sizeof(path), "%s/proc/%d/status", sysfile_root, (int)thread);
        FILE *f = fopen(path, "re");
        while (f != NULL && fgets(line, sizeof(line), f) != NULL && sscanf(line, "Tgid: %d", &pid) != 1)
                ;
        if (f != NULL)
                fclose(f);
        return pid > 0 ? pid : 0;
}

bool pid_stat_exited(const struct pid_stat *stat, uint64_t start)
{
        switch (stat->state) {
        case 'X':
        case 'x':
                return true;
        case 'Z': /* its first thread is done; others may have all of its memory */
                return stat->start != start || stat->threads <= 1;
        default:
                return stat->start != start;
        }
}

bool pid_stat_began_by(const struct pid_stat *stat, uint64_t time)
{
        return stat->start <= time / (NS_PER_S / (uint64_t)sysconf(_SC_CLK_TCK));
}
