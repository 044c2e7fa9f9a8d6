/* SPDX-License-Identifier: Apache-2.0
 *
 * The requests of a load: each is answered under its own name, for its own rights and with its own settings, also if
 * the load joins another one or begins again.
 */
#include "tests/lib/load_fixture.h"

#define OWNER 1001u

static const struct caller owner = {.uid = OWNER};
static const struct caller stranger = {.uid = 1002};

/* A request that joins by the same name, of a caller whose file accesses do not matter. */
static int repeat(struct watched *w, struct load_args what)
{
        what.name = what.name != NULL ? what.name : "m";
        return load_request(w, &what);
}

static const struct model_settings *settings_of(const char *name, enum generation_state state)
{
        return &generation_find_name(resident_on(&resident, name, state, NULL), name)->settings;
}

static size_t count_requests(const struct load *load)
{
        size_t n = 0;
        list_each (pos, &load->requests)
                n++;
        return n;
}

/* ---- names ---- */

CORE_FIXTURE(load_fixture_begin, load_fixture_end);

static void await_join(const struct watched *joins, const struct watched *other)
{
        core_until(joins->request->load == other->load);
}

TEST(a_joining_request_keeps_its_own_name)
{
        struct watched first, second;
        char *path = small_file("small.safetensors", 1);
        load_start_held(&first, path, LOAD_READING);
        load_start(&second, path, "second");
        await_join(&second, &first);
        ck_assert_str_eq(first.request->name, "m");
        ck_assert_str_eq(second.request->name, "second");
        load_release_held();
        ends(&first, LOAD_READY);
        ends(&second, LOAD_READY);
        ck_assert_ptr_eq(resident_ready(&resident, "m"), resident_ready(&resident, "second"));
}

static void replace_file(const char *path)
{
        must(rename(small_file("new.safetensors", 2), path));
}

TEST(a_load_that_begins_again_keeps_the_names_of_all_its_requests)
{
        struct watched first, second;
        struct load_request *unwatched;
        struct error error;
        char *path = small_file("small.safetensors", 1);
        load_start_held(&first, path, LOAD_READING);
        load_start(&second, path, "second");
        ck_assert_int_eq(loads_begin(&loads,
                                     &(struct load_args){.source = path, .name = "third", .caller = &core_caller},
                                     &unwatched, &error),
                         0);
        await_join(&second, &first);
        core_until(generation_has_name(first.load->targets[0].generation, "third"));
        replace_file(path);
        load_release_held();
        ends(&first, LOAD_READY);
        ends(&second, LOAD_READY);
        ck_assert_uint_eq(second.progress.restarts, 1);
        struct generation *g = resident_ready(&resident, "m");
        serves_small(g, 2);
        ck_assert_ptr_eq(resident_ready(&resident, "second"), g);
        ck_assert_ptr_eq(resident_ready(&resident, "third"), g);
}

/* ---- settings ---- */

/* As a verb does, of what loads. */
static void change(const char *name, unsigned asks, struct model_settings to)
{
        struct error error;
        const struct settings_change asked = {asks, to};
        ck_assert_int_ge(loads_change_settings(&loads, name, false, core_caller.uid, false, &asked, &error), 0);
}

static const enum load_state states[] = {LOAD_OPENING, LOAD_READING};

TEST(a_plain_repetition_changes_no_setting, EACH(states))
{
        struct watched first, asks, again;
        char *path = small_file("small.safetensors", 1);
        load_start_held(&first, path, states[_i]);
        ck_assert_int_eq(
                repeat(&asks,
                       (struct load_args){.source = path,
                                          .retention = {.pinned = true, .keep_alive_ns = 60 * SECOND, .priority = 7}}),
                0);
        struct generation *g = resident_on(&resident, "m", GENERATION_LOADING, NULL);
        ck_assert(g->settings.pinned);
        change("m", SETTING_PINNED | SETTING_KEEP_ALIVE | SETTING_PRIORITY,
               (struct model_settings){.keep_alive_ns = 1, .priority = 9});
        load_start(&again, path, "m");
        ck_assert(!g->settings.pinned);
        ck_assert_uint_eq(g->settings.keep_alive_ns, 1);
        ck_assert_uint_eq(g->settings.priority, 9);
        load_release_held();
        ends(&again, LOAD_READY);
        ck_assert(!g->settings.pinned);
}

