/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/source/aws/keys.h"

#include "daemon/base/json/json.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/source/s3/s3_reply.h"

/* ---- keys ---- */

/* Headers are made of them: a line break in one would begin another header. */
static bool sendable(const char *text)
{
        for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++)
                if (*c <= ' ' || *c >= 0x7f)
                        return false;
        return true;
}

int aws_keys_init(struct aws_keys *keys, const char *access, const char *secret, const char *token, const char *origin,
                  struct error *error)
{
        bool session = filled(token) != NULL;
        if (access[0] == '\0' || !sendable(access) || (session && !sendable(token)))
                return error_set(error, STREAMER_EFAILED,
                                 "an access key or session token with bytes that no header may hold (%s)", origin);
        if (secret[0] == '\0' || strlen(secret) >= AWS_SECRET_MAX)
                return error_set(error, STREAMER_EFAILED, "an empty or overlong secret key (%s)", origin);
        *keys = (struct aws_keys){.access = strdup(access),
                                  .secret = strdup(secret),
                                  .token = session ? strdup(token) : NULL,
                                  .origin = strdup(origin)};
        if (keys->access != NULL && keys->secret != NULL && keys->origin != NULL && (!session || keys->token != NULL))
                return AWS_KEYS;
        aws_keys_deinit(keys);
        return error_no_memory(error);
}

void aws_keys_deinit(struct aws_keys *keys)
{
        secret_free(keys->access);
        secret_free(keys->secret);
        secret_free(keys->token);
        free(keys->origin);
        *keys = (struct aws_keys){.access = NULL};
}

/* ---- responses of services ---- */

/* "2031-02-28T12:00:00Z", with a fraction or not; -1 if it is something else. */
static time_t parse_time(const char *text)
{
        struct tm tm = {0};
        const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
        if (rest != NULL && *rest == '.')
                rest += 1 + strspn(rest + 1, "0123456789");
        if (rest == NULL || (strcmp(rest, "Z") != 0 && strcmp(rest, "+00:00") != 0))
                return -1;
        return timegm(&tm);
}

/* The fields of a response, in its text. */
struct response {
        const char *access, *secret, *token, *expires;
};

/* NULL: not one of them. The token has another name in each format. */
static const char **response_field(struct response *response, const char *name, const char *token)
{
        return strcmp(name, "AccessKeyId") == 0       ? &response->access
               : strcmp(name, "SecretAccessKey") == 0 ? &response->secret
               : strcmp(name, token) == 0             ? &response->token
               : strcmp(name, "Expiration") == 0      ? &response->expires
                                                      : NULL;
}

static int keys_init_response(struct aws_keys *keys, const struct response *response, const char *origin,
                              struct error *error)
{
        const char *expires = filled(response->expires);
        time_t when = expires != NULL ? parse_time(expires) : 0;
        if (filled(response->access) == NULL || filled(response->secret) == NULL)
                return error_set(error, STREAMER_EFAILED, "the answer holds no credentials (%s)", origin);
        if (expires != NULL && when <= 0)
                return error_set(error, STREAMER_EFAILED, "the answer's Expiration is not a time (%s)", origin);
        int r = aws_keys_init(keys, response->access, response->secret, response->token, origin, error);
        if (r == AWS_KEYS)
                keys->expires = when;
        return r;
}

int aws_keys_parse_json(struct aws_keys *keys, char *text, size_t size, const char *origin, struct error *error)
{
        struct json j;
        struct json_string key;
        struct response response = {.access = NULL};
        json_init(&j, text, size);
        if (!json_open(&j, '{'))
                json_unexpected(&j, "'{'");
        for (size_t n = 0; json_member(&j, &n, &key);) {
                const char **field = response_field(&response, j.text + key.at, "Token");
                if (field == NULL)
                        json_skip(&j);
                else
                        json_take_text(&j, field);
        }
        bool valid = json_end(&j);
        json_deinit(&j);
        /* The fault's own text may quote what is secret. */
        if (!valid)
                return error_set(error, STREAMER_EFAILED, "the answer is not valid JSON (%s)", origin);
        return keys_init_response(keys, &response, origin, error);
}

int aws_keys_parse_xml(struct aws_keys *keys, const char *text, size_t size, const char *origin, struct error *error)
{
        struct response response = {.access = NULL};
        cleanup_with(xml_deinit) struct xml xml;
        *keys = (struct aws_keys){.access = NULL};
        xml_init(&xml, text, size);
        if (xml.why != NULL)
                return error_set(error, STREAMER_EFAILED, "the answer is not valid XML: %s (%s)", xml.why, origin);
        for (size_t i = 0; i < xml.n; i++) {
                const char **field = response_field(&response, xml.elements[i].name, "SessionToken");
                if (field != NULL)
                        *field = xml.elements[i].text;
        }
        return keys_init_response(keys, &response, origin, error);
}
