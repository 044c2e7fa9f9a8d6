/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/disk/disk_writer.h"

#include "daemon/base/log/log.h"
#include "daemon/base/sys/machine.h"
#include "daemon/base/thread/threads.h"
#include "daemon/io/readback.h"

#include <semaphore.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define BUFFER (4 * MiB)        /* of one write: a page that is left of the one before, and leaves */
#define HEADERS_MAX (192 * MiB) /* of all files, whose headers are in memory until they are written */
#define PAUSE_NS (50 * MS)      /* before the thread looks again whether loads read the disk */
#define TRIM_NS SECOND          /* before it looks again whether what is beyond the budget is still in use */
#define NICE_MOST 19
#define IOPRIO_WHO_PROCESS 1
#define IOPRIO_IDLE (3 << 13) /* the class "idle" */

enum file_state {
        FILE_WAITS, /* its turn has not come */
        FILE_OPEN,
        FILE_WRITTEN, /* but its version is not certain yet */
        FILE_OVER,    /* committed, or given up */
};

struct write_file {
        enum file_state state;
        unsigned char id[DISK_ID_SIZE], place[DISK_ID_SIZE];
        char *shown, *etag, *modified;
        bool settled; /* the version of each answer proves the bytes */
        uint64_t size;
        unsigned char *first; /* the header */
        uint64_t n_first;
        uint64_t charged;                 /* bytes of headers */
        struct encrypted_file *encrypted; /* a copy; NULL: it is not */
        struct plan_tensor *tensors;      /* a copy of the plan's */
        size_t n_tensors;
        uint64_t leaf, n_leaves; /* the first one's number in the plan */
        unsigned char (*sums)[DIGEST_SIZE];
        unsigned char *landed; /* atomic, by leaf: its sum is there, and its bytes are in memory */

        /* The thread's: */
        struct disk_entry *entry;
        struct disk_new new;
        uint64_t at;         /* bytes that were taken: of the header, then of tensors */
        size_t tensor;       /* of the next byte, */
        uint64_t skip;       /* and the bytes of it before that */
        uint64_t done;       /* bytes that were written: whole pages */
        unsigned char *tail; /* a page: what was taken and not written */
        size_t n_tail;
        struct chunk chunk; /* that is being encrypted */
};

struct disk_write {
        struct disk_writer *writer;
        struct list link;               /* in writer->writes; else empty */
        unsigned refs;                  /* atomic */
        bool checked, ended;            /* atomic */
        pthread_mutex_t mutex;          /* guards the memory's use, and what follows */
        const struct segment *segments; /* NULL: not started, or revoked */
        struct device *device;
        bool over; /* the thread is done with it */
        bool cleared;
        size_t n_files, max_files;
        struct write_file *files;
        struct disk_source *sources[DISK_WRITE_SOURCES]; /* to be noted; NULL: no more */
        uint32_t *by_plan;                               /* by file of the plan: its number + 1; 0: it is not written */
        size_t n_by_plan;
};

struct disk_writer {
        struct disk_cache *cache;
        struct reader *reader;
        pthread_t thread;
        bool stop;  /* atomic */
        bool trims; /* atomic: the limits or the pins have changed */
        bool ended; /* under the mutex */
        pthread_mutex_t mutex;
        pthread_cond_t end;
        sem_t call; /* the thread is to look again */
        struct list writes;
        unsigned char *buffer; /* page-aligned */
        uint64_t number;       /* of the next new entry */
        uint64_t headers;      /* atomic: bytes */
        bool failing;          /* the last file was given up, which was logged */
};

/* ---- a write ---- */

/* What was initialised of it. */
static void file_clear(struct disk_writer *writer, struct write_file *file)
{
        require(file->entry == NULL);
        uint64_t before = __atomic_fetch_sub(&writer->headers, file->charged, __ATOMIC_RELAXED);
        require(before >= file->charged);
        chunk_deinit(&file->chunk);
        encrypted_file_free(file->encrypted);
        free(file->shown);
        free(file->etag);
        free(file->modified);
        free(file->first);
        free(file->tensors);
        free(file->sums);
        free(file->landed);
        free(file->tail);
        *file = (struct write_file){.state = FILE_OVER};
}

