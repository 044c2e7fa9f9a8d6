/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/disk/disk_cache.h"

#include "daemon/base/log/log.h"
#include "daemon/base/metric/metric.h"
#include "daemon/io/file/file_object.h"
#include "daemon/model/safetensors.h"

#include <errno.h>
#include <inttypes.h>

#define FOLDERS_BYTES (2 * DISK_PAGE)         /* of an entry: its folder, and its name in the folder above */
#define FIRST_MAX (ST_PREFIX + ST_HEADER_MAX) /* of a header or a text, which is in memory while it is used */

static uint64_t now_s(void)
{
        return read_clock_ns(CLOCK_REALTIME) / SECOND;
}

static uint64_t key_of(const unsigned char id[DISK_ID_SIZE])
{
        uint64_t key;
        memcpy(&key, id, sizeof(key));
        return key;
}

/* ---- entries ---- */

static void set_state(struct disk_entry *entry, enum disk_entry_state state)
{
        static const unsigned may_follow[] = {
                [DISK_WRITING] = 1u << DISK_STORED | 1u << DISK_DROPPED,
                [DISK_STORED] = 1u << DISK_DROPPED,
        };
        change_state(entry->state, state, may_follow);
}

static struct disk_entry *entry_new(const unsigned char id[DISK_ID_SIZE], const unsigned char place[DISK_ID_SIZE])
{
        struct disk_entry *entry = calloc(1, sizeof(*entry));
        if (entry == NULL)
                return NULL;
        list_init(&entry->by_id);
        list_init(&entry->by_place);
        list_init(&entry->in_order);
        memcpy(entry->id, id, DISK_ID_SIZE);
        memcpy(entry->place, place, DISK_ID_SIZE);
        return entry;
}

static struct disk_entry *entry_free(struct disk_entry *entry)
{
        if (entry == NULL)
                return NULL;
        require(entry->refs == 0 && list_empty(&entry->by_id) && list_empty(&entry->in_order));
        free(entry->shown);
        free(entry->version);
        free(entry->other);
        free(entry);
        return NULL;
}

/* With the mutex held; of any state but DROPPED. */
static struct disk_entry *find(struct disk_cache *cache, const unsigned char id[DISK_ID_SIZE])
{
        list_each_item (struct disk_entry, e, bucket(&cache->by_id, key_of(id)), by_id)
                if (memcmp(e->id, id, DISK_ID_SIZE) == 0)
                        return e;
        return NULL;
}

/* What its record says. It takes texts of it over. */
static void describe(struct disk_entry *entry, struct disk_record *record)
{
        char **version = record->etag[0] != '\0' ? &record->etag : &record->modified;
        entry->size = record->size;
        entry->stored_s = record->stored_s;
        entry->shown = record->shown;
        entry->version = *version;
        record->shown = *version = NULL;
}

/* With the mutex held: it is found from now on, as the one that was used last. */
static void publish(struct disk_cache *cache, struct disk_entry *entry)
{
        set_state(entry, DISK_STORED);
        list_append(bucket(&cache->by_place, key_of(entry->place)), &entry->by_place);
        list_append(&cache->entries, &entry->in_order);
        cache->n_entries++;
}

/* With the mutex held: nothing finds it any more. Its files are the caller's to remove. */
static void drop(struct disk_cache *cache, struct disk_entry *entry)
{
        require(cache->used >= entry->bytes);
        if (entry->state == DISK_STORED) {
                require(cache->n_entries > 0);
                cache->n_entries--;
        }
        set_state(entry, DISK_DROPPED);
        list_remove(&entry->by_id);
        list_remove(&entry->by_place);
        list_remove(&entry->in_order);
        cache->used -= entry->bytes;
}

static uint64_t bytes_on_disk(uint64_t size, uint64_t record)
{
        return round_up(size, DISK_PAGE) + round_up(record, DISK_PAGE) + FOLDERS_BYTES;
}

/* ---- life ---- */

int disk_cache_new(struct disk_cache **out, const char *path, uint64_t lane, const struct disk_limits *limits,
                   struct error *error)
{
        struct disk_cache *cache = calloc(1, sizeof(*cache));
        if (cache == NULL)
                return error_no_memory(error);
        cache->lane = lane;
        cache->limits = *limits;
        pthread_mutex_init(&cache->mutex, NULL);
        pthread_cond_init(&cache->ready, NULL);
        list_init(&cache->entries);
        list_init(&cache->sources);
        buckets_init(&cache->sources_by_id);
        buckets_init(&cache->by_id);
        buckets_init(&cache->by_place);
        int r = disk_folder_init(&cache->folder, path, error);
        *out = r == 0 ? cache : disk_cache_free(cache);
        return r;
}

