/* SPDX-License-Identifier: Apache-2.0
 *
 * The state file: what was written comes back, and what is damaged in any way is told apart from it,
 * set aside, and never half believed.
 */
#include "tests/lib/suite.h"

#include "daemon/resident/state.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct error error;
static char *folder;

static void begin(void)
{
        folder = suite_path("state-%d", (int)getpid());
        mkdir(folder, 0755);
        error = (struct error){0};
}

static char *path_of(const char *name)
{
        return format_text("%s/%s", folder, name);
}

static void add(struct state *state, const char *name, unsigned priority)
{
        struct state_model *m = state_add(state, name, "/models/x");

        ck_assert_ptr_nonnull(m);
        ck_assert_int_eq(origin_init(&m->origin, 1000, 1001, (gid_t[]){7, 8}, 2, "rank-{rank}"), 0);
        ck_assert_int_eq(state_add_device(m, "uuid-0", false), 0);
        ck_assert_int_eq(state_add_device(m, "uuid-1", true), 0);
        m->owner = 1002;
        m->number = 41;
        m->priority = priority;
        m->keep_alive_ns = UINT64_C(30) * 1000000000;
        m->drain_timeout_ns = 5;
        m->verified = true;
        m->ranks = true;
}

/* Two models, as bytes. */
static msgpack_sbuffer packed(void)
{
        struct state state = {.last_number = 42};
        msgpack_sbuffer out;

        add(&state, "a", 3);
        add(&state, "b/ c \xc3\xa4", 4);
        ck_assert_int_eq(state_pack(&state, &out), 0);
        state_deinit(&state);
        return out;
}

static void check(const struct state *state)
{
        ck_assert_uint_eq(state->last_number, 42);
        ck_assert_uint_eq(state->n, 2);
        const struct state_model *m = state_find(state, "b/ c \xc3\xa4");
        ck_assert_ptr_nonnull(m);
        ck_assert_str_eq(m->source, "/models/x");
        ck_assert_uint_eq(m->n_devices, 2);
        ck_assert_str_eq(m->devices[1], "uuid-1");
        ck_assert_uint_eq(m->origin.uid, 1000);
        ck_assert_uint_eq(m->origin.gid, 1001);
        ck_assert_uint_eq(m->owner, 1002);
        ck_assert_uint_eq(m->origin.n_groups, 2);
        ck_assert_uint_eq(m->origin.groups[1], 8);
        ck_assert_str_eq(m->origin.pattern, "rank-{rank}");
        ck_assert_uint_eq(m->number, 41);
        ck_assert_uint_eq(m->priority, 4);
        ck_assert_uint_eq(m->keep_alive_ns, UINT64_C(30) * 1000000000);
        ck_assert_uint_eq(m->drain_timeout_ns, 5);
        ck_assert(m->pinned && !m->pins[0] && m->pins[1] && m->verified && m->ranks);
}

START_TEST(what_was_written_comes_back)
{
        struct state state;
        msgpack_sbuffer bytes = packed();

        ck_assert_int_eq(state_save(folder, bytes.data, bytes.size, &error), 0);
        ck_assert_int_eq(state_load(&state, folder, &error), 0);
        check(&state);
        state_deinit(&state);
        ck_assert_int_ne(access(path_of("state.new"), F_OK), 0);
        struct stat st;
        must(stat(path_of("state"), &st));
        ck_assert_uint_eq(st.st_mode & 0777, 0600);
}
END_TEST

START_TEST(a_write_replaces_the_file_whole)
{
        struct state state;
        msgpack_sbuffer bytes = packed(), empty;

        ck_assert_int_eq(state_save(folder, bytes.data, bytes.size, &error), 0);
        ck_assert_int_eq(state_pack(&(struct state){.last_number = 1}, &empty), 0);
        ck_assert_int_eq(state_save(folder, empty.data, empty.size, &error), 0);
        ck_assert_int_eq(state_load(&state, folder, &error), 0);
        ck_assert_uint_eq(state.n, 0);
        ck_assert_uint_eq(state.last_number, 1);
}
END_TEST

START_TEST(what_an_interrupted_write_left_is_not_looked_at)
{
        struct state state;
        msgpack_sbuffer bytes = packed();

        ck_assert_int_eq(state_save(folder, bytes.data, bytes.size, &error), 0);
        file_write(path_of("state.new"), "half", 4);
        ck_assert_int_eq(state_load(&state, folder, &error), 0);
        check(&state);
        ck_assert_int_eq(state_save(folder, bytes.data, bytes.size, &error), 0);
        ck_assert_int_eq(state_load(&state, folder, &error), 0);
}
END_TEST