/* Frees its tables once neither the thread nor a reader uses them. The model may stay for days. */
static void clear_if_unused(struct disk_write *write)
{
        if (write->cleared || !write->over || !load_relaxed(&write->ended))
                return;
        write->cleared = true;
        for (size_t i = 0; i < DISK_WRITE_SOURCES; i++)
                write->sources[i] = disk_source_free(write->sources[i]);
        for (size_t i = 0; i < write->n_files; i++)
                file_clear(write->writer, &write->files[i]);
        free(write->files);
        free(write->by_plan);
        write->files = NULL;
        write->by_plan = NULL;
        write->n_files = write->n_by_plan = 0;
}

struct disk_write *disk_write_ref(struct disk_write *write)
{
        if (write != NULL)
                add_relaxed(&write->refs, 1);
        return write;
}

struct disk_write *disk_write_unref(struct disk_write *write)
{
        if (write == NULL || __atomic_sub_fetch(&write->refs, 1, __ATOMIC_ACQ_REL) > 0)
                return NULL;
        require(list_empty(&write->link));
        write->over = write->ended = true;
        clear_if_unused(write);
        pthread_mutex_destroy(&write->mutex);
        free(write);
        return NULL;
}

struct disk_write *disk_write_new(struct disk_writer *writer, size_t n, size_t n_plan_files)
{
        struct disk_write *write = calloc(1, sizeof(*write));
        if (write == NULL)
                return NULL;
        *write = (struct disk_write){.writer = writer, .refs = 1, .max_files = n, .n_by_plan = n_plan_files};
        list_init(&write->link);
        pthread_mutex_init(&write->mutex, NULL);
        write->files = calloc(n + 1, sizeof(*write->files));
        write->by_plan = calloc(n_plan_files + 1, sizeof(*write->by_plan));
        return write->files != NULL && write->by_plan != NULL ? write : disk_write_unref(write);
}

void disk_write_add_source(struct disk_write *write, struct disk_source *source)
{
        size_t n = 0;
        while (n < DISK_WRITE_SOURCES && write->sources[n] != NULL)
                n++;
        require(n < DISK_WRITE_SOURCES);
        write->sources[n] = source;
}

/* False: it would be too much. Released by file_clear(). */
static bool charge_headers(struct disk_writer *writer, struct write_file *file, uint64_t bytes)
{
        file->charged += bytes;
        return __atomic_add_fetch(&writer->headers, bytes, __ATOMIC_RELAXED) <= HEADERS_MAX;
}

/* The header: it is in memory, or it is read again. What is read is of the version that was opened, as all of the file
 * is: the file is committed when that is certain. */
static bool take_first(struct write_file *file, const struct object *object, const struct object_label *label)
{
        struct error error;
        file->first = aligned_alloc(DISK_PAGE, round_up(file->n_first, DISK_PAGE) + DISK_PAGE);
        if (file->first == NULL)
                return false;
        if (label->n_first != file->n_first)
                return object_read_range(object, 0, file->n_first, file->first, &error) == 0;
        memcpy(file->first, label->first, file->n_first);
        return true;
}

static bool file_init(struct disk_writer *writer, struct write_file *file, const struct object *object,
                      const struct object_label *label, uint64_t header)
{
        *file = (struct write_file){.settled = label->settled,
                                    .size = object->version.size,
                                    .n_first = header,
                                    .new = DISK_NEW_NONE,
                                    .shown = strdup(object->path),
                                    .etag = strdup(label->etag ?: ""),
                                    .modified = strdup(label->modified ?: "")};
        memcpy(file->id, label->id, DISK_ID_SIZE);
        memcpy(file->place, label->place, DISK_ID_SIZE);
        return file->shown != NULL && file->etag != NULL && file->modified != NULL &&
               charge_headers(writer, file, header) && take_first(file, object, label);
}

bool disk_write_add_text(struct disk_write *write, const struct object *object, const struct object_label *label)
{
        struct write_file *file = &write->files[write->n_files];
        require(write->n_files < write->max_files);
        if (!file_init(write->writer, file, object, label, object->version.size)) {
                file_clear(write->writer, file);
                return false;
        }
        write->n_files++;
        return true;
}

