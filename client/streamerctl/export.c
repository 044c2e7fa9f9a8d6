/* SPDX-License-Identifier: Apache-2.0
 *
 * export: writes a resident model as one safetensors file, out of the memory that its lease maps.
 *
 *   tensors listed, in the order of the file > header > data > synchronised > named > directory synchronised
 *
 * The tensors of a published model are those of its table: one that is not contiguous is gathered, tensors that share
 * bytes are written each, and attributes become metadata. The file has no name until it is whole, so whatever fails
 * leaves the path as it was.
 */
#include "client/streamerctl/ctl.h"
#include "client/streamerctl/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_MAX UINT64_C(100000000) /* the format's own limit */
#define METADATA "__metadata__"
#define ATTRIBUTE "streamerd.attribute." /* before the name of a published model's attribute */
#define BUFFER ((size_t)1 << 22)

/* A tensor of the file. */
struct item {
        const char *name, *dtype;
        uint32_t rank;
        const uint64_t *shape;
        const uint64_t *strides; /* in elements; NULL: it is contiguous */
        uint64_t element, bytes; /* `element`: bytes of one of memory, which has `packed` of the file */
        unsigned packed, align;
        streamer_tensor in; /* where it lies: itself, or the storage of a published model */
        uint64_t offset;    /* in that */
};

struct exported {
        const struct ctl *ctl;
        streamer_lease *lease;
        struct item *items;
        size_t n;
        char *header;
        size_t header_size; /* with its length and padding */
        uint64_t bytes;     /* of the whole file */
        bool is_text;       /* what the header says is UTF-8 */
        int fd;
        char *buffer; /* BUFFER bytes */
        size_t used;
};

/* ---- what the file consists of ---- */

static const char *model_of(const struct exported *x)
{
        return x->ctl->args[0];
}

/* The names that frameworks give element types. */
static const struct {
        const char *name;
        streamer_dtype dtype;
        unsigned packed;
} framework_types[] = {
        {"bool", STREAMER_DTYPE_BOOL, 1},
        {"uint8", STREAMER_DTYPE_U8, 1},
        {"int8", STREAMER_DTYPE_I8, 1},
        {"uint16", STREAMER_DTYPE_U16, 1},
        {"int16", STREAMER_DTYPE_I16, 1},
        {"uint32", STREAMER_DTYPE_U32, 1},
        {"int32", STREAMER_DTYPE_I32, 1},
        {"uint64", STREAMER_DTYPE_U64, 1},
        {"int64", STREAMER_DTYPE_I64, 1},
        {"float16", STREAMER_DTYPE_F16, 1},
        {"bfloat16", STREAMER_DTYPE_BF16, 1},
        {"float32", STREAMER_DTYPE_F32, 1},
        {"float64", STREAMER_DTYPE_F64, 1},
        {"complex64", STREAMER_DTYPE_C64, 1},
        {"float8_e4m3fn", STREAMER_DTYPE_F8_E4M3, 1},
        {"float8_e5m2", STREAMER_DTYPE_F8_E5M2, 1},
        {"float8_e8m0fnu", STREAMER_DTYPE_F8_E8M0, 1},
        {"float8_e4m3fnuz", STREAMER_DTYPE_F8_E4M3FNUZ, 1},
        {"float8_e5m2fnuz", STREAMER_DTYPE_F8_E5M2FNUZ, 1},
        {"float4_e2m1fn_x2", STREAMER_DTYPE_F4, 2},
};

/* 0: safetensors has none. */
static streamer_dtype type_of(const char *name, unsigned *packed)
{
        *packed = 1;
        for (size_t i = 0; i < sizeof(framework_types) / sizeof(framework_types[0]); i++)
                if (strcmp(framework_types[i].name, name) == 0) {
                        *packed = framework_types[i].packed;
                        return framework_types[i].dtype;
                }
        for (streamer_dtype d = STREAMER_DTYPE_BOOL; streamer_dtype_name(d); d++)
                if (strcmp(streamer_dtype_name(d), name) == 0)
                        return d;
        return STREAMER_DTYPE_UNKNOWN;
}