START_TEST(without_a_file_there_is_no_state_and_no_error)
{
        struct state state;

        ck_assert_int_eq(state_load(&state, folder, &error), STREAMER_ENOENT);
        ck_assert_int_eq(error.code, 0);
}
END_TEST

START_TEST(a_folder_that_is_not_there_is_an_error_that_names_it)
{
        struct state state;

        ck_assert_int_eq(state_load(&state, "/nonexistent/state", &error), STREAMER_EFAILED);
        ck_assert_ptr_nonnull(strstr(error.text, "/nonexistent/state"));
        ck_assert_int_eq(state_save("/nonexistent/state", "x", 1, &error), STREAMER_EFAILED);
}
END_TEST

/* ---- damage ---- */

START_TEST(a_file_cut_anywhere_is_refused)
{
        struct state state;
        msgpack_sbuffer bytes = packed();

        for (size_t n = 0; n < bytes.size; n++)
                ck_assert_int_eq(state_unpack(&state, bytes.data, n, &error), STREAMER_ECORRUPT);
        ck_assert_int_eq(state_unpack(&state, bytes.data, bytes.size, &error), 0);
        state_deinit(&state);
}
END_TEST

START_TEST(a_bit_that_differs_anywhere_is_noticed)
{
        struct state state;
        msgpack_sbuffer bytes = packed();

        for (size_t i = 0; i < bytes.size; i++) {
                if (i >= 12 && i < 16)
                        continue; /* reserved */
                bytes.data[i] = (char)(bytes.data[i] ^ (1 << i % 8));
                ck_assert_int_eq(state_unpack(&state, bytes.data, bytes.size, &error), STREAMER_ECORRUPT);
                bytes.data[i] = (char)(bytes.data[i] ^ (1 << i % 8));
        }
}
END_TEST

/* Whole, with a checksum that fits, and yet not ours to believe. */
static int read_body(struct state *state, const char *body, size_t size)
{
        struct state empty = {0};
        msgpack_sbuffer bytes;
        char *file;

        ck_assert_int_eq(state_pack(&empty, &bytes), 0);
        size_t head = 40;
        file = must_alloc(head + size);
        memcpy(file, bytes.data, head);
        memcpy(file + head, body, size);
        uint64_t n = size;
        memcpy(file + 16, &n, sizeof(n));
        hash_bytes(body, size, (unsigned char *)file + 24);
        int r = state_unpack(state, file, head + size, &error);
        free(file);
        msgpack_sbuffer_destroy(&bytes);
        return r;
}

static void refuses_body(const char *body, size_t size)
{
        struct state state;
        ck_assert_int_eq(read_body(&state, body, size), STREAMER_ECORRUPT);
        ck_assert_uint_eq(state.n, 0);
}

START_TEST(a_body_that_makes_no_sense_is_refused)
{
        static const char none[] = "\x80";
        static const char no_models[] = "\x81\xaflast_generation\x01";
        static const char models_no_list[] = "\x82\xaflast_generation\x01\xa6models\x07";
        static const char model_empty[] = "\x82\xaflast_generation\x01\xa6models\x91\x80";
        static const char no_map[] = "\x91\x01";

        refuses_body(none, sizeof(none) - 1);
        refuses_body(no_models, sizeof(no_models) - 1);
        refuses_body(models_no_list, sizeof(models_no_list) - 1);
        refuses_body(model_empty, sizeof(model_empty) - 1);
        refuses_body(no_map, sizeof(no_map) - 1);
        refuses_body("\xc1", 1);
}
END_TEST

/* As a version wrote it that knew one pin for all devices; or with `pins`, as it should not be. */
static int read_with_pins(struct state *state, bool pinned, void (*write_pins)(struct writer *w))
{
        struct state_model m = {.name = NULL};
        struct writer w;
        writer_init(&w);
        ck_assert_int_eq(origin_init(&m.origin, 0, 0, NULL, 0, NULL), 0);
        writer_map(&w, 2);
        writer_ku64(&w, "last_generation", 1);
        writer_key(&w, "models");
        writer_array(&w, 1);
        writer_map(&w, write_pins != NULL ? 12 : 11);
        writer_kstr(&w, "name", "m");
        writer_kstr(&w, "source", "/m");
        writer_ku64(&w, "generation", 1);
        writer_ku64(&w, "priority", 1);
        writer_ku64(&w, "keep_alive_ns", 0);
        writer_ku64(&w, "drain_timeout_ns", 0);
        writer_kbool(&w, "pinned", pinned);
        writer_kbool(&w, "verified", false);
        writer_kbool(&w, "ranks", false);
        writer_key(&w, "origin");
        origin_write(&w, &m.origin);
        writer_key(&w, "devices");
        writer_array(&w, 2);
        writer_str(&w, "uuid-0");
        writer_str(&w, "uuid-1");
        if (write_pins != NULL)
                write_pins(&w);
        int r = read_body(state, w.buf.data, w.buf.size);
        writer_deinit(&w);
        origin_deinit(&m.origin);
        return r;
}

