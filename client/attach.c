/* SPDX-License-Identifier: Apache-2.0
 *
 * Attach: one request, one reply with descriptors, a few mmaps. The lease is linked to its client in
 * the moment its reply is read, since events for it may follow in the same packet. If anything in
 * the reply does not hold together, what was mapped is undone and the lease given back.
 */
#include "client/attach.h"

#include "client/args.h"
#include "client/lease.h"
#include "client/missing.h"
#include "client/util.h"
#include "proto/require.h"

#include <sys/mman.h>
#include <unistd.h>

static const struct handle_kind *const kinds[] = {&handle_kind_memfd, &handle_kind_cuda_ipc, &handle_kind_cuda_vmm_fd};

static const struct handle_kind *find_kind(const char *name, size_t len)
{
        for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
                if (strlen(kinds[i]->name) == len && memcmp(kinds[i]->name, name, len) == 0)
                        return kinds[i];
        return NULL;
}

/* ---- the reply ---- */

static int bad_reply(const struct streamer_lease *lease, const char *what)
{
        return fail(lease->client, STREAMER_EPROTO, "attach: the daemon's reply has no valid %s", what);
}

bool call_fd(const struct call *call, const msgpack_object *holder, int *fd)
{
        uint64_t i;
        *fd = -1;
        if (!holder || !object_u64(holder, "fd", &i))
                return true;
        if (i >= call->n_fds)
                return false;
        *fd = call->fds[i];
        return true;
}

/* A field {fd, size}. */
static bool get_fd(const struct call *call, const msgpack_object *holder, int *fd, uint64_t *size)
{
        return holder && object_u64(holder, "size", size) && call_fd(call, holder, fd);
}

int lease_map_manifest(struct streamer_lease *lease, const struct call *call)
{
        const msgpack_object *reply = &call->reply.unpacked.data;
        int fd;
        uint64_t size;
        const char *why;
        if (!get_fd(call, object_get(reply, "manifest"), &fd, &size) || size > MANIFEST_MAX_SIZE)
                return bad_reply(lease, "manifest");
        int rc = map_fd(&lease->manifest_map, fd, size, 0, PROT_READ, MAP_SHARED, "manifest", lease->client->fault);
        if (rc != 0)
                return rc;
        lease->manifest_size = (size_t)size;
        if (manifest_open(&lease->manifest, lease->manifest_map, (size_t)size, &why) < 0)
                return fail(lease->client, STREAMER_ECORRUPT, "manifest: %s", why);
        return 0;
}

static int map_arrival(struct streamer_lease *lease, const struct call *call, const msgpack_object *reply)
{
        int fd;
        void *map;
        struct arrival arrival;
        uint64_t size, records = lease->manifest.header->n_records;
        const msgpack_object *o = object_get(reply, "arrival");
        if (!o)
                return object_str_eq(reply, "state", "loading") ? bad_reply(lease, "arrival log") : 0;
        if (!get_fd(call, o, &fd, &size) || size < sizeof(*arrival.header) || size > MANIFEST_MAX_SIZE)
                return bad_reply(lease, "arrival log");
        int rc = map_fd(&map, fd, size, 0, PROT_READ, MAP_SHARED, "arrival log", lease->client->fault);
        if (rc != 0)
                return rc;
        arrival = (struct arrival){.header = map,
                                   .size = (size_t)size,
                                   .log = arrival_entries(map, size, records),
                                   .seen = calloc(records / 8 + 1, 1)};
        if (!arrival.log)
                rc = fail(lease->client, STREAMER_ECORRUPT, "arrival log: it does not fit the manifest");
        else if (!arrival.seen)
                rc = fail(lease->client, STREAMER_ENOMEM, "attach: no memory");
        if (rc == 0)
                lease_set_arrival_consume(lease, &arrival);
        else
                arrival_deinit(&arrival);
        return rc;
}

