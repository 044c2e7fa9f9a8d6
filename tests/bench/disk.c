/* SPDX-License-Identifier: Apache-2.0
 *
 * The disk cache: what storing behind a load from S3 costs it, and what a load from a copy is worth.
 *
 * The store is nginx on loopback. In each round the same object is loaded by a daemon without a disk cache, and by one
 * whose cache does not have it: once from a store that is half as fast as the disk takes bytes, once with a disk that
 * takes half of what the store sends (a limit of the control group, for which root is needed). After a restart it is
 * loaded from its copy, beside fio on the same file, and beside a load of the copy as an ordinary file: what that costs
 * more than fio is no cost of the cache.
 */
#include "tests/bench/bench.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/nginx.h"
#include "tests/lib/ports.h"

#include "daemon/io/disk/disk_record.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define OBJECT "disk.safetensors"
#define SOURCE "s3://models/" OBJECT
#define REQUESTS 16u /* that a load has in flight */
#define ENTRIES 10000u
#define STORED_MS 300000

struct disk_bench {
        const struct bench *b;
        struct model *model;
        struct held_file held; /* the object, in the page cache */
        struct nginx web;
        unsigned limited; /* the port of the store that is slower than the disk */
        struct bench_daemon without, with;
        char *cache;
};

static char *settings(const struct disk_bench *d, unsigned port, bool cached)
{
        char *cache = cached ? format_text("disk_cache: {path: %s, budget: 64GiB, min_free: 1MiB}\n", d->cache)
                             : format_text("%s", "");
        return format_text("s3: {endpoint: 'http://127.0.0.1:%u', region: us-east-1, unsigned: true}\n%s", port, cache);
}

/* ---- what is stored ---- */

static json_t *call(streamer_client *client, const char *verb, const char *args)
{
        char *text = NULL;
        int r = streamer_call(client, verb, args, &text);
        if (r < 0)
                die("%s: %s", verb, streamer_last_error(client));
        json_t *reply = json_loads(text, 0, NULL);
        free(text);
        return reply;
}

static uint64_t of_cache(streamer_client *client, const char *key)
{
        json_t *status = call(client, "status", NULL), *disk = json_object_get(status, "disk_cache");
        uint64_t n = (uint64_t)json_integer_value(json_object_get(disk, key));
        json_decref(status);
        return n;
}

static bool is_empty(streamer_client *client)
{
        if (of_cache(client, "entries") > 0)
                json_decref(call(client, "cache_remove", "{\"of\":\"s3://\"}"));
        return of_cache(client, "used") == 0;
}

/* What is being written has space there, too. */
static void forget(struct bench_daemon *bd)
{
        if (!WITHIN(STORED_MS, is_empty(bd->client)))
                die("the disk cache is not empty");
}

/* The bytes of the only entry. */
static char *stored_file(const struct disk_bench *d)
{
        char *objects = format_text("%s/objects", d->cache), *path = NULL;
        DIR *dir = opendir(objects);
        for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;)
                if (e->d_name[0] != '.')
                        path = format_text("%s/%s/data", objects, e->d_name);
        if (path == NULL)
                die("%s: nothing is stored", objects);
        closedir(dir);
        return path;
}

/* Processor time of the daemon's thread of this name. */
static uint64_t thread_cpu_ns(pid_t pid, const char *name)
{
        char *tasks = format_text("/proc/%d/task", (int)pid);
        uint64_t ns = 0;
        DIR *dir = opendir(tasks);
        for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
                if (e->d_name[0] == '.')
                        continue;
                char *comm = file_read(format_text("%s/%s/comm", tasks, e->d_name), NULL);
                if (strncmp(comm, name, strlen(name)) == 0)
                        ns += strtoull(file_read(format_text("%s/%s/schedstat", tasks, e->d_name), NULL), NULL, 10);
                free(comm);
        }
        if (dir != NULL)
                closedir(dir);
        return ns;
}

/* Loads the object and waits until it is stored. */
static void store(const struct disk_bench *d, struct bench_daemon *bd)
{
        bench_touch(bd, d->model->bytes);
        bench_load_resident(bd, SOURCE, "m");
        if (!WITHIN(STORED_MS, of_cache(bd->client, "entries") == 1))
                die("the object was not stored");
        bench_unload(bd, "m");
}

/* ---- a slow disk ---- */