START_TEST(a_file_of_an_earlier_version_has_one_pin_for_all_devices)
{
        struct state state;
        ck_assert_int_eq(read_with_pins(&state, _i, NULL), 0);
        ck_assert_int_eq(state.models[0].pinned, _i);
        ck_assert_int_eq(state.models[0].pins[0], _i);
        ck_assert_int_eq(state.models[0].pins[1], _i);
        state_deinit(&state);
}
END_TEST

static void too_few_pins(struct writer *w)
{
        writer_key(w, "pins");
        writer_array(w, 1);
        writer_bool(w, true);
}

static void pins_no_list(struct writer *w)
{
        writer_kbool(w, "pins", true);
}

static void pins_no_pins(struct writer *w)
{
        writer_key(w, "pins");
        writer_array(w, 2);
        writer_bool(w, true);
        writer_str(w, "true");
}

static void (*const wrong_pins[])(struct writer *w) = {too_few_pins, pins_no_list, pins_no_pins};

START_TEST(pins_that_make_no_sense_are_refused)
{
        struct state state;
        ck_assert_int_eq(read_with_pins(&state, true, wrong_pins[_i]), STREAMER_ECORRUPT);
        ck_assert_uint_eq(state.n, 0);
}
END_TEST

static void damage_cut(const char *path)
{
        must(truncate(path, 60));
}

static void damage_empty(const char *path)
{
        must(truncate(path, 0));
}

static void damage_foreign(const char *path)
{
        file_write(path, "#!/bin/sh\nexit 0\n# and so on, for more than forty bytes\n", 55);
}

static void damage_newer(const char *path)
{
        size_t size;
        char *data = file_read(path, &size);

        data[8] = 2;
        file_write(path, data, size);
}

static void damage_folder(const char *path)
{
        must(unlink(path));
        must(mkdir(path, 0755));
}

static void damage_link(const char *path)
{
        must(rename(path, path_of("elsewhere")));
        must(symlink("elsewhere", path));
}

static void damage_fifo(const char *path)
{
        must(unlink(path));
        must(mkfifo(path, 0600));
}

static void (*const damages[])(const char *path) = {damage_cut,    damage_empty, damage_foreign, damage_newer,
                                                    damage_folder, damage_link,  damage_fifo};

START_TEST(a_damaged_file_is_set_aside)
{
        struct state state;
        msgpack_sbuffer bytes = packed();

        ck_assert_int_eq(state_save(folder, bytes.data, bytes.size, &error), 0);
        damages[_i](path_of("state"));
        ck_assert_int_eq(state_load(&state, folder, &error), STREAMER_ECORRUPT);
        ck_assert_str_ne(error.text, "");
        ck_assert_uint_eq(state.n, 0);
        struct stat st;
        ck_assert_int_eq(lstat(path_of("state.damaged"), &st), 0);
        /* The next start and the next write find nothing in their way. */
        ck_assert_int_eq(state_load(&state, folder, &error), STREAMER_ENOENT);
        ck_assert_int_eq(state_save(folder, bytes.data, bytes.size, &error), 0);
        ck_assert_int_eq(state_load(&state, folder, &error), 0);
        check(&state);
}
END_TEST

int main(void)
{
        suite_begin("state");
        TCase *tests = suite_group("file", NULL, NULL, 30);
        tcase_add_checked_fixture(tests, begin, NULL);
        tcase_add_test(tests, what_was_written_comes_back);
        tcase_add_test(tests, a_write_replaces_the_file_whole);
        tcase_add_test(tests, what_an_interrupted_write_left_is_not_looked_at);
        tcase_add_test(tests, without_a_file_there_is_no_state_and_no_error);
        tcase_add_test(tests, a_folder_that_is_not_there_is_an_error_that_names_it);
        TCase *damage = suite_group("damage", NULL, NULL, 30);
        tcase_add_checked_fixture(damage, begin, NULL);
        tcase_add_test(damage, a_file_cut_anywhere_is_refused);
        tcase_add_test(damage, a_bit_that_differs_anywhere_is_noticed);
        tcase_add_test(damage, a_body_that_makes_no_sense_is_refused);
        tcase_add_loop_test(damage, a_file_of_an_earlier_version_has_one_pin_for_all_devices, 0, 2);
        LOOP(damage, pins_that_make_no_sense_are_refused, wrong_pins);
        LOOP(damage, a_damaged_file_is_set_aside, damages);
        return suite_run();
}
