/* SPDX-License-Identifier: Apache-2.0
 *
 * probe: loads a small built-in model to a device, for a client that attaches to it and compares the bytes.
 *
 *   loading > ready (answered) > the session ends > freed with its last lease
 *       \-> failed (answered)
 *
 * It is loaded like any model, within the budget and by the device's thread, and charged to the client's user. A
 * session has one at a time, which is unloaded when the session ends.
 */
#include "daemon/serve/access/access.h"
#include "daemon/serve/reply/reply.h"
#include "daemon/serve/verbs/verbs_private.h"

#include <inttypes.h>
#include <sys/random.h>

#define PROBE_NAME 32

/* Of the model, and of its source. */
static const char *probe_name(char name[PROBE_NAME], uint64_t seed)
{
        snprintf(name, PROBE_NAME, PROBE_SCHEME "%" PRIu64, seed);
        return name;
}

void probe_end(struct session *session)
{
        struct server *server = session->server;
        char name[PROBE_NAME];
        if (session->probe == 0)
                return;
        probe_name(name, session->probe);
        session->probe = 0;
        struct load *load = loads_find(server->loads, name);
        if (load != NULL)
                load_cancel(load);
        struct generation *g = resident_any(server->resident, name);
        if (g != NULL && !generation_drains(g))
                generation_drop_name(g, name);
}

static void probe_ended(struct load_watch *watch, struct load *load)
{
        struct deferred *d = container_of(watch, struct deferred, watch);
        const struct generation *g = load->targets[0].generation;
        if (load->state == LOAD_READY) {
                session_reply(d->session, d->request.id, kstr("name", load->name), kstr("device", g->device->name),
                              ku64("generation", g->number), reply_digest(g), ku64("seed", d->session->probe),
                              ku64("load_ns", g->load_ns));
        } else {
                session_error(d->session, d->request.id, &load->error);
                probe_end(d->session);
        }
        deferred_free(d);
}

int verb_probe(struct session *session, struct request *request, struct error *error)
{
        struct server *server = session->server;
        const struct quota_limits limits = access_limits(server, session->conn);
        const char *device = request->u.probe.device;
        uint64_t seed;
        char name[PROBE_NAME];
        struct load *load;
        if (session->probe != 0)
                return error_set(error, STREAMER_EBUSY, "probe: this connection has one already");
        /* New bytes each time: bytes that an earlier probe left in memory must not match. */
        if (getrandom(&seed, sizeof(seed), GRND_NONBLOCK) != (ssize_t)sizeof(seed) || seed == 0)
                seed = now_ns();
        struct load_request load_request = {.name = probe_name(name, seed),
                                            .source = name,
                                            .devices = &device,
                                            .n_devices = device != NULL,
                                            .probe = true,
                                            .caller = &session->conn->caller,
                                            .users = &server->users,
                                            .limits = &limits};
        int r = loads_begin(server->loads, &load_request, &load, error);
        if (r < 0)
                return r;
        session->probe = seed;
        struct deferred *d = deferred_new(session, request, error);
        if (d == NULL) {
                probe_end(session);
                return error->code;
        }
        load_watch(load, &d->watch, probe_ended);
        return 0;
}
