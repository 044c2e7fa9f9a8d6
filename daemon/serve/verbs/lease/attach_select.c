/* SPDX-License-Identifier: Apache-2.0
 *
 * Selects the generation for an attach: the one that serves, else the one that loads; if the request names a
 * generation or a digest, only that one. For a model on several devices the client names one.
 */
#include "daemon/serve/verbs/verbs_private.h"

#include <inttypes.h>

static bool digest_is(const struct generation *g, const char *hex)
{
        char text[2 * DIGEST_SIZE + 1];
        hex_encode(text, g->digest, DIGEST_SIZE);
        return strcasecmp(text, hex) == 0;
}

/* What the name leads to in this state, if it is the generation that was asked for. */
static struct generation *asked_for(struct resident *resident, const struct req_attach *req,
                                    enum generation_state state, const struct device *device)
{
        struct generation *g = resident_on(resident, req->model, state, device);
        return g != NULL && (req->generation == 0 || g->number == req->generation) ? g : NULL;
}

/* Devices that have it in this state, each once; "cuda:0, cuda:1". */
static size_t devices_of(struct resident *resident, const struct req_attach *req, enum generation_state state,
                         const struct device **first, char *names, size_t size)
{
        size_t n = 0;
        names[0] = '\0';
        for (size_t i = 0; i < resident->n_devices; i++) {
                const struct device *device = resident->devices[i];
                if (asked_for(resident, req, state, device) == NULL)
                        continue;
                *first = n++ == 0 ? device : *first;
                format_append(names, size, "%s%s", n > 1 ? ", " : "", device->name);
        }
        return n;
}

/* The only device where it serves, else where it loads; NULL: none. */
static int choose_device(struct resident *resident, const struct req_attach *req, const struct device **device,
                         struct error *error)
{
        char names[400];
        *device = NULL;
        size_t n = devices_of(resident, req, GENERATION_READY, device, names, sizeof(names));
        if (n == 0)
                n = devices_of(resident, req, GENERATION_LOADING, device, names, sizeof(names));
        if (req->device == NULL && n > 1)
                return error_set(error, STREAMER_EINVAL, "%s: is on several devices, one must be named: %s", req->model,
                                 names);
        if (req->device == NULL)
                return 0;
        *device = resident_device(resident, req->device, NULL);
        if (*device == NULL || (resident_on(resident, req->model, GENERATION_READY, *device) == NULL &&
                                resident_on(resident, req->model, GENERATION_LOADING, *device) == NULL &&
                                resident_on(resident, req->model, GENERATION_FAILED, *device) == NULL && n > 0))
                return error_set(error, STREAMER_ENOENT, "%s: not on device %s (it is on: %s)", req->model, req->device,
                                 n > 0 ? names : "none");
        return 0;
}

static int not_there(struct resident *resident, const struct req_attach *req, const struct device *device,
                     struct error *error)
{
        const struct generation *failed = resident_on(resident, req->model, GENERATION_FAILED, device);
        if (failed != NULL)
                return error_set(error, failed->error.code, "%s: %s", req->model, failed->error.text);
        if (resident_on(resident, req->model, GENERATION_CACHED, device) != NULL)
                return error_set(error, STREAMER_ENOENT, "%s: is in the host cache: load brings it back", req->model);
        return resident_no_model(resident, req->model, error);
}

/* A load from the host cache has a manifest before all bytes are copied, and no arrival log. */
bool attach_can_follow(const struct generation *g)
{
        return g->manifest.fd >= 0 && g->arrival.fd >= 0;
}

/* Any model that is ready: of one that loads the digest is not known. */
static int by_digest(struct resident *resident, const struct req_attach *req, struct generation **out,
                     struct error *error)
{
        const struct device *device = NULL;
        if (req->digest == NULL)
                return error_set(error, STREAMER_EINVAL, "attach: a model or a digest is required");
        if (req->device != NULL && (device = resident_device(resident, req->device, error)) == NULL)
                return error->code;
        list_each_item (struct generation, g, &resident->generations, link)
                if (g->state == GENERATION_READY && (device == NULL || g->device == device) &&
                    (req->generation == 0 || g->number == req->generation) && digest_is(g, req->digest)) {
                        *out = g;
                        return 0;
                }
        return error_set(error, STREAMER_ENOENT, "attach: no model that is ready has the digest %s", req->digest);
}

int attach_select(struct resident *resident, const struct req_attach *req, struct generation **out, struct error *error)
{
        const struct device *device;
        if (req->model == NULL)
                return by_digest(resident, req, out, error);
        int r = choose_device(resident, req, &device, error);
        if (r < 0)
                return r;
        bool known = req->generation == 0;
        list_each_item (const struct generation, g, &resident->generations, link)
                known = known || (g->number == req->generation && (device == NULL || g->device == device) &&
                                  generation_has_name(g, req->model));
        if (!known)
                return error_set(error, STREAMER_ENOENT, "%s: no generation %" PRIu64, req->model, req->generation);
        struct generation *ready = asked_for(resident, req, GENERATION_READY, device);
        struct generation *loading = asked_for(resident, req, GENERATION_LOADING, device);
        bool differs = ready != NULL && req->digest != NULL && !digest_is(ready, req->digest);
        *out = ready != NULL ? ready : loading;
        if (*out == NULL)
                return not_there(resident, req, device, error);
        if (ready != NULL && !differs)
                return 0;
        /* The digest of what loads is not known. */
        if (loading != NULL)
                return attach_can_follow(loading) && !req->ready && req->digest == NULL ? 0 : DEFERRED_WAITS;
        return error_set(error, STREAMER_EDIGEST, "%s: its digest is not %s", req->model, req->digest);
}