static unsigned align_of(streamer_dtype dtype)
{
        unsigned bytes = streamer_dtype_bits(dtype) / 8;
        return bytes > 0 ? bytes : 1;
}

static int take_tensor(struct exported *x, size_t i, struct item *item)
{
        streamer_tensor t = STREAMER_TENSOR_INIT;
        int rc = streamer_tensor_get(x->lease, i, &t);
        if (rc != 0)
                return ctl_fail(x->ctl, rc, model_of(x));
        *item = (struct item){.name = t.name,
                              .dtype = t.dtype_name,
                              .rank = t.rank,
                              .shape = t.shape,
                              .bytes = t.bytes,
                              .packed = 1,
                              .align = align_of(t.dtype),
                              .in = t};
        return 0;
}

/* Its strides are those of a tensor whose last dimension varies fastest, from dimension `from` on. */
static bool is_contiguous(const struct item *item, uint32_t from)
{
        uint64_t step = 1;
        for (uint32_t d = item->rank; d-- > from;) {
                if (item->shape[d] > 1 && item->strides[d] != step)
                        return false;
                step *= item->shape[d];
        }
        return true;
}

static int take_published(struct exported *x, size_t i, struct item *item)
{
        streamer_published_tensor t = STREAMER_PUBLISHED_TENSOR_INIT;
        streamer_tensor storage = STREAMER_TENSOR_INIT;
        int rc = streamer_published_get(x->lease, i, &t) ?: streamer_published_storage(x->lease, t.storage, &storage);
        if (rc != 0)
                return ctl_fail(x->ctl, rc, model_of(x));
        unsigned packed;
        streamer_dtype dtype = type_of(t.dtype, &packed);
        bool fits = streamer_dtype_bits(dtype) * packed == 8 * t.item && (packed == 1 || t.rank > 0);
        if (dtype == STREAMER_DTYPE_UNKNOWN || !fits)
                return ctl_error(x->ctl, STREAMER_EUNSUPPORTED, model_of(x),
                                 "tensor '%.200s': safetensors has no dtype for %.60s of %u bytes", t.name, t.dtype,
                                 t.item);
        *item = (struct item){.name = t.name,
                              .dtype = streamer_dtype_name(dtype),
                              .rank = t.rank,
                              .shape = t.shape,
                              .strides = t.strides,
                              .element = t.item,
                              .bytes = t.item,
                              .packed = packed,
                              .align = align_of(dtype),
                              .in = storage,
                              .offset = t.offset};
        for (uint32_t d = 0; d < t.rank; d++)
                item->bytes *= t.shape[d];
        if (item->bytes == 0 || is_contiguous(item, 0))
                item->strides = NULL;
        return 0;
}

/* As safetensors' own writer: each tensor is aligned, since none of a larger element follows. */
static int by_alignment_and_name(const void *a, const void *b)
{
        const struct item *x = a, *y = b;
        return x->align != y->align ? (x->align < y->align ? 1 : -1) : strcmp(x->name, y->name);
}

static int list_items(struct exported *x, bool published)
{
        int rc = published ? streamer_published_count(x->lease, &x->n, NULL, NULL)
                           : streamer_tensor_count(x->lease, &x->n);
        if (rc != 0)
                return ctl_fail(x->ctl, rc, model_of(x));
        x->items = calloc(x->n + 1, sizeof(*x->items));
        if (!x->items)
                out_of_memory();
        for (size_t i = 0; rc == 0 && i < x->n; i++) {
                rc = published ? take_published(x, i, &x->items[i]) : take_tensor(x, i, &x->items[i]);
                if (rc == 0 && strcmp(x->items[i].name, METADATA) == 0)
                        rc = ctl_error(x->ctl, STREAMER_EUNSUPPORTED, model_of(x),
                                       "a tensor is named __metadata__, which is safetensors' own name");
        }
        if (rc == 0)
                qsort(x->items, x->n, sizeof(*x->items), by_alignment_and_name);
        return rc;
}

/* ---- the header ---- */

