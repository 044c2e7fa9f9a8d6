/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls to the daemon, the JSON of their replies, and the deadline of the command.
 */
#include "client/streamerctl/ctl.h"
#include "client/streamerctl/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int ask(streamer_client *client, const char *verb, json_t *args, json_t **reply)
{
        char *text = NULL, *packed = json_dumps(args, JSON_COMPACT);
        if (!args)
                return STREAMER_EINVAL;
        if (!packed)
                out_of_memory();
        int rc = streamer_call(client, verb, packed, &text);
        if (rc == 0 && !(*reply = json_loads(text, JSON_ALLOW_NUL, NULL)))
                out_of_memory();
        json_decref(args);
        free(packed);
        free(text);
        return rc;
}

int ctl_call(struct ctl *ctl, const char *verb, json_t *args, const char *subject, json_t **reply)
{
        if (!args)
                return usage_not_utf8(ctl);
        int rc = ask(ctl->client, verb, args, reply);
        return rc == 0 ? 0 : ctl_fail(ctl, rc, subject);
}

int ctl_query(struct ctl *ctl, const char *verb, json_t *args, const char *subject, json_t **reply)
{
        int rc = ctl_call(ctl, verb, args, subject, reply);
        if (rc == 0 && ctl->format == FORMAT_JSON) {
                ctl_print_json(*reply);
                json_decref(*reply);
                *reply = NULL;
        }
        return rc;
}

int ctl_each(struct ctl *ctl, int (*act)(struct ctl *ctl, const char *model))
{
        int rc = 0;
        for (size_t i = 0; i < ctl->n_args; i++) {
                int r = act(ctl, ctl->args[i]);
                rc = rc != 0 ? rc : r;
        }
        return rc;
}

void ctl_print_json(const json_t *json)
{
        json_auto_t *out = json_pack("{s:i}", "schema", JSON_SCHEMA);
        json_object_update(out, (json_t *)(uintptr_t)json);
        json_dumpf(out, stdout, JSON_COMPACT);
        putchar('\n');
}

void ctl_print_name(const char *name)
{
        put_escaped(stdout, name);
        putchar('\n');
}

void ctl_print_names(const json_t *rows)
{
        const json_t *row;
        for (size_t i = 0; (row = json_array_get(rows, i)); i++)
                ctl_print_name(json_str(row, "name"));
}

/* ---- members ---- */

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

bool json_bool(const json_t *o, const char *key)
{
        return json_is_true(json_object_get(o, key));
}

/* ---- time ---- */

uint64_t clock_now_ns(void)
{
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

int ctl_left_ms(const struct ctl *ctl, int most)
{
        if (ctl->deadline_ns == 0)
                return most;
        uint64_t now = clock_now_ns(), left = ctl->deadline_ns > now ? (ctl->deadline_ns - now + 999999) / 1000000 : 0;
        return most >= 0 && left > (uint64_t)most ? most : (int)left;
}