static void free_pins(struct disk_cache *cache)
{
        for (size_t i = 0; i < cache->n_pins; i++)
                free(cache->pins[i]);
        free(cache->pins);
}

/* Of the sources. */
static void take_out(struct disk_cache *cache, struct disk_source *source)
{
        require(cache->n_sources > 0);
        cache->n_sources--;
        list_remove(&source->link);
        list_remove(&source->by_id);
}

struct disk_cache *disk_cache_free(struct disk_cache *cache)
{
        if (cache == NULL)
                return NULL;
        list_each_item_safe (struct disk_entry, e, &cache->entries, in_order) {
                drop(cache, e);
                entry_free(e);
        }
        list_each_item_safe (struct disk_source, s, &cache->sources, link) {
                take_out(cache, s);
                disk_source_free(s);
        }
        free_pins(cache);
        disk_folder_deinit(&cache->folder);
        pthread_cond_destroy(&cache->ready);
        pthread_mutex_destroy(&cache->mutex);
        free(cache);
        return NULL;
}

void disk_cache_configure(struct disk_cache *cache, const struct disk_limits *limits)
{
        lock_scope(&cache->mutex);
        cache->limits = *limits;
}

void disk_cache_set_pins(struct disk_cache *cache, char **pins, size_t n)
{
        lock_scope(&cache->mutex);
        free_pins(cache);
        cache->pins = pins;
        cache->n_pins = n;
        cache->pins_known = true;
}

void disk_cache_usage(struct disk_cache *cache, struct disk_usage *usage)
{
        lock_scope(&cache->mutex);
        uint64_t now = now_s();
        const struct disk_entry *oldest = list_item(cache->entries.next, &cache->entries, struct disk_entry, in_order);
        *usage = (struct disk_usage){.budget = cache->limits.budget,
                                     .used = cache->used,
                                     .entries = cache->n_entries,
                                     .oldest_s = oldest != NULL && now > oldest->used_s ? now - oldest->used_s : 0,
                                     .scanned = cache->scanned};
}

#define RATE_BYTES (32 * MiB) /* of a load whose rate says more of its source than of its beginning and end */

void disk_cache_note_load(struct disk_cache *cache, bool of_disk, uint64_t bytes, uint64_t ns)
{
        if (bytes < RATE_BYTES || ns == 0)
                return;
        lock_scope(&cache->mutex);
        *(of_disk ? &cache->rates.disk : &cache->rates.store) = (uint64_t)((double)bytes * (double)SECOND / (double)ns);
}

struct disk_rates disk_cache_rates(struct disk_cache *cache)
{
        lock_scope(&cache->mutex);
        return cache->rates;
}

/* ---- sources ---- */

bool disk_cache_serves_offline(struct disk_cache *cache)
{
        lock_scope(&cache->mutex);
        return cache->limits.offline;
}

/* With the mutex held, as the next. */
static struct disk_source *known_source(struct disk_cache *cache, const unsigned char id[DISK_ID_SIZE])
{
        list_each_item (struct disk_source, s, bucket(&cache->sources_by_id, key_of(id)), by_id)
                if (memcmp(s->id, id, DISK_ID_SIZE) == 0)
                        return s;
        return NULL;
}

static bool is_stored(struct disk_cache *cache, const struct disk_member *member)
{
        const struct disk_entry *entry = find(cache, member->id);
        return entry != NULL && entry->state == DISK_STORED;
}

static bool is_complete(struct disk_cache *cache, const struct disk_source *source)
{
        for (size_t i = 0; i < source->n; i++)
                if (!is_stored(cache, &source->members[i]))
                        return false;
        return source->n > 0;
}

static bool is_pin(const struct disk_cache *cache, const char *name)
{
        for (size_t i = 0; i < cache->n_pins; i++)
                if (strncmp(name, cache->pins[i], strlen(cache->pins[i])) == 0)
                        return true;
        return false;
}

/* With the mutex held. The last other name stays, unless one that is pinned would be lost. */
static void note_name(const struct disk_cache *cache, struct disk_entry *entry, const char *name)
{
        if (name == NULL || strcmp(name, entry->shown) == 0 || (entry->other != NULL && is_pin(cache, entry->other)))
                return;
        free(entry->other);
        entry->other = strdup(name);
}

static void forget(struct disk_cache *cache, struct disk_source *source)
{
        take_out(cache, source);
        if (--source->refs == 0)
                disk_source_free(source);
}

