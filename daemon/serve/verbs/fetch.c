/* SPDX-License-Identifier: Apache-2.0
 *
 * fetch: a small file beside the weights of a source, or the list of such files.
 *
 *   list:  opened > replied
 *   file:  opened > (waits for memory) > read > replied, page by page
 *
 * Workers open and read, in the lane of the source's file system or store; the loop replies. All of it has a time that
 * follows from the settings of http: as long as a server that answers nothing would be tried.
 *
 * A file of one page is sent at once. A larger one waits until the bytes of its user and of all users allow it
 * (shares.h); it uses them from its reading until its last page is sent, its connection is closed, or its time is over.
 */
#include "daemon/base/log/log.h"
#include "daemon/serve/access/shares.h"
#include "daemon/serve/verb_task.h"
#include "daemon/serve/verbs/verbs_private.h"
#include "daemon/source/listing.h"
#include "daemon/source/roots/caller.h"

#include <inttypes.h>

#define PAGE 4096
#define TRANSFER_PAGE (512 * KiB)
#define TRANSFER_FILE_MAX (64 * MiB)

/* A file, from its reading to its last page. */
struct transfer {
        struct list in_session; /* while it is sent */
        struct server *server;
        struct quota_charge charge; /* of the user; none for one page */
        uint64_t id, size, sent, until_ns;
        char *data;
        char file[PROTO_FILE_MAX + 1];
};

struct fetch {
        struct verb_task task;
        struct listing list;
        struct object object;
        struct transfer *transfer; /* NULL: the file is not opened, or waits for memory */
};

/* ---- memory ---- */

/* What files wait for; models of this name have no effect but a recheck. */
static const char memory_of_files[] = "memory of files";

/* A transfer of the file that is open. 0 with fetch->transfer; DEFERRED_WAITS: it would use too much; STREAMER_ENOMEM.
 */
static int transfer_new(struct fetch *fetch, const struct session *session, struct error *error)
{
        struct server *server = session->server;
        uint64_t size = fetch->object.version.size, counted = size > TRANSFER_PAGE ? size : 0;
        uid_t uid = session->conn->caller.uid;
        if (counted > 0 && !share_allows_fetch(&server->users, server->limits, uid, server->file_bytes, counted))
                return DEFERRED_WAITS;
        struct transfer *t = calloc(1, sizeof(*t));
        if (t == NULL || quota_hold(&server->users, uid, &t->charge, QUOTA_FETCHED, counted) < 0) {
                free(t);
                return error_no_memory(error);
        }
        list_init(&t->in_session);
        t->server = server;
        t->size = size;
        snprintf(t->file, sizeof(t->file), "%s", fetch->task.deferred.request.u.fetch.file);
        server->file_bytes += counted;
        fetch->transfer = t;
        return 0;
}

static void transfer_free(struct transfer *t)
{
        if (t == NULL)
                return;
        list_remove(&t->in_session);
        t->server->file_bytes -= t->charge.amount;
        if (t->charge.amount > 0)
                deferred_recheck(t->server, memory_of_files);
        quota_discharge(&t->charge);
        free(t->data);
        free(t);
}

/* ---- pages ---- */

/* Replies with the next page of a transfer, and frees it after its last. STREAMER_ENOENT. */
static int send_page(struct session *session, uint64_t id, uint64_t number, struct error *error)
{
        list_each_item (struct transfer, t, &session->transfers, in_session) {
                if (t->id != number)
                        continue;
                uint64_t left = t->size - t->sent, n = left < TRANSFER_PAGE ? left : TRANSFER_PAGE;
                session_reply(session, id, kstr("file", t->file), ku64("size", t->size),
                              kbin("data", t->data + t->sent, n), kif(n < left, ku64("more", t->id)));
                t->sent += n;
                if (n == left)
                        transfer_free(t);
                return 0;
        }
        return error_set(error, STREAMER_ENOENT, "fetch: this connection has no transfer %" PRIu64 ": its time is over",
                         number);
}

void fetch_expire_transfers(struct session *session, uint64_t now)
{
        list_each_item_safe (struct transfer, t, &session->transfers, in_session)
                if (now >= t->until_ns)
                        transfer_free(t);
}

/* ---- the task ---- */

static const char *file_of(const struct fetch *fetch)
{
        return fetch->task.deferred.request.u.fetch.file;
}

static void fetch_deinit(struct verb_task *task)
{
        struct fetch *fetch = container_of(task, struct fetch, task);
        transfer_free(fetch->transfer);
        listing_deinit(&fetch->list);
        object_deinit(&fetch->object);
}

