/* SPDX-License-Identifier: Apache-2.0
 *
 * Verbs that stream: a tensor's bytes, and events.
 */
#include "client/streamerctl/ctl.h"
#include "client/streamerctl/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READ_MAX ((size_t)1 << 26)

/* ---- cat ---- */

static int write_out(const struct ctl *ctl, const char *data, uint64_t n)
{
        return write_whole(STDOUT_FILENO, data, n) ? 0 : output_error(ctl);
}

/* Copies through host memory. */
static int cat_device(const struct ctl *ctl, const streamer_lease *lease, const streamer_tensor *tensor)
{
        char *buffer = malloc(READ_MAX);
        int rc = buffer != NULL ? 0 : ctl_fail(ctl, STREAMER_ENOMEM, ctl->args[0]);
        for (uint64_t at = 0; rc == 0 && at < tensor->bytes;) {
                size_t n = tensor->bytes - at < READ_MAX ? (size_t)(tensor->bytes - at) : READ_MAX;
                rc = streamer_tensor_read(lease, tensor, at, buffer, n);
                rc = rc != 0 ? ctl_fail(ctl, rc, ctl->args[0]) : write_out(ctl, buffer, n);
                at += n;
        }
        free(buffer);
        return rc;
}

static int cat(const struct ctl *ctl, const streamer_lease *lease)
{
        streamer_tensor tensor = STREAMER_TENSOR_INIT;
        int rc = streamer_tensor_find(lease, ctl->args[1], &tensor);
        if (rc != 0)
                return ctl_fail(ctl, rc, ctl->args[0]);
        if (strcmp(tensor.device_kind, "host") == 0)
                return write_out(ctl, tensor.data, tensor.bytes);
        return cat_device(ctl, lease, &tensor);
}

int verb_cat(struct ctl *ctl)
{
        streamer_lease *lease;
        int rc = model_attach(ctl, 0, &lease);
        if (rc != 0)
                return rc;
        rc = cat(ctl, lease);
        streamer_detach(lease);
        return rc;
}

/* ---- events ---- */

static int print_event(const struct ctl *ctl, const char *text)
{
        json_auto_t *event = json_loads(text, JSON_ALLOW_NUL, NULL);
        if (!event)
                return ctl_error(ctl, STREAMER_ENOMEM, NULL, "no memory for an event"); /* the library made the text */
        ctl_print_json(event);
        /* A reader must not wait for the buffer to fill; and without a reader there is no reason to go on. */
        return fflush(stdout) == 0 ? 0 : 1;
}

int verb_events(struct ctl *ctl)
{
        char *event;
        int rc = streamer_subscribe(ctl->client, ctl->n_args > 0 ? ctl->args[0] : NULL);
        if (rc != 0)
                return ctl_fail(ctl, rc, NULL);
        while ((rc = streamer_event_next(ctl->client, -1, &event)) == 0) {
                rc = print_event(ctl, event);
                free(event);
                if (rc != 0)
                        return rc;
        }
        return ctl_fail(ctl, rc, NULL);
}