#define GROUP "streamerd-bench"

static const char *group_of_members; /* NULL: there is none */

static bool write_text(const char *path, const char *text)
{
        int fd = open(path, O_WRONLY);
        bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
        if (fd >= 0)
                close(fd);
        return ok;
}

/* The disk that the folder is on, not a partition of it. */
static char *disk_of(const char *folder)
{
        struct stat st;
        must(stat(folder, &st));
        const char *node = format_text("/sys/dev/block/%u:%u", major(st.st_dev), minor(st.st_dev));
        const char *parent = access(format_text("%s/partition", node), F_OK) == 0 ? "/.." : "";
        const char *dev = format_text("%s%s/dev", node, parent);
        if (access(dev, R_OK) != 0)
                die("%s is on no block device", folder);
        char *text = file_read(dev, NULL);
        text[strcspn(text, "\n")] = '\0';
        return text;
}

/* The daemon writes at most so many bytes a second. */
static void slow_down(const struct disk_bench *d, pid_t pid, uint64_t bytes_per_s)
{
        const char *disk = disk_of(d->cache), *file, *limit;
        if (access("/sys/fs/cgroup/blkio/cgroup.procs", W_OK) == 0) {
                group_of_members = "/sys/fs/cgroup/blkio/" GROUP;
                file = "blkio.throttle.write_bps_device";
                limit = format_text("%s %" PRIu64, disk, bytes_per_s);
        } else {
                group_of_members = "/sys/fs/cgroup/" GROUP;
                file = "io.max";
                limit = format_text("%s wbps=%" PRIu64, disk, bytes_per_s);
                write_text("/sys/fs/cgroup/cgroup.subtree_control", "+io");
        }
        mkdir(group_of_members, 0755);
        if (!write_text(format_text("%s/%s", group_of_members, file), limit) ||
            !write_text(format_text("%s/cgroup.procs", group_of_members), format_text("%d", (int)pid)))
                die("the disk cannot be slowed down: no control group for block I/O (%s/%s)", group_of_members, file);
}

/* After the daemon has ended. */
static void speed_up(void)
{
        if (group_of_members != NULL)
                rmdir(group_of_members);
        group_of_members = NULL;
}

/* GiB/s of one writer of 4 MiB at a time, past the page cache. */
static double writes_of(const struct disk_bench *d, uint64_t bytes)
{
        const char *path = format_text("%s/write", d->b->folder);
        size_t piece = (size_t)4 << 20;
        void *from = aligned_alloc(4096, piece);
        memset(from, 1, piece);
        int fd = must(open(path, O_CREAT | O_WRONLY | O_TRUNC | O_DIRECT, 0600));
        must(posix_fallocate(fd, 0, (off_t)bytes));
        uint64_t begin = clock_ns();
        for (uint64_t done = 0; done < bytes; done += piece)
                if (pwrite(fd, from, piece, (off_t)done) != (ssize_t)piece)
                        die_errno("%s", path);
        must(fsync(fd));
        double seconds = (double)(clock_ns() - begin) / 1e9;
        close(fd);
        unlink(path);
        free(from);
        return (double)bytes / (double)GIB / seconds;
}

/* ---- rows of loads from the store ---- */

static void load_once(const struct disk_bench *d, const char *source, struct bench_daemon *bd, bool sample,
                      struct load_figures *f)
{
        bench_touch(bd, d->model->bytes);
        bench_load(bd, source, d->model, sample, f);
}

/* The object is loaded by both daemons in turn; ends with both running. */
static void compare_loads(struct disk_bench *d, unsigned port, enum row row, uint64_t slow)
{
        double with[ROUNDS_MAX], without[ROUNDS_MAX];
        struct load_figures f;
        const char *pages = d->b->hugetlb ? "hugetlb" : "auto";
        bench_daemon_start(&d->without, d->b, pages, settings(d, port, false));
        bench_daemon_start(&d->with, d->b, pages, settings(d, port, true));
        if (slow > 0)
                slow_down(d, d->with.d.pid, slow);
        for (unsigned i = 0; i < d->b->rounds; i++) {
                load_once(d, SOURCE, &d->without, false, &f);
                without[i] = f.gib_per_s;
                forget(&d->with);
                load_once(d, SOURCE, &d->with, false, &f);
                with[i] = f.gib_per_s;
                report_note("round %u, %s: without a disk cache %.2f GiB/s, with one %.2f; %s", i + 1, row_name(row),
                            without[i], with[i], f.stages);
        }
        double ceiling = median(without, d->b->rounds);
        report_row(row, median(with, d->b->rounds) / ceiling, ceiling);
}

