/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/access/access.h"

#include "daemon/serve/access/shares.h"

#include <string.h>

struct role_grant access_grant(const struct server *server, const struct conn *conn)
{
        return role_find(server->roles, &conn->caller, server->listener.gid);
}

static struct quota_limits limits_of(const struct server *server, uid_t uid, const struct role_grant *grant,
                                     bool limited)
{
        struct quota_limits limits = {.unlimited = grant->own};
        limits.tables = share_max(server->limits, uid, QUOTA_TABLES);
        snprintf(limits.rule, sizeof(limits.rule), "%s", grant->text);
        for (size_t i = 0; i < QUOTA_SLOT_COUNT; i++) {
                uint64_t max = grant->rule != NULL ? grant->rule->max[i] : 0;
                limits.usual[i] = max == 0;
                if (max == 0)
                        max = server->limits->per_uid[i];
                limits.max[i] = !limited || max == 0 ? UINT64_MAX : max;
        }
        return limits;
}

/* ---- what it may do ---- */

/* Refuses the caller of `conn`, whose role is that of `grant`. `why` has a conversion for the owner's uid. */
#define REFUSE(name, verb, why, owner, advice)                                                                         \
        error_set(error, STREAMER_EPERM, "%s: %s: " why ", and uid %u has the role %s (%s)" advice, name, verb,        \
                  (unsigned)(owner), (unsigned)conn->caller.uid, role_name(grant->role), grant->text)
#define OTHER_NAME "; choose another name (--name)"

/* A model of another source serves or loads under the name. */
static bool has_other_source(struct resident *resident, const char *name, const char *canonical)
{
        list_each_item (const struct model_name, known, resident_bucket(resident, name), by_name)
                if (strcmp(known->text, name) == 0 && known->generation->state != GENERATION_FAILED &&
                    !source_same(model_name_source(known), canonical))
                        return true;
        return false;
}

/* Clients attach by name: another user's source under it would give them a model that they did not ask for. */
static int check_name(const struct server *server, const struct conn *conn, const struct role_grant *grant,
                      const char *canonical, const char *name, struct error *error)
{
        uid_t owner;
        if (resident_name_owner(server->resident, name, &owner) && owner != conn->caller.uid &&
            has_other_source(server->resident, name, canonical))
                return REFUSE(name, "load", "uid %u loaded another source under this name", owner, OTHER_NAME);
        const struct desired_model *desired = desired_find(&server->desired, name);
        if (desired != NULL && desired->spec.owner != conn->caller.uid && !source_same(desired->spec.source, canonical))
                return REFUSE(name, "load", "another source is to be loaded under this name for uid %u",
                              desired->spec.owner, OTHER_NAME);
        return 0;
}

static int check_retention(const struct server *server, const struct conn *conn, const struct role_grant *grant,
                           const struct load_args *request, struct error *error)
{
        uid_t owner;
        if (!resident_name_owner(server->resident, request->name, &owner) ||
            retention_allowed(&request->retention, owner, conn->caller.uid, request->admin))
                return 0;
        return REFUSE(request->name, "load",
                      "uid %u loaded it: pin, keep-alive, drain-timeout and priority are for that user or an admin",
                      owner, "");
}

int access_check_load(const struct server *server, const struct conn *conn, struct load_args *request,
                      struct error *error)
{
        cleanup_free char *canonical = NULL;
        const struct role_grant grant = access_grant(server, conn);
        request->roots = grant.roots;
        request->admin = grant.role >= ROLE_ADMIN;
        if (grant.role >= ROLE_ADMIN && grant.rule == NULL)
                return 0;
        int r = source_canonical(request->source, &canonical, error) ?: role_check_source(&grant, canonical, error);
        if (r < 0 || grant.role >= ROLE_ADMIN)
                return r;
        return check_name(server, conn, &grant, canonical, request->name, error)
                       ?: check_retention(server, conn, &grant, request, error);
}

int access_check_publish(const struct server *server, const struct conn *conn, const char *name, struct error *error)
{
        const struct role_grant granted = access_grant(server, conn), *grant = &granted;
        const struct desired_model *desired = desired_find(&server->desired, name);
        uid_t owner = desired != NULL ? desired->spec.owner : conn->caller.uid;
        resident_name_owner(server->resident, name, &owner);
        if (owner == conn->caller.uid || grant->role >= ROLE_ADMIN)
                return 0;
        return REFUSE(name, "publish", "the name belongs to uid %u", owner, "");
}

int access_check_published(const struct server *server, const struct conn *conn, const struct generation *g,
                           struct error *error)
{
        uid_t uid = conn->caller.uid;
        if (g->published == NULL || uid == g->caller.uid || uid == 0 || server->publish_across_uids)
                return 0;
        return error_set(error, STREAMER_EPERM,
                         "%s: uid %u published it, and only that user and root may attach to it "
                         "(publish.across_uids allows it to uid %u, too)",
                         generation_name(g), (unsigned)g->caller.uid, (unsigned)uid);
}

