/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/session.h"

#include "daemon/base/log/log.h"
#include "daemon/base/metric/metric.h"
#include "daemon/serve/access/access.h"
#include "daemon/serve/access/shares.h"
#include "daemon/serve/events/events.h"

#include <inttypes.h>

/* Between two counts of the descriptors in flight. */
#define RECOUNT_NS UINT64_C(2000000)

/* ---- simple answers ---- */

/* Those that were sent since the last count may still be in flight. A count asks the kernel about each connection, so
 * it is made only when a limit would be exceeded. */
static void recount_fds(struct server *server)
{
        uint64_t now = now_ns();
        if (now < server->fds_counted_ns + RECOUNT_NS)
                return;
        server->fds_counted_ns = now;
        server->fds_out = 0;
        list_each_item (struct conn, conn, &server->conns, link) {
                struct session *session = conn->context;
                quota_adjust(&session->fds, conn_fds_in_flight(conn));
                server->fds_out += session->fds.amount;
        }
}

int session_check_fds(struct session *session, unsigned n, const char *verb, struct error *error)
{
        struct server *server = session->server;
        const struct quota_user *user = session->fds.user;
        uint64_t all = server->limits->fds_in_flight, share = share_max(server->limits, user->uid, QUOTA_FDS);
        unsigned in_flight = conn_fds_in_flight(session->conn);
        if (in_flight > 0 && in_flight + n > server->limits->fds_per_client)
                return error_set(error, STREAMER_ELIMIT,
                                 "%s: this client does not take its descriptors (limits.fds_per_client)", verb);
        if (server->fds_out + n > all || user->held[QUOTA_FDS] + n > share)
                recount_fds(server);
        if (server->fds_out + n > all)
                return error_set(error, STREAMER_ELIMIT,
                                 "%s: too many descriptors are on their way to clients (limits.fds_in_flight)", verb);
        if (user->held[QUOTA_FDS] + n > share)
                return error_set(error, STREAMER_ELIMIT,
                                 "%s: uid %u has %" PRIu64 " of %" PRIu64
                                 " descriptors on their way to its clients (half of limits.fds_in_flight)",
                                 verb, (unsigned)user->uid, user->held[QUOTA_FDS], share);
        return 0;
}

int session_send(struct session *session, const struct fds *fds, const struct pair *pairs, size_t n)
{
        events_notify(session);
        conn_send(session->conn, fds, pairs, n);
        size_t n_fds = fds != NULL ? fds->n : 0;
        session->server->fds_out += n_fds;
        quota_adjust(&session->fds, session->fds.amount + n_fds);
        return 0;
}

void session_error(struct session *session, uint64_t id, const struct error *error)
{
        metric_add_code(METRIC_REQUEST_ERRORS, error->code, 1);
        session_send(session, NULL, ERROR_PAIRS(id, error->code, error->text, error->hopeless));
}

void session_fail(struct session *session, uint64_t id, int code, const char *format, ...)
{
        struct error error;
        va_list args;
        va_start(args, format);
        error_vset(&error, code, format, args);
        va_end(args);
        session_error(session, id, &error);
}

int session_ok(struct session *session, uint64_t id)
{
        return session_send(session, NULL, PAIRS(ku64("id", id), kbool("ok", true)));
}

int session_reply_state(struct session *session, uint64_t id, const char *model, const char *state, uint64_t generation)
{
        return session_reply(session, id, kstr("name", model), kstr("state", state), ku64("generation", generation));
}

int session_state_error(const struct session *session, const char *model, const char *what, struct error *error)
{
        struct resident *resident = session->server->resident;
        if (resident_any(resident, model) == NULL)
                return resident_no_model(resident, model, error);
        return error_set(error, STREAMER_EFAILED, "%s: is not %s", model, what);
}

/* ---- charges ---- */

/* Once its user is known, before any frame is read. False: it is over a limit, and ends. */
static bool charge_connection(struct session *session)
{
        struct server *server = session->server;
        struct conn *conn = session->conn;
        uid_t uid = conn->caller.uid;
        struct error error = {0};
        int r = 0;
        if (!share_allows_connection(&server->users, server->limits, uid, server->n_conns))
                r = error_set(&error, STREAMER_ELIMIT,
                              "%" PRIu64 " connections are open: the limit (limits.connections%s)", server->n_conns,
                              server->n_conns < server->limits->connections
                                      ? ", of which the last are for users who have few"
                                      : "");
        r = r ?: access_charge(server, conn, &session->charge, QUOTA_CONNECTIONS, 1, &error);
        if (r == 0 && (quota_hold(&server->users, uid, &session->fds, QUOTA_FDS, 0) < 0 ||
                       quota_hold(&server->users, uid, &conn->output, QUOTA_OUTPUT, conn->output.amount) < 0 ||
                       quota_hold(&server->users, uid, &conn->input, QUOTA_INPUT, 0) < 0))
                r = error_no_memory(&error);
        conn->output_share = share_max(server->limits, uid, QUOTA_OUTPUT);
        conn->input_share = share_max(server->limits, uid, QUOTA_INPUT);
        session->counted = r == 0;
        server->n_conns += session->counted;
        if (r == 0)
                return true;
        if (!server->refusing)
                log_warn("a connection of uid %u is refused: %s", (unsigned)uid, error.text);
        server->refusing = true; /* logged once, until a connection ends */
        session_error(session, 0, &error);
        conn_close(conn, true);
        return false;
}

