/* SPDX-License-Identifier: Apache-2.0
 *
 * Two publishers are known: a file SHA256SUMS in the folder, as sha256sum writes it, and the HF cache, whose blobs are
 * named by their digest. A malformed line is an error with its number: skipping it would check less than was asked for.
 */
#include "daemon/source/sums.h"

#include "daemon/base/text/percent.h"
#include "daemon/base/util.h"

#include <ctype.h>
#include <limits.h>
#include <string.h>

#define HEX_LEN 64

struct sums {
        const char *path;
        struct object *objects;
        size_t n;
        unsigned line;
};

/* ---- digests ---- */

static bool is_digest(const char *hex, size_t len)
{
        for (size_t i = 0; i < HEX_LEN; i++)
                if (i >= len || !isxdigit((unsigned char)hex[i]))
                        return false;
        return true;
}

/* A digest that was found; two publishers, or two lines, must agree. */
static int publish(struct object *object, const char *hex, const char *by, struct error *error)
{
        unsigned char digest[32];
        for (size_t i = 0; i < sizeof(digest); i++)
                digest[i] = (unsigned char)(percent_digit(hex[2 * i]) << 4 | percent_digit(hex[2 * i + 1]));
        if (object->has_sha256 && memcmp(object->sha256, digest, sizeof(digest)) != 0)
                return error_set(error, STREAMER_EFAILED, "two published digests that differ, one by %s (%s)", by,
                                 object->path);
        memcpy(object->sha256, digest, sizeof(digest));
        object->has_sha256 = true;
        return 0;
}

int sums_set_digest(struct object *object, const char *hex, const char *by, bool *valid, struct error *error)
{
        *valid = strlen(hex) == HEX_LEN && is_digest(hex, HEX_LEN);
        return *valid ? publish(object, hex, by, error) : 0;
}

/* ---- SHA256SUMS ---- */

static int compare_name(const void *name, const void *object)
{
        return strcmp(name, strrchr(((const struct object *)object)->path, '/') + 1);
}

static int bad_line(const struct sums *sums, const char *what, struct error *error)
{
        return error_set(error, STREAMER_EFAILED, "%s (%s:%u)", what, sums->path, sums->line);
}

/* "digest  name" or "digest *name"; names of other folders and files are not ours. */
static int parse_line(const struct sums *sums, char *line, size_t len, struct error *error)
{
        if (len > 0 && line[len - 1] == '\r')
                line[--len] = '\0';
        if (len == 0 || line[0] == '#')
                return 0;
        if (line[0] == '\\')
                return bad_line(sums, "escaped file names are not supported", error);
        if (strlen(line) != len)
                return bad_line(sums, "a NUL byte", error);
        if (!is_digest(line, len) || len < HEX_LEN + 3 || line[HEX_LEN] != ' ' ||
            (line[HEX_LEN + 1] != ' ' && line[HEX_LEN + 1] != '*'))
                return bad_line(sums, "not 'digest  name' as sha256sum writes it", error);
        const char *name = line + HEX_LEN + 2;
        if (strncmp(name, "./", 2) == 0)
                name += 2;
        struct object *object = bsearch(name, sums->objects, sums->n, sizeof(*object), compare_name);
        return object != NULL ? publish(object, line, sums->path, error) : 0;
}

int sums_apply(struct text *text, const char *shown, struct object *objects, size_t n, struct error *error)
{
        struct sums sums = {.path = shown, .objects = objects, .n = n};
        char *line = text->data, *end = text->data + text->size;
        while (line < end) {
                char *stop = memchr(line, '\n', (size_t)(end - line)) ?: end;
                *stop = '\0'; /* the text has room for one more byte */
                sums.line++;
                int r = parse_line(&sums, line, (size_t)(stop - line), error);
                if (r < 0)
                        return r;
                line = stop + 1;
        }
        return 0;
}

int sums_require(const struct object *objects, size_t n, const char *where, struct error *error)
{
        for (size_t i = 0; i < n; i++)
                if (!objects[i].has_sha256)
                        return error_set(error, STREAMER_EFAILED, "no published SHA-256: not listed in %s (%s)", where,
                                         objects[i].path);
        return 0;
}

static int read_sums(const struct place *folder, struct object *objects, size_t n, struct error *error)
{
        struct place place;
        struct text text = {0};
        cleanup_close int fd = -1;
        int r = place_init_child(&place, folder, SUMS_NAME, error);
        if (r < 0)
                return r;
        r = place_open_file(&place, &fd, error);
        if (r == 0)
                r = text_read_fd(&text, fd, SUMS_MAX, place.shown, error);
        if (r == 0)
                r = sums_apply(&text, place.shown, objects, n, error);
        text_deinit(&text);
        place_deinit(&place);
        return r;
}

/* ---- blobs ---- */

/* The kernel knows the name that a chain of links ended in: it is the name of what is open. */
static int blob_digest(struct object *object, struct error *error)
{
        char link[64], target[PATH_MAX];
        snprintf(link, sizeof(link), "/proc/self/fd/%d", object->fd);
        ssize_t len = readlink(link, target, sizeof(target) - 1);
        if (len < 0)
                return 0;
        target[len] = '\0';
        const char *slash = strrchr(target, '/');
        bool valid; /* other names are no digests */
        return sums_set_digest(object, slash != NULL ? slash + 1 : target, "the blob's name", &valid, error);
}

int sums_find(const struct place *folder, struct object *objects, size_t n, struct error *error)
{
        struct error no_list = {0}; /* without the list, the names of blobs may still be digests: not an error */
        int r = read_sums(folder, objects, n, &no_list);
        if (r < 0 && r != STREAMER_ENOENT) {
                *error = no_list;
                return r;
        }
        for (size_t i = 0; i < n; i++) {
                r = blob_digest(&objects[i], error);
                if (r < 0)
                        return r;
        }
        return sums_require(objects, n, "a " SUMS_NAME " beside it and no blob of an HF cache", error);
}