static bool take_tensors(struct write_file *file, const struct plan *plan, size_t number)
{
        size_t first, end;
        plan_file_tensors(plan, number, &first, &end);
        file->n_tensors = end - first;
        file->leaf = first < end ? plan->tensors[first].leaf : 0;
        for (size_t i = first; i < end; i++)
                file->n_leaves += plan_leaves(plan->tensors[i].bytes);
        file->tensors = malloc((file->n_tensors + 1) * sizeof(*file->tensors));
        file->sums = malloc((file->n_leaves + 1) * DIGEST_SIZE);
        file->landed = calloc(file->n_leaves + 1, 1);
        if (file->tensors == NULL || file->sums == NULL || file->landed == NULL)
                return false;
        if (file->n_tensors > 0)
                memcpy(file->tensors, plan->tensors + first, file->n_tensors * sizeof(*file->tensors));
        return true;
}

static bool take_encryption(struct disk_writer *writer, struct write_file *file, const struct encrypted_file *encrypted)
{
        uint64_t text = file->n_first - ST_PREFIX;
        if (encrypted == NULL)
                return true;
        if (!charge_headers(writer, file, text))
                return false;
        file->encrypted = encrypted_file_copy(encrypted, text, file->n_tensors);
        return file->encrypted != NULL;
}

bool disk_write_add_file(struct disk_write *write, const struct object *object, const struct object_label *label,
                         const struct plan *plan, size_t number, uint64_t header,
                         const struct encrypted_file *encrypted)
{
        struct write_file *file = &write->files[write->n_files];
        require(write->n_files < write->max_files && number < write->n_by_plan);
        require(header >= ST_PREFIX && header <= object->version.size);
        if (!file_init(write->writer, file, object, label, header) || !take_tensors(file, plan, number) ||
            !take_encryption(write->writer, file, encrypted)) {
                file_clear(write->writer, file);
                return false;
        }
        write->by_plan[number] = (uint32_t)++write->n_files;
        return true;
}

static void call(struct disk_writer *writer)
{
        sem_post(&writer->call);
}

void disk_write_start(struct disk_write *write, const struct segment *segments, struct device *device)
{
        struct disk_writer *writer = write->writer;
        pthread_mutex_lock(&write->mutex);
        require(write->segments == NULL && !write->over);
        write->segments = segments;
        write->device = device;
        pthread_mutex_unlock(&write->mutex);
        pthread_mutex_lock(&writer->mutex);
        list_append(&writer->writes, &disk_write_ref(write)->link);
        pthread_mutex_unlock(&writer->mutex);
        call(writer);
}

void disk_write_landed(struct disk_write *write, const struct plan *plan, const struct plan_block *block,
                       unsigned char (*leaves)[DIGEST_SIZE])
{
        struct plan_cursor cursor;
        struct plan_piece piece;
        require(block->file < write->n_by_plan);
        if (write->by_plan[block->file] == 0)
                return;
        struct write_file *file = &write->files[write->by_plan[block->file] - 1];
        plan_pieces_begin(block, &cursor);
        while (plan_pieces_next(plan, block, &cursor, &piece)) {
                uint64_t leaf = piece.leaf - file->leaf;
                require(leaf < file->n_leaves);
                memcpy(file->sums[leaf], leaves[piece.leaf], DIGEST_SIZE);
                __atomic_store_n(&file->landed[leaf], 1, __ATOMIC_RELEASE);
        }
        call(write->writer);
}

void disk_writer_trim(struct disk_writer *writer)
{
        __atomic_store_n(&writer->trims, true, __ATOMIC_RELEASE);
        call(writer);
}

void disk_write_checked(struct disk_write *write)
{
        store_relaxed(&write->checked, true);
        call(write->writer);
}

void disk_write_end(struct disk_write *write)
{
        pthread_mutex_lock(&write->mutex);
        store_relaxed(&write->ended, true);
        clear_if_unused(write);
        pthread_mutex_unlock(&write->mutex);
        call(write->writer);
}

void disk_write_revoke(struct disk_write *write)
{
        pthread_mutex_lock(&write->mutex);
        write->segments = NULL;
        pthread_mutex_unlock(&write->mutex);
        call(write->writer);
}

/* ---- the thread: one file ---- */

static void set_state(struct write_file *file, enum file_state state)
{
        static const unsigned may_follow[] = {
                [FILE_WAITS] = 1u << FILE_OPEN | 1u << FILE_OVER,
                [FILE_OPEN] = 1u << FILE_WRITTEN | 1u << FILE_OVER,
                [FILE_WRITTEN] = 1u << FILE_OVER,
        };
        change_state(file->state, state, may_follow);
}