/* With the mutex held. The source's names of its objects count for pins, also after a restart. */
static void add_source(struct disk_cache *cache, struct disk_source *source)
{
        for (size_t i = 0; i < source->n; i++) {
                struct disk_entry *entry = find(cache, source->members[i].id);
                if (entry != NULL && entry->state == DISK_STORED)
                        note_name(cache, entry, source->members[i].path);
        }
        list_append(&cache->sources, &source->link);
        list_append(bucket(&cache->sources_by_id, key_of(source->id)), &source->by_id);
        cache->n_sources++;
        if (source->noted_ns > cache->noted_ns)
                cache->noted_ns = source->noted_ns;
}

struct disk_source *disk_cache_put_source(struct disk_cache *cache, struct disk_source *source)
{
        if (source == NULL)
                return NULL;
        lock_scope(&cache->mutex);
        if (--source->refs == 0)
                disk_source_free(source);
        return NULL;
}

#define SOURCES_LEAST 64

/* Of what is not stored any more: now and then, so that a note takes no longer the more there are. On the thread that
 * notes them: no other one removes a source. */
static void drop_incomplete(struct disk_cache *cache)
{
        struct list dropped;
        list_init(&dropped);
        pthread_mutex_lock(&cache->mutex);
        if (cache->n_sources > cache->most_sources) {
                list_each_item_safe (struct disk_source, s, &cache->sources, link) {
                        if (is_complete(cache, s))
                                continue;
                        take_out(cache, s);
                        list_append(&dropped, &s->link);
                }
                cache->most_sources = 2 * cache->n_sources + SOURCES_LEAST;
        }
        pthread_mutex_unlock(&cache->mutex);
        list_each_item_safe (struct disk_source, s, &dropped, link) {
                list_remove(&s->link);
                disk_folder_remove_source(&cache->folder, s->id);
                disk_cache_put_source(cache, s);
        }
}

/* Later than all others, also after the clock was set back: the last one counts. */
static uint64_t time_of_note(const struct disk_cache *cache)
{
        uint64_t now = read_clock_ns(CLOCK_REALTIME);
        return now > cache->noted_ns ? now : cache->noted_ns + 1;
}

void disk_cache_note_source(struct disk_cache *cache, struct disk_source *source)
{
        struct error error = {0};
        size_t size;
        drop_incomplete(cache);
        pthread_mutex_lock(&cache->mutex);
        source->noted_ns = time_of_note(cache);
        struct disk_source *known = known_source(cache, source->id);
        bool same = known != NULL && disk_source_equal(known, source), is_new = !same && is_complete(cache, source);
        if (same)
                known->noted_ns = cache->noted_ns = source->noted_ns;
        pthread_mutex_unlock(&cache->mutex);
        cleanup_free unsigned char *bytes = is_new ? disk_source_encode(source, &size) : NULL;
        int r = bytes != NULL ? disk_folder_put_source(&cache->folder, source->id, bytes, size, &error) : 0;
        if (same || (bytes != NULL && r == 0))
                disk_folder_touch_source(&cache->folder, source->id, source->noted_ns);
        if (r < 0)
                log_warn("%s: without its store this source cannot be loaded", error.text);
        if (bytes == NULL || r < 0) {
                disk_source_free(source);
                return;
        }
        lock_scope(&cache->mutex);
        if (known != NULL) /* only this thread removes one */
                forget(cache, known);
        add_source(cache, source);
        log_debug("disk cache: a source of %zu objects is stored", source->n);
}

/* ---- the scan ---- */

struct scan {
        struct disk_cache *cache;
        struct disk_entry **found;
        size_t n;
        uint64_t lost;  /* no memory for them: they stay */
        bool is_partly; /* some entries are not known */
};

/* One whose entries may just not be known stays for the next start, as one that there is no memory for. */
static bool take_source(const unsigned char *bytes, size_t size, uint64_t noted_ns, void *context)
{
        const struct scan *scan = context;
        struct disk_cache *cache = scan->cache;
        struct disk_source *source;
        int r = disk_source_decode(&source, bytes, size);
        if (r < 0)
                return error_is_lack(r);
        lock_scope(&cache->mutex);
        bool known = known_source(cache, source->id) != NULL;
        if (known || !is_complete(cache, source)) {
                disk_source_free(source);
                return !known && scan->is_partly;
        }
        source->noted_ns = noted_ns;
        add_source(cache, source);
        return true;
}

static void take_found(struct disk_found *found)
{
        struct scan *scan = found->context;
        struct disk_record *record = &found->record;
        struct disk_entry *entry = entry_new(record->id, record->place);
        struct disk_entry **all = entry != NULL ? array_grow(scan->found, scan->n, sizeof(*scan->found)) : NULL;
        if (all == NULL) {
                entry_free(entry);
                scan->lost++;
                return;
        }
        entry->bytes = bytes_on_disk(record->size, disk_record_size(record));
        describe(entry, record);
        entry->used_s = found->used_ns; /* until they are sorted */
        scan->found = all;
        scan->found[scan->n++] = entry;
}

