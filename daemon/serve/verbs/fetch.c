/* SPDX-License-Identifier: Apache-2.0
 *
 * fetch: a small file beside the weights of a source, or the list of such files.
 *
 *   list:  opened > replied
 *   file:  opened > (waits for memory) > read > replied
 *
 * Workers open and read, in the lane of the source's file system or store; the loop replies. A file is read into a
 * sealed memfd, which is the client's from the reply on. Files that are being read share FETCH_BYTES_MAX, those of one
 * client FETCH_CLIENT_MAX; the others wait in the order in which they were opened.
 */
#include "daemon/base/log/log.h"
#include "daemon/base/text/secret.h"
#include "daemon/io/http/http.h"
#include "daemon/serve/access/access.h"
#include "daemon/serve/verbs/verbs_private.h"
#include "daemon/source/roots/caller.h"

#include <inttypes.h>
#include <sys/mman.h>

#define FETCH_FILE_MAX (64 * MiB)
#define FETCH_CLIENT_MAX (64 * MiB)
#define FETCH_BYTES_MAX (256 * MiB)

struct fetch {
        struct work work;
        struct deferred *deferred;
        struct server *server;
        struct list waiting; /* in server->fetches */
        struct caller caller;
        struct source_roots *roots; /* a reference; NULL: the daemon's own */
        char *source;               /* canonical */
        uint64_t lane;
        struct sidecar_list list;
        struct object object;
        int fd; /* of the contents; -1 */
        struct error error;
};

static const char *file_of(const struct fetch *fetch)
{
        return fetch->deferred->request.u.fetch.file;
}

static void fetch_free(struct fetch *fetch)
{
        list_remove(&fetch->waiting);
        if (fetch->deferred != NULL)
                deferred_free(fetch->deferred);
        source_roots_free(fetch->roots);
        sidecar_list_deinit(&fetch->list);
        object_deinit(&fetch->object);
        close_p(&fetch->fd);
        free(fetch->source);
        free(fetch);
}

/* ---- replies ---- */

/* Replies, unless the client has disconnected, and frees it. */
static void fetch_end(struct fetch *fetch)
{
        struct session *session = fetch->deferred->session;
        uint64_t id = fetch->deferred->request.id;
        struct writer w;
        if (session == NULL) {
                fetch_free(fetch);
                return;
        }
        if (fetch->error.code == 0 && file_of(fetch) != NULL)
                session_check_fds(session, 1, "fetch", &fetch->error);
        if (fetch->error.code != 0) {
                session_error(session, id, &fetch->error);
        } else if (file_of(fetch) == NULL) {
                session_reply(&w, id, 1);
                writer_karray(&w, "files", fetch->list.n);
                for (size_t i = 0; i < fetch->list.n; i++) {
                        const struct sidecar *file = &fetch->list.v[i];
                        bool known = file->bytes != UINT64_MAX;
                        writer_map(&w, 1u + known);
                        writer_kstr(&w, "name", file->name);
                        if (known)
                                writer_ku64(&w, "bytes", file->bytes);
                }
                session_send(session, &w);
        } else {
                session_reply(&w, id, 2);
                writer_kstr(&w, "file", file_of(fetch));
                writer_kmap(&w, "contents", 2);
                writer_ku64(&w, "fd", 0);
                writer_ku64(&w, "size", fetch->object.version.size);
                session_send_fds(session, &w, &fetch->fd, 1);
        }
        fetch_free(fetch);
}

/* ---- reading ---- */

static void read_run(struct work *work)
{
        struct fetch *fetch = container_of(work, struct fetch, work);
        const struct object *object = &fetch->object;
        uint64_t size = object->version.size;
        uint64_t first = object->ops->first_read(object); /* came with the opening of a remote file */
        struct table table;
        if (host_table_new(&table, "streamerd-file", size > 0 ? size : 1, &fetch->error) < 0)
                return;
        fetch->fd = table.fd;
        if (first > size)
                first = size;
        unsigned char *to = table.map;
        const struct object_range ranges[] = {{object, 0, first, to}, {object, first, size - first, to + first}};
        http_reuse_begin(&fetch->deferred->given_up);
        int r = object_read_ranges(ranges, first < size ? 2 : 1, &fetch->error);
        if (r == 0 && source_is_local(fetch->source))
                object_check_versions(&object, 1, &fetch->error);
        http_reuse_end();
        munmap(table.map, table.size);
}

static void start_waiting(struct server *server);

