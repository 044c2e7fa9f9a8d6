/* SPDX-License-Identifier: Apache-2.0
 *
 * Connecting: the socket, then "hello" with the range of protocol versions that this library
 * speaks. A connect that fails leaves its text under NULL, as there is no client to ask, and in the options.
 */
#include "client/args.h"
#include "client/patience.h"
#include "client/socket.h"
#include "client/util.h"
#include "proto/manifest.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define DEFAULT_TIMEOUT_MS 10000

uint32_t streamer_abi_version(void)
{
        return STREAMER_ABI_VERSION;
}

const char *streamer_version(void)
{
        return STREAMERD_VERSION;
}

const char *streamer_strerror(int err)
{
        return code_text(err);
}

const char *streamer_error_name(int err)
{
        return err == 0 ? "ok" : code_wire(err);
}

int streamer_exit_code(int err)
{
        return code_exit(err);
}

void streamer_free(void *memory)
{
        free(memory);
}

unsigned streamer_dtype_bits(streamer_dtype dtype)
{
        return dtype_bits(dtype);
}

const char *streamer_dtype_name(streamer_dtype dtype)
{
        return dtype_name(dtype);
}

const char *streamer_last_error(const streamer_client *client)
{
        return fault_text(client ? client->fault : NULL);
}

void streamer_error_copy(const streamer_client *client, char *text, size_t size)
{
        if (!text || size == 0)
                return;
        text[0] = 0;
        if (client)
                fault_copy(client->fault, text, size);
}

/* ---- connect ---- */

static int connect_error(int error, const char *path)
{
        if (error == EACCES || error == EPERM)
                return fault_set(NULL, STREAMER_EPERM, "cannot connect: %s (%s)", strerror(error), path);
        if (error == EAGAIN || error == EINPROGRESS)
                return fault_set(NULL, STREAMER_ETIMEOUT,
                                 "cannot connect: the daemon is stopped or overloaded and does not accept in time (%s)",
                                 path);
        if (error == ENOENT || error == ECONNREFUSED)
                return fault_set(NULL, STREAMER_EUNREACHABLE, "cannot connect: no daemon serves there: %s (%s)",
                                 strerror(error), path);
        return fault_set(NULL, STREAMER_EUNREACHABLE, "cannot connect: %s (%s)", strerror(error), path);
}

/* connect() on a Unix socket waits for room in the daemon's backlog, as long as a send may take. */
static int limit_connect(int fd, int64_t deadline)
{
        int ms = ms_until(deadline);
        struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000 + (ms == 0)}; /* 0: no limit */
        return deadline == NEVER ? 0 : setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
}

static int open_socket(const char *path, int64_t deadline, int *out)
{
        struct sockaddr_un addr = {.sun_family = AF_UNIX};
        size_t len = strlen(path);
        if (len == 0 || len >= sizeof(addr.sun_path))
                return fault_set(NULL, STREAMER_EINVAL, "the socket's path must have 1 to %zu bytes (%s)",
                                 sizeof(addr.sun_path) - 1, path);
        memcpy(addr.sun_path, path, len);
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return fault_set(NULL, STREAMER_EOS, "cannot make a socket: %s", strerror(errno));
        int rc = limit_connect(fd, deadline);
        while (rc == 0 && (rc = connect(fd, (struct sockaddr *)&addr, sizeof(addr))) < 0 && errno == EINTR)
                rc = 0;
        if (rc < 0) {
                rc = connect_error(errno, path);
                close(fd);
                return rc;
        }
        *out = fd;
        return 0;
}

#define NAME_SIZE 160

static char *put_text(char *to, const char *text, size_t most)
{
        return mempcpy(to, text, strnlen(text, most));
}

/* "python3@llama-0 (libstreamer-client 0.1.0)": for a daemon that does not see this process. In a pod the host's name
 * is the pod's. Without printf(), whose first call in a process takes as long as the connection. */
static void own_name(char name[NAME_SIZE])
{
        static const char library[] = " (libstreamer-client " STREAMERD_VERSION ")";
        char host[64] = "";
        _Static_assert(64 + 1 + sizeof(host) + sizeof(library) <= NAME_SIZE, "the longest name");
        gethostname(host, sizeof(host) - 1);
        char *end = put_text(name, program_invocation_short_name, 64);
        *end++ = '@';
        end = put_text(end, host, sizeof(host));
        memcpy(end, library, sizeof(library));
        for (char *c = name; *c; c++)
                if (*c < ' ' || *c > '~')
                        *c = '?';
}

#define REFUSAL_SIZE 512

/* Lock held: a connection that hello does not open ends, for good. The daemon names the versions that it speaks where
 * it refuses this library's. */
