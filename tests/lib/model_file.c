/* SPDX-License-Identifier: Apache-2.0
 *
 * Models as files: see model.h.
 *
 * A file is written through one large aligned buffer, with O_DIRECT if the file system permits it: large models are
 * written at the disk's speed and do not fill the page cache.
 */
#include "tests/lib/base.h"
#include "tests/lib/model.h"

#include <fcntl.h>

#define BUFFER ((size_t)8 << 20)
#define ALIGN 4096

/* ---- a file being written ---- */

struct output {
        int fd;
        unsigned char *buf;
        size_t used;
        uint64_t written;
};

static void output_open(struct output *out, const char *path)
{
        *out = (struct output){0};
        out->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_DIRECT, 0644);
        if (out->fd < 0)
                out->fd = must(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
        out->buf = aligned_alloc(ALIGN, BUFFER);
        if (!out->buf)
                die("out of memory");
}

static void output_flush(struct output *out)
{
        size_t size = (out->used + ALIGN - 1) / ALIGN * ALIGN;
        memset(out->buf + out->used, 0, size - out->used);
        for (size_t done = 0; done < size;)
                done += (size_t)must(write(out->fd, out->buf + done, size - done));
        out->written += out->used;
        out->used = 0;
}

/* Space for up to `want` bytes; *got of them are counted as written. */
static unsigned char *output_space(struct output *out, uint64_t want, size_t *got)
{
        if (out->used == BUFFER)
                output_flush(out);
        *got = want < BUFFER - out->used ? (size_t)want : BUFFER - out->used;
        unsigned char *p = out->buf + out->used;
        out->used += *got;
        return p;
}

static void output_bytes(struct output *out, const void *data, size_t size)
{
        const unsigned char *p = data;
        while (size > 0) {
                size_t n;
                unsigned char *space = output_space(out, size, &n);
                memcpy(space, p, n);
                p += n;
                size -= n;
        }
}

static void output_close(struct output *out)
{
        output_flush(out);
        must(ftruncate(out->fd, (off_t)out->written));
        must(close(out->fd));
        free(out->buf);
}

/* ---- headers ---- */

/* Names as JSON strings: escapes only what JSON requires. */
static void put_string(FILE *f, const char *s)
{
        fputc('"', f);
        for (; *s; s++) {
                if (*s == '"' || *s == '\\')
                        fprintf(f, "\\%c", *s);
                else if ((unsigned char)*s < 0x20)
                        fprintf(f, "\\u%04x", (unsigned)*s);
                else
                        fputc(*s, f);
        }
        fputc('"', f);
}

static void put_tensor(FILE *f, const struct model_tensor *t, uint64_t begin)
{
        put_string(f, t->name);
        fprintf(f, ":{\"dtype\":\"%s\",\"shape\":[", t->dtype);
        for (uint32_t d = 0; d < t->rank; d++)
                fprintf(f, "%s%llu", d ? "," : "", (unsigned long long)t->shape[d]);
        fprintf(f, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
                (unsigned long long)(begin + t->bytes));
}

char *model_header(const struct model *m, size_t *size)
{
        char *text = NULL;
        size_t len = 0;
        uint64_t begin = 0;
        FILE *f = open_memstream(&text, &len);
        if (!f)
                die("out of memory");
        fputc('{', f);
        if (m->metadata)
                fprintf(f, "\"__metadata__\":%s%s", m->metadata, m->n ? "," : "");
        for (size_t i = 0; i < m->n; i++) {
                if (i > 0)
                        fputc(',', f);
                put_tensor(f, &m->tensors[i], begin);
                begin += m->tensors[i].bytes;
        }
        fputc('}', f);
        fflush(f);
        for (uint64_t at = 8 + len; at % m->modulus != m->residue; at++)
                fputc(' ', f);
        fclose(f);
        *size = len;
        return text;
}

uint64_t model_data_offset(const struct model *m)
{
        size_t size;
        free(model_header(m, &size));
        return 8 + size;
}

