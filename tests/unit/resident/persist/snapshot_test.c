/* SPDX-License-Identifier: Apache-2.0
 *
 * A snapshot: it is read back as written; a damaged one is detected, and never partly used; a damaged state file is set
 * aside.
 */
#include "tests/lib/snapshots.h"
#include "tests/lib/suite.h"

#include <sys/resource.h>

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

#define TEXT "a name/ \xc3\xa4"

static const struct name_row rows[] = {
        {.name = (char *)(uintptr_t)TEXT,
         .device = (char *)(uintptr_t) "uuid-1",
         .source = (char *)(uintptr_t) "/models/x",
         .pattern = (char *)(uintptr_t) "rank-{rank}",
         .number = 41,
         .verified = true,
         .stale = true,
         .loadable = true,
         .caller = {.uid = 1000, .gid = 1001, .groups = {7, 8}, .n_groups = 2},
         .settings = {.keep_alive_ns = UINT64_C(30) * 1000000000, .drain_timeout_ns = 5, .priority = 7, .pinned = true},
         .owner = 1002,
         .charged = 9,
         .rank = 1,
         .n_ranks = 2,
         .models = {UINT64_MAX, 3},
         .n_models = 2},
        {.name = (char *)(uintptr_t) "b"},
};

/* Two rows, as bytes, and two leases. */
static msgpack_sbuffer packed(void)
{
        static struct lease_record leases[] = {
                {.id = 1, .model = 3, .process = 4, .since_ns = 5, .revoked_ns = 6, .pid = 7, .uid = 8, .token = {9}},
                {.id = 2, .model = 3},
        };
        struct snapshot state = {.last_number = 42, .counters = {1, 2, 3, UINT64_MAX}, .leases = leases, .n_leases = 2};
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
                snapshot_add(&state, &rows[i]);
        return snapshot_bytes(&state);
}

static void check_leases(const struct snapshot *state)
{
        ck_assert_uint_eq(state->n_leases, 2);
        const struct lease_record *lease = state->leases;
        ck_assert(lease->id == 1 && lease->model == 3 && lease->process == 4 && lease->since_ns == 5);
        ck_assert(lease->revoked_ns == 6 && lease->pid == 7 && lease->uid == 8 && lease->token[0] == 9);
        ck_assert_uint_eq(lease[1].id, 2);
}

static void check(const struct snapshot *state)
{
        ck_assert_uint_eq(state->counters[0], 1);
        ck_assert_uint_eq(state->counters[SNAPSHOT_COUNTERS - 1], UINT64_MAX);
        ck_assert_uint_eq(state->last_number, 42);
        check_leases(state);
        ck_assert_uint_eq(state->n_rows, 2);
        const struct name_row *row = &state->rows[0], *bare = &state->rows[1];
        ck_assert_str_eq(row->name, TEXT);
        ck_assert_str_eq(row->device, "uuid-1");
        ck_assert_str_eq(row->source, "/models/x");
        ck_assert_str_eq(row->pattern, "rank-{rank}");
        ck_assert_uint_eq(row->number, 41);
        ck_assert_int_eq(memcmp(&row->caller, &rows[0].caller, sizeof(row->caller)), 0);
        ck_assert_uint_eq(row->settings.keep_alive_ns, UINT64_C(30) * 1000000000);
        ck_assert(row->settings.drain_timeout_ns == 5 && row->settings.priority == 7 && row->settings.pinned);
        ck_assert(row->verified && row->stale && row->loadable && row->owner == 1002 && row->charged == 9);
        ck_assert(row->rank == 1 && row->n_ranks == 2);
        ck_assert(row->n_models == 2 && row->models[0] == UINT64_MAX && row->models[1] == 3);
        ck_assert_str_eq(bare->name, "b");
        ck_assert(bare->device == NULL && bare->source == NULL && bare->pattern == NULL && bare->n_models == 0);
        ck_assert(!bare->verified && !bare->stale && !bare->loadable && !bare->settings.pinned);
}

FIXTURE(.each = {begin, NULL});

static struct snapshot_extent extent;