static void give_up(struct disk_writer *writer, struct write_file *file, enum metric_reason reason, const char *why)
{
        metric_add_label(METRIC_DISK_NOT_STORED, reason, 1);
        if (reason == REASON_UNLOADED)
                log_debug("disk cache: %s: not stored: %s", file->shown, why);
        else if (!writer->failing)
                log_warn("disk cache: %s: not stored, and no further one is named until one is: %s", file->shown, why);
        writer->failing = writer->failing || reason != REASON_UNLOADED;
        chunk_deinit(&file->chunk);
        disk_new_abort(&file->new, &writer->cache->folder);
        if (file->entry != NULL)
                disk_cache_give_up(writer->cache, file->entry);
        file->entry = NULL;
        set_state(file, FILE_OVER);
}

/* True: it is open, and its bytes follow. */
static bool file_begin(struct disk_writer *writer, struct write_file *file)
{
        struct object_label label = {.settled = file->settled};
        struct error error = {0};
        memcpy(label.id, file->id, DISK_ID_SIZE);
        memcpy(label.place, file->place, DISK_ID_SIZE);
        switch (disk_cache_reserve(writer->cache, &label, file->size, file->shown, &file->entry, &error)) {
        case DISK_RESERVED:
                break;
        case DISK_KNOWN:
                set_state(file, FILE_OVER);
                return false;
        case DISK_BUSY: /* an earlier write, whose next step calls for another turn */
                return false;
        case DISK_FULL:
                give_up(writer, file, REASON_SPACE, error.text);
                return false;
        case DISK_NO_MEMORY:
                give_up(writer, file, REASON_IO, "no memory");
                return false;
        }
        if (file->tail == NULL)
                file->tail = malloc(DISK_PAGE);
        if (file->tail == NULL) {
                give_up(writer, file, REASON_IO, "no memory");
                return false;
        }
        if (disk_new_begin(&file->new, &writer->cache->folder, writer->number++, file->size, &error) < 0) {
                give_up(writer, file, REASON_IO, error.text);
                return false;
        }
        set_state(file, FILE_OPEN);
        return true;
}

static void file_commit(struct disk_writer *writer, struct write_file *file)
{
        struct error error = {0};
        struct disk_record record = {.size = file->size,
                                     .header = file->n_first,
                                     .stored_s = read_clock_ns(CLOCK_REALTIME) / SECOND,
                                     .shown = file->shown,
                                     .etag = file->etag,
                                     .modified = file->modified,
                                     .n_sums = file->n_leaves,
                                     .sums = file->sums};
        memcpy(record.id, file->id, DISK_ID_SIZE);
        memcpy(record.place, file->place, DISK_ID_SIZE);
        hash_bytes(file->first, file->n_first, record.header_sum);
        if (disk_new_commit(&file->new, &writer->cache->folder, &record, &error) < 0) {
                give_up(writer, file, REASON_IO, error.text);
                return;
        }
        log_debug("disk cache: %s: stored", file->shown);
        metric_add(METRIC_DISK_WRITTEN_BYTES, file->size);
        disk_new_abort(&file->new, &writer->cache->folder); /* closes it */
        disk_cache_add(writer->cache, file->entry, &record);
        file->shown = record.shown; /* what the entry did not take over */
        file->etag = record.etag;
        file->modified = record.modified;
        file->entry = NULL;
        writer->failing = false;
        set_state(file, FILE_OVER);
}

/* ---- bytes: the header, then leaves that have landed, as many as fit ---- */

struct gather {
        const struct disk_write *write;
        struct write_file *file;
        unsigned char *buffer;
        size_t n; /* bytes in it */
};

/* Of the file's next byte. */
static bool next_leaf(const struct gather *gather, struct readback_run *run)
{
        struct write_file *file = gather->file;
        while (file->tensor < file->n_tensors && file->skip == file->tensors[file->tensor].bytes) {
                file->tensor++;
                file->skip = 0;
        }
        if (file->tensor == file->n_tensors)
                return false;
        const struct plan_tensor *t = &file->tensors[file->tensor];
        uint64_t left = t->bytes - file->skip, leaf = t->leaf + file->skip / PLAN_LEAF - file->leaf;
        *run = (struct readback_run){.segment = &gather->write->segments[t->segment],
                                     .offset = t->offset + file->skip,
                                     .bytes = left < PLAN_LEAF ? left : PLAN_LEAF,
                                     .to = gather->buffer + gather->n};
        return __atomic_load_n(&file->landed[leaf], __ATOMIC_ACQUIRE) != 0;
}

