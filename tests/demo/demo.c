/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of the demo that are not streamerctl:
 *
 *   demo make FILE                  a model file of 0.99 GB
 *   demo tiny FILE                  one of 64 MiB
 *   demo attach SOCKET MODEL FILE   attaches, then compares every tensor with the file
 *   demo read FILE                  what a process does without a daemon: reads the file again
 *
 * The file has the tensor table of Qwen2.5-0.5B (names, shapes, dtypes); its contents are made up.
 */
#include "tests/lib/base.h"
#include "tests/lib/model.h"
#include "tests/lib/kernel_counters.h"

#include "streamer/client.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LAYERS 24
#define HIDDEN 896
#define INTERMEDIATE 4864
#define KV 128 /* two heads of 64 */
#define VOCABULARY 151936
#define CHUNK ((size_t)8 << 20)

static void add(struct model *m, int layer, const char *name, uint64_t rows, uint64_t columns)
{
        char *full = layer < 0 ? format_text("model.%s", name) : format_text("model.layers.%d.%s", layer, name);
        model_add(m, full, "BF16", (uint64_t[]){rows, columns}, columns ? 2 : 1);
        free(full);
}

static void add_layer(struct model *m, int layer)
{
        add(m, layer, "input_layernorm.weight", HIDDEN, 0);
        add(m, layer, "mlp.down_proj.weight", HIDDEN, INTERMEDIATE);
        add(m, layer, "mlp.gate_proj.weight", INTERMEDIATE, HIDDEN);
        add(m, layer, "mlp.up_proj.weight", INTERMEDIATE, HIDDEN);
        add(m, layer, "post_attention_layernorm.weight", HIDDEN, 0);
        add(m, layer, "self_attn.k_proj.bias", KV, 0);
        add(m, layer, "self_attn.k_proj.weight", KV, HIDDEN);
        add(m, layer, "self_attn.o_proj.weight", HIDDEN, HIDDEN);
        add(m, layer, "self_attn.q_proj.bias", HIDDEN, 0);
        add(m, layer, "self_attn.q_proj.weight", HIDDEN, HIDDEN);
        add(m, layer, "self_attn.v_proj.bias", KV, 0);
        add(m, layer, "self_attn.v_proj.weight", KV, HIDDEN);
}

static struct model *qwen(void)
{
        struct model *m = model_new(25);
        model_set_metadata(m, "{\"format\":\"pt\"}");
        add(m, -1, "embed_tokens.weight", VOCABULARY, HIDDEN);
        for (int layer = 0; layer < LAYERS; layer++)
                add_layer(m, layer);
        add(m, -1, "norm.weight", HIDDEN, 0);
        return m;
}

static int make(const char *path)
{
        struct model *m = qwen();
        model_write(m, path);
        file_uncache(path);
        printf("made      %s: %zu tensors, %.2f GB, not in the page cache\n", path, m->n, (double)m->bytes / 1e9);
        model_free(m);
        return 0;
}

static int make_tiny(const char *path)
{
        model_write(model_mixed(1, 64 << 20), path);
        return 0;
}

/* ---- attach ---- */

static bool equals_file(int fd, uint64_t at, const unsigned char *data, uint64_t bytes, unsigned char *buf)
{
        while (bytes > 0) {
                size_t n = bytes < CHUNK ? (size_t)bytes : CHUNK;
                if (pread(fd, buf, n, (off_t)at) != (ssize_t)n || memcmp(buf, data, n) != 0)
                        return false;
                at += n;
                data += n;
                bytes -= n;
        }
        return true;
}

/* The number of tensors that are what the file says they are. */
static size_t compare(const streamer_lease *lease, const char *path)
{
        struct model *m = qwen();
        int fd = must(open(path, O_RDONLY | O_CLOEXEC));
        unsigned char *buf = must_alloc(CHUNK);
        uint64_t at = model_data_offset(m);
        size_t equal = 0;
        for (size_t i = 0; i < m->n; at += m->tensors[i++].bytes) {
                streamer_tensor t = STREAMER_TENSOR_INIT;
                if (streamer_tensor_find(lease, m->tensors[i].name, &t) || t.bytes != m->tensors[i].bytes)
                        die("tensor %s is missing", m->tensors[i].name);
                equal += equals_file(fd, at, t.data, t.bytes, buf);
        }
        if (equal != m->n)
                die("%zu of %zu tensors differ from the file", m->n - equal, m->n);
        free(buf);
        close(fd);
        model_free(m);
        return equal;
}

static int attach(const char *socket, const char *model, const char *path)
{
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = socket};
        streamer_client *client = NULL;
        streamer_lease *lease;
        streamer_tensor t = STREAMER_TENSOR_INIT;
        size_t n;
        uint64_t begin = clock_ns();
        if (streamer_connect(&opts, &client) || streamer_attach(client, model, NULL, &lease) ||
            streamer_tensor_count(lease, &n) || streamer_tensor_get(lease, n - 1, &t))
                die("attach: %s", streamer_last_error(client));
        (void)*(const volatile unsigned char *)t.data;
        uint64_t ns = clock_ns() - begin;
        size_t equal = compare(lease, path);
        printf("attached  process %d: %.0f us from connect to the first byte; %zu of %zu tensors equal the file\n",
               (int)getpid(), (double)ns / 1e3, equal, n);
        streamer_detach(lease);
        streamer_close(client);
        return 0;
}

/* ---- without a daemon ---- */

static int read_again(const char *path)
{
        uint64_t begin = clock_ns(), size = file_size(path), at = 0;
        int fd = must(open(path, O_RDONLY | O_CLOEXEC));
        unsigned char *to = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (to == MAP_FAILED)
                die_errno("mmap");
        while (at < size) {
                ssize_t n = must(pread(fd, to + at, CHUNK, (off_t)at));
                if (n == 0)
                        die("%s: too short", path);
                at += (uint64_t)n;
        }
        printf("re-read   process %d reads the file itself: %.2f s and %.0f MiB of memory of its own\n", (int)getpid(),
               (double)(clock_ns() - begin) / 1e9, (double)process_memory(getpid()) / (1 << 20));
        return 0;
}

int main(int argc, char **argv)
{
        if (argc == 3 && strcmp(argv[1], "make") == 0)
                return make(argv[2]);
        if (argc == 3 && strcmp(argv[1], "tiny") == 0)
                return make_tiny(argv[2]);
        if (argc == 5 && strcmp(argv[1], "attach") == 0)
                return attach(argv[2], argv[3], argv[4]);
        if (argc == 3 && strcmp(argv[1], "read") == 0)
                return read_again(argv[2]);
        fprintf(stderr, "usage: demo make FILE | tiny FILE | attach SOCKET MODEL FILE | read FILE\n");
        return 2;
}
