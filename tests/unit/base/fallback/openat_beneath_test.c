/* SPDX-License-Identifier: Apache-2.0
 *
 * A path below a directory leads to the same file, or is refused for the same reason, whether the kernel or the
 * daemon resolves it.
 */
#include "daemon/base/fallback/openat_beneath.h"
#include "daemon/base/util.h"
#include "tests/lib/deny_syscalls.h"
#include "tests/unit/source_fixture.h"

#include <fcntl.h>
#include <sys/fsuid.h>
#include <sys/resource.h>

#define NOBODY 65534
#define SEED 20261122
#define MANY_NAMES 40000
#define EXCHANGES 20000

static int root;

static int open_folder(const char *path)
{
        return must(open(path, O_PATH | O_DIRECTORY | O_CLOEXEC));
}

static void begin(void)
{
        make_stage();
        root = open_folder(at("root"));
}

/* ---- both resolvers ---- */

struct outcome {
        int error;
        dev_t device;
        ino_t inode;
        mode_t mode;
};

static struct outcome outcome_of(openat_beneath_fn *find, int folder_fd, const char *name)
{
        struct stat st;
        int fd, tries = 0;
        do
                fd = find(folder_fd, name);
        while (fd < 0 && errno == EAGAIN && tries++ < 1000); /* another process renames files elsewhere */
        if (fd < 0)
                return (struct outcome){.error = errno};
        ck_assert((fcntl(fd, F_GETFL) & O_PATH) && (fcntl(fd, F_GETFD) & FD_CLOEXEC));
        must(fstat(fd, &st));
        close(fd);
        return (struct outcome){0, st.st_dev, st.st_ino, st.st_mode};
}

static bool kernel_can(void)
{
        cleanup_close int fd = openat_beneath_by_kernel(root, ".");
        return fd >= 0;
}

/* The result of the walk; it must equal the kernel's, if the kernel has openat2. */
static int both(int folder_fd, const char *name)
{
        struct outcome walked = outcome_of(openat_beneath_by_walk, folder_fd, name);
        if (!kernel_can())
                return walked.error;
        struct outcome told = outcome_of(openat_beneath_by_kernel, folder_fd, name);
        ck_assert_msg(walked.error == told.error, "'%.200s': the walk returned %s, the kernel %s", name,
                      strerrorname_np(walked.error), strerrorname_np(told.error));
        ck_assert_msg(walked.inode == told.inode && walked.device == told.device && walked.mode == told.mode,
                      "'%.200s': another file than the kernel's", name);
        return walked.error;
}

static void make_tree(void)
{
        make_file("root/f", "x");
        make_file("root/a/f", "x");
        make_file("root/a/b/c/f", "x");
        make_link("f", "root/to-file");
        make_link("f/", "root/to-file-as-folder");
        make_link("a", "root/to-folder");
        make_link("a/", "root/to-folder-slash");
        make_link("a/b/../f", "root/over-folders");
        make_link("to-over", "root/chain");
        make_link("over-folders", "root/to-over");
        make_link(".", "root/here");
        make_link("..", "root/out");
        make_link("../outside", "root/to-outside");
        make_link("../root/f", "root/out-and-in");
        make_link("../../f", "root/a/b/up");
        make_link("../../../outside/secret", "root/a/b/too-far");
        make_link("missing", "root/dangling");
        make_link("self", "root/self");
        make_link("loop-b", "root/loop-a");
        make_link("loop-a", "root/loop-b");
        make_link("/", "root/absolute-root");
        make_link(at("root/f"), "root/absolute-in");
        make_link("//", "root/absolute-twice");
        make_link("a//b/./c///f", "root/untidy");
        must(mkfifo(at("root/fifo"), 0644));
}