static bool take_leaf(void *context, struct readback_run *run)
{
        struct gather *gather = context;
        if (!next_leaf(gather, run) || gather->n + run->bytes > BUFFER)
                return false;
        gather->n += run->bytes;
        gather->file->skip += run->bytes;
        gather->file->at += run->bytes;
        return true;
}

/* With the write's mutex held. Memory that the daemon has mapped is copied from there: a mapping for each piece would
 * contend with readers that fill pages. */
static int read_leaves(struct gather *gather, struct error *error)
{
        struct readback readback;
        struct readback_run run;
        const unsigned char *data;
        uint64_t len;
        size_t at = gather->n;
        if (!next_leaf(gather, &run))
                return 0;
        if (run.segment->base != NULL) {
                while (take_leaf(gather, &run))
                        memcpy(run.to, run.segment->base + run.offset, run.bytes);
                return 0;
        }
        int r = readback_init(&readback, NULL, gather->write->device, error);
        r = r ?: readback_begin(&readback, take_leaf, gather, error);
        for (; r == 0 && at < gather->n; at += len)
                r = readback_take(&readback, &data, &len, error);
        readback_deinit(&readback);
        return r;
}

/* One leaf of a tensor, from its byte `skip` on. */
static int encrypt_leaf(struct write_file *file, const struct plan_tensor *t, uint64_t skip, unsigned char *bytes,
                        uint64_t len, struct error *error)
{
        struct chunk *chunk = &file->chunk;
        int r = 0;
        for (uint64_t done = 0, n; r == 0 && done < len; done += n) {
                if (chunk->file == NULL)
                        r = chunk_begin(chunk, file->encrypted, t->index, skip + done, t->bytes, error);
                if (r < 0)
                        break;
                uint64_t left = chunk->end - chunk->at;
                n = left < len - done ? left : len - done;
                r = chunk_encrypt(chunk, bytes + done, n, error);
        }
        return r;
}

/* The leaves that were taken, from this tensor and byte of it on. The digests of what is stored replace those of the
 * load. */
static int encrypt_leaves(struct gather *gather, size_t at, size_t tensor, uint64_t skip, struct error *error)
{
        struct write_file *file = gather->file;
        int r = 0;
        for (uint64_t n; r == 0 && at < gather->n; at += n, skip += n) {
                while (skip == file->tensors[tensor].bytes) {
                        tensor++;
                        skip = 0;
                }
                const struct plan_tensor *t = &file->tensors[tensor];
                uint64_t leaf = t->leaf + skip / PLAN_LEAF - file->leaf;
                require(skip % PLAN_LEAF == 0 && leaf < file->n_leaves);
                n = t->bytes - skip < PLAN_LEAF ? t->bytes - skip : PLAN_LEAF;
                if (file->encrypted->tensors[t->index].wrapped_key == 0)
                        continue;
                r = encrypt_leaf(file, t, skip, gather->buffer + at, n, error);
                hash_bytes(gather->buffer + at, n, file->sums[leaf]);
        }
        require(r < 0 || (at == gather->n && tensor <= file->n_tensors));
        return r;
}

/* With the write's mutex held. */
static int gather_bytes(struct gather *gather, struct error *error)
{
        struct write_file *file = gather->file;
        if (file->at < file->n_first) {
                uint64_t left = file->n_first - file->at, n = left < BUFFER - gather->n ? left : BUFFER - gather->n;
                memcpy(gather->buffer + gather->n, file->first + file->at, n);
                gather->n += n;
                file->at += n;
        }
        if (file->at < file->n_first)
                return 0;
        size_t at = gather->n, tensor = file->tensor;
        uint64_t skip = file->skip;
        int r = read_leaves(gather, error);
        return r == 0 && file->encrypted != NULL ? encrypt_leaves(gather, at, tensor, skip, error) : r;
}

enum step { STEP_WAITS, STEP_MOVED, STEP_OVER };

