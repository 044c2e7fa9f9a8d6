/* SPDX-License-Identifier: Apache-2.0
 *
 * The changes of the kill test. Each first records the states that are possible from now on, and removes those that the
 * reply excludes.
 */
#include "tests/lib/kills_model.h"

#include "proto/messages.h"

const char *kills_name(unsigned name)
{
        static const char *const names[NAMES] = {"n0", "n1", "n2", "second-n0", "second-n1", "second-n2"};
        return names[name];
}

unsigned kills_priority(unsigned number)
{
        static const unsigned priorities[PRIORITIES] = {PROTO_PRIORITY_DEFAULT, 1, 50, 150};
        return priorities[number];
}

void may_be(struct history *name, uint64_t version)
{
        if (name->n > 0 && name->versions[name->n - 1] == version)
                return;
        if (name->n == HISTORY)
                die("a history is full");
        name->versions[name->n++] = version;
}

void is_only(struct history *name, uint64_t version)
{
        name->versions[0] = version;
        name->n = 1;
}

static void check(streamer_client *c, const char *verb, int r)
{
        if (r == STREAMER_EUNREACHABLE || r == STREAMER_ELOST)
                _exit(0);
        if (r != 0)
                die("%s: %s (%s)", verb, streamer_strerror(r), streamer_last_error(c));
}

/* For a name that may be absent. */
static void check_named(streamer_client *c, const char *verb, int r)
{
        if (r != STREAMER_ENOENT)
                check(c, verb, r);
}

/* ---- one change each ---- */

static char *path_of(const struct kills *k, unsigned file)
{
        return format_text("%s/n%u.safetensors", k->root, file);
}

static void rewrite(struct kills *k, unsigned file)
{
        uint64_t version = ++k->shared->next_version;
        struct model *m = seeded_model(version);
        cleanup_free char *path = path_of(k, file), *aside = format_text("%s/aside", k->root);
        model_write(m, aside);
        k->shared->writing[file] = version;
        must(rename(aside, path));
        k->shared->written[file] = version;
        model_free(m);
}

/* A pin and a priority belong to the name and pass to its next generation; the other name of a resident model has its
 * own. */
static void do_load(struct kills *k, streamer_client *c, unsigned i)
{
        unsigned file = i % FILES;
        struct history *name = &k->shared->names[i];
        cleanup_free char *path = path_of(k, file);

        /* The previous client may have been killed while it wrote. */
        bool unknown = k->shared->written[file] != k->shared->writing[file];
        if (k->shared->written[file] == 0 || unknown || kills_below(k, 2) == 0)
                rewrite(k, file);
        may_be(name, k->shared->written[file]);
        name->priorities |= 1;
        check(c, "load", client_load_with(c, (streamer_load_opts){.source = path, .name = kills_name(i)}));
}

/* Without a store, the state file may still have the pin. */
static void do_unload(struct kills *k, streamer_client *c, unsigned i)
{
        struct history *name = &k->shared->names[i];
        may_be(name, ABSENT);
        name->pins |= MAY_BE_LOOSE;
        check_named(c, "unload", streamer_unload(c, kills_name(i), 0));
        if (!k->stored)
                return;
        is_only(name, ABSENT);
        name->pins = MAY_BE_LOOSE;
}

static void do_pin(struct kills *k, streamer_client *c, unsigned i)
{
        bool pin = kills_below(k, 2) == 0;
        unsigned bit = pin ? MAY_BE_PINNED : MAY_BE_LOOSE;
        k->shared->names[i].pins |= bit;
        check_named(c, "pin", streamer_pin(c, kills_name(i), pin));
}

static void do_priority(struct kills *k, streamer_client *c, unsigned i)
{
        unsigned number = (unsigned)kills_below(k, PRIORITIES);
        cleanup_free char *args =
                format_text("{\"model\":\"%s\",\"priority\":%u}", kills_name(i), kills_priority(number));
        k->shared->names[i].priorities |= 1u << number;
        check_named(c, "set_priority", streamer_call(c, "set_priority", args, NULL));
}

static void do_attach(streamer_client *c, unsigned i)
{
        streamer_lease *lease = NULL;
        int r = streamer_attach(c, kills_name(i), NULL, &lease);
        check_named(c, "attach", r);
        if (r == 0)
                streamer_detach(lease);
}

static void do_status(struct kills *k, streamer_client *c)
{
        cleanup_free char *reply = NULL;
        check(c, "status", streamer_call(c, "status", NULL, &reply));
}

/* ---- all clients ---- */

static void change(struct kills *k, streamer_client *c)
{
        unsigned i = (unsigned)kills_below(k, NAMES);
        uint64_t dice = kills_below(k, 20);
        if (dice < 9)
                do_load(k, c, i);
        else if (dice < 12)
                do_unload(k, c, i);
        else if (dice < 15)
                do_pin(k, c, i);
        else if (dice < 17)
                do_priority(k, c, i);
        else if (dice < 19)
                do_attach(c, i);
        else
                do_status(k, c);
}

void kills_change(struct kills *k)
{
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = k->m.d.socket};
        streamer_client *c = NULL;
        k->chance = splitmix(k->seed + k->round); /* random numbers of this process, which is a copy of its parent */
        check(NULL, "connect", streamer_connect(&opts, &c));
        for (;;)
                change(k, c);
}