/* A publisher may have written any bytes: then is_text becomes false. */
static void put_text(struct exported *x, FILE *f, const char *prefix, const char *text)
{
        size_t size = strlen(prefix) + strlen(text) + 1;
        char *whole = malloc(size);
        if (!whole)
                out_of_memory();
        snprintf(whole, size, "%s%s", prefix, text);
        json_auto_t *json = json_string(whole);
        free(whole);
        x->is_text = x->is_text && json;
        if (json && json_dumpf(json, f, JSON_ENCODE_ANY) != 0)
                out_of_memory();
}

static void put_pair(struct exported *x, FILE *f, const char **comma, const char *prefix, const char *key,
                     const char *value)
{
        fputs(*comma, f);
        *comma = ",";
        put_text(x, f, prefix, key);
        putc(':', f);
        put_text(x, f, "", value);
}

static void put_metadata(struct exported *x, FILE *f, bool published)
{
        const char *comma = "", *key, *value;
        size_t n = 0;
        if (published)
                streamer_published_count(x->lease, NULL, NULL, &n);
        fputs("\"" METADATA "\":{", f);
        for (size_t i = 0; streamer_metadata_get(x->lease, i, &key, &value) == 0; i++)
                put_pair(x, f, &comma, "", key, value);
        for (size_t i = 0; i < n && streamer_published_attribute(x->lease, i, &key, &value) == 0; i++)
                put_pair(x, f, &comma, ATTRIBUTE, key, value);
        putc('}', f);
}

static void put_item(struct exported *x, FILE *f, const struct item *item, uint64_t at)
{
        put_text(x, f, "", item->name);
        fprintf(f, ":{\"dtype\":\"%s\",\"shape\":[", item->dtype);
        for (uint32_t d = 0; d < item->rank; d++)
                fprintf(f, "%s%llu", d > 0 ? "," : "",
                        (unsigned long long)item->shape[d] * (d + 1 == item->rank ? item->packed : 1));
        fprintf(f, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at, (unsigned long long)(at + item->bytes));
}

static int make_header(struct exported *x, bool published)
{
        uint64_t at = 0;
        FILE *f = open_memstream(&x->header, &x->header_size);
        if (!f)
                out_of_memory();
        for (int i = 0; i < 8; i++)
                putc(0, f);
        putc('{', f);
        const char *comma = "";
        if (published || streamer_has_metadata(x->lease)) {
                put_metadata(x, f, published);
                comma = ",";
        }
        for (size_t i = 0; i < x->n; i++) {
                fputs(comma, f);
                comma = ",";
                put_item(x, f, &x->items[i], at);
                at += x->items[i].bytes;
        }
        putc('}', f);
        for (fflush(f); x->header_size % 8 != 0; fflush(f))
                putc(' ', f);
        if (fclose(f) != 0)
                out_of_memory();
        uint64_t size = x->header_size - 8;
        for (int i = 0; i < 8; i++)
                x->header[i] = (char)(size >> (8 * i));
        x->bytes = x->header_size + at;
        if (!x->is_text)
                return ctl_error(x->ctl, STREAMER_EUNSUPPORTED, model_of(x),
                                 "a name or an attribute is not UTF-8, which safetensors requires");
        if (size > HEADER_MAX)
                return ctl_error(x->ctl, STREAMER_EUNSUPPORTED, model_of(x),
                                 "a header of %llu bytes would be needed, and safetensors allows %llu",
                                 (unsigned long long)size, (unsigned long long)HEADER_MAX);
        return 0;
}

/* ---- the data ---- */

/* Uses errno. */
static int file_error(const struct ctl *ctl, const char *path, const char *what)
{
        return ctl_error(ctl, STREAMER_EFAILED, path, "%s: %s", what, strerror(errno));
}

static int write_file(struct exported *x, const void *data, uint64_t size)
{
        return write_whole(x->fd, data, size) ? 0 : file_error(x->ctl, x->ctl->args[1], "cannot be written");
}

static int flush(struct exported *x)
{
        size_t n = x->used;
        x->used = 0;
        return write_file(x, x->buffer, n);
}

