/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/source/aws/aws_answer.h"

#include "daemon/base/json/json.h"
#include "daemon/base/util.h"
#include "daemon/source/store/xml.h"

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

static int init_keys(struct credential *keys, const struct response *response, const char *origin, struct error *error)
{
        const char *expires = filled(response->expires);
        time_t when = expires != NULL ? credential_time(expires) : 0;
        if (filled(response->access) == NULL || filled(response->secret) == NULL)
                return error_set(error, STREAMER_EFAILED, "the answer holds no credentials (%s)", origin);
        if (expires != NULL && when <= 0)
                return error_set(error, STREAMER_EFAILED, "the answer's Expiration is not a time (%s)", origin);
        int r = credential_init_keys(keys, response->access, response->secret, response->token, origin, error);
        if (r == CREDENTIAL_FOUND)
                keys->expires = when;
        return r;
}

int aws_keys_parse_json(struct credential *keys, char *text, size_t size, const char *origin, struct error *error)
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
        return init_keys(keys, &response, origin, error);
}

int aws_keys_parse_xml(struct credential *keys, const char *text, size_t size, const char *origin, struct error *error)
{
        struct response response = {.access = NULL};
        cleanup_with(xml_deinit) struct xml xml;
        *keys = (struct credential){.access = NULL};
        xml_init(&xml, text, size);
        if (xml.why != NULL)
                return error_set(error, STREAMER_EFAILED, "the answer is not valid XML: %s (%s)", xml.why, origin);
        for (size_t i = 0; i < xml.n; i++) {
                const char **field = response_field(&response, xml.elements[i].name, "SessionToken");
                if (field != NULL)
                        *field = xml.elements[i].text;
        }
        return init_keys(keys, &response, origin, error);
}
