/* SPDX-License-Identifier: Apache-2.0
 *
 * wait: until all models are ready, which the daemon answers for each. With --any or --for=unloaded the list is read
 * again after each event.
 */
#include "client/streamerctl/ctl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- all are ready ---- */

static int wait_ready(struct ctl *ctl, const char *model)
{
        json_auto_t *reply = NULL;
        json_t *args = json_object();
        int left_ms = ctl_left_ms(ctl, -1);
        if (left_ms >= 0) /* on the wire 0 means no limit */
                json_object_set_new(args, "timeout_ms", json_integer(left_ms > 0 ? left_ms : 1));
        int rc = call_model(ctl, "wait", model, args, &reply);
        if (rc == 0)
                print_done(ctl, model, reply, "%s  generation %" PRIu64, json_str(reply, "state"),
                           json_u64(reply, "generation"));
        return rc;
}

/* ---- what the list says ---- */

struct outlook {
        const json_t *ready, *failed; /* a row of the model in this state, or NULL */
        bool present, resident;       /* it has a row; one that has not failed */
};

static struct outlook look_up(const json_t *models, const char *name)
{
        const json_t *row;
        struct outlook seen = {0};
        for (size_t i = 0; (row = json_array_get(models, i)); i++) {
                if (strcmp(json_str(row, "name"), name) != 0)
                        continue;
                bool failed = strcmp(json_str(row, "state"), "failed") == 0;
                seen.present = true;
                seen.resident = seen.resident || !failed;
                seen.failed = failed ? row : seen.failed;
                seen.ready = strcmp(json_str(row, "state"), "ready") == 0 ? row : seen.ready;
        }
        return seen;
}

static void print_reached(const struct ctl *ctl, const char *name, const char *state, uint64_t generation)
{
        json_auto_t *row =
                json_pack("{s:s, s:s, s:I}", "name", name, "state", state, "generation", (json_int_t)generation);
        if (generation > 0)
                print_done(ctl, name, row, "%s  generation %" PRIu64, state, generation);
        else
                print_done(ctl, name, row, "%s", state);
}

/* STREAMER_ETIMEOUT: not yet. Of the models that --any selects from, an unknown one is an error at once, and a failed
 * load when none of the others can become ready. */
static int examine_ready(struct ctl *ctl, const json_t *models)
{
        size_t failures = 0;
        const char *failed = NULL, *text = "";
        for (size_t i = 0; i < ctl->n_args; i++) {
                struct outlook seen = look_up(models, ctl->args[i]);
                if (seen.ready) {
                        print_reached(ctl, ctl->args[i], "ready", json_u64(seen.ready, "generation"));
                        return 0;
                }
                if (!seen.present)
                        return ctl_error(ctl, STREAMER_ENOENT, ctl->args[i], "no such model");
                if (seen.resident)
                        continue;
                failures++;
                failed = failed ? failed : ctl->args[i];
                text = failed == ctl->args[i] ? json_str(seen.failed, "error") : text;
        }
        if (failures == ctl->n_args)
                return ctl_error(ctl, STREAMER_EFAILED, failed, "%s", text[0] ? text : "its load failed");
        return STREAMER_ETIMEOUT;
}

/* STREAMER_ETIMEOUT: not yet. */
static int examine_unloaded(struct ctl *ctl, const json_t *models)
{
        size_t resident = 0;
        for (size_t i = 0; i < ctl->n_args; i++)
                resident += look_up(models, ctl->args[i]).resident;
        if (resident > 0 && (!ctl->any || resident == ctl->n_args))
                return STREAMER_ETIMEOUT;
        for (size_t i = 0; i < ctl->n_args; i++) {
                if (look_up(models, ctl->args[i]).resident)
                        continue;
                print_reached(ctl, ctl->args[i], "unloaded", 0);
                if (ctl->any)
                        break;
        }
        return 0;
}

/* Subscribed before the list is read, so that no change is missed between them. */
static int wait_events(struct ctl *ctl, int (*examine)(struct ctl *ctl, const json_t *models))
{
        char *event;
        int rc = streamer_subscribe(ctl->client, NULL);
        while (rc == 0) {
                json_auto_t *reply = NULL;
                if ((rc = ctl_call(ctl, "list", json_object(), NULL, &reply)) != 0 ||
                    (rc = examine(ctl, json_object_get(reply, "models"))) != STREAMER_ETIMEOUT)
                        return rc;
                rc = streamer_event_next(ctl->client, ctl_left_ms(ctl, -1), &event);
                if (rc == STREAMER_ETIMEOUT)
                        return ctl_error(ctl, rc, ctl->n_args == 1 ? ctl->args[0] : NULL, "not %s after %.4g s",
                                         ctl->until, ctl->timeout_ms / 1e3);
                if (rc == 0)
                        free(event);
        }
        return ctl_fail(ctl, rc, NULL);
}

int verb_wait(struct ctl *ctl)
{
        if (!ctl->until)
                ctl->until = "ready";
        if (strcmp(ctl->until, "unloaded") == 0)
                return wait_events(ctl, examine_unloaded);
        if (strcmp(ctl->until, "ready") != 0)
                return usage_error(ctl, "wait: '%.100s' is not a state to wait for: ready or unloaded", ctl->until);
        return ctl->any ? wait_events(ctl, examine_ready) : ctl_each(ctl, wait_ready);
}