static void finish_hello(struct call *call)
{
        struct streamer_client *c = call->arg;
        char text[REFUSAL_SIZE];
        uint64_t protocol = 0;
        int rc = call_outcome(c, call);
        channel_end(c, call);
        object_u64(&call->reply.unpacked.data, "protocol", &protocol);
        if (rc == 0 && protocol >= PROTOCOL_MIN && protocol <= PROTOCOL_MAX)
                return;
        if (rc == 0)
                snprintf(text, sizeof(text),
                         "the daemon speaks protocol %" PRIu64 ", this library (" STREAMERD_VERSION
                         ") %u: the %s is older",
                         protocol, PROTOCOL_MAX, protocol < PROTOCOL_MIN ? "daemon" : "library");
        else if (rc == STREAMER_EPROTO)
                snprintf(text, sizeof(text), "%.400s; this library (" STREAMERD_VERSION ") speaks protocol %u",
                         fault_text(c->fault), PROTOCOL_MAX);
        else
                snprintf(text, sizeof(text), "%s", fault_text(c->fault));
        channel_fail(c, rc ?: STREAMER_EPROTO, text);
}

static int queue_hello(struct streamer_client *c)
{
        char name[NAME_SIZE];
        msgpack_sbuffer body;
        lock_scope(&c->lock);
        msgpack_sbuffer_init(&body);
        own_name(name);
        struct request request = {
                .verb = VERB_hello,
                .id = ++c->last_id,
                .u.hello = {.min = PROTOCOL_MIN, .max = PROTOCOL_MAX, .client = name, .features = features_number}};
        c->hello = (struct call){.id = request.id, .finish = finish_hello, .arg = c};
        int rc = request_encode(&request, &body) == 0 ? channel_queue(c, body.data, body.size, &c->hello)
                                                      : fail(c, STREAMER_ENOMEM, "no memory for a request");
        msgpack_sbuffer_destroy(&body);
        return rc;
}

static int greet(struct streamer_client *c, int64_t deadline)
{
        lock_scope(&c->lock);
        return channel_greet(c, deadline);
}

static int refused(const streamer_client *c, int rc)
{
        if (rc != STREAMER_ETIMEOUT)
                return fault_set(NULL, rc, "cannot connect: %s", fault_text(c->fault));
        return fault_set(NULL, rc, "cannot connect: no reply in time: the daemon is stopped or overloaded (pid %d, %s)",
                         (int)channel_daemon(c), c->path);
}

/* What the first message needs is made before the connection: the daemon, which wakes at that, finds the message there.
 * *lost: the daemon ended the connection before it answered. */
static int dial(const char *path, bool lazy, int64_t deadline, struct fault *fault, bool *lost,
                struct streamer_client **out)
{
        streamer_client *c = channel_new(fault);
        if (!c)
                return fault_set(NULL, STREAMER_ENOMEM, "no memory for a client");
        int rc = (c->path = strdup(path)) ? 0 : fail(c, STREAMER_ENOMEM, "no memory for a client");
        rc = rc ?: queue_hello(c);
        if (rc != 0) {
                rc = refused(c, rc);
                channel_unref(c);
                return rc;
        }
        rc = open_socket(path, deadline, &c->fd);
        if (rc != 0) {
                channel_unref(c);
                return rc;
        }
        rc = lazy ? 0 : greet(c, deadline);
        if (rc != 0) {
                *lost = c->dead == STREAMER_EUNREACHABLE;
                rc = refused(c, rc);
                channel_close(c);
                return rc;
        }
        *out = c;
        return 0;
}

int channel_dial(const char *path, int64_t deadline, struct fault *fault, struct streamer_client **out)
{
        bool lost;
        return dial(path, false, deadline, fault, &lost, out);
}

/* A daemon that ends has begun nothing for the client, and the next one may serve soon. */
int channel_connect(const char *path, bool lazy, int64_t deadline, struct streamer_client **out)
{
        bool lost = false;
        int rc = dial(path, lazy, deadline, NULL, &lost, out);
        if (!lost)
                return rc;
        struct patience patience = patience_begin(deadline);
        while (rc == STREAMER_EUNREACHABLE && patience_pause(&patience))
                rc = dial(path, lazy, deadline, NULL, &lost, out);
        return rc;
}

static int connect_with(const streamer_connect_opts *o, streamer_client **client)
{
        streamer_client *c;
        int rc = args_pointer(NULL, "connect", "client", client)
                         ?: args_flags(NULL, "connect", o->flags, STREAMER_CONNECT_OWN | STREAMER_CONNECT_LAZY);
        if (rc != 0)
                return rc;
        struct socket_places places = socket_places_here();
        int timeout_ms = o->timeout_ms == 0 ? DEFAULT_TIMEOUT_MS : o->timeout_ms;
        int connect_ms = o->connect_timeout_ms == 0 ? timeout_ms : o->connect_timeout_ms;
        rc = socket_connect(&places, o->socket, o->flags, connect_ms, &c);
        if (rc != 0)
                return rc;
        c->timeout_ms = timeout_ms;
        c->timeout_given = o->timeout_ms != 0;
        *client = c;
        return 0;
}

int streamer_connect(const streamer_connect_opts *opts, streamer_client **client)
{
        streamer_connect_opts o;
        int rc = args_options(NULL, "connect", "opts", &o, sizeof(o), opts);
        if (rc != 0)
                return rc;
        rc = connect_with(&o, client);
        if (o.error && o.error_size > 0)
                snprintf(o.error, o.error_size, "%s", rc == 0 ? "" : fault_text(NULL));
        return rc;
}

void streamer_close(streamer_client *client)
{
        if (client)
                channel_close(client);
}