/* Takes what there is, and writes whole pages of it, at the end all. */
static enum step file_write(struct disk_writer *writer, struct disk_write *write, struct write_file *file)
{
        struct error error = {0};
        struct gather gather = {.write = write, .file = file, .buffer = writer->buffer, .n = file->n_tail};
        bool ended = load_relaxed(&write->ended); /* before: nothing lands after it */
        memcpy(writer->buffer, file->tail, file->n_tail);
        pthread_mutex_lock(&write->mutex);
        bool revoked = write->segments == NULL;
        int r = revoked ? 0 : gather_bytes(&gather, &error);
        pthread_mutex_unlock(&write->mutex);
        bool whole = file->at == file->size;
        if (revoked || (r == 0 && gather.n == file->n_tail && !whole && ended)) {
                give_up(writer, file, REASON_UNLOADED,
                        "the model was unloaded, or its load ended, before it was written");
                return STEP_MOVED;
        }
        if (r == 0 && gather.n == file->n_tail && !whole)
                return STEP_WAITS;
        uint64_t n = whole ? round_up(gather.n, DISK_PAGE) : round_down(gather.n, DISK_PAGE);
        if (whole)
                memset(writer->buffer + gather.n, 0, n - gather.n);
        require(n <= BUFFER);
        r = r ?: disk_new_write(&file->new, writer->buffer, file->done, n, &error);
        if (r < 0) {
                give_up(writer, file, REASON_IO, error.text);
                return STEP_MOVED;
        }
        file->done += n;
        file->n_tail = whole ? 0 : gather.n - n;
        memcpy(file->tail, writer->buffer + n, file->n_tail);
        if (whole) {
                chunk_deinit(&file->chunk);
                set_state(file, FILE_WRITTEN);
        }
        return STEP_MOVED;
}

/* ---- the thread: a write ---- */

static enum step file_step(struct disk_writer *writer, struct disk_write *write, struct write_file *file)
{
        switch (file->state) {
        case FILE_WAITS:
                if (file_begin(writer, file))
                        return STEP_MOVED;
                return file->state == FILE_OVER ? STEP_OVER : STEP_WAITS;
        case FILE_OPEN:
                return file_write(writer, write, file);
        case FILE_WRITTEN:
                if (file->settled || load_relaxed(&write->checked))
                        file_commit(writer, file);
                else if (load_relaxed(&write->ended))
                        give_up(writer, file, REASON_UNLOADED, "the load failed before its version was checked");
                else
                        return STEP_WAITS;
                return STEP_MOVED;
        case FILE_OVER:
                return STEP_OVER;
        }
        return STEP_OVER;
}

/* The first file that moves. One that is written may wait for the check; later ones do not wait for it, but for one
 * that is being written. */
static enum step write_step(struct disk_writer *writer, struct disk_write *write)
{
        enum step all = STEP_OVER;
        for (size_t i = 0; i < write->n_files; i++) {
                struct write_file *file = &write->files[i];
                enum step step = file_step(writer, write, file);
                if (step == STEP_MOVED)
                        return step;
                if (step == STEP_WAITS)
                        all = STEP_WAITS;
                if (file->state == FILE_OPEN)
                        return step;
        }
        return all;
}

static void write_over(struct disk_writer *writer, struct disk_write *write)
{
        for (size_t i = 0; i < DISK_WRITE_SOURCES; i++) {
                if (write->sources[i] != NULL && !load_relaxed(&writer->stop))
                        disk_cache_note_source(writer->cache, write->sources[i]);
                else
                        disk_source_free(write->sources[i]);
                write->sources[i] = NULL;
        }
        pthread_mutex_lock(&writer->mutex);
        list_remove(&write->link);
        pthread_mutex_unlock(&writer->mutex);
        pthread_mutex_lock(&write->mutex);
        write->over = true;
        clear_if_unused(write);
        pthread_mutex_unlock(&write->mutex);
        disk_write_unref(write);
}

/* Of all files that are open. */
static void write_stop(struct disk_writer *writer, struct disk_write *write)
{
        for (size_t i = 0; i < write->n_files; i++)
                if (write->files[i].state != FILE_OVER)
                        give_up(writer, &write->files[i], REASON_UNLOADED, "the daemon is ending");
        write_over(writer, write);
}

/* ---- the thread ---- */

static struct disk_write *next_write(struct disk_writer *writer, const struct disk_write *after)
{
        lock_scope(&writer->mutex);
        struct list *link = after != NULL ? after->link.next : writer->writes.next;
        return list_item(link, &writer->writes, struct disk_write, link);
}