static void save(msgpack_sbuffer bytes)
{
        ck_assert_int_eq(snapshot_save(folder, bytes.data, bytes.size, &extent, &error), 0);
        ck_assert_int_ne(access(path_of("state.new"), F_OK), 0);
}

static void is_saved(void)
{
        struct snapshot state;
        ck_assert_int_eq(snapshot_load(&state, folder, &error), 0);
        check(&state);
}

/* Of no use is what an interrupted write has left. */
TEST(written_state_is_read_back)
{
        struct stat st;
        save(packed());
        must(stat(path_of("state"), &st));
        ck_assert_uint_eq(st.st_mode & 0777, 0600);
        file_write(path_of("state.new"), "half", 4);
        is_saved();
        save(packed());
        is_saved();
}

TEST(a_write_replaces_the_file_whole)
{
        struct snapshot state;
        save(packed());
        save(snapshot_bytes(&(struct snapshot){.last_number = 1}));
        ck_assert_int_eq(snapshot_load(&state, folder, &error), 0);
        ck_assert_uint_eq(state.n_rows, 0);
        ck_assert_uint_eq(state.last_number, 1);
}

TEST(without_a_file_there_is_no_state_and_no_error)
{
        struct snapshot state;
        ck_assert_int_eq(snapshot_load(&state, folder, &error), STREAMER_ENOENT);
        ck_assert_int_eq(error.code, 0);
}

TEST(a_missing_folder_is_an_error_that_names_it)
{
        struct snapshot state;
        FAILS_WITH(error, snapshot_load(&state, "/nonexistent/state", &error), STREAMER_EFAILED, "/nonexistent/state");
        ck_assert_int_eq(snapshot_save("/nonexistent/state", "x", 1, &extent, &error), STREAMER_EFAILED);
}

/* ---- changes of the file ---- */

/* Of one row, pinned or removed. */
static msgpack_sbuffer change_of(uint64_t writes, const char *name, bool pinned)
{
        struct snapshot change = {.counters = {writes}};
        snapshot_add(&change, &(struct name_row){.name = (char *)(uintptr_t)name,
                                                 .device = (char *)(uintptr_t) "uuid-1",
                                                 .settings = {.pinned = pinned}});
        return snapshot_bytes(&change);
}

static int append(msgpack_sbuffer bytes)
{
        return snapshot_save_change(folder, bytes.data, bytes.size, &extent, &error);
}

static size_t rows_saved(void)
{
        struct snapshot state;
        ck_assert_int_eq(snapshot_load(&state, folder, &error), 0);
        size_t n = state.n_rows;
        snapshot_deinit(&state);
        return n;
}

TEST(changes_are_appended_to_the_file)
{
        struct stat before, after;
        save(packed());
        must(stat(path_of("state"), &before));
        ck_assert_int_eq(append(change_of(2, "c", true)), 0);
        ck_assert_uint_eq(rows_saved(), 2); /* one of these rows says that its name was removed */
        ck_assert_int_eq(append(change_of(3, "d", true)), 0);
        ck_assert_uint_eq(rows_saved(), 3);
        ck_assert_int_eq(append(change_of(4, "c", false)), 0);
        ck_assert_uint_eq(rows_saved(), 2);
        must(stat(path_of("state"), &after));
        ck_assert_uint_eq(before.st_ino, after.st_ino);
}

/* Its bytes are those of a change, whatever it has. */
TEST(a_file_whose_changes_outgrow_it_is_written_as_a_whole)
{
        struct stat before, after;
        unsigned n = 0;
        save(packed());
        must(stat(path_of("state"), &before));
        do {
                n++;
                ck_assert_int_eq(append(change_of(1 + n, n % 2 == 0 ? "even" : "odd", true)), 0);
                must(stat(path_of("state"), &after));
                ck_assert_uint_le((uint64_t)after.st_size, SNAPSHOT_CHANGES + (4 << 10));
        } while (after.st_ino == before.st_ino);
        ck_assert_uint_lt((uint64_t)after.st_size, 4 << 10);
        ck_assert_uint_eq(extent.all, (uint64_t)after.st_size);
        ck_assert_uint_gt(n, 100);
        ck_assert_uint_eq(rows_saved(), 3);
        ck_assert_int_eq(append(change_of(2 + n, "odd", false)), 0);
        ck_assert_uint_eq(rows_saved(), 2);
}