int lease_map_segment(struct streamer_lease *lease, const struct call *call, const msgpack_object *o, bool lent,
                      uint64_t least)
{
        const char *name, *verb = lent ? "publish_segment" : "attach";
        size_t len;
        require(lease->n_segments < lease->max_segments);
        struct mapping *mapping = &lease->segments[lease->n_segments];
        struct handle handle = {.fd = -1, .daemon_pid = lease->daemon_pid};
        if (!o || !object_str(o, "kind", &name, &len) || !get_fd(call, o, &handle.fd, &handle.size) ||
            (lent && handle.size < least))
                return fail(lease->client, STREAMER_EPROTO, "%s: the daemon's reply has no valid segment", verb);
        const struct handle_kind *kind = find_kind(name, len);
        if (!kind)
                return fail(lease->client, STREAMER_EUNSUPPORTED, "%s: this library cannot %s of kind '%.*s'", verb,
                            lent ? "publish in memory" : "map handles", len < 40 ? (int)len : 40, name);
        if (handle.size < least)
                return fail(lease->client, STREAMER_ECORRUPT, "attach: a segment is smaller than the manifest says");
        object_u64(o, "offset", &handle.offset);
        object_str(o, "uuid", &handle.uuid, &handle.uuid_len);
        const msgpack_object *bytes = object_get(o, "handle");
        if (bytes && bytes->type == MSGPACK_OBJECT_BIN) {
                handle.bytes = bytes->via.bin.ptr;
                handle.n_bytes = bytes->via.bin.size;
        }
        enum map_mode mode = lent ? MODE_LENT : lease->writable ? MODE_COPY : MODE_READ;
        int rc = kind->map(mapping, &handle, mode, lease->client->fault);
        if (rc != 0)
                return rc;
        lease->device_kind = kind->device_kind;
        lease->device_index = mapping->device_index;
        lease_add_segment(lease);
        return 0;
}

/* Such a lease is mapped shared and read-only as a whole. */
static bool any_of_hugetlb(const struct call *call)
{
        for (size_t i = 0; i < call->n_fds; i++)
                if (call->fds[i] >= 0 && fd_is_hugetlb(call->fds[i]))
                        return true;
        return false;
}

static int map_segments(struct streamer_lease *lease, const struct call *call, const msgpack_object *reply)
{
        const msgpack_object *segments = object_get(reply, "segments");
        if (!segments || segments->type != MSGPACK_OBJECT_ARRAY)
                return bad_reply(lease, "list of segments");
        if (segments->via.array.size != lease->manifest.header->n_segments)
                return fail(lease->client, STREAMER_ECORRUPT, "attach: the manifest has other segments than the reply");
        if (lease->writable && any_of_hugetlb(call))
                lease->writable = false;
        int rc = lease_reserve(lease, segments->via.array.size);
        for (uint32_t i = 0; rc == 0 && i < segments->via.array.size; i++)
                rc = lease_map_segment(lease, call, &segments->via.array.ptr[i], false,
                                       manifest_segment(&lease->manifest, i)->size);
        return rc;
}

/* States in which a lease is made. One of a later version may mean anything. */
static bool known_state(const msgpack_object *reply)
{
        return object_str_eq(reply, "state", "loading") || object_str_eq(reply, "state", "ready") ||
               object_str_eq(reply, "state", "draining");
}

int lease_map(struct streamer_lease *lease, const struct call *call)
{
        const msgpack_object *reply = &call->reply.unpacked.data;
        uint64_t generation;
        if (object_get(reply, "model") && !lease->model)
                return fail(lease->client, STREAMER_ENOMEM, "attach: no memory");
        if (!lease->accepted || !object_u64(reply, "generation", &generation))
                return bad_reply(lease, "lease");
        if (!known_state(reply))
                return fail(lease->client, STREAMER_EUNSUPPORTED,
                            "attach: the model is in a state that this library (" STREAMERD_VERSION
                            ") does not know: it is older than the daemon");
        /* A model without bytes has no segment to tell the kind of its device. */
        lease->device_kind = object_str_eq(reply, "device_kind", "cuda") ? "cuda" : "host";
        int rc = lease_map_manifest(lease, call) ?: map_arrival(lease, call, reply) ?: map_segments(lease, call, reply);
        atomic_store(&lease->complete, rc == 0 && !lease->arrival.header);
        return rc;
}

