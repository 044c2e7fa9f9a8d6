/* SPDX-License-Identifier: Apache-2.0
 *
 * Another user, who may load models. All names of the model belong to the checker's own user: what the other one asks
 * to change of them is denied, and changes nothing.
 */
#include "tests/model/checker_model.h"

#define OTHER_UID 60103

/* The daemon sees the user who connects. */
void users_start(struct checker *c, const streamer_connect_opts *opts)
{
        if (geteuid() != 0)
                return;
        must(seteuid(OTHER_UID));
        int r = streamer_connect(opts, &c->other);
        must(seteuid(0));
        if (r < 0)
                die("connect as uid %d: %s", OTHER_UID, streamer_last_error(NULL));
}

static int load_as_other(struct checker *c, unsigned name, unsigned source, unsigned flags)
{
        char *path = source_path(c, source);
        streamer_load_opts opts = {.struct_size = sizeof(opts),
                                   .source = path,
                                   .name = name_of(name),
                                   .devices = &c->devices[0].name,
                                   .n_devices = 1,
                                   .flags = flags};
        streamer_op *op = NULL;
        int r = streamer_load(c->other, &opts, &op);
        if (r == 0)
                r = streamer_op_wait(op, CHECKER_WAIT_MS, NULL);
        streamer_op_free(op);
        free(path);
        return r;
}

/* What the name leads to on any device; NULL: nothing. */
static const struct gen *any_of(const struct checker *c, unsigned name)
{
        for (unsigned d = 0; d < c->n_devices; d++)
                if (c->names[name][d] != NULL)
                        return c->names[name][d];
        return NULL;
}

void step_other_user(struct checker *c)
{
        static const char *const asks[] = {"load another source", "load and pin", "unload", "pin"};
        unsigned name = (unsigned)random_below(c, NAMES), ask = (unsigned)random_below(c, 4);
        const struct gen *g = any_of(c, name);
        int r = 0;
        if (c->other == NULL || g == NULL)
                return;
        if (ask == 0)
                r = load_as_other(c, name, (g->source + 1) % PLAIN_SOURCES, 0);
        else if (ask == 1)
                r = load_as_other(c, name, g->source % PLAIN_SOURCES, STREAMER_LOAD_PIN);
        else if (ask == 2)
                r = streamer_unload(c->other, name_of(name), STREAMER_UNLOAD_DRAIN);
        else
                r = streamer_pin(c->other, name_of(name), true);
        trail_add(c, "another user: %s %s: %s", asks[ask], name_of(name), streamer_strerror(r));
        if (r != STREAMER_EPERM)
                checker_fail(c, "another user: %s %s: %s (%s)", asks[ask], name_of(name), streamer_strerror(r),
                             streamer_last_error(c->other));
        c->counts->denied++;
        compare(c, false);
}