TEST(a_file_that_another_process_has_changed_is_not_appended_to)
{
        save(packed());
        file_write(path_of("state"), "x", 1);
        ck_assert_int_eq(append(change_of(2, "c", true)), SNAPSHOT_LOST);
        must(unlink(path_of("state")));
        ck_assert_int_eq(append(change_of(2, "c", true)), SNAPSHOT_LOST);
        save(packed());
        ck_assert_int_eq(append(change_of(2, "c", true)), 0);
}

/* ---- what is not damage ---- */

/* The folder can be opened, the file cannot: there is one descriptor left. */
TEST(a_file_that_cannot_be_opened_now_stays)
{
        struct snapshot state;
        struct rlimit limit, one_more;
        save(packed());
        int next = must(dup(0));
        close(next);
        must(getrlimit(RLIMIT_NOFILE, &limit));
        one_more = (struct rlimit){.rlim_cur = (rlim_t)next + 1, .rlim_max = limit.rlim_max};
        must(setrlimit(RLIMIT_NOFILE, &one_more));
        int r = snapshot_load(&state, folder, &error);
        must(setrlimit(RLIMIT_NOFILE, &limit));
        FAILS_WITH(error, r, STREAMER_ELIMIT, "state: cannot be opened: Too many open files: the daemon may open ");
        ck_assert_int_ne(access(path_of("state.damaged"), F_OK), 0);
        is_saved();
}

/* The daemon, or the machine, ended while it was written. */
TEST(the_rest_of_a_change_is_not_read)
{
        struct stat st;
        save(packed());
        must(stat(path_of("state"), &st));
        off_t before = st.st_size;
        ck_assert_int_eq(append(change_of(2, "c", true)), 0);
        must(stat(path_of("state"), &st));
        for (off_t size = st.st_size - 1; size >= before; size--) {
                must(truncate(path_of("state"), size));
                ck_assert_uint_eq(rows_saved(), 2);
        }
        ck_assert_int_ne(access(path_of("state.damaged"), F_OK), 0);
}

/* A file without its size, of one snapshot, whose rows had no order. */
TEST(a_file_of_the_earlier_form_is_read)
{
        msgpack_sbuffer bytes = packed();
        struct record_foot foot;
        char *at_foot = bytes.data + bytes.size - sizeof(foot);
        memcpy(&foot, at_foot, sizeof(foot));
        foot = record_foot(bytes.data, foot.first_size, bytes.data + foot.first_size, foot.map_size, SNAPSHOT_V2_MAGIC);
        memcpy(at_foot, &foot, sizeof(foot));
        file_write(path_of("state"), bytes.data, bytes.size);
        is_saved();
}

/* ---- damage ---- */

TEST(a_file_truncated_anywhere_is_refused)
{
        struct snapshot state;
        msgpack_sbuffer bytes = packed();
        for (size_t n = 0; n < bytes.size; n++)
                ck_assert_int_eq(snapshot_unpack(&state, bytes.data, n, &error), STREAMER_ECORRUPT);
        FAILS_SAYING(error, snapshot_unpack(&state, bytes.data, 10, &error), STREAMER_ECORRUPT,
                     "the snapshot is damaged: it is too short");
        ck_assert_int_eq(snapshot_unpack(&state, bytes.data, bytes.size, &error), 0);
}

TEST(a_bit_that_differs_anywhere_is_noticed)
{
        struct snapshot state;
        msgpack_sbuffer bytes = packed();
        for (size_t i = 0; i < bytes.size; i++) {
                bytes.data[i] = (char)(bytes.data[i] ^ (1 << i % 8));
                ck_assert_int_eq(snapshot_unpack(&state, bytes.data, bytes.size, &error), STREAMER_ECORRUPT);
                bytes.data[i] = (char)(bytes.data[i] ^ (1 << i % 8));
        }
}

