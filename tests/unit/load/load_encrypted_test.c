/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads of encrypted files: chunks within blocks and over several, in place and through slots; damaged ones; loads that
 * end while they decrypt; and which loads share what is resident.
 */
#include "tests/lib/encrypted_model.h"
#include "tests/lib/load_fixture.h"

static struct model *model;

/* "big" has several blocks, and begins at an odd byte. */
#define BIG (5 * MiB + 5)
static struct model *make_model(uint64_t seed)
{
        struct model *m = model_new(seed);
        model_set_metadata(m, "{\"format\":\"pt\"}");
        model_add(m, "first", "U8", (uint64_t[]){3}, 1);
        model_add(m, "big", "U8", (uint64_t[]){BIG}, 1);
        model_add(m, "empty", "U8", (uint64_t[]){0}, 1);
        model_add(m, "mid", "U8", (uint64_t[]){2 * MiB}, 1);
        model_add_many(m, "z", 50, 333);
        model_add(m, "last", "U8", (uint64_t[]){3 * MiB / 2}, 1);
        return m;
}

static void set_keys(const char *which, bool plaintext, bool require)
{
        struct error error;
        char *path = suite_path("keys"), *file = format_text("file:%s", path);
        const struct keyring_opts opts = {
                .files = &file, .n_files = 1, .plaintext_tensors = plaintext, .require_encrypted = require};
        encrypted_keys_write(path, encrypted_keys(which));
        keyring_free(loads.keyring);
        ck_assert_msg(keyring_new(&loads.keyring, &opts, &error) == 0, "%s", error.text);
}

static void begin(void)
{
        load_fixture_begin();
        set_keys(NULL, false, false);
        model = make_model(31);
}

static void begin_multi(void)
{
        load_fixture_begin_multi();
        set_keys(NULL, false, false);
        model = make_model(31);
}

static char *write_form(const char *name, const struct encrypted_form *form)
{
        char *path = suite_path("%s", name);
        encrypted_write(form, model, path);
        return path;
}

/* Changes a byte of a tensor. */
static void damage(const char *path, const char *tensor, uint64_t at)
{
        size_t size, i = model_index(model, tensor);
        char *file = file_read(path, &size);
        for (size_t k = 0; k < i; k++)
                at += model->tensors[k].bytes;
        file[size - model->bytes + at] ^= 1;
        file_write(path, file, size);
}

/* ---- one device, and several ---- */

CORE_FIXTURE(begin_multi, load_fixture_end);

static const struct encrypted_form forms[] = {
        {.version1 = false},
        {.version1 = true},
        {.cipher = "aes128gcm", .chunk = 65536},
        {.cipher = "chacha20poly1305", .chunk = 1000003}, /* ends with no leaf */
        {.cipher = "chacha20poly1305", .chunk = 5 * MiB}, /* longer than a block */
        {.cipher = "aes128gcm", .chunk = 3 * MiB / 2},
        {.chunk = 4096},
        {.chunk = UINT64_C(1) << 30},
        {.version1 = true, .cipher = "aes128gcm"},
};

/* Read in place, and through slots, of which there are two, for one device and for several. */
static const struct {
        const char *names[3];
        size_t n;
} devices_of[] = {{{"two"}, 1}, {{"one"}, 1}, {{"fake", "one", "two"}, 3}, {{"fake"}, 1}};

TEST(an_encrypted_file_is_the_model_that_it_was_made_of, EACH(forms))
{
        struct watched w;
        const struct encrypted_form *form = &forms[_i];
        char *path = write_form("e.safetensors", form);
        for (size_t d = 0; d < ARRAY_SIZE(devices_of); d++) {
                if (d == 1)
                        fake_device_copies(&others[0]);
                start_on(&w, path, devices_of[d].names, devices_of[d].n, NULL);
                ends(&w, LOAD_READY);
                for (size_t i = 0; i < devices_of[d].n; i++) {
                        struct generation *g = on(devices_of[d].names[i], GENERATION_READY);
                        serves(g, model);
                        ck_assert_str_eq(g->encryption->cipher, form->cipher != NULL ? form->cipher : "aes256gcm");
                        ck_assert_str_eq(g->encryption->signer, "signer");
                        generation_drop_all(g);
                }
                core_until(loads_empty(&loads) && list_empty(&resident.generations));
        }
}

/* ---- files of both kinds ---- */

TEST(tensors_that_are_not_encrypted_are_loaded_where_that_is_allowed, .to = 2)
{
        struct watched w;
        char *path = write_form("mixed.safetensors",
                                &(struct encrypted_form){.plain = 2, .version1 = _i == 1, .chunk = 65536});
        start_on(&w, path, ON("fake", "one"), NULL);
        ends(&w, LOAD_FAILED);
        ck_assert_ptr_nonnull(strstr(w.error.text, "tensor 'first' is not encrypted, and so not protected"));
        set_keys(NULL, true, false);
        start_on(&w, path, ON("fake", "one"), NULL);
        ends(&w, LOAD_READY);
        serves(on("fake", GENERATION_READY), model);
        serves(on("one", GENERATION_READY), model);
}