/* ---- dispatch ---- */

/* Frees what the client holds. A client takes a refusal for the end of what it gave back, which would stay its own
 * until its connection ends. */
static bool gives_back(enum verb verb)
{
        return verb == VERB_detach || verb == VERB_publish_abort;
}

/* Has no effect but its reply. A client that has closed its connection gets none, and may have sent thousands. */
static bool only_asks(enum verb verb)
{
        return verb == VERB_ping || verb == VERB_version || verb == VERB_list || verb == VERB_show ||
               verb == VERB_status || verb == VERB_ps || verb == VERB_wait || verb == VERB_whoami ||
               verb == VERB_metrics || verb == VERB_config || verb == VERB_doctor || verb == VERB_verify ||
               verb == VERB_fetch || verb == VERB_diff || verb == VERB_subscribe || verb == VERB_cache;
}

static int serve(struct session *session, struct request *request, struct error *error)
{
        const struct conn *conn = session->conn;
        if (conn->state == CONN_PEER_CLOSED && only_asks(request->verb))
                return 0;
        if (request->verb == VERB_hello && session->greeted)
                return error_set(error, STREAMER_EPROTO, "hello: repeated");
        if (request->verb != VERB_hello && !session->greeted)
                return error_set(error, STREAMER_EPROTO, "%s: the first request must be hello",
                                 verb_desc(request->verb)->name);
        if (request->verb != VERB_hello && !gives_back(request->verb) && conn_output_full(conn))
                return error_set(error, STREAMER_ELIMIT,
                                 "uid %u does not read %" PRIu64 " of %" PRIu64
                                 " bytes of replies (limits.output_per_client)",
                                 (unsigned)conn->caller.uid, conn->output.user->held[QUOTA_OUTPUT], conn->output_share);
        return access_check(session->server, conn, request, error)
                       ?: session->server->session_ops->verbs[request->verb](session, request, error);
}

static void on_frame(struct conn *conn, const void *data, size_t len)
{
        struct session *session = conn->context;
        struct request request;
        struct error error = {0};
        require(session->magic == SESSION_MAGIC);
        if (session->charge.user == NULL && !charge_connection(session))
                return;
        int r = request_decode(&request, data, len, error.text, sizeof(error.text));
        if (r < 0) {
                error.code = r;
                session_error(session, request.id, &error);
        } else {
                if (serve(session, &request, &error) < 0)
                        session_error(session, request.id, &error);
                request_deinit(&request);
        }
        /* Whom hello does not admit has no use of a connection, which others may need. */
        if (!session->greeted)
                conn_close(conn, true);
}

/* ---- life ---- */

static void on_closed(struct conn *conn)
{
        struct session *session = conn->context;
        struct server *server = session->server;
        list_remove(&conn->link);
        server->n_conns -= session->counted;
        server->refusing = server->refusing && !session->counted;
        server->last_active_ns = now_ns();
        server->fds_out -= session->fds.amount;
        quota_discharge(&session->fds);
        quota_discharge(&conn->output);
        quota_discharge(&conn->input);
        quota_discharge(&session->charge);
        server->session_ops->closed(session);
        session->magic = 0;
        free(session->client);
        free(session);
}

static void on_drained(struct conn *conn)
{
        events_mark(conn->context);
}

static const struct conn_ops conn_ops = {.frame = on_frame, .drained = on_drained, .closed = on_closed};

void session_new_consume_fd(struct server *server, int fd)
{
        struct session *session = calloc(1, sizeof(*session));
        struct conn *conn = NULL;
        if (session != NULL)
                conn = conn_new_consume_fd(server->polls, fd, &conn_ops, &server->limits->conn, &server->turns);
        else
                close(fd);
        if (conn == NULL) {
                log_warn("a connection is not accepted: no memory");
                free(session);
                return;
        }
        session->magic = SESSION_MAGIC;
        session->server = server;
        list_init(&session->in_events);
        subscriber_init(&session->subscriber);
        list_init(&session->ops);
        list_init(&session->due_ops);
        list_init(&session->in_watching);
        lease_owner_init(&session->leases);
        list_init(&session->due_leases);
        list_init(&session->publications);
        list_init(&session->deferred);
        list_init(&session->transfers);
        session->conn = conn;
        conn->context = session;
        list_append(&server->conns, &conn->link);
        if (!conn->caller_unknown)
                charge_connection(session);
        conn_begin(conn);
}
