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

struct probe {
        char name[32], source[32]; /* "probe:N" among the names, "probe:SEED" */
        uint64_t seed;
};

void probe_end(struct session *session)
{
        struct probe *probe = session->probe;
        struct server *server = session->server;
        if (probe == NULL)
                return;
        session->probe = NULL;
        struct load *load = loads_find(server->loads, probe->name);
        if (load != NULL)
                load_cancel(load);
        struct generation *g = resident_any(server->resident, probe->name);
        if (g != NULL && !generation_drains(g))
                generation_drop_name(g, probe->name);
        free(probe);
}

static void probe_ended(struct load_watch *watch, struct load *load)
{
        struct deferred *d = container_of(watch, struct deferred, watch);
        if (load->state == LOAD_READY) {
                const struct probe *probe = d->session->probe;
                const struct generation *g = load->targets[0].generation;
                session_reply(d->session, d->request.id, kstr("name", probe->name), kstr("device", g->device->name),
                              ku64("generation", g->number), reply_digest(g), ku64("seed", probe->seed),
                              ku64("load_ns", g->load_ns));
        } else {
                session_error(d->session, d->request.id, &load->error);
                probe_end(d->session);
        }
        deferred_free(d);
}

static int probe_begin(struct session *session, const char *device, struct load **load, struct error *error)
{
        struct server *server = session->server;
        const struct quota_limits limits = access_limits(server, session->conn);
        if (session->probe != NULL)
                return error_set(error, STREAMER_EBUSY, "probe: this connection has one already");
        struct probe *probe = calloc(1, sizeof(*probe));
        if (probe == NULL)
                return error_no_memory(error);
        /* New bytes each time: bytes that an earlier probe left in memory must not match. */
        if (getrandom(&probe->seed, sizeof(probe->seed), GRND_NONBLOCK) != (ssize_t)sizeof(probe->seed))
                probe->seed = now_ns();
        snprintf(probe->name, sizeof(probe->name), "probe:%" PRIu64, ++server->last_probe);
        snprintf(probe->source, sizeof(probe->source), "probe:%" PRIu64, probe->seed);
        struct load_request request = {.name = probe->name,
                                       .source = probe->source,
                                       .devices = &device,
                                       .n_devices = device != NULL,
                                       .probe = true,
                                       .caller = &session->conn->caller,
                                       .users = &server->users,
                                       .limits = &limits};
        int r = loads_begin(server->loads, &request, load, error);
        if (r < 0)
                free(probe);
        else
                session->probe = probe;
        return r;
}

int verb_probe(struct session *session, struct request *request, struct error *error)
{
        struct load *load;
        int r = probe_begin(session, request->u.probe.device, &load, error);
        if (r < 0)
                return r;
        struct deferred *d = deferred_new(session, request, error);
        if (d == NULL) {
                probe_end(session);
                return error->code;
        }
        load_watch(load, &d->watch, probe_ended);
        return 0;
}