static void read_done(struct work *work)
{
        struct fetch *fetch = container_of(work, struct fetch, work);
        struct server *server = fetch->server;
        uint64_t size = fetch->object.version.size;
        server->fetch_bytes -= size;
        if (fetch->deferred->session != NULL)
                fetch->deferred->session->fetch_bytes -= size;
        log_debug("fetch: %s, %" PRIu64 " bytes%s", fetch->object.path, size, fetch->error.code != 0 ? ": failed" : "");
        fetch_end(fetch);
        start_waiting(server);
}

/* ---- waiting for memory ---- */

static void start_waiting(struct server *server)
{
        list_each_item_safe (struct fetch, fetch, &server->fetches, waiting) {
                struct session *session = fetch->deferred->session;
                uint64_t size = fetch->object.version.size;
                if (session == NULL) {
                        fetch_free(fetch);
                } else if (server->fetch_bytes + size > FETCH_BYTES_MAX) {
                        return;
                } else if (session->fetch_bytes + size <= FETCH_CLIENT_MAX) {
                        server->fetch_bytes += size;
                        session->fetch_bytes += size;
                        list_remove(&fetch->waiting);
                        work_submit(server->pool, fetch->lane, &fetch->work, read_run, read_done);
                }
        }
}

/* ---- opening ---- */

static int open_source(struct fetch *fetch)
{
        struct sources sources = *fetch->server->loads->sources;
        const char *file = file_of(fetch);
        if (fetch->roots != NULL)
                sources.roots = fetch->roots;
        return file == NULL ? source_list_sidecars(&sources, fetch->source, &fetch->list, &fetch->error)
                            : source_open_sidecar(&sources, fetch->source, file, &fetch->object, &fetch->error);
}

static void open_run(struct work *work)
{
        struct fetch *fetch = container_of(work, struct fetch, work);
        if (!source_is_local(fetch->source)) {
                http_reuse_begin(&fetch->deferred->given_up);
                open_source(fetch);
                http_reuse_end();
                return;
        }
        struct assumed assumed;
        if (caller_assume(&fetch->caller, &assumed, &fetch->error) == 0)
                open_source(fetch);
        caller_drop(&assumed);
}

static void open_done(struct work *work)
{
        struct fetch *fetch = container_of(work, struct fetch, work);
        uint64_t size = fetch->object.version.size;
        if (fetch->error.code == 0 && size > FETCH_FILE_MAX)
                error_set(&fetch->error, STREAMER_ELIMIT, "%" PRIu64 " bytes: files of up to %u MiB are fetched (%s)",
                          size, (unsigned)(FETCH_FILE_MAX / MiB), fetch->object.path);
        if (fetch->error.code != 0 || file_of(fetch) == NULL || fetch->deferred->session == NULL) {
                fetch_end(fetch);
                return;
        }
        list_append(&fetch->server->fetches, &fetch->waiting);
        start_waiting(fetch->server);
}

/* Of a local source the file system is found in a worker, too. */
static void lane_run(struct work *work)
{
        struct fetch *fetch = container_of(work, struct fetch, work);
        fetch->lane = source_lane(fetch->source);
}

static void lane_done(struct work *work)
{
        struct fetch *fetch = container_of(work, struct fetch, work);
        if (fetch->deferred->session == NULL)
                fetch_free(fetch);
        else
                work_submit(fetch->server->pool, fetch->lane, &fetch->work, open_run, open_done);
}

/* ---- the verb ---- */

void verb_fetch(struct session *session, struct request *request)
{
        const struct req_fetch *req = &request->u.fetch;
        struct source_roots *roots = NULL;
        struct fetch *fetch = NULL;
        char *source = NULL;
        struct error error = {0};
        int r = req->file != NULL ? sidecar_check_name(req->file, &error) : 0;
        if (r == 0)
                r = access_check_fetch(session->server, session->conn, req->source, req->file, &source, &roots, &error);
        if (r == 0 && (fetch = calloc(1, sizeof(*fetch))) == NULL)
                r = error_set(&error, STREAMER_ENOMEM, "no memory");
        if (r < 0) {
                free(source);
                session_error(session, request->id, &error);
                return;
        }
        list_init(&fetch->waiting);
        fetch->server = session->server;
        fetch->caller = session->conn->caller;
        fetch->roots = source_roots_ref(roots);
        fetch->source = source;
        fetch->fd = -1;
        fetch->deferred = deferred_new(session, request);
        if (fetch->deferred == NULL) {
                fetch_free(fetch);
                return;
        }
        fetch->deferred->has_worker = true;
        work_submit(session->server->pool, WORK_LANE_INSPECT, &fetch->work, lane_run, lane_done);
}
