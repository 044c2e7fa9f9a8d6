/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of attach: from connect to the first byte of the last tensor, in a new process, which measures itself, so that
 * its start does not count.
 */
#include "tests/bench/bench.h"

#include <fcntl.h>

#define ATTACHES 101

int attach_child(const char *socket, const char *model)
{
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = socket};
        streamer_client *client;
        streamer_lease *lease;
        streamer_tensor t = STREAMER_TENSOR_INIT;
        size_t n;
        uint64_t begin = clock_ns();
        if (streamer_connect(&opts, &client) || streamer_attach(client, model, NULL, &lease) ||
            streamer_tensor_count(lease, &n) || streamer_tensor_get(lease, n - 1, &t))
                return 1;
        unsigned char byte = *(const volatile unsigned char *)t.data;
        (void)byte;
        uint64_t ns = clock_ns() - begin;

        printf("%llu\n", (unsigned long long)ns);
        streamer_detach(lease);
        streamer_close(client);
        return 0;
}

static double attach_once(const struct bench *b, const struct bench_daemon *bd, const char *model)
{
        int ends[2], status;
        char text[64] = "";
        must(pipe2(ends, O_CLOEXEC));
        pid_t pid = must(fork());
        if (pid == 0) {
                must(dup2(ends[1], STDOUT_FILENO));
                execl(b->self, b->self, "--attach", bd->d.socket, model, (char *)NULL);
                _exit(127);
        }
        close(ends[1]);
        if (read(ends[0], text, sizeof(text) - 1) <= 0)
                text[0] = '\0';
        close(ends[0]);
        must(waitpid(pid, &status, 0));
        if (status)
                die("attach failed in a child");
        return (double)strtoull(text, NULL, 10) / 1000;
}

static void row_attach(const struct bench *b, struct bench_daemon *bd, enum row row, size_t n, uint64_t bytes)
{
        struct model *m = model_new(5);
        const char *name = row_name(row);
        double us[ATTACHES];
        model_add_many(m, "model.layers.weight", n, bytes / n);
        const char *path = bench_file(b, m, name);
        bench_load_resident(bd, path, name);
        bench_await_ready(bd);
        for (size_t i = 0; i < ATTACHES; i++)
                us[i] = attach_once(b, bd, name);
        report_row(row, median(us, ATTACHES), 0);
        bench_unload(bd, name);
        unlink(path);
        model_free(m);
}

void rows_attach(const struct bench *b)
{
        struct bench_daemon bd;
        bench_daemon_start(&bd, b, b->hugetlb ? "hugetlb" : "auto", "");
        row_attach(b, &bd, ROW_attach_300, 300, GIB / b->shrink);
        row_attach(b, &bd, ROW_attach_100k, 100000, GIB / b->shrink);
        bench_daemon_stop(&bd);
}
