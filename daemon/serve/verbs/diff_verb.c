/* SPDX-License-Identifier: Apache-2.0
 *
 * diff: what a load of a source would change in a model that is resident.
 *
 * A worker opens the source and reads its headers, and compares them with the model's manifest and with the files that
 * it was loaded from. Tensors are not read: one of the same dtype and shape, in a file that has changed, may differ.
 */
#include "daemon/load/content/resolve.h"
#include "daemon/serve/access/shares.h"
#include "daemon/serve/reply/reply.h"
#include "daemon/serve/verb_task.h"
#include "daemon/serve/verbs/verbs_private.h"

#include <inttypes.h>
#include <string.h>

#define ROWS_MAX 1000
#define NAMES_MAX (UINT64_C(512) * 1024) /* bytes of the rows' names: the reply is one frame */
#define LAYOUT_TEXT 120

enum difference { ADDED, REMOVED, CHANGED };
static const char *const changes[] = {[ADDED] = "added", [REMOVED] = "removed", [CHANGED] = "changed"};

struct diff {
        struct verb_task task;
        struct generation *generation; /* a reference */
        struct source_files *before;   /* a reference; NULL: not known */
        struct keyring *keyring;       /* a reference */
        struct resolve_budget budget;  /* of the source's headers */
        uint64_t files_same, tensors[CHANGED + 1], may_differ, same;
        struct items files, changes; /* of the reply */
        size_t names;                /* of both, in bytes */
        bool truncated;
};

static void diff_deinit(struct verb_task *task)
{
        struct diff *diff = container_of(task, struct diff, task);
        items_deinit(&diff->files);
        items_deinit(&diff->changes);
        if (diff->generation != NULL)
                generation_put(diff->generation);
        source_files_free(diff->before);
        keyring_free(diff->keyring);
        quota_discharge(&diff->budget.charge);
}

/* ---- rows, on a worker ---- */

/* For a row with this name; false: the reply is full. */
static bool has_space(struct diff *diff, const struct items *rows, const char *name)
{
        size_t len = strlen(name);
        bool full = rows->n == ROWS_MAX || diff->names + len > NAMES_MAX;
        diff->truncated = diff->truncated || full;
        diff->names += full ? 0 : len;
        return !full;
}

/* NULL `before`: it was added; NULL `after`: it was removed. */
static void add_file(struct diff *diff, const struct source_file *before, const struct source_file *after)
{
        enum difference change = before == NULL ? ADDED : after == NULL ? REMOVED : CHANGED;
        char safe[4 * PROTO_NAME_MAX]; /* the name of a file may be anything */
        error_escape(safe, sizeof(safe), after != NULL ? after->name : before->name);
        if (has_space(diff, &diff->files, safe))
                items_add(&diff->files, kstr("file", safe), kstr("change", changes[change]),
                          kif(before != NULL, ku64("old_bytes", before->bytes)),
                          kif(before != NULL, ku64("old_mtime_ns", before->mtime_ns)),
                          kif(after != NULL, ku64("bytes", after->bytes)),
                          kif(after != NULL, ku64("mtime_ns", after->mtime_ns)));
}

/* Likewise. */
static void add_tensor(struct diff *diff, const char *name, const char *before, const char *after)
{
        enum difference change = before == NULL ? ADDED : after == NULL ? REMOVED : CHANGED;
        diff->tensors[change]++;
        if (has_space(diff, &diff->changes, name))
                items_add(&diff->changes, kstr("tensor", name), kstr("change", changes[change]),
                          kif(before != NULL, kstr("before", before)), kif(after != NULL, kstr("after", after)));
}

/* "BF16 [4096, 32]" */
static const char *layout_text(char text[LAYOUT_TEXT], unsigned dtype, const uint64_t *dims, unsigned rank)
{
        snprintf(text, LAYOUT_TEXT, "%s [", dtype_name(dtype));
        for (unsigned i = 0; i < rank; i++)
                format_append(text, LAYOUT_TEXT, "%s%" PRIu64, i > 0 ? ", " : "", dims[i]);
        format_append(text, LAYOUT_TEXT, "]");
        return text;
}

/* ---- comparing, on a worker ---- */

/* Sets `unchanged` for each file of the source. */
static void compare_files(struct diff *diff, const struct source_files *after, bool *unchanged)
{
        const struct source_files *before = diff->before;
        for (size_t i = 0; before != NULL && i < after->n; i++) {
                const struct source_file *old = source_files_find(before, after->v[i].name);
                unchanged[i] = old != NULL && memcmp(old->identity, after->v[i].identity, DIGEST_SIZE) == 0;
                diff->files_same += unchanged[i];
                if (!unchanged[i])
                        add_file(diff, old, &after->v[i]);
        }
        for (size_t i = 0; before != NULL && i < before->n; i++)
                if (source_files_find(after, before->v[i].name) == NULL)
                        add_file(diff, &before->v[i], NULL);
}