static void row_memory(struct disk_bench *d)
{
        struct load_figures with, without;
        load_once(d, SOURCE, &d->without, true, &without);
        forget(&d->with);
        load_once(d, SOURCE, &d->with, true, &with);
        report_row(ROW_disk_cache_memory, ((double)with.memory - (double)without.memory) / (double)MIB, 0);
}

static void row_cpu(struct disk_bench *d)
{
        double cpu[ROUNDS_MAX], gib = (double)d->model->bytes / (double)GIB;
        for (unsigned i = 0; i < d->b->rounds; i++) {
                forget(&d->with);
                uint64_t before = thread_cpu_ns(d->with.d.pid, "disk-cache");
                store(d, &d->with);
                cpu[i] = (double)(thread_cpu_ns(d->with.d.pid, "disk-cache") - before) / 1e9 / gib;
        }
        report_row(ROW_disk_cache_write_cpu, median(cpu, d->b->rounds), 0);
}

/* ---- rows of loads from the copy ---- */

static void rows_reload(struct disk_bench *d)
{
        double loads[ROUNDS_MAX], fio[ROUNDS_MAX], plain[ROUNDS_MAX];
        struct load_figures f, of_file;
        const char *path = stored_file(d), *linked = format_text("%s/copy.safetensors", d->b->folder);
        must(link(path, linked));
        bench_daemon_start(&d->with, d->b, d->b->hugetlb ? "hugetlb" : "auto", settings(d, d->limited, true));
        report_note("disk ceiling: %s", ceiling_fio_command(d->b, path));
        uint64_t sent = nginx_sent(&d->web);
        for (unsigned i = 0; i < d->b->rounds; i++) {
                fio[i] = ceiling_fio(d->b, path);
                file_uncache(path);
                load_once(d, SOURCE, &d->with, false, &f);
                loads[i] = f.gib_per_s;
                file_uncache(path);
                load_once(d, linked, &d->with, false, &of_file);
                plain[i] = of_file.gib_per_s;
                report_note("round %u, from the copy: fio %.2f, load %.2f GiB/s, as an ordinary file %.2f; %s", i + 1,
                            fio[i], loads[i], plain[i], f.stages);
        }
        must(unlink(linked));
        double ceiling = median(fio, d->b->rounds);
        report_note("from the copy: %.3f of a load of the same file that is no copy, which is %.3f of fio",
                    median(loads, d->b->rounds) / median(plain, d->b->rounds), median(plain, d->b->rounds) / ceiling);
        report_row(ROW_disk_cache_reload_vs_fio, median(loads, d->b->rounds) / ceiling, ceiling);
        report_row(ROW_disk_cache_reload_from_store, (double)(nginx_sent(&d->web) - sent) / (double)d->b->rounds, 0);
        bench_daemon_stop(&d->with);
}

/* ---- the row of a start ---- */

/* As the daemon leaves it, but for the bytes, which a start does not read. */
static void write_entry(const char *objects, unsigned n)
{
        struct disk_record record = {.size = MIB, .header = 4096, .n_sums = 1};
        unsigned char sum[1][DIGEST_SIZE] = {{1}};
        char name[2 * DISK_ID_SIZE + 1];
        size_t size;
        memcpy(record.id, &n, sizeof(n));
        memcpy(record.place, &n, sizeof(n));
        hex_encode(name, record.id, DISK_ID_SIZE);
        record.sums = sum;
        record.shown = format_text("s3://models/many/model-%05u-of-%05u.safetensors", n, ENTRIES);
        record.etag = format_text("\"%032x\"", n);
        record.modified = format_text("%s", "");
        unsigned char *bytes = disk_record_encode(&record, &size);
        must(mkdir(format_text("%s/%s", objects, name), 0700));
        file_write(format_text("%s/%s/entry", objects, name), (char *)bytes, size);
        int fd = must(open(format_text("%s/%s/data", objects, name), O_CREAT | O_WRONLY, 0600));
        must(ftruncate(fd, (off_t)record.size));
        close(fd);
        disk_record_deinit(
                &(struct disk_record){.shown = record.shown, .etag = record.etag, .modified = record.modified});
        free(bytes);
}