/* The model is resident already under another name, and another load of it begins and has not opened its source. */
static char *begin_alias(struct watched *w, const char *name, const struct model_settings *retention)
{
        char *path = small_file("small.safetensors", 1);
        load_ready(path, "resident");
        core_until(loads_empty(&loads));
        load_hold_lane(path);
        ck_assert_int_eq(repeat(w, (struct load_args){.source = path, .name = name, .retention = *retention}), 0);
        core_until(w->load->state == LOAD_OPENING);
        return path;
}

TEST(what_a_verb_changes_is_not_undone_by_the_load_that_asked_before)
{
        struct watched w;
        begin_alias(&w, "n",
                    &(struct model_settings){.pinned = true, .keep_alive_ns = 60 * SECOND, .drain_timeout_ns = 5});
        change("n", SETTING_PINNED, (struct model_settings){.pinned = false});
        change("n", SETTING_KEEP_ALIVE, (struct model_settings){.keep_alive_ns = 0});
        load_release_held();
        ends(&w, LOAD_READY);
        ck_assert(!settings_of("n", GENERATION_READY)->pinned);
        ck_assert_uint_eq(settings_of("n", GENERATION_READY)->keep_alive_ns, 0);
        ck_assert_uint_eq(settings_of("n", GENERATION_READY)->drain_timeout_ns, 5);
}

TEST(what_a_verb_changes_applies_to_the_name_in_the_model_that_the_load_shares)
{
        struct watched w;
        begin_alias(&w, "n", &(struct model_settings){.pinned = false});
        change("n", SETTING_PINNED, (struct model_settings){.pinned = true});
        change("n", SETTING_PRIORITY, (struct model_settings){.priority = 77});
        change("other", SETTING_KEEP_ALIVE, (struct model_settings){.keep_alive_ns = 1});
        ck_assert_uint_eq(w.load->priority, 77);
        load_release_held();
        ends(&w, LOAD_READY);
        ck_assert(settings_of("n", GENERATION_READY)->pinned);
        ck_assert_uint_eq(settings_of("n", GENERATION_READY)->priority, 77);
        ck_assert_uint_ne(settings_of("n", GENERATION_READY)->keep_alive_ns, 1);
        ck_assert(!settings_of("resident", GENERATION_READY)->pinned);
        ck_assert_uint_eq(settings_of("resident", GENERATION_READY)->priority, PROTO_PRIORITY_DEFAULT);
        ck_assert(resident_ready(&resident, "resident")->settings.pinned);
}

/* Two requests of one load, under two names: it has the higher priority, and each name its own settings. */
TEST(names_that_are_loaded_together_have_their_own_settings)
{
        struct watched first, second;
        char *path = small_file("small.safetensors", 1);
        load_start_held(&first, path, LOAD_READING);
        ck_assert_int_eq(repeat(&second,
                                (struct load_args){
                                        .source = path,
                                        .name = "second",
                                        .retention = {.keep_alive_ns = 60 * SECOND, .priority = 300, .pinned = true}}),
                         0);
        await_join(&second, &first);
        ck_assert_uint_eq(first.load->priority, 300);
        change("second", SETTING_PRIORITY, (struct model_settings){.priority = 7});
        ck_assert_uint_eq(first.load->priority, PROTO_PRIORITY_DEFAULT);
        load_release_held();
        ends(&first, LOAD_READY);
        ends(&second, LOAD_READY);
        ck_assert(settings_of("second", GENERATION_READY)->pinned && !settings_of("m", GENERATION_READY)->pinned);
        ck_assert_uint_eq(settings_of("second", GENERATION_READY)->priority, 7);
        ck_assert_uint_eq(settings_of("second", GENERATION_READY)->keep_alive_ns, 60 * SECOND);
        ck_assert_uint_eq(settings_of("m", GENERATION_READY)->priority, PROTO_PRIORITY_DEFAULT);
        ck_assert_uint_eq(settings_of("m", GENERATION_READY)->keep_alive_ns, 0);
        generation_drop_name(resident_ready(&resident, "m"), "second");
        ck_assert(!resident_ready(&resident, "m")->settings.pinned);
}

