/* SPDX-License-Identifier: Apache-2.0
 *
 * Replays all files of the given directories, or the given files, and counts them. A missing or empty corpus is an
 * error.
 */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <limits.h>
#include <sys/stat.h>

static void stop(const char *path)
{
        perror(path);
        exit(1);
}

static void replay_file(const char *path)
{
        FILE *f = fopen(path, "rb");
        struct stat st;
        if (f == NULL || fstat(fileno(f), &st) < 0)
                stop(path);
        size_t size = (size_t)st.st_size;
        uint8_t *data = malloc(size > 0 ? size : 1); /* of its own size, for sanitizers */
        if (data == NULL || fread(data, 1, size, f) != size)
                stop(path);
        fclose(f);
        LLVMFuzzerTestOneInput(data, size);
        free(data);
}

static int visible(const struct dirent *entry)
{
        return entry->d_name[0] != '.';
}

static size_t replay_folder(const char *folder)
{
        struct dirent **entries;
        int n = scandir(folder, &entries, visible, alphasort);
        if (n < 0)
                stop(folder);
        for (int i = 0; i < n; i++) {
                char path[PATH_MAX];
                snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
                replay_file(path);
                free(entries[i]);
        }
        free(entries);
        return (size_t)n;
}

static size_t replay(const char *path)
{
        struct stat st;
        if (stat(path, &st) < 0)
                stop(path);
        if (S_ISDIR(st.st_mode))
                return replay_folder(path);
        replay_file(path);
        return 1;
}

int main(int argc, char **argv)
{
        const char *slash = strrchr(argv[0], '/'), *name = slash ? slash + 1 : argv[0];
        size_t n = 0;
        for (int i = 1; i < argc; i++)
                n += replay(argv[i]);
        printf("%s: %zu inputs\n", name, n);
        return n > 0 ? 0 : 1;
}