/* `found`: which records the source has, a byte each. */
static void compare_tensor(struct diff *diff, const struct manifest_view *manifest, const struct st_header *header,
                           const struct st_tensor *tensor, bool unchanged, unsigned char *found)
{
        uint64_t dims[ST_RANK_MAX];
        const char *why, *name = st_name(header, tensor);
        char before[LAYOUT_TEXT], after[LAYOUT_TEXT];
        int64_t at = manifest_find(manifest, name, tensor->name_len, &why);
        st_shape(header, tensor, dims);
        if (at < 0) {
                add_tensor(diff, name, NULL, layout_text(after, tensor->dtype, dims, tensor->rank));
                return;
        }
        const struct manifest_record *record = manifest_record(manifest, (uint64_t)at);
        const uint64_t *old_dims = manifest->shapes + record->shape_off;
        found[at] = 1;
        if (record->dtype == tensor->dtype && record->rank == tensor->rank &&
            memcmp(dims, old_dims, tensor->rank * sizeof(*dims)) == 0) {
                diff->same += unchanged;
                diff->may_differ += !unchanged;
                return;
        }
        add_tensor(diff, name, layout_text(before, record->dtype, old_dims, record->rank),
                   layout_text(after, tensor->dtype, dims, tensor->rank));
}

static int compare(struct diff *diff, const struct resolved *resolved, struct error *error)
{
        const struct manifest_view manifest = table_manifest(&diff->generation->manifest);
        uint64_t n = manifest.header->n_records;
        struct source_files *after = source_files_new(&resolved->set);
        cleanup_free bool *unchanged = calloc(resolved->set.n_objects + 1, sizeof(*unchanged));
        cleanup_free unsigned char *found = calloc(n + 1, 1);
        if (after == NULL || unchanged == NULL || found == NULL) {
                source_files_free(after);
                return error_no_memory(error);
        }
        compare_files(diff, after, unchanged);
        source_files_free(after);
        for (size_t i = 0; i < resolved->set.n_objects; i++) {
                const struct st_header *header = &resolved->files[i].header;
                for (size_t t = 0; t < header->n_tensors; t++)
                        compare_tensor(diff, &manifest, header, &header->tensors[t], unchanged[i], found);
        }
        for (uint64_t i = 0; i < n; i++) {
                const struct manifest_record *record = manifest_record(&manifest, i);
                char before[LAYOUT_TEXT];
                if (!found[i])
                        add_tensor(
                                diff, manifest.strings + record->name_off,
                                layout_text(before, record->dtype, manifest.shapes + record->shape_off, record->rank),
                                NULL);
        }
        return diff->files.w.failed || diff->changes.w.failed ? error_no_memory(error) : 0;
}

static void diff_run(struct verb_task *task)
{
        struct diff *diff = container_of(task, struct diff, task);
        const struct loads *loads = task->server->loads;
        const struct sources sources = sources_for(loads->sources, task->roots, &task->caller);
        const struct resolve_opts opts = {
                .layout = &diff->generation->device->layout, .block_size = loads->block_size, .keyring = diff->keyring};
        struct resolved resolved = {.borrowed = false};
        struct error *error = &task->error;
        if (source_open(&sources, task->source, false, &resolved.set, error) == 0 &&
            resolve_plan(&resolved, &opts, &diff->budget, error) == 0)
                compare(diff, &resolved, error);
        resolve_deinit(&resolved);
}

static void diff_reply(struct verb_task *task, struct session *session)
{
        const struct diff *diff = container_of(task, struct diff, task);
        const struct request *request = &task->deferred.request;
        session_reply(session, request->id, kstr("name", request->u.diff.model),
                      ku64("generation", diff->generation->number), reply_source(task->source),
                      kif(diff->before != NULL, ku64("files_same", diff->files_same)), kitems("files", &diff->files),
                      kmap("tensors", ku64("added", diff->tensors[ADDED]), ku64("removed", diff->tensors[REMOVED]),
                           ku64("changed", diff->tensors[CHANGED])),
                      ku64("may_differ", diff->may_differ), ku64("same", diff->same), kitems("changes", &diff->changes),
                      kbool("truncated", diff->truncated));
}

static const struct verb_task_ops diff_ops = {.run = diff_run, .reply = diff_reply, .deinit = diff_deinit};

int verb_diff(struct session *session, struct request *request, struct error *error)
{
        const char *model = request->u.diff.model;
        struct generation *g = resident_ready(session->server->resident, model);
        if (g == NULL)
                return session_state_error(session, model, "ready", error);
        if (g->n_ranks > 0)
                return error_set(error, STREAMER_EUNSUPPORTED, "%s: models of ranks are not compared", model);
        struct diff *diff = verb_task_new(sizeof(*diff), &diff_ops, session, request, error);
        if (diff == NULL)
                return error->code;
        items_init(&diff->files);
        items_init(&diff->changes);
        diff->generation = g;
        diff->before = source_files_ref(g->files);
        diff->keyring = keyring_ref(session->server->loads->keyring);
        generation_get(g);
        struct server *server = session->server;
        uid_t uid = session->conn->caller.uid;
        diff->budget.user_max = share_max(server->limits, uid, QUOTA_TABLES);
        int r = quota_hold(&server->users, uid, &diff->budget.charge, QUOTA_TABLES, 0) < 0 ? error_no_memory(error) : 0;
        return verb_task_begin_source(&diff->task, r, request->u.diff.source, NULL, error);
}
