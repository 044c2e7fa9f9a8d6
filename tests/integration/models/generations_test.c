/* SPDX-License-Identifier: Apache-2.0
 *
 * Names and generations: the same files again, a second name, and a new generation that replaces one.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/suite.h"

static uint64_t empty; /* of the device, with the witness alone */

static void begin(void)
{
        fixture_begin((const char *const[]){"--device", "host=64MiB", NULL});
}

static void connect_client(void)
{
        client = client_open(&test_daemon);
        empty = client_used(client);
}

static void end_test(void)
{
        client_wait_used(client, empty);
        fixture_disconnect();
}

/* The serving generation; a draining one is listed under its former name. */
static streamer_model find(const char *name)
{
        static streamer_model_list *list;
        streamer_model m = STREAMER_MODEL_INIT;

        streamer_model_list_free(list);
        client_ok(client, streamer_list(client, &list), "list");
        for (size_t i = 0; streamer_model_list_get(list, i, &m) == 0; i++)
                if (strcmp(m.name, name) == 0 && strcmp(m.state, "ready") == 0)
                        return m;
        die("%s is not listed", name);
}

static uint64_t generation(const char *name)
{
        return find(name).generation;
}

FIXTURE(.all = {begin, fixture_end}, .each = {connect_client, end_test});

TEST(a_repeated_load_of_the_same_version_returns_at_once)
{
        struct model *m = model_mixed(1, 8 << 20);
        const char *path = fixture_write(m, "same.safetensors");

        client_load(client, path, "m");
        uint64_t number = generation("m"), used = client_used(client), load_ns = find("m").load_ns;
        file_uncache(path);
        uint64_t read = process_read_bytes(test_daemon.pid);
        client_load(client, path, "m");
        ck_assert_uint_eq(generation("m"), number);
        ck_assert_uint_eq(client_used(client), used);
        ck_assert_uint_eq(find("m").load_ns, load_ns);
        ck_assert(process_read_no_model(test_daemon.pid, read));
        client_unload(client, "m");
}

TEST(a_second_name_is_an_alias_and_no_second_copy)
{
        struct model *m = model_mixed(2, 8 << 20);
        const char *path = fixture_write(m, "alias.safetensors");

        client_load(client, path, "one");
        uint64_t used = client_used(client);
        client_load(client, path, "two");
        ck_assert_uint_eq(client_used(client), used);
        ck_assert_uint_eq(generation("one"), generation("two"));
        client_unload(client, "one");
        ck_assert_str_eq(client_state(client, "one"), "");
        client_equals(client, "two", m);
        ck_assert_uint_eq(client_used(client), used);
        client_unload(client, "two");
}

TEST(a_changed_file_is_a_new_generation)
{
        struct model *old = model_mixed(3, 8 << 20), *new = model_mixed(4, 8 << 20);
        const char *path = fixture_write(old, "changed.safetensors");

        client_load(client, path, "m");
        uint64_t number = generation("m"), used = client_used(client);
        streamer_lease *lease = client_attach(client, "m");
        fixture_write(new, "changed.safetensors");
        client_load(client, path, "m");
        ck_assert_uint_gt(generation("m"), number);
        client_equals(client, "m", new);
        lease_equals(lease, old);
        ck_assert_uint_eq(streamer_generation(lease), number);
        streamer_detach(lease);
        client_wait_used(client, used);
        client_unload(client, "m");
}

TEST(another_source_under_the_same_name_is_a_new_generation)
{
        struct model *a = model_mixed(5, 4 << 20), *b = model_mixed(6, 4 << 20);

        client_load(client, fixture_write(a, "a.safetensors"), "m");
        uint64_t number = generation("m");
        client_load(client, fixture_write(b, "b.safetensors"), "m");
        ck_assert_uint_gt(generation("m"), number);
        client_equals(client, "m", b);
        ck_assert_str_eq(find("m").source, fixture_path("b.safetensors"));
        client_unload(client, "m");
}

FIXTURE(.all = {begin, fixture_end}, .each = {connect_client, end_test});