static int by_use(const void *a, const void *b)
{
        return ORDER((*(struct disk_entry *const *)a)->used_s, (*(struct disk_entry *const *)b)->used_s);
}

void disk_cache_scan(struct disk_cache *cache, const bool *stop)
{
        struct scan scan = {.cache = cache};
        uint64_t since = now_ns(), unknown,
                 removed = disk_folder_scan(&cache->folder, take_found, &scan, stop, &unknown);
        scan.is_partly = unknown + scan.lost > 0;
        char size[SIZE_TEXT];
        if (scan.n > 0)
                qsort(scan.found, scan.n, sizeof(*scan.found), by_use);
        pthread_mutex_lock(&cache->mutex);
        for (size_t i = 0; i < scan.n; i++) {
                struct disk_entry *e = scan.found[i];
                e->used_s /= SECOND;
                list_append(bucket(&cache->by_id, key_of(e->id)), &e->by_id);
                publish(cache, e);
                cache->used += e->bytes;
        }
        pthread_mutex_unlock(&cache->mutex);
        if (!load_relaxed(stop))
                disk_folder_each_source(&cache->folder, take_source, &scan);
        pthread_mutex_lock(&cache->mutex);
        cache->scanned = true;
        cache->most_sources = 2 * cache->n_sources + SOURCES_LEAST;
        size_text(size, cache->used);
        pthread_cond_broadcast(&cache->ready);
        pthread_mutex_unlock(&cache->mutex);
        free(scan.found);
        log_info("disk cache: %s: %zu entries, %s, found in %" PRIu64 " ms", cache->folder.path, scan.n, size,
                 (now_ns() - since) / MS);
        if (removed > 0)
                log_info("disk cache: %s: %" PRIu64 " incomplete entries were removed", cache->folder.path, removed);
        if (scan.lost > 0)
                log_error("disk cache: %s: no memory for %" PRIu64 " of its entries", cache->folder.path, scan.lost);
}

static void await_scan(struct disk_cache *cache)
{
        while (!cache->scanned)
                pthread_cond_wait(&cache->ready, &cache->mutex);
}

/* Of the sources that were noted after *newest_ns the last that has an object which is this source alone, and is
 * stored. NULL: none. */
static const struct disk_member *member_alone(struct disk_cache *cache, const unsigned char id[DISK_ID_SIZE],
                                              uint64_t *newest_ns)
{
        const struct disk_member *newest = NULL;
        list_each_item (const struct disk_source, s, &cache->sources, link)
                for (size_t i = 0; s->noted_ns > *newest_ns && i < s->n; i++) {
                        const struct disk_member *m = &s->members[i];
                        if (m->is_index || memcmp(m->alone, id, DISK_ID_SIZE) != 0 || !is_stored(cache, m))
                                continue;
                        newest = m;
                        *newest_ns = s->noted_ns;
                }
        return newest;
}

struct disk_source *disk_cache_find_source(struct disk_cache *cache, const unsigned char id[DISK_ID_SIZE])
{
        lock_scope(&cache->mutex);
        await_scan(cache);
        struct disk_source *source = known_source(cache, id);
        if (source != NULL && !is_complete(cache, source))
                source = NULL;
        uint64_t newest = source != NULL ? source->noted_ns : 0;
        const struct disk_member *member = member_alone(cache, id, &newest);
        if (member != NULL) /* another source has a newer version of its only object */
                return disk_source_alone(member);
        if (source != NULL)
                source->refs++;
        return source;
}

/* ---- copies ---- */

struct disk_copy {
        struct object_copy base;
        struct object file;
        struct disk_cache *cache;
        struct disk_entry *entry;
        struct disk_record record;
        unsigned char *first;
        bool examined; /* by no load */
};

static void unref(struct disk_cache *cache, struct disk_entry *entry)
{
        lock_scope(&cache->mutex);
        require(entry->refs > 0);
        entry->refs--;
        if (entry->refs == 0 && entry->state == DISK_DROPPED)
                entry_free(entry);
}

static void copy_close(struct object_copy *base)
{
        struct disk_copy *copy = container_of(base, struct disk_copy, base);
        object_deinit(&copy->file);
        disk_record_deinit(&copy->record);
        free(copy->first);
        unref(copy->cache, copy->entry);
        free(copy);
}