static int append(struct exported *x, const char *data, uint64_t size)
{
        int rc = size > BUFFER - x->used ? flush(x) : 0;
        if (rc != 0 || size > BUFFER)
                return rc != 0 ? rc : write_file(x, data, size);
        memcpy(x->buffer + x->used, data, size);
        x->used += size;
        return 0;
}

/* In order of the elements, from dimension d on; `run`: the dimension from which on they are contiguous. */
static int gather(struct exported *x, const struct item *item, uint32_t run, uint32_t d, const char *at)
{
        uint64_t size = item->element;
        if (d == run) {
                for (uint32_t i = d; i < item->rank; i++)
                        size *= item->shape[i];
                return append(x, at, size);
        }
        for (uint64_t i = 0; i < item->shape[d]; i++) {
                int rc = gather(x, item, run, d + 1, at + i * item->strides[d] * item->element);
                if (rc != 0)
                        return rc;
        }
        return 0;
}

static int read_device(struct exported *x, const struct item *item, uint64_t from, void *to, uint64_t size)
{
        int rc = streamer_tensor_read(x->lease, &item->in, item->offset + from, to, size);
        return rc != 0 ? ctl_fail(x->ctl, rc, model_of(x)) : 0;
}

/* From a GPU the bytes from the first to the last element are copied to host memory first. */
static int write_gathered(struct exported *x, const struct item *item, const char *data)
{
        uint32_t run = 0;
        uint64_t elements = 1;
        char *copy = NULL;
        while (!is_contiguous(item, run))
                run++;
        for (uint32_t d = 0; d < item->rank; d++)
                elements += (item->shape[d] - 1) * item->strides[d];
        int rc = 0;
        if (!data) {
                copy = malloc(elements * item->element);
                if (!copy)
                        out_of_memory();
                rc = read_device(x, item, 0, copy, elements * item->element);
        }
        if (rc == 0)
                rc = gather(x, item, run, 0, data ? data : copy) ?: flush(x);
        free(copy);
        return rc;
}

static int write_item(struct exported *x, const struct item *item)
{
        int rc = 0;
        bool mapped = strcmp(item->in.device_kind, "host") == 0;
        const char *data = mapped ? (const char *)item->in.data + item->offset : NULL;
        if (item->bytes == 0)
                return 0;
        if (item->strides)
                return write_gathered(x, item, data);
        if (mapped)
                return write_file(x, data, item->bytes);
        for (uint64_t at = 0; rc == 0 && at < item->bytes; at += BUFFER) {
                size_t n = item->bytes - at < BUFFER ? (size_t)(item->bytes - at) : BUFFER;
                rc = read_device(x, item, at, x->buffer, n) ?: write_file(x, x->buffer, n);
        }
        return rc;
}

static int write_items(struct exported *x)
{
        int rc = write_file(x, x->header, x->header_size);
        for (size_t i = 0; rc == 0 && i < x->n; i++)
                rc = write_item(x, &x->items[i]);
        return rc;
}

/* ---- the file ---- */

struct target {
        int dir;
        const char *name;
        char part[PART_NAME_MAX]; /* its name before it is whole; "": it has none */
        struct permissions permissions;
};

/* The directory of the path, and the file's name in it. -1 with errno. */
static int open_directory(const char *path, const char **name)
{
        const char *slash = strrchr(path, '/');
        *name = slash ? slash + 1 : path;
        if (!slash)
                return open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        char *directory = strndup(path, (size_t)(slash - path) + 1);
        if (!directory)
                out_of_memory();
        int dir = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        free(directory);
        return dir;
}