/* ---- damage ---- */

static const struct {
        const char *tensor, *says;
        uint64_t at;
} damages[] = {
        {"first", "tensor 'first': chunk 0 does not match its tag: the file is damaged, or was changed (", 0},
        {"big", "tensor 'big': chunk ", 0},
        {"big", "tensor 'big': chunk ", BIG - 1},
        {"big", "tensor 'big': chunk ", 3 * MiB + 7},
        {"mid", "tensor 'mid': chunk ", 1},
        {"z.000049", "tensor 'z.000049': chunk 0 does not match its tag", 332},
        {"last", "tensor 'last': chunk ", 3 * MiB / 2 - 1},
};

static const char *damaged;

/* What the log of arrivals has so far. */
static void check_arrivals(struct loads *l, struct generation *g)
{
        const struct manifest_view view = table_manifest(&g->manifest);
        const struct arrival_header *log = g->arrival.map;
        uint64_t n = __atomic_load_n(&log->count, __ATOMIC_ACQUIRE);
        for (uint64_t i = 0; i < n; i++) {
                const struct manifest_record *r = manifest_record(&view, ((const uint32_t *)(log + 1))[i]);
                ck_assert_str_ne(view.strings + r->name_off, damaged);
        }
}

TEST(a_wrong_byte_fails_the_load, .to = 7 * 3)
{
        static const struct encrypted_form some[] = {{.version1 = true}, {.chunk = 65536}, {.chunk = 5 * MiB}};
        struct watched w;
        char *path = write_form("e.safetensors", &some[_i % 3]);
        damaged = damages[_i / 3].tensor;
        damage(path, damaged, damages[_i / 3].at);
        loads.arrived = check_arrivals;
        if (_i % 2 == 0)
                start_on(&w, path, ON("fake"), NULL);
        else
                start_on(&w, path, ON("one", "two"), NULL);
        ends(&w, LOAD_FAILED);
        ck_assert_int_eq(w.error.code, STREAMER_EFAILED);
        ck_assert_msg(strstr(w.error.text, damages[_i / 3].says) != NULL, "%s", w.error.text);
        ck_assert_ptr_nonnull(strstr(w.error.text, path));
        core_until(fake.device.used == 0 && others[0].device.used == 0);
}

/* ---- the end, meanwhile ---- */

/* Held in the midst of a run, in memory or before a copy: it is cancelled, and what was reserved is given up. */
TEST(a_load_is_cancelled_while_it_decrypts, .to = 2)
{
        struct watched w;
        struct gate *gate = _i == 0 ? &fake.prepare : &others[0].put;
        char *path = write_form("e.safetensors", &(struct encrypted_form){.version1 = true});
        gate_init(gate, false);
        start_on(&w, path, _i == 0 ? (const char *[]){"fake"} : (const char *[]){"one"}, 1, NULL);
        core_until(w.load->state == LOAD_READING);
        gate_await(gate, 1);
        gate_pass_more(gate, 1);
        gate_await(gate, 2);
        load_cancel(w.load);
        ck_assert(load_ended(w.load->state));
        gate_open(gate);
        ends(&w, LOAD_CANCELLED);
        set_keys(NULL, false, false); /* another ring, while the load has its own */
        core_until(loads_empty(&loads));
        start_on(&w, path, ON("fake", "one"), NULL);
        ends(&w, LOAD_READY);
        serves(on("fake", GENERATION_READY), model);
        serves(on("one", GENERATION_READY), model);
}

/* Its last replica fails in the midst of a run. */
TEST(a_device_fails_while_a_chunk_goes_on, .to = 2)
{
        struct watched w;
        char *path = write_form("e.safetensors", &(struct encrypted_form){.version1 = true});
        others[0].fail_put = 3;
        if (_i == 0) {
                start_on(&w, path, ON("one"), NULL);
                ends(&w, LOAD_FAILED);
        } else {
                start_on(&w, path, ON("one", "two"), NULL);
                ends(&w, LOAD_READY);
                serves(on("two", GENERATION_READY), model);
        }
        failed_on("one", "put 3 fails");
}

/* ---- keys ---- */

CORE_FIXTURE(begin, load_fixture_end);

TEST(a_plain_file_is_not_encrypted_for_keys_being_configured)
{
        struct generation *g = load_ready(core_write(model, "plain.safetensors"), "m");
        serves(g, model);
        ck_assert_ptr_null(g->encryption);
}

/* Keys that are removed meanwhile stay with the load that began with them. */
TEST(a_reload_of_keys_does_not_affect_loads_that_have_begun)
{
        struct watched w;
        char *path = write_form("e.safetensors", &(struct encrypted_form){.chunk = 65536});
        gate_init(&fake.prepare, false);
        load_start(&w, path, "m");
        core_until(w.load->state == LOAD_READING);
        gate_await(&fake.prepare, 1);
        set_keys("signer", false, false);
        gate_open(&fake.prepare);
        ends(&w, LOAD_READY);
        serves(on("fake", GENERATION_READY), model);
        load_fails(write_form("f.safetensors", &(struct encrypted_form){.chunk = 65536}), "n", STREAMER_EFAILED,
                   "which is not among encryption.keys");
}