/* False: it was dropped already. */
static bool drop_entry(struct disk_cache *cache, struct disk_entry *entry)
{
        pthread_mutex_lock(&cache->mutex);
        bool stored = entry->state == DISK_STORED;
        if (stored)
                drop(cache, entry);
        pthread_mutex_unlock(&cache->mutex);
        /* Descriptors keep what is open. The caller has a reference. */
        if (stored)
                disk_folder_remove(&cache->folder, entry->id);
        return stored;
}

static void drop_damaged(struct disk_copy *copy, const char *why)
{
        if (!drop_entry(copy->cache, copy->entry))
                return;
        metric_add(METRIC_DISK_DAMAGED, 1);
        log_warn("disk cache: %s: its copy is removed%s: %s", copy->entry->shown,
                 copy->examined ? "" : ", and it is read from its store", why);
}

void disk_copy_drop(struct object_copy *base, const char *why)
{
        struct disk_copy *copy = container_of(base, struct disk_copy, base);
        base->damaged = true;
        drop_damaged(copy, why);
}

/* The header, or all of a text. */
static int read_first(struct disk_copy *copy, struct error *error)
{
        unsigned char digest[DIGEST_SIZE];
        const struct disk_record *record = &copy->record;
        if (record->header > FIRST_MAX)
                return error_set(error, STREAMER_EFAILED, "a header of %" PRIu64 " bytes", record->header);
        copy->first = malloc(record->header + 1);
        if (copy->first == NULL)
                return error_no_memory(error);
        for (uint64_t done = 0; done < record->header;) {
                ssize_t n = TEMP_FAILURE_RETRY(
                        pread(copy->file.fd, copy->first + done, record->header - done, (off_t)done));
                if (n <= 0)
                        return error_set(error, STREAMER_EFAILED, "read: %s",
                                         n < 0 ? strerror(errno) : "the file is too short");
                done += (uint64_t)n;
        }
        hash_bytes(copy->first, record->header, digest);
        if (memcmp(digest, record->header_sum, DIGEST_SIZE) != 0)
                return error_set(error, STREAMER_EFAILED, "its header differs from the one that was stored");
        return 0;
}

static int open_copy(struct disk_copy *copy, struct error *error)
{
        struct disk_cache *cache = copy->cache;
        struct disk_record *record = &copy->record;
        cleanup_free char *path = disk_folder_data_path(&cache->folder, copy->entry->id);
        int fd = -1;
        if (path == NULL)
                return error_no_memory(error);
        int r = disk_folder_read(&cache->folder, copy->entry->id, &fd, record, error)
                        ?: object_init_consume_fd(&copy->file, fd, path, error)
                        ?: read_first(copy, error);
        copy->base = (struct object_copy){.file = &copy->file,
                                          .first = copy->first,
                                          .header = record->header,
                                          .etag = record->etag,
                                          .modified = record->modified,
                                          .sums = record->sums,
                                          .n_sums = record->n_sums,
                                          .close = copy_close};
        return r;
}

/* With a reference; NULL: it is not stored. */
static struct disk_entry *take_entry(struct disk_cache *cache, const unsigned char id[DISK_ID_SIZE], uint64_t size)
{
        lock_scope(&cache->mutex);
        await_scan(cache);
        struct disk_entry *entry = find(cache, id);
        if (entry == NULL || entry->state != DISK_STORED || (size != UINT64_MAX && entry->size != size))
                return NULL;
        entry->refs++;
        return entry;
}

static void note_use(struct disk_cache *cache, struct disk_entry *entry, const char *name)
{
        lock_scope(&cache->mutex);
        if (entry->state != DISK_STORED)
                return;
        entry->used_s = now_s();
        note_name(cache, entry, name);
        list_remove(&entry->in_order);
        list_append(&cache->entries, &entry->in_order);
}

/* STREAMER_ENOENT: it is not stored; STREAMER_EFAILED: it is damaged, and was dropped; or another error. */
static int open_entry(struct disk_cache *cache, const unsigned char id[DISK_ID_SIZE], uint64_t size, bool examined,
                      struct disk_copy **out, struct error *error)
{
        struct disk_entry *entry = take_entry(cache, id, size);
        if (entry == NULL)
                return error_set(error, STREAMER_ENOENT, "it is not in the disk cache any more");
        struct disk_copy *copy = calloc(1, sizeof(*copy));
        if (copy == NULL) {
                unref(cache, entry);
                return error_no_memory(error);
        }
        *copy = (struct disk_copy){
                .file = {.fd = -1, .direct = -1}, .cache = cache, .entry = entry, .examined = examined};
        int r = open_copy(copy, error);
        if (r == STREAMER_EFAILED)
                drop_damaged(copy, error->text);
        if (r < 0)
                copy_close(&copy->base);
        else
                *out = copy;
        return r;
}

