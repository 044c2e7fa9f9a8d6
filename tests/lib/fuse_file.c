/* SPDX-License-Identifier: Apache-2.0
 *
 * The process that serves the FUSE file system: see fuse_file.h.
 *
 * One thread, one loop over two descriptors: the kernel's requests and the test's commands. A held read is a request
 * that has not been answered yet. Attributes come from the backing file and are never cached, so that the kernel sees
 * every change.
 */
#include "tests/lib/fuse_file.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/uio.h>

#define FILE_NODE 2
#define REQUEST_MAX (1u << 20)
#define READ_MAX (1u << 20)
#define HELD_MAX 1024

struct held_read {
        uint64_t unique, offset;
        uint32_t size;
};

struct server {
        const char *name; /* of the file */
        struct fuse_oddities odd;
        struct fuse_counts *counts;
        uint64_t looks; /* at the attributes */
        int fuse, backing, commands, reports;
        uint64_t hold_from, fail_from;
        struct held_read held[HELD_MAX];
        size_t n_held;
        unsigned char *request, *data;
};

struct command {
        enum { HOLD, RELEASE, FAIL } what;
        uint64_t from;
};

/* ---- replies ---- */

static void reply(const struct server *s, uint64_t unique, int error, const void *data, size_t size)
{
        struct fuse_out_header header = {.len = (uint32_t)(sizeof(header) + size), .error = -error, .unique = unique};
        struct iovec iov[] = {{&header, sizeof(header)}, {(void *)(uintptr_t)data, size}};

        /* ENOENT: the request was interrupted, its process killed. */
        if (writev(s->fuse, iov, size ? 2 : 1) < 0 && errno != ENOENT)
                _exit(1);
}

static void fill_attr(struct server *s, uint64_t node, struct fuse_attr *attr)
{
        struct stat st;
        *attr = (struct fuse_attr){.ino = node, .mode = S_IFDIR | 0755, .nlink = 1, .blksize = 4096};
        if (node != FILE_NODE || fstat(s->backing, &st))
                return;
        attr->mode = S_IFREG | 0644;
        attr->size = (uint64_t)st.st_size;
        attr->blocks = (uint64_t)st.st_blocks;
        if (s->odd.unstable_inodes)
                attr->ino = FILE_NODE + ++s->looks;
        if (s->odd.constant_times)
                return;
        if (s->odd.whole_seconds)
                st.st_mtim.tv_nsec = st.st_ctim.tv_nsec = 0;
        attr->mtime = (uint64_t)st.st_mtim.tv_sec;
        attr->mtimensec = (uint32_t)st.st_mtim.tv_nsec;
        attr->ctime = (uint64_t)st.st_ctim.tv_sec;
        attr->ctimensec = (uint32_t)st.st_ctim.tv_nsec;
}

static void answer_init(const struct server *s, const struct fuse_in_header *in, const struct fuse_init_in *init)
{
        struct fuse_init_out out = {.major = FUSE_KERNEL_VERSION,
                                    .minor = FUSE_KERNEL_MINOR_VERSION,
                                    .max_readahead = s->odd.no_readahead ? 0 : init->max_readahead,
                                    .flags = FUSE_ASYNC_READ | FUSE_MAX_PAGES,
                                    .max_write = READ_MAX,
                                    .max_pages = READ_MAX / 4096};
        if (init->minor < out.minor)
                out.minor = init->minor;
        reply(s, in->unique, 0, &out, sizeof(out));
}

static void answer_lookup(struct server *s, const struct fuse_in_header *in, const char *name)
{
        struct fuse_entry_out out = {.nodeid = FILE_NODE};
        if (in->nodeid != FUSE_ROOT_ID || strcmp(name, s->name) != 0)
                return reply(s, in->unique, ENOENT, NULL, 0);
        fill_attr(s, FILE_NODE, &out.attr);
        reply(s, in->unique, 0, &out, sizeof(out));
}

static void answer_getattr(struct server *s, const struct fuse_in_header *in)
{
        struct fuse_attr_out out = {0};
        fill_attr(s, in->nodeid, &out.attr);
        reply(s, in->unique, 0, &out, sizeof(out));
}

