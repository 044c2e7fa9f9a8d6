/* SPDX-License-Identifier: Apache-2.0
 *
 * The rounds of the kill test: see kills.h. Each changes, kills, restarts and checks the daemon.
 */
#include "tests/lib/managed_daemon.h"
#include "tests/lib/kills_model.h"

#include "tests/lib/snapshots.h"

#define STORE 96

static struct kills *running;
static void (*outer_hook)(const char *text);

static void print_seed(const char *text)
{
        char all[4096];
        size_t size;
        const char *log = file_read(running->m.d.log, &size);
        snprintf(all, sizeof(all), "seed %llu, round %u: %s; the log ends:\n%s", (unsigned long long)running->seed,
                 running->round, text, size > 2500 ? log + size - 2500 : log);
        outer_hook(all);
        abort();
}

/* ---- queries ---- */

/* A name as listed by the daemon. */
struct found {
        uint64_t version;
        bool pinned;
        unsigned priority; /* number of the version */
};

static uint64_t version_of(struct kills *k, const char *name)
{
        streamer_lease *lease = NULL;
        int r = streamer_attach(k->client, name, NULL, &lease);
        if (r == STREAMER_ENOENT)
                return ABSENT;
        client_ok(k->client, r, name);
        const char *text = streamer_metadata(lease, "seed");
        uint64_t version = text != NULL ? strtoull(text, NULL, 10) : 0;
        struct model *m = seeded_model(version);
        lease_equals(lease, m);
        streamer_detach(lease);
        client_equals(k->client, name, m);
        model_free(m);
        return version;
}

static unsigned number_of(uint64_t priority)
{
        for (unsigned i = 0; i < PRIORITIES; i++)
                if (kills_priority(i) == priority)
                        return i;
        die("the client requested no priority %llu", (unsigned long long)priority);
}

static void find(struct kills *k, struct found found[NAMES])
{
        json_t *list = client_call(k->client, "list", NULL), *row;
        size_t at;
        for (unsigned i = 0; i < NAMES; i++) {
                found[i] = (struct found){.version = version_of(k, kills_name(i))};
                json_array_foreach(json_object_get(list, "models"), at, row)
                {
                        if (strcmp(json_text(row, "name"), kills_name(i)) != 0 ||
                            strcmp(json_text(row, "state"), "ready") != 0)
                                continue;
                        found[i].pinned = json_is_true(json_object_get(row, "pinned"));
                        found[i].priority = number_of(json_number(row, "priority"));
                }
        }
        json_decref(list);
}

/* A model restored from the state file has its file's current version. */
static bool may_be_reloaded(const struct kills *k, unsigned i, uint64_t version)
{
        const struct shared *s = k->shared;
        unsigned file = i % FILES;
        return (s->names[i].pins & MAY_BE_PINNED) && version != ABSENT &&
               (version == s->written[file] || version == s->writing[file]);
}

static bool existed(const struct history *name, uint64_t version)
{
        for (unsigned j = 0; j < name->n; j++)
                if (name->versions[j] == version)
                        return true;
        return false;
}

/* Without a store exactly the pinned models are restored. */
static void check_version(const struct kills *k, unsigned i, uint64_t version)
{
        const struct history *name = &k->shared->names[i];
        bool may_go = name->pins & MAY_BE_LOOSE;
        if (version == ABSENT && !may_go)
                die("%s was pinned and was not restored", kills_name(i));
        if (may_be_reloaded(k, i, version) || (!k->stored && version == ABSENT))
                return;
        if (!k->stored || !existed(name, version))
                die("%s has version %llu, of %u that it may have, the last of them %llu", kills_name(i),
                    (unsigned long long)version, name->n, (unsigned long long)name->versions[name->n - 1]);
}

/* Of this name alone, also where a reloaded model shares the generation of the file's other name. */
static void check_settings(const struct kills *k, unsigned i, const struct found *found)
{
        const struct history *name = &k->shared->names[i];
        if (!(name->pins & (found->pinned ? MAY_BE_PINNED : MAY_BE_LOOSE)) || (!k->stored && !found->pinned))
                die("%s is %spinned", kills_name(i), found->pinned ? "" : "not ");
        if (!(name->priorities & (1u << found->priority)))
                die("%s has priority %u", kills_name(i), kills_priority(found->priority));
}

static void query_names(struct kills *k)
{
        struct found found[NAMES];
        find(k, found);
        for (unsigned i = 0; i < NAMES; i++) {
                check_version(k, i, found[i].version);
                if (found[i].version != ABSENT)
                        check_settings(k, i, &found[i]);
        }
        for (unsigned i = 0; i < NAMES; i++) {
                struct history *name = &k->shared->names[i];
                bool newest = found[i].version == name->versions[name->n - 1];
                k->counts->there += newest;
                k->counts->older += !newest;
                k->counts->gone += found[i].version == ABSENT;
                k->counts->pinned += found[i].pinned;
                is_only(name, found[i].version);
                name->pins = found[i].pinned ? MAY_BE_PINNED : MAY_BE_LOOSE;
                name->priorities = found[i].version != ABSENT ? 1u << found[i].priority : 0;
        }
}