/* Loop test over the bits: 1, on a digest; 2, on a generation. */
TEST(attach_may_insist_on_a_digest_and_a_generation, .from = 1, .to = 4)
{
        char digest[33];
        uint64_t number = generation("witness");
        streamer_attach_opts opts = {
                .struct_size = sizeof(opts), .digest = _i & 1 ? digest : NULL, .generation = _i & 2 ? number : 0};
        streamer_lease *lease = NULL;

        model_digest(fixture_witness, digest);
        client_ok(client, streamer_attach(client, "witness", &opts, &lease), "attach");
        streamer_detach(lease);
        lease = NULL;
        if (_i & 2) {
                opts.generation = number + 1000;
                ck_assert_int_eq(streamer_attach(client, "witness", &opts, &lease), STREAMER_ENOENT);
                opts.generation = number;
        }
        if (_i & 1) {
                digest[31] = digest[31] == '0' ? '1' : '0';
                ck_assert_int_eq(streamer_attach(client, "witness", &opts, &lease), STREAMER_EDIGEST);
        }
        ck_assert_ptr_null(lease);
}

TEST(two_models_of_equal_headers_and_other_weights_differ_in_their_digest)
{
        struct model *a = model_mixed(10, 1 << 20), *b = model_mixed(11, 1 << 20);
        char first[64];

        client_load(client, fixture_write(a, "a.safetensors"), "a");
        client_load(client, fixture_write(b, "b.safetensors"), "b");
        snprintf(first, sizeof(first), "%s", find("a").digest);
        ck_assert_str_ne(first, find("b").digest);
        client_unload(client, "a");
        client_unload(client, "b");
}

TEST(metadata_of_the_checkpoint_is_returned)
{
        struct model *m = model_mixed(12, 1 << 16);

        model_set_metadata(m, "{\"format\":\"pt\",\"note\":\"a \\\"quoted\\\" word\"}");
        client_load(client, fixture_write(m, "meta.safetensors"), "meta");
        streamer_lease *lease = client_attach(client, "meta");
        ck_assert_str_eq(streamer_metadata(lease, "format"), "pt");
        ck_assert_str_eq(streamer_metadata(lease, "note"), "a \"quoted\" word");
        streamer_detach(lease);
        client_unload(client, "meta");
}

/* A folder whose name uses most of the maximum path length. */
static char *long_folder(void)
{
        char *path = fixture_path("long");

        for (int i = 0; i < 15; i++) {
                mkdir(path, 0755);
                path = format_text("%s/%0220d", path, i);
        }
        must(mkdir(path, 0755));
        return path;
}

FIXTURE(.all = {begin, fixture_end}, .each = {connect_client, end_test});

/* One reply cannot hold as many generations as clients may lease of one name. */
TEST(a_list_longer_than_one_reply_is_complete)
{
        enum { N = 300 };
        static streamer_lease *leases[N];
        char *path = format_text("%s/many.safetensors", long_folder());
        struct model *m = model_mixed(3, 1 << 18);

        client_load(client, fixture_write(m, "zebra.safetensors"), "zebra");
        for (int i = 0; i < N; i++) {
                struct model *none = model_new(1);
                char *metadata = format_text("{\"i\":\"%d\"}", i);
                model_set_metadata(none, metadata);
                model_write(none, path);
                client_load(client, path, "many");
                leases[i] = client_attach(client, "many");
                model_free(none);
                free(metadata);
        }
        find("zebra");
        find("witness");
        for (int i = 0; i < N; i++)
                streamer_detach(leases[i]);
        client_unload(client, "many");
        client_unload(client, "zebra");
}

/* Private mappings of hugetlb pages are read-only, and other tests may allow such pages meanwhile. */
static void begin_with_4k_pages(void)
{
        if (daemon_on_gpu()) {
                begin();
                return;
        }
        fixture_begin((const char *const[]){
                "--config", suite_file("4k.yaml", "devices: [{device: host, budget: 64MiB, pages: 4k}]\n"), NULL});
}

FIXTURE(.all = {begin_with_4k_pages, fixture_end}, .each = {connect_client, end_test});

TEST(a_private_attach_is_writable_and_invisible_to_others)
{
        ABOUT_HOST_MEMORY();
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .flags = STREAMER_ATTACH_PRIVATE};
        streamer_lease *lease = NULL;
        streamer_tensor t = STREAMER_TENSOR_INIT;

        client_ok(client, streamer_attach(client, "witness", &opts, &lease), "attach");
        client_ok(client, streamer_tensor_find(lease, "head.weight", &t), "find");
        memset((void *)(uintptr_t)t.data, 0x55, t.bytes);
        client_equals(client, "witness", fixture_witness);
        streamer_detach(lease);
}