/* The one entry. */
static void answer_readdir(const struct server *s, const struct fuse_in_header *in, const struct fuse_read_in *range)
{
        size_t len = strlen(s->name);
        const struct fuse_dirent entry = {.ino = FILE_NODE, .off = 1, .namelen = (uint32_t)len, .type = DT_REG};
        unsigned char out[FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + 256)] = {0};
        memcpy(out, &entry, FUSE_NAME_OFFSET);
        memcpy(out + FUSE_NAME_OFFSET, s->name, len);
        reply(s, in->unique, 0, out, range->offset == 0 ? FUSE_DIRENT_SIZE(&entry) : 0);
}

static void answer_read(const struct server *s, const struct held_read *r)
{
        if (r->offset + r->size > s->fail_from)
                return reply(s, r->unique, EIO, NULL, 0);
        if (s->odd.read_error != 0)
                return reply(s, r->unique, s->odd.read_error, NULL, 0);
        uint32_t max = s->odd.read_max != 0 ? s->odd.read_max : READ_MAX;
        ssize_t n = pread(s->backing, s->data, r->size < max ? r->size : max, (off_t)r->offset);
        reply(s, r->unique, n < 0 ? errno : 0, s->data, n < 0 ? 0 : (size_t)n);
}

static void count_read(struct server *s, const struct fuse_read_in *r)
{
        uint64_t *end = &s->counts->ends[r->fh % FUSE_HANDLES];
        s->counts->jumps += *end != 0 && *end != r->offset;
        *end = r->offset + r->size;
        s->counts->bytes += r->size;
        s->counts->reads++;
}

static void hold_or_answer(struct server *s, const struct held_read *r)
{
        if (r->offset + r->size <= s->hold_from || s->n_held == HELD_MAX)
                return answer_read(s, r);
        s->held[s->n_held++] = *r;
        if (write(s->reports, "h", 1) != 1)
                _exit(1);
}

/* A held read ends when its process is killed, as on a network file system. */
static void interrupt_held(struct server *s, uint64_t unique)
{
        for (size_t i = 0; i < s->n_held; i++) {
                if (s->held[i].unique != unique)
                        continue;
                s->held[i] = s->held[--s->n_held];
                return reply(s, unique, EINTR, NULL, 0);
        }
}

static void handle_request(struct server *s)
{
        const struct fuse_in_header *in = (const void *)s->request;
        const void *body = in + 1;
        const struct fuse_read_in *r = body;
        const struct fuse_interrupt_in *interrupt = body;
        switch (in->opcode) {
        case FUSE_INIT:
                return answer_init(s, in, body);
        case FUSE_LOOKUP:
                return answer_lookup(s, in, body);
        case FUSE_GETATTR:
                return answer_getattr(s, in);
        case FUSE_READDIR:
                return answer_readdir(s, in, body);
        case FUSE_READ:
                count_read(s, r);
                return hold_or_answer(s, &(struct held_read){in->unique, r->offset, r->size});
        case FUSE_OPEN:
                return reply(s, in->unique, 0,
                             &(struct fuse_open_out){.fh = ++s->counts->handles,
                                                     .open_flags = s->odd.keep_cache ? FOPEN_KEEP_CACHE : 0},
                             sizeof(struct fuse_open_out));
        case FUSE_OPENDIR:
                return reply(s, in->unique, 0, &(struct fuse_open_out){0}, sizeof(struct fuse_open_out));
        case FUSE_STATFS:
                return reply(s, in->unique, 0, &(struct fuse_statfs_out){0}, sizeof(struct fuse_statfs_out));
        case FUSE_RELEASE:
        case FUSE_RELEASEDIR:
        case FUSE_FLUSH:
                return reply(s, in->unique, 0, NULL, 0);
        case FUSE_INTERRUPT:
                return interrupt_held(s, interrupt->unique);
        case FUSE_FORGET:
        case FUSE_BATCH_FORGET:
                return;
        default:
                reply(s, in->unique, ENOSYS, NULL, 0);
        }
}