/* Without a name where the file system supports that: then nothing is left of it if the program is killed. */
static int open_part(struct target *t)
{
        mode_t mode = permissions_to_open(&t->permissions);
        int fd = openat(t->dir, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, mode);
        if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
                return fd;
        fd = openat(t->dir, part_name(t->part), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (fd < 0)
                t->part[0] = '\0';
        return fd;
}

/* Whole and durable, then renamed: what had the name is replaced at once. */
static bool put_in_place(struct target *t, int fd)
{
        char open_file[64];
        if (!permissions_set(&t->permissions, fd) || fsync(fd) != 0)
                return false;
        if (!t->part[0]) {
                snprintf(open_file, sizeof(open_file), "/proc/self/fd/%d", fd);
                if (linkat(AT_FDCWD, open_file, t->dir, part_name(t->part), AT_SYMLINK_FOLLOW) != 0) {
                        t->part[0] = '\0';
                        return false;
                }
        }
        if (renameat(t->dir, t->part, t->dir, t->name) != 0)
                return false;
        t->part[0] = '\0';
        return fsync(t->dir) == 0 || errno == EINVAL; /* some file systems have no such call for directories */
}

static int write_target(struct exported *x, struct target *t, const char *path)
{
        x->fd = open_part(t);
        if (x->fd < 0)
                return file_error(x->ctl, path, "cannot be made");
        int rc = 0;
        /* A disk without room is known before it is filled. */
        if (fallocate(x->fd, 0, 0, (off_t)x->bytes) != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
                rc = file_error(x->ctl, path, "cannot be written");
        if (rc == 0)
                rc = write_items(x);
        if (rc == 0 && !put_in_place(t, x->fd))
                rc = file_error(x->ctl, path, "cannot be written");
        close(x->fd);
        if (t->part[0])
                unlinkat(t->dir, t->part, 0);
        return rc;
}

static int write_path(struct exported *x)
{
        const char *path = x->ctl->args[1];
        struct target t = {.part = ""};
        struct stat st;
        t.dir = open_directory(path, &t.name);
        if (t.dir < 0)
                return file_error(x->ctl, path, "its directory cannot be opened");
        int rc = 0;
        bool exists = fstatat(t.dir, t.name, &st, AT_SYMLINK_NOFOLLOW) == 0;
        if (!exists && errno != ENOENT)
                rc = file_error(x->ctl, path, "cannot be examined");
        else if (exists && !S_ISREG(st.st_mode))
                rc = ctl_error(x->ctl, STREAMER_EFAILED, path, "exists, and is no regular file");
        t.permissions = (struct permissions){.replaces = exists, .mode = exists ? st.st_mode & 0777 : 0};
        if (rc == 0)
                rc = write_target(x, &t, path);
        close(t.dir);
        return rc;
}

/* ---- the verb ---- */

static int export_lease(struct exported *x)
{
        /* A model that was loaded has no table. */
        bool published = streamer_published_count(x->lease, NULL, NULL, NULL) != STREAMER_ENOENT;
        x->buffer = malloc(BUFFER);
        if (!x->buffer)
                out_of_memory();
        return list_items(x, published) ?: make_header(x, published) ?: write_path(x);
}

static void print_exported(const struct exported *x)
{
        char size[HUMAN_MAX];
        json_auto_t *reply =
                json_pack("{s:s, s:I, s:s, s:s, s:I, s:I}", "model", streamer_lease_model(x->lease), "generation",
                          (json_int_t)streamer_generation(x->lease), "digest", streamer_digest(x->lease), "file",
                          x->ctl->args[1], "tensors", (json_int_t)x->n, "bytes", (json_int_t)x->bytes);
        char *path = escape(x->ctl->args[1]);
        print_done(x->ctl, model_of(x), reply, "exported to %s: %zu tensor%s, %s", path, x->n, x->n == 1 ? "" : "s",
                   human_size(size, x->bytes));
        free(path);
}

int verb_export(struct ctl *ctl)
{
        struct exported x = {.ctl = ctl, .is_text = true, .fd = -1};
        if (ctl->args[1][0] == '\0' || ctl->args[1][strlen(ctl->args[1]) - 1] == '/')
                return usage_error(ctl, "export: '%.200s' is not the name of a file", ctl->args[1]);
        int rc = model_attach(ctl, 0, &x.lease);
        if (rc != 0)
                return rc;
        rc = export_lease(&x);
        if (rc == 0)
                print_exported(&x);
        streamer_detach(x.lease);
        free(x.items);
        free(x.header);
        free(x.buffer);
        return rc;
}
