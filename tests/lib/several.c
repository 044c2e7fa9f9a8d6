/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads on several GPUs, and what the daemon says of them: see several.h.
 */
#include "tests/lib/several.h"

#include "tests/lib/suite.h"

#include <string.h>

struct fake_state *gpus;
streamer_client *client;
const char *const names[GPUS] = {"cuda:0", "cuda:1", "cuda:2", "cuda:3"};

void several_begin(void)
{
        static const struct gpus four = {.n = GPUS,
                                         .mib = 64,
                                         .cuda = "segment_size: 8MiB",
                                         .devices = {"'cuda:0', budget: 64MiB",
                                                     "'cuda:1', budget: 64MiB, handles: cuda-vmm-fd",
                                                     "'cuda:2', budget: 64MiB", "'cuda:3', budget: 8MiB"}};
        gpus = gpus_start(&four);
        client = client_open(&stage);
}

void several_end(void)
{
        streamer_close(client);
        int status = daemon_stop(&stage);
        if (status != 0)
                daemon_die(&stage, "the daemon ended with %d", status);
}

/* ---- loads ---- */

char *write_model(const struct model *m, const char *name)
{
        char *path = suite_path("%s", name);
        model_write(m, path);
        return path;
}

streamer_op *load_begin(const char *source, const char *const *devices, size_t n, const char *layout)
{
        streamer_op *op = NULL;
        streamer_load_opts opts = {.struct_size = sizeof(opts),
                                   .source = source,
                                   .name = "m",
                                   .devices = devices,
                                   .n_devices = n,
                                   .layout = layout};
        client_ok(client, streamer_load(client, &opts, &op), source);
        return op;
}

int load_on(const char *source, const char *const *devices, size_t n, const char *layout)
{
        streamer_op *op = load_begin(source, devices, n, layout);
        int r = streamer_op_wait(op, WAIT_MS, NULL);
        streamer_op_free(op);
        return r;
}

streamer_lease *attach_on(streamer_client *c, const char *device)
{
        streamer_lease *lease = NULL;
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .device = device};
        client_ok(c, streamer_attach(c, "m", &opts, &lease), device);
        return lease;
}

int attach_code(const char *device)
{
        streamer_lease *lease = NULL;
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .device = device};
        int r = streamer_attach(client, "m", &opts, &lease);
        streamer_detach(lease);
        return r;
}

void equals_on(const char *device, const struct model *m)
{
        streamer_lease *lease = attach_on(client, device);
        lease_equals(lease, m);
        streamer_detach(lease);
}

/* ---- what the daemon says ---- */

json_t *shown(void)
{
        json_t *reply = client_call(client, "show", "{\"model\":\"m\"}");
        json_t *model = json_incref(json_array_get(json_object_get(reply, "models"), 0));
        json_decref(reply);
        return model;
}

uint64_t used_on(const char *device)
{
        size_t i;
        const json_t *d;
        uint64_t used = UINT64_MAX;
        json_t *reply = client_call(client, "status", NULL);
        json_array_foreach(json_object_get(reply, "devices"), i, d)
        {
                if (strcmp(json_text(d, "device"), device) == 0)
                        used = json_number(d, "used");
        }
        json_decref(reply);
        return used;
}

static bool is_unused(void *device)
{
        return used_on(device) == 0;
}

void comes_back(const char *device)
{
        ck_assert_msg(eventually(is_unused, (void *)(uintptr_t)device, WAIT_MS), "%s: %llu bytes are in use", device,
                      (unsigned long long)used_on(device));
}
