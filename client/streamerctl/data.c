/* SPDX-License-Identifier: Apache-2.0
 *
 * Verbs that stream: a tensor's bytes, and events.
 */
#include "client/streamerctl/ctl.h"
#include "client/streamerctl/output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WRITE_MAX ((size_t)1 << 26)

static int output_error(void)
{
        fprintf(stderr, "streamerctl: cannot write to standard output: %s\n", strerror(errno));
        return 1;
}

/* ---- cat ---- */

static int write_all(const char *data, uint64_t n)
{
        while (n > 0) {
                ssize_t done = write(STDOUT_FILENO, data, n < WRITE_MAX ? (size_t)n : WRITE_MAX);
                if (done < 0 && errno == EINTR)
                        continue;
                if (done < 0)
                        return output_error();
                data += done;
                n -= (uint64_t)done;
        }
        return 0;
}

/* By way of host memory. */
static int cat_device(const struct ctl *ctl, const streamer_lease *lease, const streamer_tensor *tensor)
{
        char *buffer = malloc(WRITE_MAX);
        int rc = buffer != NULL ? 0 : ctl_fail(ctl, STREAMER_ENOMEM, ctl->args[0]);
        for (uint64_t at = 0; rc == 0 && at < tensor->bytes;) {
                size_t n = tensor->bytes - at < WRITE_MAX ? (size_t)(tensor->bytes - at) : WRITE_MAX;
                rc = streamer_tensor_read(lease, tensor, at, buffer, n);
                rc = rc != 0 ? ctl_fail(ctl, rc, ctl->args[0]) : write_all(buffer, n);
                at += n;
        }
        free(buffer);
        return rc;
}

static int cat(const struct ctl *ctl, const streamer_lease *lease)
{
        streamer_tensor tensor;
        int rc = streamer_tensor_find(lease, ctl->args[1], &tensor);
        if (rc != 0)
                return ctl_fail(ctl, rc, ctl->args[0]);
        if (strcmp(tensor.device_kind, "host") == 0)
                return write_all(tensor.data, tensor.bytes);
        return cat_device(ctl, lease, &tensor);
}

int verb_cat(struct ctl *ctl)
{
        streamer_lease *lease;
        cleanup_devices struct devices devices;
        int rc = devices_init_one(ctl, &devices);
        if (rc != 0)
                return rc;
        streamer_attach_opts opts = {
                .struct_size = sizeof(opts), .flags = STREAMER_ATTACH_READY, .device = devices.names[0]};
        rc = streamer_attach(ctl->client, ctl->args[0], &opts, &lease);
        if (rc != 0)
                return ctl_fail(ctl, rc, ctl->args[0]);
        rc = cat(ctl, lease);
        streamer_detach(lease);
        return rc;
}

/* ---- events ---- */

int verb_events(struct ctl *ctl)
{
        char *event;
        int rc = streamer_subscribe(ctl->client, ctl->n_args > 0 ? ctl->args[0] : NULL);
        if (rc != 0)
                return ctl_fail(ctl, rc, NULL);
        while ((rc = streamer_event_next(ctl->client, -1, &event)) == 0) {
                puts(event);
                free(event);
                /* Whoever reads must not wait for a buffer to fill; nor do we go on for nobody. */
                if (fflush(stdout) != 0)
                        return 1;
        }
        return ctl_fail(ctl, rc, NULL);
}
