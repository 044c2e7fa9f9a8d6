/* SPDX-License-Identifier: Apache-2.0
 *
 * The live probe: the daemon loads a model of its own on a device, this process attaches to it, reads
 * every tensor back through its own context and compares. Each probe has a connection of its own, and
 * the daemon drops the model when that ends, also where this process is killed.
 *
 * What the bytes must be follows from the seed in the daemon's reply (docs/protocol.md).
 */
#include "client/streamerctl/doctor.h"
#include "client/streamerctl/output.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define PROBE_MS 60000

static uint64_t splitmix64(uint64_t x)
{
        x += UINT64_C(0x9e3779b97f4a7c15);
        x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
        return x ^ (x >> 31);
}

/* The first byte that differs; `bytes` where none does. */
static uint64_t first_wrong(const unsigned char *data, uint64_t bytes, uint64_t seed, uint64_t number)
{
        for (uint64_t i = 0; i < bytes; i++) {
                uint64_t word = splitmix64(seed + (number << 32) + i / 8);
                if (data[i] != (unsigned char)(word >> (8 * (i % 8))))
                        return i;
        }
        return bytes;
}

struct outcome {
        int rc;
        uint64_t tensors, bytes, attach_ns;
        bool writable;   /* what was mapped */
        char text[1200]; /* why it failed */
};

static int failed(struct outcome *o, int rc, const char *what, const char *text)
{
        snprintf(o->text, sizeof(o->text), "%s: %s", what, text[0] ? text : streamer_strerror(rc));
        return o->rc = rc;
}

static int compare_tensor(struct outcome *o, const struct ctl *ctl, const streamer_lease *lease,
                          const streamer_tensor *t, uint64_t seed)
{
        uint64_t number = strtoull(t->name + strcspn(t->name, "0123456789"), NULL, 10); /* probe.NUMBER */
        unsigned char *data = malloc(t->bytes + 1);
        if (!data)
                return failed(o, STREAMER_ENOMEM, "comparing", "no memory");
        int rc = streamer_tensor_read(lease, t, 0, data, t->bytes);
        uint64_t wrong = rc == 0 ? first_wrong(data, t->bytes, seed, number) : 0;
        free(data);
        if (rc != 0)
                return failed(o, rc, "reading back", streamer_last_error(ctl->client));
        if (wrong < t->bytes) {
                snprintf(o->text, sizeof(o->text), "byte %" PRIu64 " of %s differs", wrong, t->name);
                return o->rc = STREAMER_EDIGEST;
        }
        o->tensors++;
        o->bytes += t->bytes;
        return 0;
}

static int compare(struct outcome *o, const struct ctl *ctl, const streamer_lease *lease, uint64_t seed)
{
        size_t n = 0;
        streamer_tensor t = STREAMER_TENSOR_INIT;
        int rc = streamer_tensor_count(lease, &n);
        if (rc != 0 || n == 0)
                return failed(o, STREAMER_EPROTO, "comparing", "the probe's model has no tensors");
        for (size_t i = 0; i < n; i++) {
                rc = streamer_tensor_get(lease, i, &t);
                if (rc != 0)
                        return failed(o, rc, "reading back", streamer_last_error(ctl->client));
                if (compare_tensor(o, ctl, lease, &t, seed) != 0)
                        return o->rc;
        }
        return 0;
}

static int attach_and_compare(struct outcome *o, struct ctl *ctl, const json_t *probe)
{
        streamer_lease *lease;
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .generation = json_u64(probe, "generation")};
        uint64_t begin = clock_now_ns();
        int rc = streamer_attach(ctl->client, json_str(probe, "name"), &opts, &lease);
        o->attach_ns = clock_now_ns() - begin;
        if (rc != 0)
                return failed(o, rc, "attaching", streamer_last_error(ctl->client));
        o->writable = streamer_lease_writable(lease) != 0;
        compare(o, ctl, lease, json_u64(probe, "seed"));
        streamer_detach(lease);
        return o->rc;
}

/* On a connection of its own, which is ctl->client meanwhile. */
static void probe(struct outcome *o, struct ctl *ctl, const char *device)
{
        json_auto_t *reply = NULL;
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = ctl->socket, .timeout_ms = PROBE_MS};
        int rc = streamer_connect(&opts, &ctl->client);
        if (rc != 0) {
                failed(o, rc, "connecting", streamer_last_error(NULL));
                return;
        }
        rc = ask(ctl->client, "probe", json_pack("{s:s}", "device", device), &reply);
        if (rc != 0)
                failed(o, rc, "loading", streamer_last_error(ctl->client));
        else
                attach_and_compare(o, ctl, reply);
        streamer_close(ctl->client);
}

/* No room is no fault of the device. */
static enum finding weigh(int rc)
{
        return rc == 0 ? FINDING_OK : rc == STREAMER_ENOMEM ? FINDING_WARN : FINDING_FAIL;
}

static const char *advice_for(int rc)
{
        switch (rc) {
        case 0:
                return NULL;
        case STREAMER_ENOMEM:
                return "unload a model or stop another program on the device, and retry";
        case STREAMER_EPERM:
                return "run this as a user with role load";
        case STREAMER_EDIGEST:
                return "test the device's memory before you use it (nvidia-smi -q, dmesg)";
        case STREAMER_EUNSUPPORTED:
                return "set handles as the message suggests";
        default:
                return "see the daemon's log";
        }
}

static void probe_device(struct doctor *d, const char *device, const char *handles)
{
        char time[HUMAN_MAX], size[HUMAN_MAX];
        struct outcome o = {0};
        probe(&o, d->ctl, device);
        if (o.rc == 0 && o.writable && strcmp(handles, "cuda-vmm-fd") == 0)
                doctor_add(d, FINDING_WARN, "probe", "restrict attach to users who may modify the weights",
                           "%s: loaded and read back, but mapped writable: the driver refuses to map %s read-only",
                           device, handles);
        else if (o.rc == 0)
                doctor_add(d, FINDING_OK, "probe", NULL,
                           "%s: loaded, attached by %s in %s, read back %" PRIu64 " tensors, %s, without errors",
                           device, handles, human_time(time, o.attach_ns), o.tensors, human_size(size, o.bytes));
        else
                doctor_add(d, weigh(o.rc), "probe", advice_for(o.rc), "%s: %s", device, o.text);
}

void probe_check(struct doctor *d)
{
        const json_t *device;
        streamer_client *client = d->ctl->client;
        for (size_t i = 0; (device = json_array_get(json_object_get(d->facts, "devices"), i)); i++)
                probe_device(d, json_str(device, "device"), json_str(device, "handles"));
        d->ctl->client = client;
}