/* What it reads then is resident under another name. */
TEST(a_load_that_begins_again_gives_its_settings_to_the_model_that_it_shares)
{
        struct watched w;
        char *old = small_file("small.safetensors", 1), *new = small_file("new.safetensors", 2);
        char *path = suite_path("link.safetensors");
        struct generation *g = load_ready(new, "resident");
        must(symlink(old, path));
        gate_init(&fake.prepare, false);
        ck_assert_int_eq(repeat(&w, (struct load_args){.source = path, .retention = {.pinned = true}}), 0);
        core_until(w.load->state == LOAD_READING);
        gate_await(&fake.prepare, 1);
        unlink(path);
        must(symlink(new, path));
        must(chmod(old, 0600)); /* it has changed while it was read */
        load_release_held();
        ends(&w, LOAD_READY);
        ck_assert_uint_eq(w.progress.restarts, 1);
        ck_assert_ptr_eq(resident_ready(&resident, "m"), g);
        ck_assert(g->settings.pinned);
}

/* A client may repeat requests as often as it likes, and others change settings meanwhile. */
TEST(requests_that_nothing_watches_do_not_accumulate)
{
        struct watched w;
        struct load_request *request;
        struct error error;
        char *path = begin_alias(&w, "n", &(struct model_settings){.pinned = false});
        for (unsigned i = 1; i <= 100; i++) {
                struct load_args args = {.source = path,
                                         .name = "n",
                                         .caller = &core_caller,
                                         .retention = {.keep_alive_ns = i % 3 == 0 ? i : 0}};
                ck_assert_int_eq(loads_begin(&loads, &args, &request, &error), 0);
                change("n", SETTING_PINNED, (struct model_settings){.pinned = i % 2 == 1});
        }
        ck_assert_uint_le(count_requests(w.load), 4);
        load_release_held();
        ends(&w, LOAD_READY);
        ck_assert(!settings_of("n", GENERATION_READY)->pinned);
        ck_assert_uint_eq(settings_of("n", GENERATION_READY)->keep_alive_ns, 99);
}

/* ---- rights ---- */

/* "m" serves, and belongs to OWNER; a load of its next version, by another user, is held. */
static char *begin_of_another(struct watched *w)
{
        char *path = small_file("small.safetensors", 1);
        ask_for(w, (struct load_args){.source = path, .owner = &(uid_t){OWNER}});
        ends(w, LOAD_READY);
        core_until(loads_empty(&loads));
        replace_file(path);
        load_start_held(w, path, LOAD_READING);
        return path;
}

static const struct load_args allowed[] = {{.caller = &owner}, {.caller = &stranger, .admin = true}};

TEST(a_request_has_the_rights_of_its_own_caller, EACH(allowed))
{
        struct watched first, again;
        struct load_args args = allowed[_i];
        args.source = begin_of_another(&first);
        args.retention = (struct model_settings){.pinned = true};
        ck_assert_int_eq(repeat(&again, args), 0);
        load_release_held();
        ends(&first, LOAD_READY);
        ends(&again, LOAD_READY);
        ck_assert(settings_of("m", GENERATION_READY)->pinned);
}

TEST(what_a_caller_may_not_ask_for_is_denied_and_changes_nothing)
{
        struct watched first, again;
        char *path = begin_of_another(&first);
        ck_assert_int_eq(repeat(&again, (struct load_args){.source = path,
                                                           .caller = &stranger,
                                                           .retention = {.pinned = true, .priority = 3}}),
                         STREAMER_EPERM);
        ck_assert_ptr_nonnull(strstr(again.error.text, "uid 1001 loaded it: pin, keep-alive"));
        ck_assert_uint_eq(count_requests(first.load), 1);
        ck_assert_uint_ne(first.load->priority, 3);
        load_release_held();
        ends(&first, LOAD_READY);
        ck_assert(!settings_of("m", GENERATION_READY)->pinned);
}