/* Random names, below, are only compared with the kernel. */
static const struct {
        const char *name;
        int error;
} names[] = {
        {"f", 0},
        {"a", 0},
        {"missing", ENOENT},
        {"missing/..", ENOENT},
        {"", ENOENT},
        {".", 0},
        {"..", EXDEV},
        {"a/b/../../f", 0},
        {"a/../../outside/secret", EXDEV},
        {"...", ENOENT},
        {"/", EXDEV},
        {"/f", EXDEV},
        {"a/", 0},
        {"a//f", 0},
        {"a/.", 0},
        {"f/", ENOTDIR},
        {"f/..", ENOTDIR},
        {"f/x", ENOTDIR},
        {"fifo", 0},
        {"to-file", 0},
        {"to-file/", ENOTDIR},
        {"to-file/..", ENOTDIR},
        {"to-file-as-folder", ENOTDIR},
        {"to-folder", 0},
        {"to-folder/f", 0},
        {"to-folder/../f", 0},
        {"to-folder-slash/f", 0},
        {"over-folders", 0},
        {"chain", 0},
        {"here", 0},
        {"here/..", EXDEV},
        {"out/root/f", EXDEV},
        {"to-outside/secret", EXDEV},
        {"out-and-in", EXDEV},
        {"a/b/up", 0},
        {"a/b/too-far", EXDEV},
        {"dangling", ENOENT},
        {"self", ELOOP},
        {"loop-a", ELOOP},
        {"absolute-root", EXDEV},
        {"absolute-in", EXDEV},
        {"untidy", 0},
};

FIXTURE(.each = {begin, NULL});

TEST(a_name_resolves_as_in_the_kernel, EACH(names))
{
        make_tree();
        ck_assert_msg(both(root, names[_i].name) == names[_i].error, "'%s': not %s", names[_i].name,
                      strerrorname_np(names[_i].error));
}

/* ---- lengths ---- */

static char *repeated(const char *text, size_t n)
{
        size_t len = strlen(text);
        char *all = must_alloc(n * len + 1);
        for (size_t i = 0; i < n; i++)
                memcpy(all + i * len, text, len + 1);
        return all;
}

TEST(names_have_the_kernels_maximum_length)
{
        ck_assert_int_eq(both(root, repeated("x", NAME_MAX)), ENOENT);
        ck_assert_int_eq(both(root, repeated("x", NAME_MAX + 1)), ENAMETOOLONG);
        ck_assert_int_eq(both(root, repeated("x", 3 * NAME_MAX)), ENAMETOOLONG);
        ck_assert_int_eq(both(root, repeated("/", PATH_MAX)), ENAMETOOLONG);
        ck_assert_int_eq(both(root, format_text(".%s", repeated("/", PATH_MAX - 2))), 0);
        ck_assert_int_eq(both(root, format_text(".%s", repeated("/", PATH_MAX - 1))), ENAMETOOLONG);
}

/* Their texts are longer together than any one name may be. */
TEST(texts_of_links_are_not_limited_together)
{
        make_file("root/a/f", "x");
        make_link(format_text("%sa", repeated("./", 2000)), "root/one");
        make_link(format_text("%sone", repeated("./", 2000)), "root/two");
        ck_assert_int_eq(both(root, format_text("two/%sf", repeated("./", 2000))), 0);
}

TEST(at_most_forty_links_are_followed)
{
        make_file("root/0", "x");
        for (int i = 1; i <= 41; i++)
                make_link(format_text("%d", i - 1), format_text("root/%d", i));
        ck_assert_int_eq(both(root, "40"), 0);
        ck_assert_int_eq(both(root, "41"), ELOOP);
        make_link(".", "root/here");
        ck_assert_int_eq(both(root, format_text("%s0", repeated("here/", 40))), 0);
        ck_assert_int_eq(both(root, format_text("%s0", repeated("here/", 41))), ELOOP);
}

static void nest(unsigned folders)
{
        int fd = dup(root);
        for (unsigned i = 0; i < folders; i++) {
                must(mkdirat(fd, "d", 0755));
                int next = must(openat(fd, "d", O_PATH | O_CLOEXEC));
                close(fd);
                fd = next;
        }
}

/* Each folder of the path needs a descriptor; the kernel has no such limit. */
TEST(the_depth_of_the_walk_is_bounded)
{
        nest(OPENAT_BENEATH_DEPTH + 1);
        ck_assert_int_eq(both(root, repeated("d/", OPENAT_BENEATH_DEPTH)), 0);
        ck_assert_int_eq(outcome_of(openat_beneath_by_walk, root, repeated("d/", OPENAT_BENEATH_DEPTH + 1)).error,
                         ENAMETOOLONG);
        ck_assert_int_eq(both(root, repeated("d/../", 3 * OPENAT_BENEATH_DEPTH)), 0);
}

/* ---- rights, and the kernel's own links ---- */