/* ---- what is shared ---- */

TEST(an_encrypted_copy_is_no_alias_of_a_plain_one)
{
        struct generation *plain = load_ready(core_write(model, "plain.safetensors"), "plain");
        struct generation *encrypted =
                load_ready(write_form("e.safetensors", &(struct encrypted_form){.version1 = false}), "encrypted");
        ck_assert_ptr_ne(plain, encrypted);
        ck_assert_mem_eq(plain->digest, encrypted->digest, DIGEST_SIZE);
}

TEST(a_file_that_is_not_encrypted_can_be_refused, .to = 2)
{
        struct watched w;
        char *plain = core_write(model, "plain.safetensors");
        char *path = write_form("e.safetensors", &(struct encrypted_form){.version1 = false});
        load_ready(plain, "plain"); /* resident, and no alias of it is made */
        if (_i == 0) {
                set_keys(NULL, false, true);
                load_fails(plain, "m", STREAMER_EPERM,
                           "not encrypted, and only encrypted files are loaded: encryption.require is true");
                serves(load_ready(path, "e"), model);
                return;
        }
        ask_for(&w, (struct load_args){.source = plain, .name = "m", .encrypted_only = "the test says so"});
        ends(&w, LOAD_FAILED);
        ck_assert_int_eq(w.error.code, STREAMER_EPERM);
        ck_assert_ptr_nonnull(strstr(w.error.text, "the test says so"));
        load_ready(path, "e");
        ask_for(&w, (struct load_args){.source = path, .name = "f", .encrypted_only = "the test says so"});
        ends(&w, LOAD_READY);
        ck_assert(w.serves);
}

/* A request that takes encrypted files only does not join one that takes any. */
TEST(a_load_that_takes_any_file_is_not_joined)
{
        struct watched any, only;
        char *plain = core_write(model, "plain.safetensors");
        load_start_held(&any, plain, LOAD_READING);
        ask_for(&only, (struct load_args){.source = plain, .encrypted_only = "the test says so"});
        ck_assert_ptr_ne(any.load, only.load);
        ends(&only, LOAD_FAILED);
        load_release_held();
        ends(&any, LOAD_READY);
}

/* Shards of one model have keys of their own. */
TEST(shards_may_have_different_keys)
{
        char *folder = suite_path("shards");
        must(mkdir(folder, 0755));
        struct model *second = model_new(32);
        model_set_metadata(second, "{}");
        model_add(second, "other", "U8", (uint64_t[]){MiB}, 1);
        encrypted_write(&(struct encrypted_form){.version1 = false}, model, format_text("%s/a.safetensors", folder));
        encrypted_write(&(struct encrypted_form){.cipher = "chacha20poly1305", .version1 = true}, second,
                        format_text("%s/b.safetensors", folder));
        struct generation *g = load_ready(folder, "m");
        ck_assert_uint_eq(g->n_tensors, model->n + 1);
        ck_assert_str_eq(g->encryption->cipher, "aes256gcm, chacha20poly1305");
        ck_assert_uint_eq(g->encryption->n_keys, 2);
        ck_assert_str_eq(g->encryption->keys[1], "chacha20poly1305");
        ck_assert_str_eq(g->encryption->signer, "signer");
}

/* The index takes a tensor from the other file: the fields of the tensors that stay are their own. */
TEST(tensors_that_the_index_takes_from_another_file_are_left_out)
{
        char *folder = suite_path("indexed");
        must(mkdir(folder, 0755));
        struct model *m = model_new(33), *stale = model_new(34);
        model_set_metadata(m, "{}");
        model_set_metadata(stale, "{}");
        model_add(stale, "a", "U8", (uint64_t[]){1000}, 1);
        model_add(stale, "b", "U8", (uint64_t[]){3000}, 1);
        model_add(m, "a", "U8", (uint64_t[]){1000}, 1);
        encrypted_write(&(struct encrypted_form){.chunk = 500}, m, format_text("%s/new.safetensors", folder));
        encrypted_write(&(struct encrypted_form){.chunk = 500}, stale, format_text("%s/old.safetensors", folder));
        file_put(folder, "model.safetensors.index.json",
                 "{\"weight_map\":{\"a\":\"new.safetensors\",\"b\":\"old.safetensors\"}}");
        struct generation *g = load_ready(folder, "m");
        ck_assert_uint_eq(g->n_tensors, 2);
        const struct manifest_view view = table_manifest(&g->manifest);
        const struct manifest_record *a = manifest_record(&view, 0), *b = manifest_record(&view, 1);
        ck_assert(model_check(m, 0, g->segments[a->segment].base + a->offset));
        ck_assert(model_check(stale, 1, g->segments[b->segment].base + b->offset));
}
