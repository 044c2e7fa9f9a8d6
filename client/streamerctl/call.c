/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls to the daemon, their failures, and reading of its replies.
 */
#include "client/streamerctl/ctl.h"
#include "client/streamerctl/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Some texts name their subject themselves, escaped as we would. */
static bool names(const char *text, const char *subject)
{
        size_t len = strlen(subject);
        return strncmp(text, subject, len) == 0 && text[len] == ':';
}

int ctl_fail(const struct ctl *ctl, int err, const char *subject)
{
        const char *text = streamer_last_error(ctl->client);
        if (!text[0])
                text = streamer_strerror(err);
        char *safe_text = escape(text), *safe_subject = escape(subject ? subject : "");
        if (safe_subject[0] && !names(safe_text, safe_subject))
                fprintf(stderr, "streamerctl: %s: %s\n", safe_subject, safe_text);
        else
                fprintf(stderr, "streamerctl: %s\n", safe_text);
        free(safe_text);
        free(safe_subject);
        return streamer_exit_code(err);
}

int ctl_call(struct ctl *ctl, const char *verb, json_t *args, const char *subject, json_t **reply)
{
        char *text = NULL;
        char *packed = args ? json_dumps(args, JSON_COMPACT) : NULL;
        bool unpackable = args && !packed;
        json_decref(args);
        if (unpackable)
                return usage_error(ctl, "%s: an argument is not valid UTF-8", verb);
        int rc = streamer_call(ctl->client, verb, packed, &text);
        free(packed);
        if (rc != 0)
                return ctl_fail(ctl, rc, subject);
        *reply = json_loads(text, JSON_ALLOW_NUL, NULL);
        free(text);
        return *reply ? 0 : ctl_fail(ctl, STREAMER_EPROTO, subject);
}

void ctl_print_json(const json_t *json)
{
        json_dumpf(json, stdout, JSON_COMPACT);
        putchar('\n');
}

const char *json_str(const json_t *o, const char *key)
{
        const char *s = json_string_value(json_object_get(o, key));
        return s ? s : "";
}

uint64_t json_u64(const json_t *o, const char *key)
{
        const json_t *v = json_object_get(o, key);
        if (json_is_string(v))
                return strtoull(json_string_value(v), NULL, 10);
        return json_is_integer(v) ? (uint64_t)json_integer_value(v) : 0;
}