struct object_copy *disk_cache_open(struct disk_cache *cache, const unsigned char id[DISK_ID_SIZE], uint64_t size,
                                    const char *name)
{
        struct error error = {0};
        struct disk_copy *copy;
        if (open_entry(cache, id, size, false, &copy, &error) < 0) {
                metric_add(METRIC_DISK_MISSES, 1);
                return NULL;
        }
        metric_add(METRIC_DISK_HITS, 1);
        note_use(cache, copy->entry, name);
        disk_folder_touch(&cache->folder, id);
        return &copy->base;
}

int disk_cache_examine(struct disk_cache *cache, const unsigned char id[DISK_ID_SIZE], struct object_copy **out,
                       struct error *error)
{
        struct disk_copy *copy;
        int r = open_entry(cache, id, UINT64_MAX, true, &copy, error);
        if (r == 0)
                *out = &copy->base;
        return r;
}

bool disk_cache_has(struct disk_cache *cache, const unsigned char place[DISK_ID_SIZE])
{
        lock_scope(&cache->mutex);
        await_scan(cache);
        list_each_item (const struct disk_entry, e, bucket(&cache->by_place, key_of(place)), by_place)
                if (memcmp(e->place, place, DISK_ID_SIZE) == 0)
                        return true;
        return false;
}

bool disk_cache_has_version(struct disk_cache *cache, const unsigned char id[DISK_ID_SIZE])
{
        lock_scope(&cache->mutex);
        await_scan(cache);
        const struct disk_entry *entry = find(cache, id);
        return entry != NULL && entry->state == DISK_STORED;
}

/* ---- space ---- */

static bool is_pinned(const struct disk_cache *cache, const struct disk_entry *entry)
{
        return is_pin(cache, entry->shown) || (entry->other != NULL && is_pin(cache, entry->other));
}

static bool may_evict(const struct disk_cache *cache, const struct disk_entry *entry)
{
        return entry->refs == 0 && !is_pinned(cache, entry);
}

static uint64_t min_free_of(const struct disk_limits *limits, uint64_t total)
{
        return limits->min_free > 0 ? limits->min_free : total / 100 * limits->min_free_percent;
}

void disk_cache_space(struct disk_cache *cache, struct disk_space *space)
{
        uint64_t free_bytes = 0, total = 0;
        bool known = disk_folder_space(&cache->folder, &free_bytes, &total);
        lock_scope(&cache->mutex);
        *space = (struct disk_space){.budget = cache->limits.budget,
                                     .used = cache->used,
                                     .total = known ? total : 0,
                                     .free = free_bytes,
                                     .min_free = min_free_of(&cache->limits, total)};
}

/* By how many bytes the budget, which is at least `bytes`, would be exceeded if `bytes` more were stored. */
static uint64_t beyond_budget(const struct disk_cache *cache, uint64_t bytes)
{
        require(bytes <= cache->limits.budget);
        uint64_t rest = cache->limits.budget - bytes;
        return cache->used > rest ? cache->used - rest : 0;
}

/* By how many bytes free space would fall below min_free if `bytes` more were stored. */
static uint64_t beyond_space(const struct disk_cache *cache, uint64_t bytes)
{
        uint64_t free_bytes, total;
        if (!disk_folder_space(&cache->folder, &free_bytes, &total))
                return 0;
        uint64_t keep = min_free_of(&cache->limits, total);
        return keep + bytes > free_bytes ? keep + bytes - free_bytes : 0;
}

/* Bytes; no further one is counted when they are so many. */
static uint64_t evictable(const struct disk_cache *cache, uint64_t most)
{
        uint64_t bytes = 0;
        list_each_item (const struct disk_entry, e, &cache->entries, in_order)
                if (bytes < most && may_evict(cache, e))
                        bytes += e->bytes;
        return bytes;
}

/* Bytes that are to become free before `bytes` more may be written; UINT64_MAX: too many. */
static uint64_t missing_bytes(const struct disk_cache *cache, uint64_t bytes)
{
        if (bytes > cache->limits.budget)
                return UINT64_MAX;
        uint64_t missing = beyond_budget(cache, bytes), space = beyond_space(cache, bytes);
        missing = space > missing ? space : missing;
        return missing <= evictable(cache, missing) ? missing : UINT64_MAX;
}

/* Of what a limit of `all` bytes leaves, beside what stays. */
static uint64_t left_of(uint64_t all, uint64_t stays)
{
        return all > stays ? all - stays : 0;
}

