/* SPDX-License-Identifier: Apache-2.0
 *
 * Roles: the rules of `access`, and pure functions that apply them.
 *
 *   attach < load < admin
 *
 * The first rule that lists the caller decides. Root and the daemon's own user are always admins, so that no rule locks
 * them out. Without any rule the members of the socket's group have the role load.
 */
#pragma once

#include "daemon/base/quota.h"
#include "daemon/source/roots/caller.h"
#include "proto/messages.h"

enum role { ROLE_NONE, ROLE_ATTACH, ROLE_LOAD, ROLE_ADMIN };
const char *role_name(enum role role);
enum role role_parse(const char *word); /* ROLE_NONE if it is none */

#define ROLE_ANYONE UINT32_MAX /* "*": no user or group has this number */

struct role_ids {
        uint32_t *v;
        size_t n;
};

struct role_list {
        char **v;
        size_t n;
        bool given; /* an empty list that is given allows nothing */
};

struct role_rule {
        enum role role;
        struct role_ids users, groups;
        struct role_list roots, buckets;
        bool encrypted_only;            /* loads files that are encrypted, and no others */
        uint64_t max[QUOTA_SLOT_COUNT]; /* 0: as `limits` says */
        unsigned line;                  /* in the file */
        struct source_roots *opened;    /* of `roots`; NULL: the daemon's own */
};

struct roles {
        struct role_rule *rules;
        size_t n;
        bool given;       /* else the default */
        const char *file; /* borrowed */
};

/* Opens the folders of every rule's roots, below the daemon's: blocks. */
int roles_open(struct roles *roles, struct source_roots *within, struct error *error);
void roles_deinit(struct roles *roles); /* accepts a zeroed one */

/* ---- the role of a caller ---- */

/* Root, or the daemon's own user: no limit or share applies. */
bool role_is_own(uid_t uid);

/* What a caller may: by rule i, or by none (`rule` NULL). */
struct role_grant {
        enum role role;
        bool own; /* role_is_own() */
        const struct role_rule *rule;
        struct source_roots *roots; /* of the rule, borrowed; NULL: the daemon's */
        const struct roles *roles;  /* borrowed */
        gid_t group;                /* the socket's */
};

#define ROLE_TEXT 160
/* Why: "access.roles[1], /etc/streamerd/streamerd.yaml:12". Only a few answers need it. */
const char *role_grant_text(const struct role_grant *grant, char text[ROLE_TEXT]);

/* `group`: the socket's, for the default. */
struct role_grant role_find(const struct roles *roles, const struct caller *caller, gid_t group);

/* ---- the requirements of verbs and sources ---- */

enum role role_needed(enum verb verb);
/* 0, or STREAMER_EPERM naming the rule. */
int role_check(const struct role_grant *grant, uid_t uid, enum verb verb, struct error *error);
/* Why only encrypted files are loaded for it; NULL: others are, too. Constant. */
const char *role_encrypted_only(const struct role_grant *grant);
/* May models be loaded from this source, which is in its canonical form? Of a local one that is decided where it is
 * opened: below `roots`. */
int role_check_source(const struct role_grant *grant, const char *canonical, struct error *error);
