/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/source/store/credential.h"

#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"

/* Headers are made of them: a line break in one would begin another header. */
static bool sendable(const char *text)
{
        for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++)
                if (*c <= ' ' || *c >= 0x7f)
                        return false;
        return true;
}

static char *copy(const char *text, bool *ok)
{
        char *to = text != NULL ? strdup(text) : NULL;
        *ok = *ok && (text == NULL || to != NULL);
        return to;
}

int credential_copy(struct credential *to, const struct credential *from, struct error *error)
{
        bool ok = true;
        *to = (struct credential){.kind = from->kind,
                                  .access = copy(from->access, &ok),
                                  .secret = copy(from->secret, &ok),
                                  .token = copy(from->token, &ok),
                                  .project = copy(from->project, &ok),
                                  .origin = copy(from->origin, &ok),
                                  .expires = from->expires,
                                  .number = from->number};
        if (ok)
                return 0;
        credential_deinit(to);
        return error_no_memory(error);
}

void credential_deinit(struct credential *credential)
{
        secret_free(credential->access);
        secret_free(credential->secret);
        secret_free(credential->token);
        free(credential->project);
        free(credential->origin);
        *credential = (struct credential){.origin = NULL};
}

static int init(struct credential *credential, const struct credential *from, struct error *error)
{
        return credential_copy(credential, from, error) < 0 ? error->code : CREDENTIAL_FOUND;
}

/* The copies are the credential's own: none of these is changed. */
#define BORROWED(text) ((char *)(uintptr_t)(text))

int credential_init_keys(struct credential *credential, const char *access, const char *secret, const char *token,
                         const char *origin, struct error *error)
{
        bool session = filled(token) != NULL;
        if (access[0] == '\0' || !sendable(access) || (session && !sendable(token)))
                return error_set(error, STREAMER_EFAILED,
                                 "an access key or session token with bytes that no header may hold (%s)", origin);
        if (secret[0] == '\0' || strlen(secret) >= CREDENTIAL_SECRET_MAX)
                return error_set(error, STREAMER_EFAILED, "an empty or overlong secret key (%s)", origin);
        const struct credential from = {.kind = CREDENTIAL_KEYS,
                                        .access = BORROWED(access),
                                        .secret = BORROWED(secret),
                                        .token = session ? BORROWED(token) : NULL,
                                        .origin = BORROWED(origin)};
        return init(credential, &from, error);
}

int credential_init_token(struct credential *credential, enum credential_kind kind, const char *token, time_t expires,
                          const char *origin, struct error *error)
{
        require(kind == CREDENTIAL_BEARER || kind == CREDENTIAL_QUERY);
        if (token[0] == '\0' || !sendable(token))
                return error_set(error, STREAMER_EFAILED,
                                 "an empty token, or one with bytes that no request may hold (%s)", origin);
        const struct credential from = {
                .kind = kind, .token = BORROWED(token), .expires = expires, .origin = BORROWED(origin)};
        return init(credential, &from, error);
}

int credential_init_anonymous(struct credential *credential, const char *origin, struct error *error)
{
        return init(credential, &(struct credential){.kind = CREDENTIAL_NONE, .origin = BORROWED(origin)}, error);
}

bool credential_same(const struct credential *a, const struct credential *b)
{
        return a->kind == b->kind && same_text(a->access, b->access) && same_text(a->secret, b->secret) &&
               same_text(a->token, b->token);
}

time_t credential_time(const char *text)
{
        struct tm tm = {0};
        const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
        if (rest != NULL && *rest == '.')
                rest += 1 + strspn(rest + 1, "0123456789");
        if (rest == NULL || (strcmp(rest, "Z") != 0 && strcmp(rest, "+00:00") != 0))
                return -1;
        return timegm(&tm);
}