/* Whole, with a checksum that fits, and yet not ours to believe: these leases and this map. */
static msgpack_sbuffer file_of(const void *leases, size_t leases_size, const void *map, size_t size)
{
        static const uint64_t no_counters[SNAPSHOT_COUNTERS];
        msgpack_sbuffer file;
        msgpack_sbuffer_init(&file);
        ck_assert_int_eq(snapshot_begin(&file, no_counters), 0);
        if (leases_size > 0)
                ck_assert_int_eq(msgpack_sbuffer_write(&file, leases, leases_size), 0);
        const struct record_foot foot = record_foot(file.data, file.size, map, size, SNAPSHOT_MAGIC);
        ck_assert_int_eq(msgpack_sbuffer_write(&file, map, size), 0);
        ck_assert_int_eq(msgpack_sbuffer_write(&file, (const char *)&foot, sizeof(foot)), 0);
        return file;
}

static int read_body(struct snapshot *state, const char *body, size_t size)
{
        const msgpack_sbuffer file = file_of(NULL, 0, body, size);
        return snapshot_unpack(state, file.data, file.size, &error);
}

#define BYTES(text) (text), sizeof(text) - 1

static const struct {
        const char *bytes;
        size_t size;
} malformed[] = {
        {BYTES("\x80")},
        {BYTES("\x81\xaflast_generation\x01")},
        {BYTES("\x82\xaflast_generation\x01\xa4rows\x07")},
        {BYTES("\x82\xaflast_generation\x01\xa4rows\x91\x80")},
        {BYTES("\x82\xaflast_generation\x01\xa4rows\x91\x07")},
        {BYTES("\x91\x01")},
        {BYTES("\xc1")},
};

TEST(a_malformed_body_is_refused, EACH(malformed))
{
        struct snapshot state;
        ck_assert_int_eq(read_body(&state, malformed[_i].bytes, malformed[_i].size), STREAMER_ECORRUPT);
        ck_assert_uint_eq(state.n_rows, 0);
}

TEST(leases_of_another_size_are_refused, .to = 3)
{
        static const size_t sizes[] = {1, 63, 65};
        static const char map[] = "\x82\xaflast_generation\x01\xa4rows\x90";
        const char leases[sizeof(struct lease_record) + 1] = {0};
        struct snapshot state;
        ck_assert_int_eq(read_body(&state, map, sizeof(map) - 1), 0);
        msgpack_sbuffer file = file_of(leases, sizes[_i], map, sizeof(map) - 1);
        FAILS_SAYING(error, snapshot_unpack(&state, file.data, file.size, &error), STREAMER_ECORRUPT,
                     "the snapshot is damaged: 'leases' is not valid");
        ck_assert_uint_eq(state.n_leases, 0);
}

/* Each fact has limits. */
#define NOBODY "\xce\xff\xff\xff\xff"
#define YES "\xa3yes"

static const char many_groups[3 + CALLER_GROUPS + 1] = "\xdc\x00\x81"; /* zeros follow */
_Static_assert(CALLER_GROUPS + 1 == 0x81, "many_groups has one more than the limit");

static const struct wrong_fact {
        const char *key, *value;
        size_t size;
} wrong_facts[] = {
        {"name", BYTES("\xa0")},
        {"name", BYTES("\xa3"
                       "a\0b")},
        {"device", BYTES(NOBODY)},
        {"source", BYTES("\x07")},
        {"generation", BYTES(YES)},
        {"verified", BYTES(NOBODY)},
        {"loadable", BYTES(YES)},
        {"uid", BYTES(NOBODY)},
        {"groups", BYTES("\x91" NOBODY)},
        {"groups", many_groups, sizeof(many_groups)},
        {"groups", BYTES(YES)},
        {"priority", BYTES(NOBODY)},
        {"pinned", BYTES(YES)},
        {"owner", BYTES(NOBODY)},
        {"charged", BYTES("\xcf\0\0\0\1\0\0\0\0")},
        {"ranks", BYTES("\x41")},
        {"models", BYTES("\x93\x01\x02\x03")},
        {"models", BYTES("\x91\xa0")},
        {"models", BYTES(YES)},
};

