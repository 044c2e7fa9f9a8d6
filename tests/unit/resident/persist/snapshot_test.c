/* SPDX-License-Identifier: Apache-2.0
 *
 * A snapshot: it is read back as written; a damaged one is detected, and never partly used; a damaged state file is set
 * aside.
 */
#include "tests/lib/snapshots.h"
#include "tests/lib/suite.h"

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

static void add(struct snapshot *state, const char *name, unsigned priority)
{
        static char source[] = "/models/x", pattern[] = "rank-{rank}";
        const struct model_record record = {
                .name = (char *)(uintptr_t)name,
                .source = source,
                .number = 41,
                .verified = true,
                .caller = {.uid = 1000, .gid = 1001, .groups = {7, 8}, .n_groups = 2},
                .pattern = pattern,
                .settings = {.keep_alive_ns = UINT64_C(30) * 1000000000, .drain_timeout_ns = 5, .priority = priority},
                .owner = 1002,
                .ranks = true};
        struct model_record *m = snapshot_add(state, &record);

        ck_assert_ptr_nonnull(m);
        ck_assert_int_eq(model_record_add_device(m, "uuid-0", false), 0);
        ck_assert_int_eq(model_record_add_device(m, "uuid-1", true), 0);
}

/* Two models, as bytes, with two names and two leases. */
static msgpack_sbuffer packed(void)
{
        static char text[] = "a name/ \xc3\xa4";
        static struct name_record names[] = {
                {.model = 3, .text = text, .settings = {.priority = 7, .pinned = true}, .owner = 8, .charged = 9},
                {.model = UINT64_MAX, .text = text},
        };
        static struct lease_record leases[] = {
                {.id = 1, .model = 3, .process = 4, .since_ns = 5, .revoked_ns = 6, .pid = 7, .uid = 8, .token = {9}},
                {.id = 2, .model = 3},
        };
        struct snapshot state = {.last_number = 42,
                                 .counters = {1, 2, 3, UINT64_MAX},
                                 .names = names,
                                 .n_names = 2,
                                 .leases = leases,
                                 .n_leases = 2};
        add(&state, "a", 3);
        add(&state, "b/ c \xc3\xa4", 4);
        return snapshot_bytes(&state);
}

static void check_store(const struct snapshot *state)
{
        const struct name_record *name = state->names;
        ck_assert_uint_eq(state->counters[0], 1);
        ck_assert_uint_eq(state->counters[SNAPSHOT_COUNTERS - 1], UINT64_MAX);
        ck_assert_uint_eq(state->n_names, 2);
        ck_assert_uint_eq(name->model, 3);
        ck_assert_str_eq(name->text, "a name/ \xc3\xa4");
        ck_assert(name->settings.priority == 7 && name->settings.pinned && name->owner == 8 && name->charged == 9);
        ck_assert_uint_eq(name[1].model, UINT64_MAX);
        ck_assert_uint_eq(state->n_leases, 2);
        const struct lease_record *lease = state->leases;
        ck_assert(lease->id == 1 && lease->model == 3 && lease->process == 4 && lease->since_ns == 5);
        ck_assert(lease->revoked_ns == 6 && lease->pid == 7 && lease->uid == 8 && lease->token[0] == 9);
        ck_assert_uint_eq(lease[1].id, 2);
}

static void check(const struct snapshot *state)
{
        check_store(state);
        ck_assert_uint_eq(state->last_number, 42);
        ck_assert_uint_eq(state->n, 2);
        const struct model_record *m = snapshot_find(state, "b/ c \xc3\xa4");
        ck_assert_ptr_nonnull(m);
        ck_assert_str_eq(m->source, "/models/x");
        ck_assert_uint_eq(m->n_devices, 2);
        ck_assert_str_eq(m->devices[1].uuid, "uuid-1");
        ck_assert_uint_eq(m->caller.uid, 1000);
        ck_assert_uint_eq(m->caller.gid, 1001);
        ck_assert_uint_eq(m->owner, 1002);
        ck_assert_uint_eq(m->caller.n_groups, 2);
        ck_assert_uint_eq(m->caller.groups[1], 8);
        ck_assert_str_eq(m->pattern, "rank-{rank}");
        ck_assert_uint_eq(m->number, 41);
        ck_assert_uint_eq(m->settings.priority, 4);
        ck_assert_uint_eq(m->settings.keep_alive_ns, UINT64_C(30) * 1000000000);
        ck_assert_uint_eq(m->settings.drain_timeout_ns, 5);
        ck_assert(m->settings.pinned && !m->devices[0].pinned && m->devices[1].pinned && m->verified && m->ranks);
}

FIXTURE(.each = {begin, NULL});

