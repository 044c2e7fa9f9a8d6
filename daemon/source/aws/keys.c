/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/source/aws/keys.h"

#include "daemon/base/json/json.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/source/s3/xml.h"

#include <string.h>

/* ---- keys ---- */

/* Headers are made of them: a line break in one would begin another header. */
static bool sendable(const char *text)
{
        for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++)
                if (*c <= ' ' || *c >= 0x7f)
                        return false;
        return true;
}

int aws_keys_init(struct aws_keys *keys, const char *access, const char *secret, const char *token, const char *from,
                  struct error *error)
{
        bool session = token != NULL && token[0] != '\0';
        if (access[0] == '\0' || !sendable(access) || (session && !sendable(token)))
                return error_set(error, STREAMER_EFAILED,
                                 "an access key or session token with bytes that no header may "
                                 "hold (%s)",
                                 from);
        if (secret[0] == '\0' || strlen(secret) >= AWS_SECRET_MAX)
                return error_set(error, STREAMER_EFAILED, "an empty or overlong secret key (%s)", from);
        *keys = (struct aws_keys){.access = strdup(access),
                                  .secret = strdup(secret),
                                  .token = session ? strdup(token) : NULL,
                                  .from = strdup(from)};
        if (keys->access != NULL && keys->secret != NULL && keys->from != NULL && (!session || keys->token != NULL))
                return 0;
        aws_keys_deinit(keys);
        return error_set(error, STREAMER_ENOMEM, "no memory");
}

int aws_keys_copy(struct aws_keys *to, const struct aws_keys *from, struct error *error)
{
        int r = aws_keys_init(to, from->access, from->secret, from->token, from->from, error);
        if (r < 0)
                return r;
        to->expires = from->expires;
        to->number = from->number;
        return 0;
}

void aws_keys_deinit(struct aws_keys *keys)
{
        secret_free(keys->access);
        secret_free(keys->secret);
        secret_free(keys->token);
        free(keys->from);
        *keys = (struct aws_keys){.access = NULL};
}

/* ---- as services answer ---- */

time_t aws_time_parse(const char *text)
{
        struct tm tm = {0};
        const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
        if (rest != NULL && *rest == '.')
                rest += 1 + strspn(rest + 1, "0123456789");
        if (rest == NULL || (strcmp(rest, "Z") != 0 && strcmp(rest, "+00:00") != 0))
                return -1;
        return timegm(&tm);
}

/* What was found so far; points into the text. */
struct found {
        const char *access, *secret, *token, *expires;
};

static int take_found(struct aws_keys *keys, const struct found *found, const char *from, struct error *error)
{
        time_t expires = 0;
        if (found->access == NULL || found->secret == NULL || found->access[0] == '\0' || found->secret[0] == '\0')
                return error_set(error, STREAMER_EFAILED, "the answer holds no credentials (%s)", from);
        if (found->expires != NULL && found->expires[0] != '\0' && (expires = aws_time_parse(found->expires)) <= 0)
                return error_set(error, STREAMER_EFAILED, "the answer's Expiration is not a time (%s)", from);
        int r = aws_keys_init(keys, found->access, found->secret, found->token, from, error);
        if (r == 0)
                keys->expires = expires;
        return r;
}

static void json_fields(struct json *j, struct found *found)
{
        struct json_string key, value;
        if (!json_open(j, '{'))
                json_unexpected(j, "'{'");
        for (size_t n = 0; json_member(j, &n, &key);) {
                const char **field = JSON_IS(j, key, "AccessKeyId")       ? &found->access
                                     : JSON_IS(j, key, "SecretAccessKey") ? &found->secret
                                     : JSON_IS(j, key, "Token")           ? &found->token
                                     : JSON_IS(j, key, "Expiration")      ? &found->expires
                                                                          : NULL;
                if (json_peek(j) != '"')
                        field = NULL;
                if (!(field != NULL ? json_take_string(j, &value) : json_skip(j)))
                        return;
                if (field != NULL)
                        *field = j->text + value.at;
        }
        json_end(j);
}

int aws_keys_parse_json(struct aws_keys *keys, char *text, size_t size, const char *from, struct error *error)
{
        struct json j;
        struct found found = {.access = NULL};
        text[size] = '\0';
        json_init(&j, text, size);
        json_fields(&j, &found);
        bool valid = j.fault == JSON_OK;
        json_deinit(&j);
        /* The fault's own text may quote what is secret. */
        if (!valid)
                return error_set(error, STREAMER_EFAILED, "the answer is not valid JSON (%s)", from);
        return take_found(keys, &found, from, error);
}

struct session {
        struct aws_keys *keys;
        struct found found;
        const char *from;
        struct error *error;
};

/* What was found lives as long as the parse: so it is taken when the root closes. */
static int session_field(void *context, enum xml_event event, const struct xml *xml)
{
        struct session *s = context;
        if (event == XML_OPEN)
                return 0;
        if (xml_is(xml, "AccessKeyId"))
                s->found.access = xml->text;
        else if (xml_is(xml, "SecretAccessKey"))
                s->found.secret = xml->text;
        else if (xml_is(xml, "SessionToken"))
                s->found.token = xml->text;
        else if (xml_is(xml, "Expiration"))
                s->found.expires = xml->text;
        return xml->depth == 0 ? take_found(s->keys, &s->found, s->from, s->error) : 0;
}

int aws_keys_parse_xml(struct aws_keys *keys, const char *text, size_t size, const char *from, struct error *error)
{
        struct session session = {.keys = keys, .from = from, .error = error};
        const char *why;
        *keys = (struct aws_keys){.access = NULL};
        int r = xml_parse(text, size, session_field, &session, &why);
        if (why == NULL)
                return r;
        aws_keys_deinit(keys);
        return error_set(error, STREAMER_EFAILED, "the answer is not valid XML: %s (%s)", why, from);
}