int access_check_fetch(const struct server *server, const struct conn *conn, const char *source, const char *file,
                       char **canonical, struct source_roots **roots, struct error *error)
{
        cleanup_free char *uri = NULL;
        const struct role_grant grant = access_grant(server, conn);
        *roots = source_roots_ref(grant.roots);
        *canonical = NULL;
        int r = source_canonical(source, canonical, error) ?: role_check_source(&grant, *canonical, error);
        if (r == 0 && (uri = source_sidecar_uri(*canonical, file ?: "")) == NULL)
                r = error_no_memory(error);
        return r ?: role_check_source(&grant, uri, error);
}

int access_check_restored(struct desired *desired, struct load_args *request, struct quota_limits *limits,
                          struct error *error)
{
        struct server *server = container_of(desired, struct server, desired);
        cleanup_free char *canonical = NULL;
        const struct role_grant grant = role_find(server->roles, request->caller, server->listener.gid);
        *limits = limits_of(server, request->caller->uid, &grant, false);
        request->roots = grant.roots;
        request->users = &server->users;
        request->limits = limits;
        /* Without rules only the socket's permissions restrict loads, and no client connects here. */
        int r = server->roles->given ? role_check(&grant, request->caller->uid, VERB_load, error) : 0;
        return r ?: source_canonical(request->source, &canonical, error) ?: role_check_source(&grant, canonical, error);
}

/* Verbs that change settings of what the name, their first field, leads to. */
static bool changes_settings(enum verb verb)
{
        return verb == VERB_set_priority || verb == VERB_keep_alive || verb == VERB_pin || verb == VERB_unpin;
}

/* Another user's, whose model the verb would change: a name of it that is removed, or a generation. A failure counts
 * only if nothing else has the name. */
static bool is_anothers(const struct server *server, enum verb verb, const char *model, uid_t uid, uid_t *owner)
{
        if (verb == VERB_unload)
                return resident_removal_owner(server->resident, model, owner) && *owner != uid;
        const struct generation *named = resident_named(server->resident, model);
        list_each_item (const struct generation, g, &server->resident->generations, link) {
                bool affected =
                        changes_settings(verb) ? generation_matches_name(g, model) : generation_has_name(g, model);
                if (!affected || (g->state == GENERATION_FAILED && g != named))
                        continue;
                *owner = generation_owner(g);
                if (*owner != uid)
                        return true;
        }
        return false;
}

/* Begins a load, a publication or a lease. */
static bool begins_use(enum verb verb)
{
        return verb == VERB_load || verb == VERB_attach || verb == VERB_probe || verb == VERB_publish_find ||
               verb == VERB_publish_begin;
}

int access_check(const struct server *server, const struct conn *conn, const struct request *request,
                 struct error *error)
{
        const char *model = request->u.cancel.model;
        const struct role_grant granted = access_grant(server, conn), *grant = &granted;
        const char *verb = verb_desc(request->verb)->name;
        int r = role_check(grant, conn->caller.uid, request->verb, error);
        if (r == 0 && server->ending != ENDING_NOT && begins_use(request->verb))
                r = error_set(error, STREAMER_ECANCELED, "%s: the daemon is ending (shutdown)", verb);
        bool cancels = request->verb == VERB_cancel;
        if (r < 0 || (!cancels && request->verb != VERB_unload && !changes_settings(request->verb)))
                return r;
        /* The user who requested a load may cancel it, also if the name has another owner. */
        const struct load *load = cancels ? loads_find(server->loads, model) : NULL;
        if (grant->role >= ROLE_ADMIN || (load != NULL && load->caller.uid == conn->caller.uid))
                return 0;
        uid_t owner;
        if (is_anothers(server, request->verb, model, conn->caller.uid, &owner))
                return REFUSE(model, verb, "uid %u loaded it", owner, "");
        const struct desired_model *desired = desired_find(&server->desired, model);
        if (desired != NULL && desired->spec.owner != conn->caller.uid)
                return REFUSE(model, verb, "it is to be loaded for uid %u", desired->spec.owner, "");
        return 0;
}

/* ---- what it may hold ---- */

struct quota_limits access_limits(const struct server *server, const struct conn *conn)
{
        const struct role_grant grant = access_grant(server, conn);
        return limits_of(server, conn->caller.uid, &grant, !grant.own);
}

int access_charge(struct server *server, const struct conn *conn, struct quota_charge *charge, enum quota_slot slot,
                  uint64_t amount, struct error *error)
{
        const struct quota_limits limits = access_limits(server, conn);
        return quota_charge(&server->users, conn->caller.uid, charge, slot, amount, &limits, error);
}
