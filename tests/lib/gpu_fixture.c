/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads on fake GPUs and their status: see gpu_fixture.h.
 */
#include "tests/lib/gpu_fixture.h"

#include "tests/lib/suite.h"

struct fake_state *gpus;
const char *const cuda_devices[GPUS] = {"cuda:0", "cuda:1", "cuda:2", "cuda:3"};

static void set_number(const char *name, unsigned number)
{
        if (number > 0)
                setenv(name, format_text("%u", number), 1);
}

char *gpu_prepare(const struct gpu_daemon *daemon, const char *folder, const char *name)
{
        char driver[PATH_SIZE], runtime[PATH_SIZE], *state = format_text("%s/%s.state", folder, name), *text = NULL;
        size_t size;
        fake_library(daemon->runtime ? daemon->runtime : "libcudart.so.13", runtime, sizeof(runtime));
        fake_library("libcuda.so.1", driver, sizeof(driver));
        set_number("FAKECUDA_DEVICES", daemon->n);
        set_number("FAKECUDA_MEM_MIB", daemon->mib);
        setenv("FAKECUDA_STATE", state, 1);
        setenv("STREAMER_CUDA_LIBRARY", driver, 1);
        gpus = fake_state_map(state);
        if (gpus == NULL)
                die("%s: cannot be made", state);
        FILE *settings = open_memstream(&text, &size);
        cleanup_free char *library = realpath(runtime, NULL);
        fprintf(settings, "io: {%s}\n%scuda: {library: '%s'%s%s}\ndevices:\n", daemon->io ?: "memory_limit: 64MiB",
                daemon->more ? daemon->more : "", library, daemon->cuda ? ", " : "", daemon->cuda ? daemon->cuda : "");
        for (const char *const *d = daemon->devices; *d != NULL; d++)
                fprintf(settings, "  - {device: %s}\n", *d);
        must(fclose(settings));
        char *config = format_text("%s/%s.yaml", folder, name);
        file_write(config, text, size);
        return config;
}

char *gpu_start(const struct gpu_daemon *daemon)
{
        int n = (int)getpid();
        char *config = gpu_prepare(daemon, suite_folder(), format_text("gpus-%d", n));
        daemon_init(&test_daemon, suite_path("d-%d", n));
        daemon_start(&test_daemon, (const char *const[]){"--config", config, "--root", suite_folder(), NULL});
        return config;
}

void gpu_begin(const struct gpu_daemon *daemon)
{
        gpu_start(daemon);
        client = client_open(&test_daemon);
}

void gpu_begin_four(void)
{
        static const struct gpu_daemon four = {.n = GPUS,
                                               .mib = 64,
                                               .cuda = "segment_size: 8MiB",
                                               .devices = {"'cuda:0', budget: 64MiB",
                                                           "'cuda:1', budget: 64MiB, handles: cuda-vmm-fd",
                                                           "'cuda:2', budget: 64MiB", "'cuda:3', budget: 8MiB"}};
        gpu_begin(&four);
}

/* ---- loads ---- */

char *write_model(const struct model *m, const char *name)
{
        char *path = suite_path("%s", name);
        model_write(m, path);
        return path;
}

streamer_op *load_begin(const char *source, const char *name, const char *const *devices, size_t n, const char *layout)
{
        return client_load_begin_with(
                client, (streamer_load_opts){
                                .source = source, .name = name, .devices = devices, .n_devices = n, .layout = layout});
}

int load_on(const char *source, const char *name, const char *const *devices, size_t n, const char *layout)
{
        return client_load_end(load_begin(source, name, devices, n, layout));
}

int load_to(const char *source, const char *name, const char *device)
{
        return load_on(source, name, &device, 1, NULL);
}

int attach_code(const char *device)
{
        streamer_lease *lease = NULL;
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .device = device};
        int r = streamer_attach(client, "m", &opts, &lease);
        streamer_detach(lease);
        return r;
}

/* ---- replies of the daemon ---- */

uint64_t used_on(const char *device)
{
        json_auto_t *reply = client_call(client, "status", NULL);
        const json_t *row = json_find(json_at(reply, "devices"), "device", device);
        return row != NULL ? json_number(row, "used") : UINT64_MAX;
}

void wait_until_freed(const char *device)
{
        ck_assert_msg(WITHIN(PATIENCE_MS, used_on(device) == 0), "%s: %llu bytes are in use", device,
                      (unsigned long long)used_on(device));
}

void gpu_check_freed(const char *report, pid_t pid)
{
        cleanup_free char *text = file_read(report, NULL);
        cleanup_free char *want =
                format_text("pid=%d allocations=0 opened=0 handles=0 reserved=0 mapped=0 streams=0 events=0 "
                            "registered=0 retained=0\n",
                            (int)pid);
        if (strstr(text, want) == NULL)
                die("it leaked GPU resources: expected '%s', got %s", want, text);
}