TEST(unreadable_folders_are_skipped)
{
        static const char *const tries[] = {"shut", "shut/", "shut/.", "shut/..", "shut/f", "shut/missing", "via"};
        setfsuid(NOBODY);
        if (setfsuid(0) != NOBODY)
                SKIP("needs root, to change its user");
        make_file("root/shut/f", "x");
        make_link("shut/../f", "root/via");
        make_file("root/f", "x");
        must(chmod(at("root/shut"), 0700));
        setfsuid(NOBODY);
        for (size_t i = 0; i < sizeof(tries) / sizeof(tries[0]); i++)
                ck_assert_int_eq(both(root, tries[i]), i < 2 ? 0 : EACCES);
        setfsuid(0);
        must(chmod(at("root"), 0700));
        setfsuid(NOBODY);
        ck_assert_int_eq(both(root, "."), EACCES);
        ck_assert_int_eq(both(root, ".."), EACCES);
        ck_assert_int_eq(both(root, "f"), EACCES);
        setfsuid(0);
}

TEST(links_of_the_kernels_own_are_not_followed)
{
        int ends[2], proc = open_folder("/proc");
        must(pipe(ends));
        const struct {
                const char *name;
                int error;
        } rows[] = {
                {"self/root", ELOOP},
                {"self/root/etc/passwd", ELOOP},
                {"self/cwd", ELOOP},
                {"self/exe", ELOOP},
                {"self/ns/pid", ELOOP},
                {format_text("self/fd/%d", ends[0]), ELOOP},
                {format_text("self/fd/%d", root), ELOOP},
                {"self", 0}, /* a link as any other */
                {"self/stat", 0},
                {"thread-self/stat", 0},
                {"mounts", 0},
        };
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
                ck_assert_msg(both(proc, rows[i].name) == rows[i].error, "%s", rows[i].name);
}

/* ---- random numbers ---- */

static const char *const pieces[] = {".", "..", "a", "b", "l", "m", "n", "f", "", "..", "a", "l"};

static char *random_name(uint64_t *state, unsigned most)
{
        char *name = must_alloc(256);
        unsigned n = 1 + (unsigned)draw_below(state, most);
        for (unsigned i = 0; i < n; i++) {
                strcat(name, i > 0 ? "/" : "");
                strcat(name, pieces[draw_below(state, sizeof(pieces) / sizeof(pieces[0]))]);
        }
        return name;
}

/* Three levels of folders; in each a file and links to wherever. */
static void random_folder(uint64_t *state, const char *path, unsigned level)
{
        static const char *const links[] = {"l", "m", "n"}, *const folders[] = {"a", "b"};
        make_file(format_text("%s/f", path), "x");
        for (size_t i = 0; i < 3; i++) {
                char *target = random_name(state, 4);
                make_link(target[0] != '\0' ? target : ".", format_text("%s/%s", path, links[i]));
        }
        for (size_t i = 0; i < 2 && level < 3; i++) {
                char *name = format_text("%s/%s", path, folders[i]);
                make_folder(name);
                random_folder(state, name, level + 1);
        }
}

TEST(openat2_and_the_walk_agree_on_random_trees)
{
        uint64_t state = SEED;
        unsigned found = 0, left = suite_short() ? MANY_NAMES / 10 : MANY_NAMES;
        if (!kernel_can())
                SKIP("the kernel has no openat2 to compare with");
        for (; left > 0; left--) {
                if (left % 4000 == 0) {
                        char *tree = format_text("root/%u", left);
                        make_folder(tree);
                        random_folder(&state, tree, 0);
                        close(root);
                        root = open_folder(at(tree));
                }
                found += both(root, random_name(&state, 8)) == 0;
        }
        ck_assert_uint_gt(found, 100);
}

/* ---- concurrent renames ---- */

static atomic_bool stop;
static atomic_uint exchanges;

/* Two folders that are exchanged, if the file system supports it. */
static bool can_exchange(const char *const pair[2])
{
        return renameat2(AT_FDCWD, at(pair[0]), AT_FDCWD, at(pair[1]), RENAME_EXCHANGE) == 0;
}

static void *exchange_repeatedly(void *arg)
{
        const char *const *pair = arg;
        char *one = at(pair[0]), *two = at(pair[1]);
        while (!stop) {
                must(renameat2(AT_FDCWD, one, AT_FDCWD, two, RENAME_EXCHANGE));
                exchanges++;
        }
        return NULL;
}