/* Each write in turn takes a step. True: something moved. */
static bool turn(struct disk_writer *writer)
{
        bool moved = false;
        for (struct disk_write *write = next_write(writer, NULL), *next; write != NULL; write = next) {
                enum step step = write_step(writer, write);
                next = next_write(writer, write); /* only this thread removes one */
                moved = moved || step == STEP_MOVED;
                if (step == STEP_OVER)
                        write_over(writer, write);
        }
        return moved;
}

static bool must_pause(struct disk_writer *writer)
{
        return next_write(writer, NULL) != NULL && reader_reads_storage(writer->reader, writer->cache->lane);
}

/* For a call, so long at most; UINT64_MAX: without a limit. */
static void wait_for(struct disk_writer *writer, uint64_t most_ns)
{
        if (most_ns == UINT64_MAX) {
                sem_wait(&writer->call);
                return;
        }
        struct timespec until = timespec_of(now_ns() + most_ns);
        sem_clockwait(&writer->call, CLOCK_MONOTONIC, &until);
}

static void *writer_main(void *arg)
{
        struct disk_writer *writer = arg;
        thread_begin("disk-cache");
        disk_cache_scan(writer->cache, &writer->stop); /* which loads wait for */
        setpriority(PRIO_PROCESS, (id_t)gettid(), NICE_MOST);
        syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_IDLE);
        for (bool again = false; !load_relaxed(&writer->stop);) {
                if (__atomic_exchange_n(&writer->trims, false, __ATOMIC_ACQ_REL) || again)
                        again = disk_cache_trim(writer->cache);
                if (must_pause(writer))
                        wait_for(writer, PAUSE_NS);
                else if (!turn(writer))
                        wait_for(writer, again ? TRIM_NS : UINT64_MAX);
                while (sem_trywait(&writer->call) == 0)
                        ;
        }
        for (struct disk_write *write; (write = next_write(writer, NULL)) != NULL;)
                write_stop(writer, write);
        lock_scope(&writer->mutex);
        writer->ended = true;
        pthread_cond_broadcast(&writer->end);
        return NULL;
}

/* In huge pages, if the kernel has some: a write pins each page of the buffer, and of a thousand small ones that, and
 * the misses of the copy, take a third of the thread's time. Page-aligned in any case. */
static unsigned char *buffer_new(void)
{
        uint64_t align = machine_pages.huge <= BUFFER ? machine_pages.huge : DISK_PAGE;
        unsigned char *buffer = aligned_alloc(align, BUFFER);
        if (buffer != NULL)
                madvise(buffer, BUFFER, MADV_HUGEPAGE);
        return buffer;
}

int disk_writer_new(struct disk_writer **out, struct disk_cache *cache, struct reader *reader, struct error *error)
{
        struct disk_writer *writer = calloc(1, sizeof(*writer));
        if (writer == NULL)
                return error_no_memory(error);
        *writer = (struct disk_writer){.cache = cache, .reader = reader, .ended = true};
        list_init(&writer->writes);
        pthread_mutex_init(&writer->mutex, NULL);
        pthread_cond_init(&writer->end, NULL);
        sem_init(&writer->call, 0, 0);
        writer->buffer = buffer_new();
        writer->ended = false;
        if (writer->buffer == NULL || thread_start(&writer->thread, NULL, writer_main, writer) != 0) {
                writer->ended = true;
                disk_writer_free(writer);
                return error_set(error, STREAMER_ENOMEM, "disk cache: no thread could be started");
        }
        *out = writer;
        return 0;
}

bool disk_writer_stop(struct disk_writer *writer, uint64_t deadline_ns)
{
        if (writer == NULL)
                return true;
        struct timespec until = timespec_of(deadline_ns);
        store_relaxed(&writer->stop, true);
        call(writer);
        pthread_mutex_lock(&writer->mutex);
        while (!writer->ended && pthread_cond_clockwait(&writer->end, &writer->mutex, CLOCK_MONOTONIC, &until) == 0)
                ;
        bool ended = writer->ended;
        pthread_mutex_unlock(&writer->mutex);
        if (ended)
                pthread_join(writer->thread, NULL);
        else
                pthread_detach(writer->thread);
        return ended;
}

struct disk_writer *disk_writer_free(struct disk_writer *writer)
{
        if (writer == NULL)
                return NULL;
        require(writer->ended && list_empty(&writer->writes));
        free(writer->buffer);
        sem_destroy(&writer->call);
        pthread_cond_destroy(&writer->end);
        pthread_mutex_destroy(&writer->mutex);
        free(writer);
        return NULL;
}
