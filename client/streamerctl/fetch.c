/* SPDX-License-Identifier: Apache-2.0
 *
 * fetch: writes small files beside the weights of a source into a directory, and nothing outside it. The daemon's names
 * are not trusted: directories are opened one by one, without following links, and a file is written under another name
 * and renamed when it is whole.
 */
#include "client/streamerctl/columns.h"
#include "client/streamerctl/ctl.h"
#include "client/streamerctl/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIRECTORY (O_RDONLY | O_DIRECTORY | O_CLOEXEC)

/* Uses errno. */
static int file_error(const struct ctl *ctl, const char *name, const char *what)
{
        return ctl_error(ctl, STREAMER_EFAILED, name, "%s: %s", what, strerror(errno));
}

/* ---- names ---- */

static bool is_safe(const char *name)
{
        for (const char *at = name;; at++) {
                size_t len = strcspn(at, "/");
                if (len == 0 || (len <= 2 && strspn(at, ".") >= len))
                        return false;
                at += len;
                if (*at == '\0')
                        return true;
        }
}

static int check_name(const struct ctl *ctl, const char *name)
{
        return is_safe(name) ? 0
                             : usage_error(ctl,
                                           "fetch: '%.200s' is not the name of a file below the source: it is "
                                           "relative, without empty, '.' or '..' components",
                                           name);
}

/* ---- writing ---- */

/* The directory of the file below `output`, made where it does not exist; *last is the file's own name. -1 with errno.
 */
static int open_parent(int output, const char *name, const char **last)
{
        int dir = openat(output, ".", DIRECTORY);
        for (const char *slash; dir >= 0 && (slash = strchr(name, '/')); name = slash + 1) {
                char *component = strndup(name, (size_t)(slash - name));
                int next = -1;
                if (component && (mkdirat(dir, component, 0777) == 0 || errno == EEXIST))
                        next = openat(dir, component, DIRECTORY | O_NOFOLLOW);
                free(component);
                close(dir);
                dir = next;
        }
        *last = name;
        return dir;
}

static bool write_file(int dir, const char *name, const char *data, uint64_t size)
{
        char part[PART_NAME_MAX];
        struct permissions permissions = permissions_of(dir, name);
        int fd = openat(dir, part_name(part), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                        permissions_to_open(&permissions));
        if (fd < 0)
                return false;
        bool ok = permissions_set(&permissions, fd) && write_whole(fd, data, size);
        ok = close(fd) == 0 && ok && renameat(dir, part, dir, name) == 0;
        int e = errno;
        if (!ok)
                unlinkat(dir, part, 0);
        errno = e;
        return ok;
}

static int store(const struct ctl *ctl, int output, const char *name, const char *data, uint64_t size)
{
        const char *last;
        int dir = open_parent(output, name, &last);
        if (dir < 0)
                return file_error(ctl, name, "its directory cannot be opened");
        int rc = write_file(dir, last, data, size) ? 0 : file_error(ctl, name, "cannot be written");
        close(dir);
        return rc;
}

static int open_output(const char *path)
{
        int fd = open(path, DIRECTORY);
        if (fd < 0 && errno == ENOENT && mkdir(path, 0777) == 0)
                fd = open(path, DIRECTORY);
        return fd;
}

/* ---- output ---- */

static void add_size_if_known(struct table *t, const json_t *row, const char *key)
{
        if (json_object_get(row, key))
                add_size(t, row, key);
        else
                table_add(t, "-");
}

static void print_files(const struct ctl *ctl, json_t *files)
{
        static const struct column columns[] = {{"FILE", "name", add_text, COLUMN_KEEP},
                                                {">SIZE", "bytes", add_size_if_known, 1}};
        if (ctl->format == FORMAT_JSON) {
                json_auto_t *json = json_pack("{s:O}", "files", files);
                ctl_print_json(json);
        } else if (!ctl->quiet) {
                columns_print(files, COLUMNS(columns), false, NULL);
        } else {
                ctl_print_names(files);
        }
}

/* ---- fetching ---- */

static int fetch_file(const struct ctl *ctl, int output, const char *name, json_t *done)
{
        void *data;
        uint64_t size;
        int rc = streamer_fetch(ctl->client, ctl->args[0], name, &data, &size);
        if (rc != 0)
                return ctl_fail(ctl, rc, ctl->args[0]);
        rc = store(ctl, output, name, data, size);
        free(data);
        json_array_append_new(done, json_pack("{s:s, s:I}", "name", name, "bytes", (json_int_t)size));
        return rc;
}

static int fetch_files(const struct ctl *ctl, int output, const json_t *names, json_t *done)
{
        const json_t *name;
        int rc = 0;
        for (size_t i = 0; (name = json_array_get(names, i)); i++) {
                const char *text = json_string_value(name);
                if (rc == 0)
                        rc = check_name(ctl, text) ?: fetch_file(ctl, output, text, done);
        }
        return rc;
}

/* The files that were named, else all that the source lists. */
static int choose(struct ctl *ctl, json_t **names)
{
        const json_t *file;
        json_auto_t *reply = NULL;
        *names = json_array();
        for (size_t n = 1; n < ctl->n_args; n++)
                json_array_append_new(*names, json_string(ctl->args[n]));
        if (ctl->n_args > 1)
                return json_array_size(*names) == ctl->n_args - 1 ? 0 : usage_not_utf8(ctl);
        int rc = ctl_call(ctl, "fetch", json_pack("{s:s}", "source", ctl->args[0]), ctl->args[0], &reply);
        for (size_t i = 0; (file = json_array_get(json_object_get(reply, "files"), i)); i++)
                json_array_append(*names, json_object_get(file, "name"));
        if (rc != 0 || json_array_size(*names) > 0)
                return rc;
        return ctl_error(ctl, STREAMER_ENOENT, ctl->args[0], "lists no files: name those to fetch");
}

static int list(struct ctl *ctl)
{
        json_auto_t *reply = NULL;
        if (ctl->n_args > 1)
                return usage_error(ctl, "fetch: --list takes no files");
        int rc = ctl_call(ctl, "fetch", json_pack("{s:s}", "source", ctl->args[0]), ctl->args[0], &reply);
        if (rc == 0)
                print_files(ctl, json_object_get(reply, "files"));
        return rc;
}

int verb_fetch(struct ctl *ctl)
{
        json_auto_t *names = NULL, *done = json_array();
        if (ctl->list)
                return list(ctl);
        const char *path = ctl->directory ? ctl->directory : ".";
        int rc = choose(ctl, &names);
        if (rc != 0)
                return rc;
        int output = open_output(path);
        if (output < 0)
                return file_error(ctl, path, "cannot be opened");
        rc = fetch_files(ctl, output, names, done);
        close(output);
        if (rc == 0)
                print_files(ctl, done);
        return rc;
}
