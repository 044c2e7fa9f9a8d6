/* SPDX-License-Identifier: Apache-2.0
 *
 * Two publishers are known: a file SHA256SUMS in the folder, as sha256sum writes it, and the HF cache, whose blobs are
 * named by their digest. A malformed line is an error with its number: skipping it would check less than was asked for.
 */
#include "daemon/source/sums.h"

#include "daemon/base/util.h"

#include <limits.h>
#include <openssl/crypto.h>

#define HEX_LEN 64

/* ---- digests ---- */

static bool is_digest(const char *hex)
{
        return strspn(hex, "0123456789abcdefABCDEF") >= HEX_LEN;
}

/* Two publishers, or two lines, must agree. */
int sums_set_digest(struct object *object, const char *hex, const char *publisher, struct error *error)
{
        unsigned char digest[32];
        if (strlen(hex) != HEX_LEN || !is_digest(hex))
                return 0;
        for (size_t i = 0; i < sizeof(digest); i++)
                digest[i] = (unsigned char)(OPENSSL_hexchar2int((unsigned char)hex[2 * i]) << 4 |
                                            OPENSSL_hexchar2int((unsigned char)hex[2 * i + 1]));
        if (object->has_sha256 && memcmp(object->sha256, digest, sizeof(digest)) != 0)
                return error_set(error, STREAMER_EFAILED, "two published digests that differ, one by %s (%s)",
                                 publisher, object->path);
        memcpy(object->sha256, digest, sizeof(digest));
        object->has_sha256 = true;
        return 0;
}

/* ---- SHA256SUMS ---- */

static int compare_name(const void *name, const void *object)
{
        return strcmp(name, object_name(object));
}

/* What is wrong with a line; NULL: it is "digest  name" or "digest *name". */
static const char *line_fault(const char *line, size_t len)
{
        if (line[0] == '\\')
                return "escaped file names are not supported";
        if (strlen(line) != len)
                return "a NUL byte";
        bool valid = len >= HEX_LEN + 3 && is_digest(line) && line[HEX_LEN] == ' ' &&
                     (line[HEX_LEN + 1] == ' ' || line[HEX_LEN + 1] == '*');
        return valid ? NULL : "not 'digest  name' as sha256sum writes it";
}

/* Empty lines, comments and files that are not among the objects are ignored. */
int sums_apply(struct text *text, const char *shown, struct object *objects, size_t n, struct error *error)
{
        char *end = text->data + text->size, *stop;
        unsigned number = 1;
        for (char *line = text->data; line < end; line = stop + 1, number++) {
                stop = memchr(line, '\n', (size_t)(end - line)) ?: end;
                *stop = '\0'; /* the text has space for one more byte */
                size_t len = (size_t)(stop - line);
                if (len > 0 && line[len - 1] == '\r')
                        line[--len] = '\0';
                if (len == 0 || line[0] == '#')
                        continue;
                const char *fault = line_fault(line, len);
                if (fault != NULL)
                        return error_set(error, STREAMER_EFAILED, "%s (%s:%u)", fault, shown, number);
                const char *name = line + HEX_LEN + 2;
                name += strncmp(name, "./", 2) == 0 ? 2 : 0;
                struct object *object = bsearch(name, objects, n, sizeof(*object), compare_name);
                line[HEX_LEN] = '\0';
                if (object != NULL && sums_set_digest(object, line, shown, error) < 0)
                        return error->code;
        }
        return 0;
}

int sums_require(const struct object *objects, size_t n, const char *where, struct error *error)
{
        for (size_t i = 0; i < n; i++)
                if (!objects[i].has_sha256 && !objects[i].has_crc32c)
                        return error_set(error, STREAMER_EFAILED, "no published SHA-256: not listed in %s (%s)", where,
                                         objects[i].path);
        return 0;
}

/* ---- blobs ---- */

/* The name of the open file, which the kernel knows: the end of a chain of links. */
static int blob_digest(struct object *object, struct error *error)
{
        char link[64], target[PATH_MAX];
        snprintf(link, sizeof(link), "/proc/self/fd/%d", object->fd);
        ssize_t len = readlink(link, target, sizeof(target) - 1);
        if (len < 0)
                return 0;
        target[len] = '\0';
        const char *slash = strrchr(target, '/');
        return sums_set_digest(object, slash != NULL ? slash + 1 : target, "the blob's name", error);
}

int sums_find(const struct root_path *folder, struct object *objects, size_t n, struct error *error)
{
        cleanup_with(root_path_deinit) struct root_path path = {0};
        cleanup_with(text_deinit) struct text text = {0};
        cleanup_close int fd = -1;
        int r = root_path_init_child(&path, folder, SUMS_NAME, error)
                        ?: root_path_open_file(&path, &fd, error)
                        ?: text_read_fd(&text, fd, SUMS_MAX, path.shown, error)
                        ?: sums_apply(&text, path.shown, objects, n, error);
        if (r == STREAMER_ENOENT) { /* not an error: names of blobs may still be digests */
                *error = (struct error){.code = 0};
                r = 0;
        }
        for (size_t i = 0; r == 0 && i < n; i++)
                r = blob_digest(&objects[i], error);
        if (r < 0)
                return r;
        return sums_require(objects, n, "a " SUMS_NAME " beside it and no blob of an HF cache", error);
}