/* The map of a row, with one value replaced; size 0: the key is absent. */
static void write_row(struct writer *w, const msgpack_object *row, const struct wrong_fact *wrong)
{
        const msgpack_object_map *map = &row->via.map;
        writer_map(w, map->size - (wrong->size == 0));
        for (uint32_t i = 0; i < map->size; i++) {
                bool is_wrong = map->ptr[i].key.via.str.size == strlen(wrong->key) &&
                                memcmp(map->ptr[i].key.via.str.ptr, wrong->key, strlen(wrong->key)) == 0;
                if (is_wrong && wrong->size == 0)
                        continue;
                msgpack_pack_object(&w->pk, map->ptr[i].key);
                if (is_wrong)
                        msgpack_sbuffer_write(&w->buf, wrong->value, wrong->size);
                else
                        msgpack_pack_object(&w->pk, map->ptr[i].val);
        }
}

/* Behind a row that is right. */
static int read_with(struct snapshot *state, const struct wrong_fact *wrong)
{
        struct writer map;
        struct message m;
        size_t first;
        const msgpack_sbuffer good = packed();
        ck_assert_ptr_null(record_open(good.data, good.size, SNAPSHOT_MAGIC, &first, &m));
        const msgpack_object *row = &object_get(&m.unpacked.data, "rows")->via.array.ptr[0];
        writer_init(&map);
        writer_map(&map, 2);
        writer_ku64(&map, "last_generation", 1);
        writer_key(&map, "rows");
        writer_array(&map, 2);
        msgpack_pack_object(&map.pk, *row);
        write_row(&map, row, wrong);
        return read_body(state, map.buf.data, map.buf.size);
}

static const char *const later_facts[] = {"order", "stale"};

TEST(a_row_of_an_earlier_form_is_read, EACH(later_facts))
{
        struct snapshot state;
        ck_assert_int_eq(read_with(&state, &(struct wrong_fact){later_facts[_i], NULL, 0}), 0);
        ck_assert_uint_eq(state.n_rows, 2);
}

TEST(a_value_out_of_its_limits_is_refused_with_its_name, EACH(wrong_facts))
{
        const struct wrong_fact *wrong = &wrong_facts[_i];
        struct snapshot state;
        char *text = format_text("the snapshot is damaged: '%s' is not valid", wrong->key);
        FAILS_SAYING(error, read_with(&state, wrong), STREAMER_ECORRUPT, text);
        const struct wrong_fact absent = {.key = wrong->key};
        FAILS_SAYING(error, read_with(&state, &absent), STREAMER_ECORRUPT, text);
        ck_assert_uint_eq(state.n_rows, 0);
}

/* Nothing could be loaded from it. */
TEST(a_loadable_row_without_a_source_or_a_device_is_refused, .to = 2)
{
        struct snapshot state;
        const struct wrong_fact wrong = {_i ? "source" : "device", BYTES("\xa0")};
        FAILS_SAYING(error, read_with(&state, &wrong), STREAMER_ECORRUPT,
                     "the snapshot is damaged: 'loadable' is not valid");
}

/* Commands in the folder. */
static const char *const damages[] = {
        "truncate -s 60 state",
        "truncate -s 0 state",
        "head -c 55 /dev/zero >state",
        /* The version: after the magic, in the foot of 48 bytes. */
        "printf '\\002' | dd of=state bs=1 seek=$(($(stat -c %s state) - 40)) conv=notrunc status=none",
        "rm state && mkdir state",
        "mv state elsewhere && ln -s elsewhere state",
        "rm state && mkfifo -m 600 state",
};

TEST(a_damaged_file_is_set_aside, EACH(damages))
{
        struct snapshot state;
        struct stat st;
        char *printed;
        save(packed());
        ck_assert_msg(shell(&printed, "cd %s && %s", folder, damages[_i]) == 0, "%s", printed);
        ck_assert_int_eq(snapshot_load(&state, folder, &error), STREAMER_ECORRUPT);
        ck_assert_str_ne(error.text, "");
        ck_assert_uint_eq(state.n_rows, 0);
        ck_assert_int_eq(lstat(path_of("state.damaged"), &st), 0);
        /* The next start and the next write find nothing in their way. */
        ck_assert_int_eq(snapshot_load(&state, folder, &error), STREAMER_ENOENT);
        save(packed());
        is_saved();
}