static void put_header(struct output *out, const char *header, size_t size)
{
        unsigned char prefix[8];
        for (int i = 0; i < 8; i++)
                prefix[i] = (unsigned char)((uint64_t)size >> (8 * i));
        output_bytes(out, prefix, sizeof(prefix));
        output_bytes(out, header, size);
}

/* ---- one file ---- */

static void put_contents(struct output *out, const struct model *m, size_t i)
{
        uint64_t bytes = m->tensors[i].bytes;
        for (uint64_t at = 0; at < bytes;) {
                size_t n;
                unsigned char *p = output_space(out, bytes - at, &n);
                model_contents(m, i, at, p, n);
                at += n;
        }
}

void model_write(const struct model *m, const char *path)
{
        struct output out;
        size_t size;
        cleanup_free char *header = model_header(m, &size);
        output_open(&out, path);
        put_header(&out, header, size);
        for (size_t i = 0; i < m->n; i++)
                put_contents(&out, m, i);
        output_close(&out);
}

void model_write_raw(const char *path, const char *header, size_t header_size, uint64_t data_bytes)
{
        struct output out;
        static const unsigned char zeros[4096];
        output_open(&out, path);
        put_header(&out, header, header_size);
        for (; data_bytes > 0; data_bytes -= data_bytes < sizeof(zeros) ? data_bytes : sizeof(zeros))
                output_bytes(&out, zeros, data_bytes < sizeof(zeros) ? (size_t)data_bytes : sizeof(zeros));
        output_close(&out);
}

/* ---- a folder ---- */

static void add_copy(struct model *to, const struct model *from, size_t i)
{
        const struct model_tensor *t = &from->tensors[i];
        model_add(to, t->name, t->dtype, t->shape, t->rank);
}

/* Shard s of n: its own tensors, and with `stale` one of its left neighbour's, whose contents are
 * made wrong by another key. */
static struct model *make_shard(const struct model *m, size_t s, size_t n, bool stale)
{
        struct model *shard = model_new(m->seed);
        size_t left = (s + n - 1) % n;
        shard->modulus = m->modulus;
        shard->residue = m->residue;
        if (m->metadata)
                model_set_metadata(shard, m->metadata);
        if (stale && n > 1 && left < m->n) {
                add_copy(shard, m, left);
                shard->tensors[0].key = ~shard->tensors[0].key;
        }
        for (size_t i = s; i < m->n; i += n)
                add_copy(shard, m, i);
        return shard;
}

static void put_index(const struct model *m, const char *folder, size_t n)
{
        cleanup_free char *path = format_text("%s/model.safetensors.index.json", folder);
        FILE *f = fopen(path, "we");
        if (!f)
                die_errno("%s", path);
        fprintf(f, "{\"metadata\":{\"total_size\":%llu},\"weight_map\":{", (unsigned long long)m->bytes);
        for (size_t i = 0; i < m->n; i++) {
                fprintf(f, "%s", i ? "," : "");
                put_string(f, m->tensors[i].name);
                fprintf(f, ":\"model-%05zu-of-%05zu.safetensors\"", i % n + 1, n);
        }
        fprintf(f, "}}\n");
        fclose(f);
}

void model_write_sharded_with(const struct model *m, const char *folder, size_t n_shards, bool stale,
                              void (*write_shard)(const struct model *shard, size_t s, const char *path))
{
        mkdir(folder, 0755);
        for (size_t s = 0; s < n_shards; s++) {
                cleanup_free char *path = format_text("%s/model-%05zu-of-%05zu.safetensors", folder, s + 1, n_shards);
                struct model *shard = make_shard(m, s, n_shards, stale);
                write_shard(shard, s, path);
                model_free(shard);
        }
        put_index(m, folder, n_shards);
}

static void write_plain(const struct model *shard, size_t s, const char *path)
{
        model_write(shard, path);
}

void model_write_sharded(const struct model *m, const char *folder, size_t n_shards, bool stale)
{
        model_write_sharded_with(m, folder, n_shards, stale, write_plain);
}