/* The files turn out to be resident as another user's model; another request of the same load asks for nothing. */
TEST(a_request_is_denied_alone)
{
        struct watched plain, pins;
        char *path = small_file("small.safetensors", 1);
        ask_for(&plain, (struct load_args){.source = path, .name = "resident", .owner = &(uid_t){OWNER}});
        ends(&plain, LOAD_READY);
        core_until(loads_empty(&loads));
        load_hold_lane(path);
        load_start(&plain, path, "n");
        ck_assert_int_eq(repeat(&pins, (struct load_args){.source = path, .name = "n", .retention = {.pinned = true}}),
                         0);
        ck_assert_ptr_eq(pins.load, plain.load);
        load_release_held();
        ends(&pins, LOAD_FAILED);
        ck_assert_int_eq(pins.error.code, STREAMER_EPERM);
        ends(&plain, LOAD_READY);
        ck_assert_ptr_eq(resident_ready(&resident, "n"), resident_ready(&resident, "resident"));
        ck_assert(!settings_of("resident", GENERATION_READY)->pinned);
}

TEST(a_load_fails_when_all_its_requests_are_denied)
{
        struct watched w;
        char *path = small_file("small.safetensors", 1);
        ask_for(&w, (struct load_args){.source = path, .name = "resident", .owner = &(uid_t){OWNER}});
        ends(&w, LOAD_READY);
        core_until(loads_empty(&loads));
        ck_assert_int_eq(repeat(&w, (struct load_args){.source = path, .name = "n", .retention = {.pinned = true}}), 0);
        ends(&w, LOAD_FAILED);
        ck_assert_int_eq(w.error.code, STREAMER_EPERM);
        ck_assert_ptr_null(resident_any(&resident, "n"));
}

/* ---- several devices ---- */

CORE_FIXTURE(load_fixture_begin_multi, load_fixture_end);

TEST(a_request_is_denied_before_the_rest_of_its_load_ends)
{
        struct watched plain, pins;
        char *path = small_file("small.safetensors", 1);
        ask_for(&plain,
                (struct load_args){.source = path, .owner = &(uid_t){OWNER}, .name = "resident", ON_FIELDS("one")});
        ends(&plain, LOAD_READY);
        core_until(loads_empty(&loads));
        gate_init(&others[1].put, false);
        load_hold_lane(path);
        ask_for(&plain, (struct load_args){.source = path, .name = "n", ON_FIELDS("one", "two")});
        ck_assert_int_eq(repeat(&pins, (struct load_args){.source = path,
                                                          .name = "n",
                                                          .retention = {.pinned = true},
                                                          ON_FIELDS("one", "two")}),
                         0);
        load_release_held();
        ends(&pins, LOAD_FAILED);
        ck_assert(!plain.ended);
        gate_open(&others[1].put);
        ends(&plain, LOAD_READY);
        ck_assert_ptr_nonnull(resident_on(&resident, "n", GENERATION_READY, &others[1].device));
}

/* A replica has the number of the model that serves, here a lower one. */
TEST(a_name_that_serves_a_later_generation_leads_to_the_one_that_was_asked_for)
{
        struct watched first, second;
        char *path = small_file("small.safetensors", 1);
        wait_on(&first, path, "m", ON("one"));
        ends(&first, LOAD_READY);
        wait_on(&second, small_file("later.safetensors", 2), "n", ON("two"));
        ends(&second, LOAD_READY);
        gate_init(&others[1].put, false);
        wait_on(&first, path, "m", ON("two"));
        core_until(first.load->state == LOAD_READING);
        wait_on(&second, path, "n", ON("two"));
        core_until(second.load->state == LOAD_AWAITING);
        gate_open(&others[1].put);
        ends(&first, LOAD_READY);
        ends(&second, LOAD_READY);
        struct generation *g = resident_on(&resident, "n", GENERATION_READY, &others[1].device);
        ck_assert_ptr_eq(g, resident_on(&resident, "m", GENERATION_READY, &others[1].device));
        serves_small(g, 1);
}
