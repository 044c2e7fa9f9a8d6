/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/access.h"

#include <string.h>
#include <unistd.h>

static struct role_caller role_caller_of(const struct server *server, const struct caller *caller)
{
        return (struct role_caller){
                .caller = caller, .own = caller->uid == 0 || caller->uid == geteuid(), .group = server->socket_gid};
}

void access_grant(const struct server *server, const struct conn *conn, struct role_grant *grant)
{
        const struct role_caller who = role_caller_of(server, &conn->caller);
        role_find(server->roles, &who, grant);
}

/* ---- what it may do ---- */

int access_check(const struct server *server, const struct conn *conn, enum verb verb, struct error *error)
{
        const struct role_caller who = role_caller_of(server, &conn->caller);
        struct role_grant grant;
        role_find(server->roles, &who, &grant);
        return role_check(&grant, &who, verb, error);
}

/* A name leads clients to a model: another source under it would give them what they did not ask for. */
static int check_name(const struct server *server, const struct conn *conn, const struct role_grant *grant,
                      const char *canonical, const char *name, struct error *error)
{
        list_each (pos, &server->resident->generations) {
                const struct generation *g = container_of(pos, struct generation, link);
                const struct model_name *known = generation_find_name(g, name);
                if (known != NULL && g->state != GENERATION_FAILED && known->owner != conn->caller.uid &&
                    strcmp(g->source, canonical) != 0)
                        return error_set(error, STREAMER_EPERM,
                                         "%s: load: uid %u loaded another source under this name, and uid %u has the "
                                         "role %s (%s)",
                                         name, (unsigned)known->owner, (unsigned)conn->caller.uid,
                                         role_name(grant->role), grant->text);
        }
        struct wanted wanted;
        if (wanted_find(server, name, &wanted) && wanted.uid != conn->caller.uid &&
            strcmp(wanted.source, canonical) != 0)
                return error_set(error, STREAMER_EPERM,
                                 "%s: load: another source is to be loaded under this name for uid %u, and uid %u has "
                                 "the role %s (%s)",
                                 name, (unsigned)wanted.uid, (unsigned)conn->caller.uid, role_name(grant->role),
                                 grant->text);
        return 0;
}

/* How long a model stays is decided by whose it is. */
static int check_keeping(const struct server *server, const struct conn *conn, const struct role_grant *grant,
                         const struct load_request *request, const char *name, struct error *error)
{
        const struct generation *g = resident_named(server->resident, name);
        bool asks =
                request->pin || request->priority > 0 || request->keep_alive_ns > 0 || request->drain_timeout_ns > 0;
        if (!asks || g == NULL || g->state == GENERATION_FAILED)
                return 0;
        uid_t owner = generation_find_name(g, name)->owner;
        if (owner == conn->caller.uid)
                return 0;
        return error_set(error, STREAMER_EPERM,
                         "%s: load: uid %u loaded it: pin, keep-alive, drain-timeout and priority are for that user or "
                         "an admin, and uid %u has the role %s (%s)",
                         name, (unsigned)owner, (unsigned)conn->caller.uid, role_name(grant->role), grant->text);
}

