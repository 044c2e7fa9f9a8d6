/* SPDX-License-Identifier: Apache-2.0
 *
 * cache, cache_remove and cache_verify: the entries of the disk cache. Workers do it, in the lane of its file system.
 * What a request is about is an id or the beginning of one, or the beginning of the objects' names; without it all.
 */
#include "daemon/base/text/secret.h"
#include "daemon/io/disk/disk_verify.h"
#include "daemon/serve/reply/reply.h"
#include "daemon/serve/verb_task.h"
#include "daemon/serve/verbs/verbs_private.h"

#include <inttypes.h>

#define PAGE_ROWS 1000u
#define PAGE_BYTES (512 * KiB)

struct cache_task {
        struct verb_task task;
        struct disk_row *rows; /* what the request is about, by id */
        size_t n, next;
        bool more; /* rows follow on another page */
        uint64_t bytes;
        size_t done, n_damaged;
        struct items damaged;
};

static struct disk_cache *cache_of(const struct verb_task *task)
{
        return task->server->loads->sources->disk;
}

static const char *subject_of(const struct request *request)
{
        return request->verb == VERB_cache          ? request->u.cache.of
               : request->verb == VERB_cache_remove ? request->u.cache_remove.of
                                                    : request->u.cache_verify.of;
}

static void cache_start(struct verb_task *task)
{
        verb_task_submit(task, cache_of(task)->lane);
}

/* Of a list a page, else all. */
static void find_rows(struct cache_task *c)
{
        const struct request *request = &c->task.deferred.request;
        const char *of = subject_of(request);
        bool lists = request->verb == VERB_cache;
        int r = disk_cache_rows(cache_of(&c->task), of, lists ? request->u.cache.after : NULL,
                                lists ? PAGE_ROWS : SIZE_MAX, &c->rows, &c->n, &c->more);
        if (r < 0)
                error_no_memory(&c->task.error);
        else if (c->n == 0 && of != NULL)
                error_set(&c->task.error, STREAMER_ENOENT, "no entry of the disk cache is '%s', or begins so", of);
}

static void list_run(struct verb_task *task)
{
        find_rows(container_of(task, struct cache_task, task));
}

static void remove_run(struct verb_task *task)
{
        struct cache_task *c = container_of(task, struct cache_task, task);
        find_rows(c);
        for (; task->error.code == 0 && c->next < c->n; c->next++)
                if (disk_cache_remove(cache_of(task), c->rows[c->next].id)) {
                        c->bytes += c->rows[c->next].bytes;
                        c->done++;
                }
}

/* One entry in each run. */
static void verify_run_task(struct verb_task *task)
{
        struct cache_task *c = container_of(task, struct cache_task, task);
        struct error error = {0};
        if (c->rows == NULL)
                find_rows(c);
        if (task->error.code != 0 || c->next == c->n)
                return;
        const struct disk_row *row = &c->rows[c->next++];
        int r = disk_verify(cache_of(task), row->id, &task->given_up, &c->bytes, &error);
        c->done += r == 0;
        if (r == STREAMER_EFAILED) {
                items_add(&c->damaged, kstr("name", row->shown), kstr("text", error.text));
                c->n_damaged++;
        } else if (r < 0 && r != STREAMER_ENOENT) {
                task->error = error;
        }
}

static void verify_done_task(struct verb_task *task)
{
        struct cache_task *c = container_of(task, struct cache_task, task);
        if (task->error.code == 0 && task->deferred.session != NULL && c->next < c->n)
                verb_task_submit(task, cache_of(task)->lane);
        else
                verb_task_finish(task);
}

static void list_reply(struct verb_task *task, struct session *session)
{
        struct cache_task *c = container_of(task, struct cache_task, task);
        const struct disk_folder *folder = &cache_of(task)->folder;
        char id[DISK_NAME_SIZE] = "";
        cleanup_with(items_deinit) struct items rows;
        items_init(&rows);
        size_t i = 0;
        for (; i < c->n && rows.w.buf.size < PAGE_BYTES; i++) {
                const struct disk_row *row = &c->rows[i];
                cleanup_free char *path = disk_folder_data_path(folder, row->id);
                hex_encode(id, row->id, DISK_ID_SIZE);
                items_add(&rows, kstr("id", id), kstr("name", row->shown), kstr("version", row->version),
                          ku64("bytes", row->size), ku64("used_ns", row->used_s * SECOND),
                          ku64("stored_ns", row->stored_s * SECOND), kbool("pinned", row->pinned),
                          kbool("in_use", row->in_use), kstr("path", path ?: ""));
        }
        bool more = c->more || i < c->n;
        session_reply(session, task->deferred.request.id, kitems("entries", &rows), kif(more, kstr("next", id)));
}

static void remove_reply(struct verb_task *task, struct session *session)
{
        const struct cache_task *c = container_of(task, struct cache_task, task);
        session_reply(session, task->deferred.request.id, ku64("removed", c->done), ku64("bytes", c->bytes));
}

static void verify_reply_task(struct verb_task *task, struct session *session)
{
        struct cache_task *c = container_of(task, struct cache_task, task);
        session_reply(session, task->deferred.request.id, ku64("verified", c->done), ku64("bytes", c->bytes),
                      kitems("damaged", &c->damaged));
}

static void cache_deinit(struct verb_task *task)
{
        struct cache_task *c = container_of(task, struct cache_task, task);
        disk_rows_free(c->rows, c->n);
        items_deinit(&c->damaged);
}

static int begin(const struct verb_task_ops *ops, struct session *session, struct request *request, struct error *error)
{
        if (session->server->loads->sources->disk == NULL)
                return error_set(error, STREAMER_EUNSUPPORTED, "no disk cache is configured (disk_cache)");
        const char *of = subject_of(request);
        if (of != NULL && of[0] == '\0')
                return error_set(error, STREAMER_EINVAL, "cache: an empty name names no entry");
        struct cache_task *c = verb_task_new(sizeof(*c), ops, session, request, error);
        if (c == NULL)
                return error->code;
        items_init(&c->damaged);
        return verb_task_begin(&c->task, 0, QUOTA_VERIFY, error);
}

int verb_cache(struct session *session, struct request *request, struct error *error)
{
        static const struct verb_task_ops ops = {
                .start = cache_start, .run = list_run, .reply = list_reply, .deinit = cache_deinit};
        return begin(&ops, session, request, error);
}

int verb_cache_remove(struct session *session, struct request *request, struct error *error)
{
        static const struct verb_task_ops ops = {
                .start = cache_start, .run = remove_run, .reply = remove_reply, .deinit = cache_deinit};
        return begin(&ops, session, request, error);
}

int verb_cache_verify(struct session *session, struct request *request, struct error *error)
{
        static const struct verb_task_ops ops = {.start = cache_start,
                                                 .run = verify_run_task,
                                                 .done = verify_done_task,
                                                 .reply = verify_reply_task,
                                                 .deinit = cache_deinit};
        return begin(&ops, session, request, error);
}