static void row_start(const struct disk_bench *d)
{
        double ms[ROUNDS_MAX];
        const char *cache = format_text("%s/many", d->b->folder), *objects = format_text("%s/objects", cache);
        must(mkdir(cache, 0700));
        must(mkdir(objects, 0700));
        file_write(format_text("%s/lock", cache), "", 0);
        for (unsigned n = 0; n < ENTRIES; n++)
                write_entry(objects, n);
        for (unsigned i = 0; i < d->b->rounds; i++) {
                struct daemon daemon;
                streamer_client *client = NULL;
                streamer_connect_opts opts = {.struct_size = sizeof(opts)};
                daemon_init(&daemon, format_text("%s/d-many-%u", d->b->folder, i));
                uint64_t begin = clock_ns();
                daemon_start(&daemon, (const char *const[]){"--device", "host=64MiB", "--root", d->b->folder,
                                                            "--disk-cache", format_text("%s=64GiB", cache), NULL});
                opts.socket = daemon.socket;
                if (streamer_connect(&opts, &client) < 0)
                        die("connect: %s", streamer_last_error(NULL));
                if (!WITHIN(STORED_MS, of_cache(client, "entries") == ENTRIES))
                        die("%u entries were not found", ENTRIES);
                ms[i] = (double)(clock_ns() - begin) / 1e6;
                streamer_close(client);
                daemon_stop(&daemon);
                report_note("round %u: a start with %u entries took %.0f ms", i + 1, ENTRIES, ms[i]);
        }
        report_row(ROW_disk_cache_start_10k, median(ms, d->b->rounds), 0);
        folder_remove(cache);
}

/* ---- all of it ---- */

static void start_stores(struct disk_bench *d, double gib_per_s)
{
        const struct bench *b = d->b;
        d->web = (struct nginx){.http = free_port()};
        d->limited = free_port();
        nginx_start_with(&d->web, format_text("%s/nginx-disk", b->folder),
                         format_text("server { listen 127.0.0.1:%u; location /models/ { alias %s/; } }\n"
                                     "server { listen 127.0.0.1:%u; location /models/ { alias %s/; limit_rate %" PRIu64
                                     "; } }\n",
                                     d->web.http, b->folder, d->limited, b->folder,
                                     (uint64_t)(gib_per_s * (double)GIB / REQUESTS)),
                         d->web.http);
}

void rows_disk(const struct bench *b)
{
        struct disk_bench d = {.b = b, .model = model_new(29), .cache = format_text("%s/cache", b->folder)};
        if (nginx_unavailable() != NULL)
                die("%s", nginx_unavailable());
        must(mkdir(d.cache, 0700));
        row_start(&d);
        model_add_many(d.model, "model.layers.weight", 300, 4 * GIB / b->shrink / 300);
        const char *path = bench_file(b, d.model, "disk");
        file_map_cached(&d.held, path);
        double disk = writes_of(&d, GIB / b->shrink / MIB * MIB);
        start_stores(&d, disk / 2);
        report_note("the disk takes %.2f GiB/s; the store has a limit of half of it", disk);
        compare_loads(&d, d.limited, ROW_disk_cache_load_vs_without, 0);
        row_memory(&d);
        row_cpu(&d);
        bench_daemon_stop(&d.without);
        bench_daemon_stop(&d.with);
        rows_reload(&d);
        /* The store without a limit sends as fast as the daemon takes it. */
        struct load_figures f;
        bench_daemon_start(&d.without, b, b->hugetlb ? "hugetlb" : "auto", settings(&d, d.web.http, false));
        load_once(&d, SOURCE, &d.without, false, &f);
        bench_daemon_stop(&d.without);
        uint64_t half = (uint64_t)(f.gib_per_s / 2 * (double)GIB);
        report_note("the store sends %.2f GiB/s; the disk has a limit of half of it", f.gib_per_s);
        compare_loads(&d, d.web.http, ROW_disk_cache_slow_vs_without, half);
        bench_daemon_stop(&d.without);
        bench_daemon_stop(&d.with);
        speed_up();
        nginx_stop(&d.web);
        file_release(&d.held);
        unlink(path);
        model_free(d.model);
}
