/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the tests of the disk cache: a store with S3's interface that counts what is asked of it, and a daemon
 * with a cache. A bucket is a folder; the store can be taken down.
 */
#pragma once

#include "tests/lib/endpoint.h"
#include "tests/lib/fixture.h"
#include "tests/lib/streamerctl.h"
#include "tests/lib/suite.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>

static struct endpoint store;
static _Atomic unsigned store_lists, store_gets, store_busy;
static _Atomic uint64_t store_bytes;    /* of objects, that were sent */
static _Atomic int store_status;        /* of every answer; 0: the store serves */
static _Atomic int store_list_status;   /* of lists alone; likewise */
static _Atomic int store_object_status; /* of objects whose URL has the next; likewise */
static const char *_Atomic store_object = "";
static _Atomic bool store_has_no_versions; /* no ETag, and objects of just now */

static struct daemon disk_daemon;

/* ---- the store ---- */

/* Each test has a store of its own. */
#define bucket(format, ...) suite_path("bucket-%d" format, (int)getpid(), ##__VA_ARGS__)

/* Of a sample: it is computed for each request. */
static inline const char *etag_of(const char *data, size_t size)
{
        uint64_t sum = 1469598103934665603u + size;
        for (size_t i = 0; i<size; i += size> 65536 ? 1021 : 1)
                sum = (sum ^ (unsigned char)data[i]) * 1099511628211u;
        return format_text("%016lx", (unsigned long)sum);
}

static inline char *list_page(const char *prefix)
{
        const char *slash = strrchr(prefix, '/');
        const char *folder = bucket("/%.*s", slash ? (int)(slash - prefix) : 0, prefix);
        char *text = format_text("<ListBucketResult><IsTruncated>false</IsTruncated>");
        DIR *dir = opendir(folder);
        for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
                size_t size;
                if (e->d_name[0] == '.')
                        continue;
                char *data = file_read(format_text("%s/%s", folder, e->d_name), &size);
                text = format_text("%s<Contents><Key>%s%s</Key><Size>%zu</Size><ETag>&quot;%s&quot;</ETag>"
                                   "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>",
                                   text, prefix, e->d_name, size, etag_of(data, size));
                free(data);
        }
        if (dir)
                closedir(dir);
        return strdup(format_text("%s</ListBucketResult>", text));
}

static inline void send_object(const struct endpoint_request *request, struct endpoint_reply *reply)
{
        int fd = open(bucket("%s", request->path + strlen("/b")), O_RDONLY | O_CLOEXEC);
        struct stat st;
        if (fd < 0) {
                reply->status = 404;
                return;
        }
        must(fstat(fd, &st));
        size_t size = (size_t)st.st_size;
        char *data = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0); /* a large one is asked for in many ranges */
        ck_assert_ptr_ne(data, MAP_FAILED);
        close(fd);
        if (!store_has_no_versions)
                reply->headers = format_text("ETag: \"%s\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n",
                                             etag_of(data, size));
        endpoint_range(request, reply, data, size);
        store_gets++;
        store_bytes += reply->size;
        must(munmap(data, size));
}

static inline void answer_store(struct endpoint *e, const struct endpoint_request *request,
                                struct endpoint_reply *reply)
{
        const char *prefix = strstr(request->path, "prefix=");
        store_busy++;
        bool lists = strncmp(request->path, "/b/?", 4) == 0;
        int status = lists ? store_list_status : strstr(request->path, store_object) ? store_object_status : 0;
        if (store_status != 0 || status != 0) {
                reply->status = store_status != 0 ? store_status : status;
        } else if (lists) {
                store_lists++;
                char *decoded = format_text("%.*s", (int)strcspn(prefix + 7, "&"), prefix + 7);
                for (char *at; (at = strstr(decoded, "%2F")) != NULL;) {
                        *at = '/';
                        memmove(at + 1, at + 3, strlen(at + 3) + 1);
                }
                reply->body = list_page(decoded);
        } else {
                send_object(request, reply);
        }
        store_busy--;
}

static inline void begin_store(void)
{
        must(mkdir(bucket(""), 0755));
        store.answer = answer_store;
        endpoint_start(&store);
        setenv("AWS_ENDPOINT_URL_S3", store.url, 1);
        setenv("RUNAI_STREAMER_S3_UNSIGNED", "1", 1);
}

/* What the store is asked for from now on: requests that an earlier load has given up may still be answered. */
static inline void count_anew(void)
{
        AWAIT(store_busy == 0);
        store_lists = store_gets = 0;
        store_bytes = 0;
}

static inline void put(const struct model *m, const char *key)
{
        char *path = bucket("/%s", key);
        char *slash = strrchr(path, '/');
        *slash = '\0';
        mkdir(path, 0755);
        *slash = '/';
        char *new = format_text("%s.new", path); /* another file: the old one may be being sent */
        model_write(m, new);
        must(rename(new, path));
}