/* The state file has the pin and the priority of each name. */
static bool state_agrees(const struct kills *k)
{
        struct snapshot state;
        struct error error = {0};
        int r = snapshot_load(&state, k->state, &error);
        const struct name_row *witness = r == 0 ? snapshot_find(&state, PINNED) : NULL;
        bool agrees = witness != NULL && witness->settings.pinned;
        if (r != 0 && r != STREAMER_ENOENT)
                die("%s", error.text);
        for (unsigned i = 0; i < NAMES && agrees; i++) {
                const struct history *name = &k->shared->names[i];
                const struct name_row *m = snapshot_find(&state, kills_name(i));
                bool pinned = m != NULL && m->settings.pinned;
                agrees = pinned == (name->pins == MAY_BE_PINNED) &&
                         (!pinned || name->priorities == 1u << number_of(m->settings.priority));
        }
        snapshot_deinit(&state);
        return agrees;
}

/* From here on it has no earlier state. */
static void wait_state(struct kills *k)
{
        if (!WITHIN(PATIENCE_MS, state_agrees(k)))
                die("the state file does not have the pins");
}

static bool pinned_are_restored(const struct kills *k)
{
        json_auto_t *status = client_call(k->client, "status", NULL);
        return json_array_size(json_object_get(status, "restoring")) == 0;
}

static void check_lease(struct kills *k)
{
        int r = streamer_lease_check(k->held);
        if (r != 0 && r != STREAMER_ELOST)
                die("the lease: %s (%s)", streamer_strerror(r), streamer_last_error(k->client));
        lease_equals(k->held, k->pinned);
        k->counts->held += r == 0;
        k->counts->lost += r != 0;
        if (r == 0)
                return;
        streamer_detach(k->held);
        k->held = client_attach(k->client, PINNED);
}

static void query_daemon(struct kills *k)
{
        client_ok(k->client, streamer_call(k->client, "ping", NULL, NULL), "ping");
        if (!WITHIN(PATIENCE_MS, pinned_are_restored(k)))
                die("the pinned model was not restored");
        client_equals(k->client, PINNED, k->pinned);
        check_lease(k);
        query_names(k);
        wait_state(k);
}

/* ---- rounds ---- */

static void pause_us(uint64_t us)
{
        struct timespec ts = {.tv_nsec = (long)us * 1000};
        nanosleep(&ts, NULL);
}

/* Only the moment of the kill depends on time. */
static void round_of(struct kills *k)
{
        pid_t pid = must(fork());
        if (pid == 0)
                kills_change(k);
        pause_us(kills_below(k, kills_below(k, 4) == 0 ? 400000 : 60000));
        manager_kill(&k->m);
        must(kill(pid, SIGKILL));
        int status = child_wait(pid);
        if (status != 0 && status != 128 + SIGKILL)
                die("the client failed: status %d", status);
        k->counts->kills++;
        while (kills_below(k, 4) == 0) {
                manager_spawn(&k->m);
                pause_us(kills_below(k, 20000));
                manager_kill(&k->m);
                k->counts->kills++;
                k->counts->early++;
        }
        manager_start(&k->m);
        query_daemon(k);
}

static void set_stage(struct kills *k, const char *folder)
{
        snprintf(k->root, sizeof(k->root), "%s/root", folder);
        snprintf(k->state, sizeof(k->state), "%s/state", folder);
        char *pinned = format_text("%s/pinned.safetensors", k->root);
        const char *flags[] = {"--device", "host=256MiB", "--root", k->root, "--state", k->state, NULL};

        must(mkdir(k->root, 0755));
        must(mkdir(k->state, 0755));
        model_write(k->pinned, pinned);
        manager_init(&k->m, format_text("%s/d", folder), k->stored ? STORE : 0, flags);
        manager_start(&k->m);
        k->client = client_open(&k->m.d);
        client_ok(k->client,
                  client_load_with(k->client,
                                   (streamer_load_opts){.source = pinned, .name = PINNED, .flags = STREAMER_LOAD_PIN}),
                  "load");
        k->held = client_attach(k->client, PINNED);
        if (k->stored)
                manager_wait(&k->m, MANAGED_MODELS, 2);
        for (unsigned i = 0; i < NAMES; i++) {
                is_only(&k->shared->names[i], ABSENT);
                k->shared->names[i].pins = MAY_BE_LOOSE;
        }
        wait_state(k);
}

static void unload_all(struct kills *k)
{
        streamer_detach(k->held);
        for (unsigned i = 0; i < NAMES; i++) {
                int r = streamer_unload(k->client, kills_name(i), 0);
                if (r != STREAMER_ENOENT)
                        client_ok(k->client, r, kills_name(i));
        }
        client_unload(k->client, PINNED);
        client_wait_leases(k->client, 0);
        client_wait_used(k->client, 0);
        manager_wait(&k->m, MANAGED_MODELS, 0);
        manager_wait(&k->m, MANAGED_PROCESSES, 0);
        manager_wait(&k->m, "", k->stored ? 1 : 0); /* the snapshots */
        if (k->m.dropped)
                die("%zu descriptors did not fit the store", k->m.dropped);
}

void kills_run(const char *folder, bool stored, uint64_t seed, unsigned kills, struct kills_counts *counts)
{
        static struct kills k;
        k = (struct kills){.stored = stored,
                           .seed = seed,
                           .chance = seed,
                           .counts = counts,
                           .pinned = model_mixed(4242, 512 << 10)};
        running = &k;
        outer_hook = die_hook;
        k.shared = must_share(sizeof(*k.shared));
        set_stage(&k, folder);
        if (outer_hook)
                die_hook = print_seed;
        while (counts->kills < kills) {
                k.round++;
                round_of(&k);
        }
        unload_all(&k);
        die_hook = outer_hook;
        streamer_close(k.client);
        manager_deinit(&k.m);
}