TEST(no_race_opens_a_file_outside)
{
        static const char *const tries[] = {"a/f", "a/b/f", "a/b/../f", "via", "a/../a/f", "a"};
        static const char *pair[] = {"root/a", "root/other"};
        pthread_t thread;
        unsigned found = 0, refused = 0;
        make_file("root/a/f", "x");
        make_file("root/a/b/f", "x");
        make_file("outside/f", "x");
        make_file("outside/b/f", "x");
        make_link("a/b/../f", "root/via");
        make_link("../outside", "root/other");
        ino_t outside[] = {0, 0, 0};
        static const char *const secrets[] = {"outside", "outside/f", "outside/b/f"};
        for (size_t i = 0; i < 3; i++) {
                struct stat st;
                must(stat(at(secrets[i]), &st));
                outside[i] = st.st_ino;
        }
        if (!can_exchange(pair))
                SKIP("the file system does not support RENAME_EXCHANGE");
        pthread_create(&thread, NULL, exchange_repeatedly, pair);
        for (size_t i = 0; exchanges < EXCHANGES || found == 0 || refused == 0; i++) {
                const char *name = tries[i % (sizeof(tries) / sizeof(tries[0]))];
                struct outcome o = outcome_of(openat_beneath_by_walk, root, name);
                ck_assert_msg(o.error == 0 || o.error == EXDEV || o.error == ENOENT, "%s: %s", name,
                              strerrorname_np(o.error));
                for (size_t k = 0; k < 3; k++)
                        ck_assert_msg(o.inode != outside[k], "%s: found outside", name);
                found += o.error == 0;
                refused += o.error == EXDEV;
        }
        stop = true;
        pthread_join(thread, NULL);
}

/* Its ".." is then a folder outside; the recorded path is not. */
TEST(a_folder_moved_out_of_the_root_is_no_escape)
{
        static const char *pair[] = {"root/a/b", "outside/b"};
        pthread_t thread;
        struct stat inside;
        make_folder("root/a");
        make_folder("root/a/b");
        make_folder("outside/b");
        make_file("outside/f", "x"); /* the target of "../f" from outside/b */
        make_file("root/a/f", "x");
        must(stat(at("root/a/f"), &inside));
        if (!can_exchange(pair))
                SKIP("the file system does not support RENAME_EXCHANGE");
        pthread_create(&thread, NULL, exchange_repeatedly, pair);
        while (exchanges < EXCHANGES) {
                struct outcome o = outcome_of(openat_beneath_by_walk, root, "a/b/../f");
                ck_assert_int_eq(o.error, 0);
                ck_assert(o.inode == inside.st_ino);
        }
        stop = true;
        pthread_join(thread, NULL);
}

/* ---- release and choice ---- */

TEST(every_outcome_closes_its_descriptors)
{
        make_tree();
        unsigned before = count_open_fds();
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
                int fd = openat_beneath_by_walk(root, names[i].name);
                if (fd >= 0)
                        close(fd);
        }
        ck_assert_uint_eq(count_open_fds(), before);
}

TEST(a_lack_of_descriptors_is_reported_and_leaks_none)
{
        make_tree();
        unsigned before = count_open_fds(), failures = 0;
        int fd = -1;
        for (rlim_t most = 0; fd < 0; most++) {
                must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){most, 1024}));
                fd = openat_beneath_by_walk(root, "to-folder/b/c/f");
                int told = errno;
                must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){1024, 1024}));
                failures += fd < 0;
                ck_assert_msg(fd >= 0 || told == EMFILE, "%s", strerrorname_np(told));
        }
        close(fd);
        ck_assert_uint_ge(failures, 4);
        ck_assert_uint_eq(count_open_fds(), before);
}

static const int refusals[] = {ENOSYS, EPERM};

TEST(a_forbidden_system_call_is_replaced, EACH(refusals))
{
        make_tree();
        deny_openat2(refusals[_i]);
        ck_assert_int_lt(openat_beneath_by_kernel(root, "f"), 0);
        ck_assert_int_eq(errno, refusals[_i]);
        ck_assert_int_eq(outcome_of(openat_beneath, root, "to-folder/b/up").error, 0);
}