static void budget_error(const struct disk_cache *cache, uint64_t bytes, struct error *error)
{
        uint64_t budget = cache->limits.budget;
        char all[SIZE_TEXT], left[SIZE_TEXT], needs[SIZE_TEXT];
        size_text(all, budget);
        size_text(left, left_of(budget, cache->used - evictable(cache, UINT64_MAX)));
        size_text(needs, bytes);
        error_set(error, STREAMER_ELIMIT, "the budget (%s) leaves %s, it needs %s", all, left, needs);
}

static void min_free_error(const struct disk_cache *cache, uint64_t bytes, struct error *error)
{
        uint64_t free_bytes = 0, total = 0, more = evictable(cache, UINT64_MAX);
        char percent[16] = "", kept[SIZE_TEXT], left[SIZE_TEXT], needs[SIZE_TEXT];
        disk_folder_space(&cache->folder, &free_bytes, &total);
        uint64_t keep = min_free_of(&cache->limits, total);
        bool enough = left_of(free_bytes + more, keep) >= bytes;
        if (cache->limits.min_free == 0)
                snprintf(percent, sizeof(percent), "%u %% = ", cache->limits.min_free_percent);
        size_text(kept, keep);
        size_text(left, left_of(free_bytes + (enough ? 0 : more), keep));
        size_text(needs, bytes);
        error_set(error, STREAMER_ELIMIT, "min_free (%s%s) leaves %s, it needs %s%s", percent, kept, left, needs,
                  enough ? ", and what was evicted is not free yet" : "");
}

/* Which limit it is. */
static enum disk_reserved refuse(const struct disk_cache *cache, uint64_t bytes, struct error *error)
{
        bool by_budget = bytes > cache->limits.budget || beyond_budget(cache, bytes) > evictable(cache, UINT64_MAX);
        if (by_budget)
                budget_error(cache, bytes, error);
        else
                min_free_error(cache, bytes, error);
        return DISK_FULL;
}

/* With the mutex held: the least recently used one that may be evicted; NULL: none. */
static struct disk_entry *victim(const struct disk_cache *cache)
{
        list_each_item (struct disk_entry, e, &cache->entries, in_order)
                if (may_evict(cache, e))
                        return e;
        return NULL;
}

/* The files are removed without the mutex, which is held again afterwards: a large one takes long. */
static void evict(struct disk_cache *cache, struct disk_entry *entry)
{
        entry->refs++;
        drop(cache, entry);
        pthread_mutex_unlock(&cache->mutex);
        log_info("disk cache: %s: evicted", entry->shown);
        metric_add(METRIC_DISK_EVICTIONS, 1);
        disk_folder_remove(&cache->folder, entry->id);
        unref(cache, entry);
        pthread_mutex_lock(&cache->mutex);
}

bool disk_cache_trim(struct disk_cache *cache)
{
        uint64_t pinned = 0;
        lock_scope(&cache->mutex);
        require(cache->scanned);
        if (!cache->pins_known) /* at the start: they will be */
                return false;
        for (struct disk_entry *e; beyond_budget(cache, 0) > 0 && (e = victim(cache)) != NULL;)
                evict(cache, e);
        list_each_item (const struct disk_entry, e, &cache->entries, in_order)
                if (is_pinned(cache, e))
                        pinned += e->bytes;
        require(pinned <= cache->used);
        return cache->used > cache->limits.budget && cache->used > pinned;
}

/* True: there is space. What was evicted may not become free, or not soon: its bytes have another link, or the file
 * system frees them later. So no more is evicted than was missing at first. */
static bool make_space(struct disk_cache *cache, uint64_t bytes)
{
        uint64_t missing = missing_bytes(cache, bytes), evicted = 0;
        for (uint64_t first = missing; missing > 0 && missing != UINT64_MAX && evicted < first;) {
                struct disk_entry *e = victim(cache);
                evicted += e->bytes;
                evict(cache, e);
                missing = missing_bytes(cache, bytes);
        }
        return missing == 0;
}

enum disk_reserved disk_cache_reserve(struct disk_cache *cache, const struct object_label *label, uint64_t size,
                                      const char *name, struct disk_entry **out, struct error *error)
{
        /* Of the record, about what it will be. */
        uint64_t bytes = bytes_on_disk(size, DISK_PAGE + size / MiB * DIGEST_SIZE);
        lock_scope(&cache->mutex);
        await_scan(cache);
        struct disk_entry *known = find(cache, label->id);
        if (known != NULL && known->state == DISK_STORED)
                note_name(cache, known, name);
        if (known != NULL)
                return known->state == DISK_STORED ? DISK_KNOWN : DISK_BUSY;
        if (!make_space(cache, bytes))
                return refuse(cache, bytes, error);
        if (find(cache, label->id) != NULL) /* meanwhile */
                return DISK_BUSY;
        struct disk_entry *entry = entry_new(label->id, label->place);
        if (entry == NULL)
                return DISK_NO_MEMORY;
        entry->refs = 1;
        entry->size = size;
        entry->bytes = bytes;
        cache->used += bytes;
        list_append(bucket(&cache->by_id, key_of(entry->id)), &entry->by_id);
        *out = entry;
        return DISK_RESERVED;
}