int access_check_load(const struct server *server, const struct conn *conn, struct load_request *request,
                      struct error *error)
{
        cleanup_free char *canonical = NULL, *own_name = NULL;
        const char *name = request->name;
        struct role_grant grant;
        access_grant(server, conn, &grant);
        request->roots = grant.rule != NULL ? grant.rule->opened : NULL;
        request->admin = grant.role >= ROLE_ADMIN;
        if (grant.role >= ROLE_ADMIN && grant.rule == NULL)
                return 0;
        int r = source_canonical(request->source, &canonical, error);
        if (r == 0)
                r = role_check_source(&grant, canonical, error);
        if (r < 0 || grant.role >= ROLE_ADMIN)
                return r;
        if (name == NULL && (name = own_name = source_default_name(canonical)) == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        r = check_name(server, conn, &grant, canonical, name, error);
        return r < 0 ? r : check_keeping(server, conn, &grant, request, name, error);
}

int access_check_again(struct server *server, struct load_request *request, struct user_limits *limits,
                       struct error *error)
{
        cleanup_free char *canonical = NULL;
        const struct role_caller who = role_caller_of(server, request->caller);
        struct role_grant grant;
        role_find(server->roles, &who, &grant);
        *limits = (struct user_limits){.usual = {false}};
        for (size_t i = 0; i < USER_SLOT_COUNT; i++)
                limits->max[i] = UINT64_MAX;
        snprintf(limits->rule, sizeof(limits->rule), "%s", grant.text);
        request->roots = grant.rule != NULL ? grant.rule->opened : NULL;
        request->users = &server->users;
        request->limits = limits;
        /* Without rules it is the socket that keeps people out, and nobody asks at it now. */
        int r = server->roles->given ? role_check(&grant, &who, VERB_load, error) : 0;
        if (r == 0)
                r = source_canonical(request->source, &canonical, error);
        return r < 0 ? r : role_check_source(&grant, canonical, error);
}

/* The model that a request would change; NULL: none. */
static const char *changed_model(const struct request *request)
{
        switch (request->verb) {
        case VERB_cancel:
                return request->u.cancel.model;
        case VERB_unload:
                return request->u.unload.model;
        case VERB_set_priority:
                return request->u.set_priority.model;
        case VERB_pin:
        case VERB_unpin:
                return request->u.pin.model;
        default:
                return NULL;
        }
}

/* Unloading takes a name away; the rest changes what it leads to. A failure counts where there is nothing else. */
static bool is_anothers(const struct server *server, const struct generation *g, enum verb verb, const char *model,
                        uid_t uid, uid_t *owner)
{
        const struct model_name *name = generation_find_name(g, model);
        bool keeps = verb == VERB_pin || verb == VERB_unpin || verb == VERB_set_priority;
        if (keeps ? !generation_reached(g, model) : name == NULL)
                return false;
        if (g->state == GENERATION_FAILED && g != resident_named(server->resident, model))
                return false;
        *owner = verb == VERB_unload ? name->owner : generation_owner(g);
        return *owner != uid;
}

/* A load is ended by who began it, too, whosever the name is. */
static bool cancels_own(const struct server *server, enum verb verb, const char *model, uid_t uid)
{
        const struct load *load = verb == VERB_cancel ? loads_find(server->loads, model) : NULL;
        return load != NULL && load->caller.uid == uid;
}

int access_check_model(const struct server *server, const struct conn *conn, const struct request *request,
                       struct error *error)
{
        const char *model = changed_model(request);
        struct role_grant grant;
        if (model == NULL)
                return 0;
        access_grant(server, conn, &grant);
        if (grant.role >= ROLE_ADMIN || cancels_own(server, request->verb, model, conn->caller.uid))
                return 0;
        list_each (pos, &server->resident->generations) {
                const struct generation *g = container_of(pos, struct generation, link);
                uid_t owner;
                if (is_anothers(server, g, request->verb, model, conn->caller.uid, &owner))
                        return error_set(error, STREAMER_EPERM,
                                         "%s: %s: uid %u loaded it, and uid %u has the role %s (%s)", model,
                                         verb_desc(request->verb)->name, (unsigned)owner, (unsigned)conn->caller.uid,
                                         role_name(grant.role), grant.text);
        }
        struct wanted wanted;
        if (wanted_find(server, model, &wanted) && wanted.uid != conn->caller.uid)
                return error_set(error, STREAMER_EPERM,
                                 "%s: %s: it is to be loaded for uid %u, and uid %u has the role %s (%s)", model,
                                 verb_desc(request->verb)->name, (unsigned)wanted.uid, (unsigned)conn->caller.uid,
                                 role_name(grant.role), grant.text);
        return 0;
}

/* ---- what it may hold ---- */

void access_limits(const struct server *server, const struct conn *conn, struct user_limits *limits)
{
        struct role_grant grant;
        access_grant(server, conn, &grant);
        bool own = role_caller_of(server, &conn->caller).own;
        snprintf(limits->rule, sizeof(limits->rule), "%s", grant.text);
        for (size_t i = 0; i < USER_SLOT_COUNT; i++) {
                uint64_t usual = server->limits.per_uid[i], max = grant.rule != NULL ? grant.rule->max[i] : 0;
                limits->usual[i] = max == 0;
                if (max == 0)
                        max = usual;
                limits->max[i] = own || max == 0 ? UINT64_MAX : max;
        }
}

int access_charge(struct server *server, const struct conn *conn, struct user_charge *charge, enum user_slot slot,
                  uint64_t amount, struct error *error)
{
        struct user_limits limits;
        access_limits(server, conn, &limits);
        return user_charge(&server->users, conn->caller.uid, charge, slot, amount, &limits, error);
}

/* ---- whoami ---- */

static void write_list(struct writer *w, const char *key, const struct role_list *list)
{
        writer_key(w, key);
        writer_array(w, list->n);
        for (size_t i = 0; i < list->n; i++)
                writer_str(w, list->v[i]);
}

static void write_limits(struct writer *w, const struct user_limits *limits)
{
        size_t n = 0;
        for (size_t i = 0; i < USER_SLOT_COUNT; i++)
                n += limits->max[i] != UINT64_MAX;
        writer_key(w, "limits");
        writer_map(w, n);
        for (size_t i = 0; i < USER_SLOT_COUNT; i++)
                if (limits->max[i] != UINT64_MAX)
                        writer_ku64(w, user_slot_name((enum user_slot)i), limits->max[i]);
}

static void write_held(struct writer *w, const struct user *user)
{
        writer_key(w, "holds");
        writer_map(w, USER_SLOT_COUNT);
        for (size_t i = 0; i < USER_SLOT_COUNT; i++)
                writer_ku64(w, user_slot_name((enum user_slot)i), user != NULL ? user->held[i] : 0);
}

void session_whoami(struct session *session, const struct request *request)
{
        const struct conn *conn = session->conn;
        const struct server *server = session->server;
        struct role_grant grant;
        struct user_limits limits;
        struct writer w;
        access_grant(server, conn, &grant);
        access_limits(server, conn, &limits);
        bool roots = grant.rule != NULL && grant.rule->roots.given;
        bool buckets = grant.rule != NULL && grant.rule->buckets.given;
        session_reply(&w, request->id, 6u + roots + buckets);
        writer_ku64(&w, "uid", conn->caller.uid);
        writer_ku64(&w, "gid", conn->caller.gid);
        writer_kstr(&w, "role", role_name(grant.role));
        writer_kstr(&w, "rule", grant.text);
        if (roots)
                write_list(&w, "roots", &grant.rule->roots);
        if (buckets)
                write_list(&w, "buckets", &grant.rule->buckets);
        write_limits(&w, &limits);
        write_held(&w, users_find(&server->users, conn->caller.uid));
        session_send(session, &w);
}
