/* SPDX-License-Identifier: Apache-2.0
 *
 * This process's own side. What is found here holds for processes that are started as this one was:
 * by this user, in this container.
 */
#include "client/streamerctl/doctor.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define DEFAULT_SOCKET "/run/streamerd/streamerd.sock"
#define UUID_TEXT 41
#define GPUS_MAX 64

/* Where a connection failed: the socket of the caller, else the system's. */
static const char *wanted_socket(const struct ctl *ctl)
{
        const char *env = getenv("STREAMERD_SOCKET");
        return ctl->socket ? ctl->socket : env && env[0] ? env : DEFAULT_SOCKET;
}

void self_check_socket(struct doctor *d, const char *text)
{
        struct stat st;
        char advice[200];
        const char *path = wanted_socket(d->ctl);
        bool seen = stat(path, &st) == 0;
        if (!seen && errno == ENOENT)
                snprintf(advice, sizeof(advice), "start streamerd, or set its socket (--socket, $STREAMERD_SOCKET)");
        else if (!seen)
                snprintf(advice, sizeof(advice),
                         "grant this user search permission on the socket's parent directories");
        else if (access(path, W_OK) < 0 && errno == EACCES)
                snprintf(advice, sizeof(advice), "join the socket's group (gid %u)", (unsigned)st.st_gid);
        else
                snprintf(advice, sizeof(advice), "check that streamerd runs, and see its log");
        doctor_add(d, FINDING_FAIL, "daemon", advice, "%s", text);
}

uint64_t self_namespace(const char *kind)
{
        char name[64];
        struct stat st;
        struct statfs fs;
        snprintf(name, sizeof(name), "/proc/self/ns/%s", kind);
        return statfs(name, &fs) == 0 && fs.f_type == NSFS_MAGIC && stat(name, &st) == 0 ? st.st_ino : 0;
}

/* ---- the driver ---- */

/* The few calls that tell which GPUs a process sees; a result is 0, or CUDA's error. */
struct driver {
        int (*init)(unsigned flags);
        int (*count)(int *n);
        int (*get)(int *device, int ordinal);
        int (*uuid)(unsigned char uuid[16], int device);
};

static bool find_calls(void *library, struct driver *driver)
{
        static const char *const names[] = {"cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetUuid_v2"};
        void *calls[4];
        for (size_t i = 0; i < 4; i++)
                if (!(calls[i] = dlsym(library, names[i])))
                        return false;
        memcpy(driver, calls, sizeof(calls));
        return true;
}

static void uuid_text(const unsigned char uuid[16], char text[UUID_TEXT])
{
        char *at = text + sprintf(text, "GPU");
        for (int i = 0; i < 16; i++)
                at += sprintf(at, "%s%02x", i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

static void name_gpus(const struct driver *driver, int n, json_t *uuids)
{
        for (int i = 0; i < n && i < GPUS_MAX; i++) {
                unsigned char uuid[16];
                char text[UUID_TEXT];
                int device;
                if (driver->get(&device, i) != 0 || driver->uuid(uuid, device) != 0)
                        continue;
                uuid_text(uuid, text);
                json_array_append_new(uuids, json_string(text));
        }
}

/* The library stays open: a driver that was started cannot be unloaded. */
static bool see_gpus(json_t *uuids, char *why, size_t size)
{
        struct driver driver;
        const char *name = secure_getenv("STREAMER_CUDA_LIBRARY");
        void *library = dlopen(name ? name : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        int n = 0;
        if (!library) {
                snprintf(why, size, "no driver: %s", dlerror());
                return false;
        }
        if (!find_calls(library, &driver)) {
                snprintf(why, size, "the driver is too old: no cuDeviceGetUuid_v2");
                return false;
        }
        int error = driver.init(0);
        if (error == 0)
                error = driver.count(&n);
        if (error != 0 && error != 100)
                snprintf(why, size, "the driver failed to initialise: error %d", error);
        else if (n == 0)
                snprintf(why, size, "no GPU is visible");
        else
                name_gpus(&driver, n, uuids);
        return error == 0 && n > 0;
}

static const char *visible_devices(void)
{
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        return visible ? visible : "not set";
}

static bool sees(const json_t *uuids, const char *uuid)
{
        const json_t *u;
        for (size_t i = 0; (u = json_array_get(uuids, i)); i++)
                if (strcmp(json_string_value(u), uuid) == 0)
                        return true;
        return false;
}

static void check_visible(struct doctor *d, const json_t *uuids)
{
        size_t missing = 0;
        const json_t *device;
        for (size_t i = 0; (device = json_array_get(json_object_get(d->facts, "devices"), i)); i++) {
                if (strcmp(json_str(device, "kind"), "cuda") != 0 || sees(uuids, json_str(device, "uuid")))
                        continue;
                missing++;
                doctor_add(d, FINDING_WARN, "visible", "add that GPU to the container or to CUDA_VISIBLE_DEVICES",
                           "%s (%s) is not visible to this process (CUDA_VISIBLE_DEVICES is %s)",
                           json_str(device, "device"), json_str(device, "uuid"), visible_devices());
        }
        if (missing == 0)
                doctor_add(d, FINDING_OK, "visible", NULL, "this process sees %zu GPU%s, including the daemon's",
                           json_array_size(uuids), json_array_size(uuids) == 1 ? "" : "s");
}

void self_check_cuda(struct doctor *d)
{
        char why[400] = "";
        json_auto_t *uuids = json_array();
        bool needed = doctor_has_cuda(d);
        if (d->facts && !needed)
                return;
        if (see_gpus(uuids, why, sizeof(why)) && needed)
                check_visible(d, uuids);
        else if (why[0] == '\0')
                doctor_add(d, FINDING_OK, "visible", NULL, "this process sees %zu GPUs", json_array_size(uuids));
        else if (!d->facts)
                doctor_add(d, FINDING_OK, "visible", NULL, "this process uses no CUDA: %s", why);
        else
                doctor_add(d, FINDING_FAIL, "visible",
                           "start the container with the NVIDIA runtime; see nvidia-smi -L and CUDA_VISIBLE_DEVICES",
                           "this process cannot use CUDA: %s (CUDA_VISIBLE_DEVICES is %s)", why, visible_devices());
}
