/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices as they are named on the command line: "0" is cuda:0, and "0,1" is two of them; and requests about a model
 * on one of them.
 */
#include "client/streamerctl/ctl.h"
#include "client/streamerctl/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUIET_MS 1000 /* a wait that is longer is said */

/* A bare number is a GPU's. */
static char *full_name(const char *given, size_t len)
{
        bool bare = len > 0 && strspn(given, "0123456789") >= len;
        size_t size = sizeof("cuda:") + len;
        char *name = malloc(size);
        if (!name)
                out_of_memory();
        snprintf(name, size, "%s%.*s", bare ? "cuda:" : "", (int)len, given);
        return name;
}

int devices_add(struct ctl *ctl, const char *given)
{
        for (const char *at = given;;) {
                size_t len = strcspn(at, ",");
                if (len == 0)
                        return usage_error(ctl, "--device: a name is missing in '%.100s'", given);
                if (ctl->n_devices == DEVICES_MAX)
                        return usage_error(ctl, "too many devices: at most %d", DEVICES_MAX);
                ctl->devices[ctl->n_devices++] = full_name(at, len);
                if (at[len] == 0)
                        return 0;
                at += len + 1;
        }
}

static int check_one(const struct ctl *ctl)
{
        return ctl->n_devices > 1 ? usage_error(ctl, "%s: one device at most", ctl->verb->name) : 0;
}

int model_args(const struct ctl *ctl, const char *model, json_t **args)
{
        int rc = check_one(ctl);
        if (rc != 0)
                return rc;
        *args = json_pack("{s:s, s:s*}", "model", model, "device", ctl->devices[0]);
        return *args ? 0 : usage_not_utf8(ctl);
}

static int attach(const struct ctl *ctl, int timeout_ms, streamer_lease **lease)
{
        streamer_attach_opts opts = {.struct_size = sizeof(opts),
                                     .flags = STREAMER_ATTACH_READY,
                                     .device = ctl->devices[0],
                                     .timeout_ms = timeout_ms};
        return streamer_attach(ctl->client, ctl->args[0], &opts, lease);
}

static void say_wait(const struct ctl *ctl)
{
        if (ctl->quiet || ctl->no_progress || ctl->format == FORMAT_JSON)
                return;
        fputs("streamerctl: ", stderr);
        put_escaped(stderr, ctl->args[0]);
        fputs(": not ready yet, waiting\n", stderr);
}

int model_attach(const struct ctl *ctl, int timeout_ms, streamer_lease **lease)
{
        int rc = check_one(ctl);
        if (rc != 0)
                return rc;
        int all_ms = timeout_ms == 0 && ctl->timeout_ms > 0 ? ctl->timeout_ms : timeout_ms;
        bool brief = all_ms > 0 && all_ms <= QUIET_MS;
        rc = attach(ctl, brief ? all_ms : QUIET_MS, lease);
        if (rc == STREAMER_ETIMEOUT && !brief) {
                say_wait(ctl);
                rc = attach(ctl, all_ms > 0 ? all_ms - QUIET_MS : all_ms, lease);
        }
        return rc == 0 ? 0 : ctl_fail(ctl, rc, ctl->args[0]);
}
