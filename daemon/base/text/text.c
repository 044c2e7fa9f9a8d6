/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/text/text.h"

#include "daemon/base/util.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/stat.h>

int text_new(struct text *text, uint64_t size, const char *name, struct error *error)
{
        *text = (struct text){.data = calloc(1, size + 1), .size = size};
        return text->data != NULL ? 0 : error_errno(error, STREAMER_ENOMEM, ENOMEM, "memory for %s", name);
}

int text_read_fd(struct text *text, int fd, uint64_t max, const char *name, struct error *error)
{
        struct stat st;
        *text = (struct text){0};
        if (fstat(fd, &st) < 0)
                return error_set(error, STREAMER_EFAILED, "%s (%s)", strerror(errno), name);
        if (!S_ISREG(st.st_mode))
                return error_set(error, STREAMER_EFAILED, "not a regular file (%s)", name);
        if ((uint64_t)st.st_size > max)
                return error_set(error, STREAMER_EFAILED, "%" PRIu64 " bytes, more than the %" PRIu64 " allowed (%s)",
                                 (uint64_t)st.st_size, max, name);
        int r = text_new(text, (uint64_t)st.st_size, name, error);
        for (size_t done = 0; r == 0 && done < text->size;) {
                ssize_t n = TEMP_FAILURE_RETRY(pread(fd, text->data + done, text->size - done, (off_t)done));
                if (n > 0)
                        done += (size_t)n;
                else if (n == 0)
                        r = error_set(error, STREAMER_EFAILED, "became shorter while it was read (%s)", name);
                else
                        r = error_set(error, STREAMER_EFAILED, "read: %s (%s)", strerror(errno), name);
        }
        if (r < 0)
                text_deinit(text);
        return r;
}

void text_deinit(struct text *text)
{
        free(text->data);
        *text = (struct text){0};
}

int text_write_fd(int fd, const void *data, size_t size)
{
        for (ssize_t n = 0; size > 0; data = (const char *)data + n, size -= (size_t)n) {
                n = TEMP_FAILURE_RETRY(write(fd, data, size));
                if (n < 0)
                        return -1;
        }
        return 0;
}
