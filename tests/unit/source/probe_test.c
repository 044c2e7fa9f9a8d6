/* SPDX-License-Identifier: Apache-2.0
 *
 * The probe's model, and the probe of a root, which doctor uses.
 */
#include "daemon/base/hash.h"
#include "daemon/source/roots/roots.h"
#include "tests/lib/suite.h"

#include <endian.h>

static struct error error;

/* ---- the model ---- */

#define FILE_MAX (4 << 20)

static struct source_set set;
static struct st_header header;
static unsigned char *file;
static uint64_t header_end;

static void open_probe(uint64_t seed)
{
        struct st_error why;
        uint64_t n;
        char source[32];
        snprintf(source, sizeof(source), "probe:%" PRIu64, seed);
        ck_assert_msg(source_probe.open(NULL, source, NULL, &set, &error) == 0, "%s", error.text);
        uint64_t size = set.objects[0].version.size;
        ck_assert_uint_lt(size, FILE_MAX);
        file = must_alloc(size);
        ck_assert_int_eq(pread(set.objects[0].fd, file, size, 0), (ssize_t)size);
        ck_assert_int_eq(st_parse_prefix(file, size, &n, &why), 0);
        header_end = ST_PREFIX + n;
        char *text = must_alloc(n + 1);
        memcpy(text, file + ST_PREFIX, n);
        ck_assert_msg(st_parse(&header, text, n, size, &why) == 0, "%s", why.text);
}

TEST(the_probes_bytes_are_a_function_of_the_seed)
{
        uint64_t word;
        open_probe(42);
        memcpy(&word, file + header_end, sizeof(word));
        ck_assert_uint_eq(le64toh(word), UINT64_C(0xbdd732262feb6e95)); /* as others compute it */
        memcpy(&word, file + header_end + header.tensors[3].begin, sizeof(word));
        ck_assert_uint_eq(le64toh(word), UINT64_C(0xb01901a8e5f82949));
}

TEST(the_probe_has_no_file_beside_it)
{
        struct object object = {0};
        FAILS_SAYING(error, source_open_sidecar(NULL, "probe:1", "config.json", &object, &error), STREAMER_ENOENT,
                     "probe:1 has no file config.json");
}

TEST(two_probes_are_two_sources)
{
        struct source_identity a, b;
        struct source_set first;
        open_probe(1);
        first = set;
        source_identity(&first, &a);
        open_probe(1);
        source_identity(&set, &b);
        ck_assert_int_ne(memcmp(&a, &b, sizeof(a)), 0);
}

/* ---- roots ---- */

static struct source_roots *roots;
static char *root;

static void put(const char *name)
{
        file_put(root, name, "contents");
}

static void make_root(void)
{
        root = suite_path("root-%d", (int)getpid());
        must(mkdir(root, 0755));
        const char *paths[] = {root};
        ck_assert_int_eq(source_roots_new(&roots, paths, 1, &error), 0);
}

static void assert_finds(const char *name)
{
        struct root_facts facts;
        ck_assert_msg(source_inspect_root(roots, root, &facts, &error) == 0, "%s", error.text);
        ck_assert_str_eq(facts.file, name);
}

FIXTURE(.each = {make_root, NULL});

TEST(a_file_is_found_in_nested_folders)
{
        assert_finds("");
        put("a/b/c/model.safetensors");
        assert_finds("a/b/c/model.safetensors");
}

TEST(entries_that_are_no_files_are_skipped)
{
        put(".hidden/model.safetensors");
        put("1/2/3/4/5/6/7/8/9/deep.safetensors");
        must(symlink("/proc/version", format_text("%s/link", root)));
        must(mkfifo(format_text("%s/fifo", root), 0644));
        file_put(root, "empty", "");
        assert_finds("");
}

/* The entry of the root that a search visits last. */
static char *last_entry(void)
{
        char *last = NULL;
        DIR *dir = opendir(root);
        ck_assert_ptr_nonnull(dir);
        for (struct dirent *e; (e = readdir(dir)) != NULL;)
                if (e->d_name[0] != '.')
                        last = format_text("%s", e->d_name);
        closedir(dir);
        return last;
}

TEST(the_search_of_a_large_folder_is_bounded)
{
        for (int i = 0; i < 600; i++)
                must(mkdir(format_text("%s/%d", root, i), 0755));
        put(format_text("%s/model.safetensors", last_entry()));
        assert_finds(""); /* without a bound it would be found */
}

TEST(a_path_that_is_no_root_is_refused)
{
        struct root_facts facts;
        FAILS_WITH(error, source_inspect_root(roots, "/proc", &facts, &error), STREAMER_EFAILED, "outside the roots");
        ck_assert_str_eq(source_root(roots, 0), root);
        ck_assert_ptr_null(source_root(roots, 1));
}