static void save(msgpack_sbuffer bytes)
{
        ck_assert_int_eq(snapshot_save(folder, bytes.data, bytes.size, &error), 0);
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
        ck_assert_uint_eq(state.n, 0);
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
        ck_assert_int_eq(snapshot_save("/nonexistent/state", "x", 1, &error), STREAMER_EFAILED);
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

/* Whole, with a checksum that fits, and yet not ours to believe. */
static const uint64_t no_counters[SNAPSHOT_COUNTERS];
static char nothing[1];
static const msgpack_sbuffer none = {.data = nothing};

static int read_body(struct snapshot *state, const char *body, size_t size)
{
        msgpack_sbuffer file;
        msgpack_sbuffer_init(&file);
        const msgpack_sbuffer map = {.data = (char *)(uintptr_t)body, .size = size};
        ck_assert_int_eq(snapshot_begin(&file, no_counters), 0);
        ck_assert_int_eq(snapshot_end(&file, &map, &none), 0);
        return snapshot_unpack(state, file.data, file.size, &error);
}

#define BYTES(text) (text), sizeof(text) - 1

static const struct {
        const char *bytes;
        size_t size;
} malformed[] = {
        {BYTES("\x80")},
        {BYTES("\x81\xaflast_generation\x01")},
        {BYTES("\x82\xaflast_generation\x01\xa6models\x07")},
        {BYTES("\x82\xaflast_generation\x01\xa6models\x91\x80")},
        {BYTES("\x82\xaflast_generation\x01\xa6models\x90")},
        {BYTES("\x83\xaflast_generation\x01\xa6models\x90\xa5names\x07")},
        {BYTES("\x83\xaflast_generation\x01\xa6models\x90\xa5names\x91\x81\xa5model\x01")},
        {BYTES("\x91\x01")},
        {BYTES("\xc1")},
};

TEST(a_malformed_body_is_refused, EACH(malformed))
{
        struct snapshot state;
        ck_assert_int_eq(read_body(&state, malformed[_i].bytes, malformed[_i].size), STREAMER_ECORRUPT);
        ck_assert_uint_eq(state.n, 0);
}

TEST(leases_of_another_size_are_refused, .to = 3)
{
        static const size_t sizes[] = {1, 63, 65};
        static const char map_bytes[] = "\x83\xaflast_generation\x01\xa6models\x90\xa5names\x90";
        const msgpack_sbuffer map = {.data = (char *)(uintptr_t)map_bytes, .size = sizeof(map_bytes) - 1};
        const char rows[sizeof(struct lease_record) + 1] = {0};
        struct snapshot state;
        msgpack_sbuffer file;
        ck_assert_int_eq(read_body(&state, map.data, map.size), 0);
        msgpack_sbuffer_init(&file);
        ck_assert_int_eq(snapshot_begin(&file, no_counters), 0);
        ck_assert_int_eq(msgpack_sbuffer_write(&file, rows, sizes[_i]), 0);
        ck_assert_int_eq(snapshot_end(&file, &map, &none), 0);
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
        const char *list;
} wrong_facts[] = {
        {"model", BYTES(YES), "names"},
        {"name", BYTES("\xa0"), "names"},
        {"priority", BYTES(NOBODY), "names"},
        {"pinned", BYTES(YES), "names"},
        {"owner", BYTES(NOBODY), "names"},
        {"charged", BYTES("\xcf\0\0\0\1\0\0\0\0"), "names"},
        {"name", BYTES("\xa0"), "models"},
        {"name",
         BYTES("\xa3"
               "a\0b"),
         "models"},
        {"source", BYTES("\xa0"), "models"},
        {"generation", BYTES(YES), "models"},
        {"verified", BYTES(NOBODY), "models"},
        {"priority", BYTES(NOBODY), "models"},
        {"pinned", BYTES(YES), "models"},
        {"uid", BYTES(NOBODY), "models"},
        {"owner", BYTES(NOBODY), "models"},
        {"groups", BYTES("\x91" NOBODY), "models"},
        {"groups", many_groups, sizeof(many_groups), "models"},
        {"groups", BYTES(YES), "models"},
        {"devices", BYTES("\x90"), "models"},
        {"devices", BYTES(YES), "models"},
};

/* The element of a list, and again with one value replaced; size 0: the key is absent. */
static void write_list(struct writer *w, const struct message *from, const char *list, const struct wrong_fact *wrong)
{
        const msgpack_object *element = &object_get(&from->unpacked.data, list)->via.array.ptr[0];
        const msgpack_object_map *map = &element->via.map;
        bool here = strcmp(wrong->list, list) == 0;
        writer_key(w, list);
        writer_array(w, 1 + here);
        msgpack_pack_object(&w->pk, *element);
        if (!here)
                return;
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

static int read_with(struct snapshot *state, const struct wrong_fact *wrong)
{
        static char text[] = "n";
        struct name_record name = {.model = 3, .text = text};
        struct snapshot one = {.names = &name, .n_names = 1};
        struct writer file;
        struct message m;
        add(&one, "a", 1);
        const msgpack_sbuffer good = snapshot_bytes(&one);
        size_t first;
        ck_assert_ptr_null(record_open(good.data, good.size, SNAPSHOT_MAGIC, &first, &m));
        writer_init(&file);
        writer_map(&file, 3);
        writer_ku64(&file, "last_generation", 1);
        write_list(&file, &m, "models", wrong);
        write_list(&file, &m, "names", wrong);
        return read_body(state, file.buf.data, file.buf.size);
}

TEST(a_value_out_of_its_limits_is_refused_with_its_name, EACH(wrong_facts))
{
        const struct wrong_fact *wrong = &wrong_facts[_i];
        struct snapshot state;
        char *text = format_text("the snapshot is damaged: '%s' is not valid", wrong->key);
        FAILS_SAYING(error, read_with(&state, wrong), STREAMER_ECORRUPT, text);
        const struct wrong_fact absent = {.key = wrong->key, .list = wrong->list};
        FAILS_SAYING(error, read_with(&state, &absent), STREAMER_ECORRUPT, text);
        ck_assert_uint_eq(state.n, 0);
}

TEST(a_device_without_a_value_is_refused_with_its_name)
{
        struct snapshot state;
        const struct wrong_fact wrong = {"devices", BYTES("\x91\x81\xa4uuid\xa6uuid-0"), "models"};
        FAILS_SAYING(error, read_with(&state, &wrong), STREAMER_ECORRUPT,
                     "the snapshot is damaged: 'pinned' is not valid");
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
        ck_assert_uint_eq(state.n, 0);
        ck_assert_int_eq(lstat(path_of("state.damaged"), &st), 0);
        /* The next start and the next write find nothing in their way. */
        ck_assert_int_eq(snapshot_load(&state, folder, &error), STREAMER_ENOENT);
        save(packed());
        is_saved();
}