static void write_file(struct writer *w, const void *data, size_t i)
{
        const struct listing *list = data;
        writer_map_of(w, kstr("name", list->v[i].name),
                      kif(list->v[i].bytes != UINT64_MAX, ku64("bytes", list->v[i].bytes)));
}

static void fetch_reply(struct verb_task *task, struct session *session)
{
        struct fetch *fetch = container_of(task, struct fetch, task);
        uint64_t id = task->deferred.request.id;
        if (file_of(fetch) == NULL) {
                session_reply(session, id, karray("files", write_file, &fetch->list, fetch->list.n));
                return;
        }
        struct transfer *t = fetch->transfer;
        fetch->transfer = NULL;
        t->id = ++session->server->last_transfer;
        t->until_ns = task->deadline_ns;
        list_append(&session->transfers, &t->in_session);
        send_page(session, id, t->id, &task->error);
}

/* On a worker. */
static void read_file(struct fetch *fetch)
{
        const struct object *object = &fetch->object;
        struct error *error = &fetch->task.error;
        uint64_t size = object->version.size;
        uint64_t first = object->first_read; /* came with the opening of a remote file */
        /* O_DIRECT needs whole pages. */
        fetch->transfer->data = aligned_alloc(PAGE, (size / PAGE + 1) * PAGE);
        if (fetch->transfer->data == NULL) {
                error_set(error, STREAMER_ENOMEM, "no memory for %" PRIu64 " bytes (%s)", size, object->path);
                return;
        }
        if (first > size)
                first = size;
        unsigned char *to = (unsigned char *)fetch->transfer->data;
        const struct object_range ranges[] = {{object, 0, first, to}, {object, first, size - first, to + first}};
        int r = object_read_ranges(ranges, first < size ? 2 : 1, error);
        if (r == 0 && source_is_local(fetch->task.source))
                object_check_versions(&object, 1, error);
}

static void fetch_run(struct verb_task *task)
{
        struct fetch *fetch = container_of(task, struct fetch, task);
        const struct sources sources = sources_for(task->server->loads->sources, task->roots, &task->caller);
        if (fetch->transfer != NULL)
                read_file(fetch);
        else if (file_of(fetch) == NULL)
                source_list_sidecars(&sources, task->source, task->deferred.request.u.fetch.weights, &fetch->list,
                                     &task->error);
        else
                source_open_sidecar(&sources, task->source, file_of(fetch), &fetch->object, &task->error);
}

/* Reads the file once there is memory for it. */
static int try_read(struct session *session, const struct request *request, const struct deferred *deferred,
                    struct error *error)
{
        struct fetch *fetch = container_of(deferred, struct fetch, task.deferred);
        if (transfer_new(fetch, session, &fetch->task.error) == DEFERRED_WAITS)
                return DEFERRED_WAITS;
        list_remove(&fetch->task.deferred.in_server);
        if (fetch->transfer != NULL)
                verb_task_submit_source(&fetch->task, fetch->task.source);
        else
                verb_task_finish(&fetch->task);
        return DEFERRED_WAITS; /* for the worker, or it is freed */
}

static void fetch_done(struct verb_task *task)
{
        struct fetch *fetch = container_of(task, struct fetch, task);
        uint64_t size = fetch->object.version.size;
        struct session *session = task->deferred.session;
        if (task->error.code == 0 && size > TRANSFER_FILE_MAX)
                error_set(&task->error, STREAMER_ELIMIT, "%" PRIu64 " bytes: files of up to %u MiB are fetched (%s)",
                          size, (unsigned)(TRANSFER_FILE_MAX / MiB), fetch->object.path);
        if (fetch->transfer != NULL)
                log_debug("fetch: %s, %" PRIu64 " bytes%s", fetch->object.path, size,
                          task->error.code != 0 ? ": failed" : "");
        if (task->error.code != 0 || fetch->transfer != NULL || file_of(fetch) == NULL || session == NULL) {
                verb_task_finish(task);
                return;
        }
        deferred_await_change(&task->deferred, memory_of_files, try_read);
        try_read(session, &task->deferred.request, &task->deferred, NULL);
}

static const struct verb_task_ops fetch_ops = {
        .run = fetch_run, .done = fetch_done, .reply = fetch_reply, .deinit = fetch_deinit};

int verb_fetch(struct session *session, struct request *request, struct error *error)
{
        const struct req_fetch *req = &request->u.fetch;
        if (req->more != 0)
                return send_page(session, request->id, req->more, error);
        struct fetch *fetch = verb_task_new(sizeof(*fetch), &fetch_ops, session, request, error);
        if (fetch == NULL)
                return error->code;
        int r = req->file != NULL ? sidecar_check_name(req->file, error) : 0;
        return verb_task_begin_source(&fetch->task, r, req->source, req->file, error);
}
