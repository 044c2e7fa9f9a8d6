/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of tests in a booted container: scripts in it, the service's properties, clients outside it.
 */
#pragma once

#include "streamer/client.h"
#include "tests/lib/container.h"
#include "tests/lib/model.h"
#include "tests/lib/suite.h"

static struct container boot;
static struct model *model;

/* Fails with the script's output unless its exit status is this. */
#define SHELL(expected, ...)                                                                                           \
        __extension__({                                                                                                \
                static char *shell_out;                                                                                \
                int shell_code = container_shell(&boot, &shell_out, __VA_ARGS__);                                      \
                ck_assert_msg(shell_code == (expected), "exit status %d\n%s", shell_code, shell_out);                  \
                shell_out;                                                                                             \
        })

/* Runs a script whose output must contain this text. */
#define SAYS(text, ...)                                                                                                \
        do {                                                                                                           \
                char *saying = SHELL(0, __VA_ARGS__);                                                                  \
                ck_assert_msg(strstr(saying, text) != NULL, "no \"%s\" in\n%s", text, saying);                         \
        } while (0)

static inline char *property(const char *name)
{
        char *out = SHELL(0, "systemctl show streamerd.service -p %s --value", name);
        out[strcspn(out, "\n")] = '\0';
        return out;
}

static inline bool has_property(const char *name, const char *value)
{
        return strcmp(property(name), value) == 0;
}

/* ---- clients ---- */

struct attached {
        streamer_client *client;
        streamer_lease *lease;
};

/* From outside the container, through its own folder: another PID namespace, as a client in a pod is. */
static inline struct attached attach(void)
{
        struct attached a;
        char *path = format_text("/proc/%d/root/run/streamerd/streamerd.sock", (int)boot.init);
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = path};
        ck_assert_int_eq(streamer_connect(&opts, &a.client), 0);
        ck_assert_int_eq(streamer_attach(a.client, "tiny", NULL, &a.lease), 0);
        return a;
}

/* Its mapping is valid whether the daemon runs or not. */
static inline void is_whole(const struct attached *a)
{
        streamer_tensor tensor = STREAMER_TENSOR_INIT;
        for (size_t i = 0; i < model->n; i++) {
                ck_assert_int_eq(streamer_tensor_find(a->lease, model->tensors[i].name, &tensor), 0);
                ck_assert(model_check(model, i, tensor.data));
        }
}

static inline void end_client(const struct attached *a)
{
        streamer_detach(a->lease);
        streamer_close(a->client);
}