/* Lock held, while the reply is dispatched. Once it is linked, a reconnection claims it with the segments that it has
 * by then. */
void lease_accept(struct call *call, const msgpack_object *reply)
{
        struct streamer_lease *lease = call->arg;
        uint64_t id;
        if (!object_u64(reply, "lease", &id) || id == 0)
                return;
        const char *text;
        size_t len;
        if (object_str(reply, "token", &text, &len) && len == sizeof(lease->key.token) - 1)
                memcpy(lease->key.token, text, len);
        lease->model = object_str(reply, "model", &text, &len) ? strndup(text, len) : NULL;
        object_u64(reply, "generation", &lease->key.generation);
        if (!object_str_eq(reply, "device_kind", "host")) /* whose memory has no handle that depends on it */
                lease->daemon_pid = channel_daemon(lease->client);
        lease->accepted = true;
        lease_link(lease, id);
        lease_update(lease, reply);
}

struct streamer_lease *lease_new(struct streamer_client *c, unsigned attach_flags)
{
        struct streamer_lease *lease = calloc(1, sizeof(*lease));
        struct detaching *detaching = calloc(1, sizeof(*detaching));
        if (!lease || !detaching) {
                fail(c, STREAMER_ENOMEM, "no memory for a lease");
                free(lease);
                free(detaching);
                return NULL;
        }
        lease->detaching = detaching;
        lease->client = channel_ref(c);
        atomic_init(&lease->refs, 1);
        lease->writable = (attach_flags & STREAMER_ATTACH_PRIVATE) != 0;
        return lease;
}

/* ---- the call ---- */

static int attach(struct streamer_lease *lease, const char *model, const streamer_attach_opts *o)
{
        struct call call = {.accept = lease_accept, .arg = lease};
        int timeout_ms = o->timeout_ms == 0 ? lease->client->timeout_ms : o->timeout_ms;
        struct request request = {.verb = VERB_attach,
                                  .u.attach = {.model = model,
                                               .device = o->device,
                                               .digest = o->digest,
                                               .generation = o->generation,
                                               .ready = (o->flags & STREAMER_ATTACH_READY) != 0}};
        /* The daemon ends the wait, and says what for. */
        if (timeout_ms > 0)
                request.u.attach.timeout_ms = (uint64_t)timeout_ms;
        int rc = channel_call(lease->client, &request, &call, channel_deadline_after(timeout_ms));
        if (rc != 0)
                return missing_model_explain(lease->client, model, rc);
        rc = lease_map(lease, &call);
        call_deinit(&call);
        return rc;
}

int attach_options(const streamer_client *c, const char *call, const char *name, streamer_attach_opts *to,
                   const streamer_attach_opts *from)
{
        return args_options(c, call, name, to, sizeof(*to), from)
                       ?: args_flags(c, call, to->flags, STREAMER_ATTACH_READY | STREAMER_ATTACH_PRIVATE);
}

int streamer_attach(streamer_client *client, const char *model, const streamer_attach_opts *opts,
                    streamer_lease **lease)
{
        streamer_attach_opts o = {0};
        int rc = args_client(client, "attach") ?: attach_options(client, "attach", "opts", &o, opts);
        if (rc == 0 && (model || !o.digest))
                rc = args_text(client, "attach", "model", model);
        if (rc == 0)
                rc = args_pointer(client, "attach", "lease", lease);
        struct streamer_lease *made = rc == 0 ? lease_new(client, o.flags) : NULL;
        if (!made)
                return rc != 0 ? rc : STREAMER_ENOMEM;
        rc = attach(made, model, &o);
        if (rc != 0) {
                lease_unref(made);
                return rc;
        }
        *lease = made;
        return 0;
}
