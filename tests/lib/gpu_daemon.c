/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/gpu_daemon.h"

#include "tests/lib/suite.h"

static void set_number(const char *name, unsigned number)
{
        char text[16];
        snprintf(text, sizeof(text), "%u", number);
        if (number > 0)
                setenv(name, text, 1);
}

static char *settings_of(const struct gpu_daemon *gpus)
{
        char library[512];
        fake_library(gpus->runtime ? gpus->runtime : "libcudart.so.13", library, sizeof(library));
        char *path = realpath(library, NULL);
        char *text = format_text("%scuda: {library: '%s'%s%s}\ndevices:\n", gpus->more ? gpus->more : "", path,
                                 gpus->cuda ? ", " : "", gpus->cuda ? gpus->cuda : "");
        free(path);
        for (const char *const *d = gpus->devices; *d != NULL; d++) {
                char *more = format_text("%s  - {device: %s}\n", text, *d);
                free(text);
                text = more;
        }
        return text;
}

struct fake_state *gpu_daemon_prepare(const struct gpu_daemon *gpus, const char *folder, const char *name,
                                      char config[PATH_SIZE])
{
        char driver[512], *file = format_text("%s/%s.state", folder, name), *text = settings_of(gpus);

        snprintf(config, PATH_SIZE, "%s/%s.yaml", folder, name);
        fake_library("libcuda.so.1", driver, sizeof(driver));
        set_number("FAKECUDA_DEVICES", gpus->n);
        set_number("FAKECUDA_MEM_MIB", gpus->mib);
        setenv("FAKECUDA_STATE", file, 1);
        setenv("STREAMER_CUDA_LIBRARY", driver, 1);
        struct fake_state *state = fake_state_map(file);
        if (state == NULL)
                die("%s: cannot be made", file);
        file_write(config, text, strlen(text));
        free(text);
        free(file);
        return state;
}

struct fake_state *gpu_daemon_start(const struct gpu_daemon *gpus)
{
        int n = (int)getpid();
        char config[PATH_SIZE], name[32];

        snprintf(name, sizeof(name), "gpus-%d", n);
        struct fake_state *state = gpu_daemon_prepare(gpus, suite_folder(), name, config);
        daemon_init(&test_daemon, suite_path("d-%d", n));
        daemon_start(&test_daemon, (const char *const[]){"--config", config, "--root", suite_folder(), NULL});
        return state;
}
