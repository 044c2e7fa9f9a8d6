/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/access/access.h"

#include "daemon/serve/access/shares.h"

#include <string.h>

struct role_grant access_grant(const struct server *server, const struct conn *conn)
{
        return role_find(server->roles, &conn->caller, server->listener.gid);
}

static void name_rule(struct quota_limits *limits, const struct role_grant *grant)
{
        char text[ROLE_TEXT];
        snprintf(limits->rule, sizeof(limits->rule), "%s", role_grant_text(grant, text));
}

/* Without the name of the rule. */
static struct quota_limits limits_of(const struct server *server, uid_t uid, const struct role_grant *grant,
                                     bool limited)
{
        struct quota_limits limits = {.unlimited = grant->own};
        limits.tables = share_max(server->limits, uid, QUOTA_TABLES);
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

/* Who asks: a user, and its role. */
struct asker {
        uid_t uid;
        struct role_grant grant;
};

static struct asker asker_of(const struct server *server, const struct conn *conn)
{
        return (struct asker){.uid = conn->caller.uid, .grant = access_grant(server, conn)};
}

#define OTHER_NAME "; choose another name (--name)"

/* The asker has no right to do this with the name, for the reason that follows. */
__attribute__((format(printf, 6, 7))) static int fail_denied(const struct asker *asker, const char *name,
                                                             const char *verb, const char *advice, struct error *error,
                                                             const char *why, ...)
{
        char reason[200], rule[ROLE_TEXT];
        va_list args;
        va_start(args, why);
        vsnprintf(reason, sizeof(reason), why, args);
        va_end(args);
        return error_set(error, STREAMER_EPERM, "%s: %s: %s, and uid %u has the role %s (%s)%s", name, verb, reason,
                         (unsigned)asker->uid, role_name(asker->grant.role), role_grant_text(&asker->grant, rule),
                         advice);
}

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
static int check_name(const struct server *server, const struct asker *asker, const char *canonical, const char *name,
                      struct error *error)
{
        uid_t owner;
        if (resident_name_owner(server->resident, name, &owner) && owner != asker->uid &&
            has_other_source(server->resident, name, canonical))
                return fail_denied(asker, name, "load", OTHER_NAME, error,
                                   "uid %u loaded another source under this name", (unsigned)owner);
        const struct desired_model *desired = desired_find(&server->desired, name);
        if (desired != NULL && desired->spec.owner != asker->uid && !source_same(desired->spec.source, canonical))
                return fail_denied(asker, name, "load", OTHER_NAME, error,
                                   "another source is to be loaded under this name for uid %u",
                                   (unsigned)desired->spec.owner);
        return 0;
}

static int check_retention(const struct server *server, const struct asker *asker, const struct load_args *request,
                           struct error *error)
{
        uid_t owner;
        if (!resident_name_owner(server->resident, request->name, &owner) ||
            retention_allowed(&request->retention, owner, asker->uid, request->admin))
                return 0;
        return fail_denied(
                asker, request->name, "load", "", error,
                "uid %u loaded it: pin, keep-alive, drain-timeout and priority are for that user or an admin",
                (unsigned)owner);
}

int access_check_load(const struct server *server, const struct conn *conn, struct load_args *request,
                      struct error *error)
{
        cleanup_free char *canonical = NULL;
        const struct asker asker = asker_of(server, conn);
        const struct role_grant *grant = &asker.grant;
        request->roots = grant->roots;
        request->admin = grant->role >= ROLE_ADMIN;
        request->encrypted_only = role_encrypted_only(grant);
        if (grant->role >= ROLE_ADMIN && grant->rule == NULL)
                return 0;
        int r = source_canonical(request->source, &canonical, error) ?: role_check_source(grant, canonical, error);
        if (r < 0 || grant->role >= ROLE_ADMIN)
                return r;
        return check_name(server, &asker, canonical, request->name, error)
                       ?: check_retention(server, &asker, request, error);
}

int access_check_publish(const struct server *server, const struct conn *conn, const char *name, struct error *error)
{
        const struct asker asker = asker_of(server, conn);
        const struct desired_model *desired = desired_find(&server->desired, name);
        uid_t owner = desired != NULL ? desired->spec.owner : conn->caller.uid;
        resident_name_owner(server->resident, name, &owner);
        if (owner == asker.uid || asker.grant.role >= ROLE_ADMIN)
                return 0;
        return fail_denied(&asker, name, "publish", "", error, "the name belongs to uid %u", (unsigned)owner);
}

/* Or published it; under any of its names. */
static bool has_loaded(const struct generation *g, uid_t uid)
{
        if (uid == g->caller->uid)
                return true;
        list_each_item (const struct model_name, name, &g->names, link)
                if (uid == model_name_caller(name)->uid)
                        return true;
        return false;
}

int access_check_attach(const struct server *server, const struct conn *conn, const struct generation *g,
                        struct error *error)
{
        uid_t uid = conn->caller.uid;
        if ((g->published == NULL && g->encryption == NULL) || uid == 0 || has_loaded(g, uid))
                return 0;
        if (g->published != NULL && !server->publish_across_uids)
                return error_set(error, STREAMER_EPERM,
                                 "%s: uid %u published it, and only that user and root may attach to it "
                                 "(publish.across_uids allows it to uid %u, too)",
                                 generation_name(g), (unsigned)g->caller->uid, (unsigned)uid);
        if (g->encryption != NULL && !server->decrypted_across_uids)
                return error_set(error, STREAMER_EPERM,
                                 "%s: %s for uid %u, and only users who have loaded it and root may attach to it "
                                 "(encryption.across_uids allows it to uid %u, too)",
                                 generation_name(g),
                                 g->published != NULL ? "made from what was decrypted" : "decrypted",
                                 (unsigned)g->caller->uid, (unsigned)uid);
        return 0;
}

int access_check_fetch(const struct server *server, const struct conn *conn, const char *source, const char *file,
                       char **canonical, struct source_roots **roots, struct error *error)
{
        cleanup_free char *uri = NULL;
        const struct role_grant grant = access_grant(server, conn);
        *roots = source_roots_ref(grant.roots ?: server->loads->sources->roots);
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
        name_rule(limits, &grant);
        request->roots = grant.roots;
        request->encrypted_only = role_encrypted_only(&grant);
        request->users = &server->users;
        request->limits = limits;
        /* Without rules only the socket's permissions restrict loads, and no client connects here. */
        int r = server->roles->given ? role_check(&grant, request->caller->uid, VERB_load, error) : 0;
        return r ?: source_canonical(request->source, &canonical, error) ?: role_check_source(&grant, canonical, error);
}

/* The model that a verb would change, which only its owner may; NULL: the verb changes none. */
static const char *changed_model(const struct request *request)
{
        switch (request->verb) {
        case VERB_cancel:
                return request->u.cancel.model;
        case VERB_unload:
                return request->u.unload.model;
        case VERB_set_priority:
                return request->u.set_priority.model;
        case VERB_keep_alive:
                return request->u.keep_alive.model;
        case VERB_pin:
                return request->u.pin.model;
        case VERB_unpin:
                return request->u.unpin.model;
        default:
                return NULL;
        }
}

/* Verbs that change settings of what the name leads to. */
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
        resident_each_matching(g, server->resident, model)
        {
                bool affected = changes_settings(verb) || generation_has_name(g, model);
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
        const char *model = changed_model(request);
        const struct asker asker = asker_of(server, conn);
        const char *verb = verb_desc(request->verb)->name;
        int r = role_check(&asker.grant, asker.uid, request->verb, error);
        if (r == 0 && server->ending != ENDING_NOT && begins_use(request->verb))
                r = error_set(error, STREAMER_ECANCELED, "%s: the daemon is ending (shutdown)", verb);
        if (r < 0 || model == NULL)
                return r;
        /* The user who requested a load may cancel it, also if the name has another owner. */
        const struct load *load = request->verb == VERB_cancel ? loads_find(server->loads, model) : NULL;
        if (asker.grant.role >= ROLE_ADMIN || (load != NULL && load->caller.uid == asker.uid))
                return 0;
        uid_t owner;
        if (is_anothers(server, request->verb, model, asker.uid, &owner))
                return fail_denied(&asker, model, verb, "", error, "uid %u loaded it", (unsigned)owner);
        const struct desired_model *desired = desired_find(&server->desired, model);
        if (desired != NULL && desired->spec.owner != asker.uid)
                return fail_denied(&asker, model, verb, "", error, "it is to be loaded for uid %u",
                                   (unsigned)desired->spec.owner);
        return 0;
}

/* ---- what it may hold ---- */

struct quota_limits access_limits(const struct server *server, const struct conn *conn)
{
        const struct role_grant grant = access_grant(server, conn);
        struct quota_limits limits = limits_of(server, conn->caller.uid, &grant, !grant.own);
        name_rule(&limits, &grant);
        return limits;
}

int access_charge(struct server *server, const struct conn *conn, struct quota_charge *charge, enum quota_slot slot,
                  uint64_t amount, struct error *error)
{
        const struct role_grant grant = access_grant(server, conn);
        struct quota_limits limits = limits_of(server, conn->caller.uid, &grant, !grant.own);
        int r = quota_charge(&server->users, conn->caller.uid, charge, slot, amount, &limits, error);
        if (r != STREAMER_ELIMIT)
                return r;
        name_rule(&limits, &grant); /* which only the error needs */
        return quota_charge(&server->users, conn->caller.uid, charge, slot, amount, &limits, error);
}
