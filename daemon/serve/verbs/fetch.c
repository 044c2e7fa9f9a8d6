/* SPDX-License-Identifier: Apache-2.0
 *
 * fetch: a small file beside the weights of a source, or the list of such files.
 *
 *   list:  opened > replied
 *   file:  opened > (waits for memory) > read > replied, page by page (serve/file_transfer)
 *
 * Workers open and read, in the lane of the source's file system or store; the loop replies. All of it has a time that
 * follows from the settings of http: as long as a server that answers nothing would be tried.
 */
#include "daemon/base/log/log.h"
#include "daemon/serve/access/access.h"
#include "daemon/serve/file_transfer.h"
#include "daemon/serve/verbs/verbs_private.h"
#include "daemon/source/listing.h"
#include "daemon/source/roots/caller.h"

#include <inttypes.h>

#define PAGE 4096

struct fetch {
        struct verb_task task;
        struct caller caller;
        struct source_roots *roots; /* a reference; NULL: the daemon's own */
        char *source;               /* canonical */
        struct listing list;
        struct object object;
        struct transfer *transfer; /* NULL: the file is not opened */
};

static const char *file_of(const struct fetch *fetch)
{
        return verb_task_request(&fetch->task)->u.fetch.file;
}

static void fetch_deinit(struct verb_task *task)
{
        struct fetch *fetch = container_of(task, struct fetch, task);
        transfer_free(fetch->transfer);
        source_roots_free(fetch->roots);
        listing_deinit(&fetch->list);
        object_deinit(&fetch->object);
        free(fetch->source);
}

/* ---- replies ---- */

static void write_files(struct writer *w, const void *data)
{
        const struct listing *list = data;
        writer_array(w, list->n);
        for (size_t i = 0; i < list->n; i++)
                writer_map_of(w, kstr("name", list->v[i].name),
                              kif(list->v[i].bytes != UINT64_MAX, ku64("bytes", list->v[i].bytes)));
}

static void fetch_reply(struct verb_task *task, struct session *session)
{
        struct fetch *fetch = container_of(task, struct fetch, task);
        uint64_t id = verb_task_request(task)->id;
        if (file_of(fetch) == NULL) {
                session_reply(session, id, kcall("files", write_files, &fetch->list));
                return;
        }
        transfer_send_consume(session, id, fetch->transfer, task->deadline_ns);
        fetch->transfer = NULL;
}

/* ---- opening and reading, on a worker ---- */

static void open_source(struct fetch *fetch)
{
        const struct sources sources = sources_with_roots(fetch->task.server->loads->sources, fetch->roots);
        const char *file = file_of(fetch);
        struct error *error = &fetch->task.error;
        if (file == NULL)
                source_list_sidecars(&sources, fetch->source, &fetch->list, error);
        else
                source_open_sidecar(&sources, fetch->source, file, &fetch->object, error);
}

static void read_file(struct fetch *fetch)
{
        const struct object *object = &fetch->object;
        struct error *error = &fetch->task.error;
        uint64_t size = object->version.size;
        uint64_t first = object->ops->first_read(object); /* came with the opening of a remote file */
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
        if (r == 0 && source_is_local(fetch->source))
                object_check_versions(&object, 1, error);
}

static void fetch_run(struct verb_task *task)
{
        struct fetch *fetch = container_of(task, struct fetch, task);
        struct assumed assumed;
        if (fetch->transfer != NULL) {
                read_file(fetch);
        } else if (source_is_local(fetch->source)) {
                if (caller_assume(&fetch->caller, &assumed, &task->error) == 0)
                        open_source(fetch);
                caller_drop(&assumed);
        } else {
                open_source(fetch);
        }
}

/* ---- states, on the loop ---- */

static void fetch_done(struct verb_task *task)
{
        struct fetch *fetch = container_of(task, struct fetch, task);
        uint64_t size = fetch->object.version.size;
        bool was_read = fetch->transfer != NULL;
        if (task->error.code == 0 && size > TRANSFER_FILE_MAX)
                error_set(&task->error, STREAMER_ELIMIT, "%" PRIu64 " bytes: files of up to %u MiB are fetched (%s)",
                          size, (unsigned)(TRANSFER_FILE_MAX / MiB), fetch->object.path);
        const struct session *session = task->deferred.session;
        if (task->error.code == 0 && !was_read && file_of(fetch) != NULL && session != NULL)
                fetch->transfer = transfer_new(session, file_of(fetch), size, &task->error);
        if (!was_read && fetch->transfer != NULL) {
                transfer_await_memory(fetch->transfer, task, fetch->source);
                return;
        }
        if (was_read)
                log_debug("fetch: %s, %" PRIu64 " bytes%s", fetch->object.path, size,
                          task->error.code != 0 ? ": failed" : "");
        verb_task_finish(task);
}

static void fetch_start(struct verb_task *task)
{
        verb_task_set_deadline(task);
        verb_task_submit_source(task, container_of(task, struct fetch, task)->source);
}

static const struct verb_task_ops fetch_ops = {
        .start = fetch_start, .run = fetch_run, .done = fetch_done, .reply = fetch_reply, .deinit = fetch_deinit};

/* ---- the verb ---- */

int verb_fetch(struct session *session, struct request *request, struct error *error)
{
        const struct req_fetch *req = &request->u.fetch;
        if (req->more != 0)
                return transfer_send_next(session, request->id, req->more, error);
        struct fetch *fetch = verb_task_new(sizeof(*fetch), &fetch_ops, session, request, error);
        if (fetch == NULL)
                return error->code;
        int r = req->file != NULL ? sidecar_check_name(req->file, error) : 0;
        if (r == 0)
                r = access_check_fetch(session->server, session->conn, req->source, req->file, &fetch->source,
                                       &fetch->roots, error);
        fetch->caller = session->conn->caller;
        return verb_task_begin(&fetch->task, r, verb_task_fetch_kind(fetch->source), error);
}