void disk_cache_add(struct disk_cache *cache, struct disk_entry *entry, struct disk_record *record)
{
        uint64_t bytes = bytes_on_disk(record->size, disk_record_size(record));
        pthread_mutex_lock(&cache->mutex);
        describe(entry, record);
        cache->used += bytes - entry->bytes;
        entry->bytes = bytes;
        entry->used_s = record->stored_s;
        publish(cache, entry);
        pthread_mutex_unlock(&cache->mutex);
        unref(cache, entry);
}

void disk_cache_give_up(struct disk_cache *cache, struct disk_entry *entry)
{
        pthread_mutex_lock(&cache->mutex);
        drop(cache, entry);
        pthread_mutex_unlock(&cache->mutex);
        unref(cache, entry);
}

/* ---- for people ---- */

static bool is_named(const struct disk_entry *entry, const char *of)
{
        char id[DISK_NAME_SIZE];
        hex_encode(id, entry->id, DISK_ID_SIZE);
        return of == NULL || strncmp(entry->shown, of, strlen(of)) == 0 || strncmp(id, of, strlen(of)) == 0 ||
               (entry->other != NULL && strncmp(entry->other, of, strlen(of)) == 0);
}

void disk_rows_free(struct disk_row *rows, size_t n)
{
        for (size_t i = 0; i < n; i++) {
                free(rows[i].shown);
                free(rows[i].version);
        }
        free(rows);
}

static int by_id(const void *a, const void *b)
{
        return memcmp((*(struct disk_entry *const *)a)->id, (*(struct disk_entry *const *)b)->id, DISK_ID_SIZE);
}

static bool row_init(struct disk_row *row, const struct disk_cache *cache, const struct disk_entry *entry, uint64_t now)
{
        *row = (struct disk_row){.shown = strdup(entry->shown),
                                 .version = strdup(entry->version),
                                 .size = entry->size,
                                 .bytes = entry->bytes,
                                 .used_s = now > entry->used_s ? now - entry->used_s : 0,
                                 .stored_s = now > entry->stored_s ? now - entry->stored_s : 0,
                                 .pinned = is_pinned(cache, entry),
                                 .in_use = entry->refs > 0};
        memcpy(row->id, entry->id, DISK_ID_SIZE);
        return row->shown != NULL && row->version != NULL;
}

int disk_cache_rows(struct disk_cache *cache, const char *of, const char *after, size_t max, struct disk_row **rows,
                    size_t *n, bool *more)
{
        size_t n_found = 0;
        require(of == NULL || of[0] != '\0'); /* all begin with it */
        lock_scope(&cache->mutex);
        await_scan(cache);
        cleanup_free struct disk_entry **found = malloc((cache->n_entries + 1) * sizeof(*found));
        if (found == NULL)
                return STREAMER_ENOMEM;
        list_each_item (struct disk_entry, e, &cache->entries, in_order) {
                char id[DISK_NAME_SIZE];
                hex_encode(id, e->id, DISK_ID_SIZE);
                if (is_named(e, of) && (after == NULL || strcmp(id, after) > 0))
                        found[n_found++] = e;
        }
        qsort(found, n_found, sizeof(*found), by_id);
        *more = n_found > max;
        *n = 0;
        n_found = *more ? max : n_found;
        *rows = calloc(n_found + 1, sizeof(**rows));
        bool ok = *rows != NULL;
        for (uint64_t now = now_s(); ok && *n < n_found; (*n)++)
                ok = row_init(&(*rows)[*n], cache, found[*n], now);
        return ok ? 0 : STREAMER_ENOMEM;
}

bool disk_cache_remove(struct disk_cache *cache, const unsigned char id[DISK_ID_SIZE])
{
        pthread_mutex_lock(&cache->mutex);
        struct disk_entry *entry = find(cache, id);
        bool stored = entry != NULL && entry->state == DISK_STORED;
        if (stored)
                entry->refs++;
        pthread_mutex_unlock(&cache->mutex);
        bool removed = stored && drop_entry(cache, entry);
        if (removed)
                log_info("disk cache: %s: removed", entry->shown);
        if (stored)
                unref(cache, entry);
        return removed;
}