/* It has this model as one/model.safetensors, and in three files as many/. */
static inline void begin_store_with(const struct model *m)
{
        begin_store();
        put(m, "one/model.safetensors");
        must(mkdir(bucket("/many"), 0755));
        model_write_sharded(m, bucket("/many"), 3, false);
}

/* ---- the daemon ---- */

static inline const char *cache_path(void)
{
        return suite_path("cache-%d", (int)getpid());
}

/* The default of min_free would depend on how full the machine's disk is. */
#define DISK_DEFAULTS "http: {backoff: 5ms, tries: 2, patience: 0s}\ndisk_cache: {min_free: 1}\n"

static inline void start_with(const char *cache, const char *config)
{
        DAEMON_START(&disk_daemon, suite_path("daemon-%d", (int)getpid()), "--device", "host=256MiB", "--root", "/tmp",
                     "--root", suite_folder(), "--block-size", "1MiB", "--log-level", "debug", "--disk-cache", cache,
                     "--config",
                     suite_file(format_text("config-%d.yaml", (int)getpid()), config ? config : DISK_DEFAULTS));
        client = client_open(&disk_daemon);
}

static inline void start(void)
{
        start_with(format_text("%s=64MiB", cache_path()), NULL);
}

static inline void stop(void)
{
        streamer_close(client);
        client = NULL;
        ck_assert_int_eq(daemon_stop(&disk_daemon), 0);
}

static inline void restart(void)
{
        stop();
        start();
}

/* ---- file systems ---- */

/* A reason why the test's process cannot have mounts of its own; NULL: it can. */
static inline const char *mounts_unavailable(void)
{
        pid_t pid = must(fork());
        if (pid == 0)
                _exit(unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0);
        return child_wait(pid) ? "no mount namespace here" : NULL;
}

static inline void begin_mounts(void)
{
        must(unshare(CLONE_NEWNS));
        must(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
}

/* ---- what is stored ---- */

static inline uint64_t disk_number(const char *key)
{
        json_t *status = client_call(client, "status", "{}");
        uint64_t n = json_number(json_object_get(status, "disk_cache"), key);
        json_decref(status);
        return n;
}

static inline void await_entries(uint64_t n)
{
        AWAIT(disk_number("entries") == n);
}

static inline const char *from_of(const char *name)
{
        return json_text(client_show(client, name), "from");
}

/* Loads it, compares it and says where it came from; it is unloaded. */
static inline const char *load_from(const char *source, const struct model *m)
{
        client_load(client, source, "m");
        client_equals(client, "m", m);
        const char *from = format_text("%s", from_of("m"));
        client_unload(client, "m");
        client_wait_used(client, 0);
        return from;
}

/* Loads it and waits until n entries are stored. */
static inline void store_behind(const char *source, const struct model *m, uint64_t n)
{
        client_load(client, source, "m");
        await_entries(n);
        client_equals(client, "m", m);
        client_unload(client, "m");
        client_wait_used(client, 0);
}

/* Changes these bits of one byte; `at` < 0: from the end. */
static inline void flip_bits(const char *path, long at, unsigned char bits)
{
        unsigned char byte;
        int fd = must(open(path, O_RDWR));
        off_t offset = at < 0 ? (off_t)file_size(path) + at : at;
        ck_assert_int_eq(pread(fd, &byte, 1, offset), 1);
        byte ^= bits;
        ck_assert_int_eq(pwrite(fd, &byte, 1, offset), 1);
        close(fd);
}

/* Calls use() with the path of each file of this name in the cache: "data" or "entry". Returns how many there are. */
static inline unsigned each_stored(const char *file, void (*use)(const char *path))
{
        unsigned n = 0;
        DIR *dir = opendir(format_text("%s/objects", cache_path()));
        for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
                const char *path = format_text("%s/objects/%s/%s", cache_path(), e->d_name, file);
                if (e->d_name[0] == '.' || access(path, F_OK) != 0)
                        continue;
                if (use)
                        use(path);
                n++;
        }
        if (dir)
                closedir(dir);
        return n;
}

/* There are n entries, which are whole, and nothing else. */
static inline void check_entries(uint64_t n)
{
        unsigned folders = 0;
        DIR *dir = opendir(format_text("%s/objects", cache_path()));
        for (struct dirent *e; (e = readdir(dir)) != NULL;)
                folders += e->d_name[0] != '.';
        closedir(dir);
        ck_assert_uint_eq(disk_number("entries"), n);
        ck_assert_uint_eq(folders, n);
        ck_assert_uint_eq(each_stored("entry", NULL), n);
        ck_assert_uint_eq(each_stored("data", NULL), n);
}