static void handle_command(struct server *s)
{
        struct command c;
        if (read(s->commands, &c, sizeof(c)) != sizeof(c))
                _exit(0);
        if (c.what != HOLD)
                s->fail_from = c.what == FAIL ? s->hold_from : UINT64_MAX;
        s->hold_from = c.what == HOLD ? c.from : UINT64_MAX;
        if (c.what == HOLD)
                return;
        for (size_t i = 0; i < s->n_held; i++)
                answer_read(s, &s->held[i]);
        s->n_held = 0;
}

static _Noreturn void serve(struct server *s)
{
        struct pollfd fds[] = {{.fd = s->commands, .events = POLLIN}, {.fd = s->fuse, .events = POLLIN}};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGINT, SIG_IGN);
        s->hold_from = s->fail_from = UINT64_MAX;
        s->request = must_alloc(REQUEST_MAX + 4096);
        s->data = must_alloc(READ_MAX);
        for (;;) {
                if (poll(fds, 2, -1) < 0)
                        continue;
                /* Commands first, also those that came after poll() had looked: a hold that was sent before a load must
                 * apply to its reads. */
                if (fds[0].revents || poll(fds, 1, 0) > 0) {
                        handle_command(s);
                        continue;
                }
                if (read(s->fuse, s->request, REQUEST_MAX + 4096) > 0)
                        handle_request(s);
                else if (errno == ENODEV)
                        _exit(0);
        }
}

/* ---- the test ---- */

const char *fuse_file_unavailable(void)
{
        int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
        if (fd < 0)
                return "no /dev/fuse";
        close(fd);
        pid_t pid = must(fork());
        if (pid == 0)
                _exit(unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
        return child_wait(pid) ? "no mount namespace here" : NULL;
}

void fuse_file_start(struct fuse_file *h, const char *folder, const char *name, const char *backing)
{
        int commands[2], reports[2];
        struct server s = {.name = h->name,
                           .odd = h->odd,
                           .counts = h->counts = must_share(sizeof(*h->counts)),
                           .fuse = must(open("/dev/fuse", O_RDWR | O_CLOEXEC)),
                           .backing = must(open(backing, O_RDONLY | O_CLOEXEC))};
        mkdir(folder, 0755);
        snprintf(h->folder, sizeof(h->folder), "%s", folder);
        snprintf(h->name, sizeof(h->name), "%s", name);
        if ((size_t)snprintf(h->path, sizeof(h->path), "%s/%s", folder, name) >= sizeof(h->path))
                die("%s: too long", folder);
        must(unshare(CLONE_NEWNS));
        must(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
        cleanup_free char *options =
                format_text("fd=%d,rootmode=40755,user_id=0,group_id=0,allow_other,max_read=%u", s.fuse, READ_MAX);
        must(mount("hang", folder, "fuse.hang", MS_NOSUID | MS_NODEV, options));
        must(pipe2(commands, O_CLOEXEC));
        must(pipe2(reports, O_CLOEXEC));
        s.commands = commands[0];
        s.reports = reports[1];
        h->commands = commands[1];
        h->reports = reports[0];
        h->pid = must(fork());
        if (h->pid == 0) {
                close(h->commands);
                close(h->reports);
                serve(&s);
        }
        close(s.fuse);
        close(s.backing);
        close(s.commands);
        close(s.reports);
}

void fuse_file_stop(struct fuse_file *h)
{
        close(h->commands);
        close(h->reports);
        kill(h->pid, SIGKILL);
        waitpid(h->pid, NULL, 0);
        umount2(h->folder, MNT_DETACH);
}

static void command(const struct fuse_file *h, struct command c)
{
        if (must(write(h->commands, &c, sizeof(c))) != sizeof(c))
                die("short write");
}

void fuse_file_hold(struct fuse_file *h, uint64_t from)
{
        command(h, (struct command){HOLD, from});
}

void fuse_file_wait_held(struct fuse_file *h)
{
        struct pollfd fd = {.fd = h->reports, .events = POLLIN};
        char byte;
        if (must(poll(&fd, 1, PATIENCE_MS)) == 0)
                die("no read was held");
        must(read(h->reports, &byte, 1));
}

void fuse_file_release(struct fuse_file *h)
{
        command(h, (struct command){RELEASE, 0});
}

void fuse_file_fail(struct fuse_file *h)
{
        command(h, (struct command){FAIL, 0});
}
