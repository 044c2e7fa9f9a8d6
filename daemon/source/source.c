/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts that all kinds of sources share: sets of objects with an index, names, versions.
 */
#include "daemon/source/source.h"

#include "daemon/base/hash.h"
#include "daemon/base/util.h"

/* ---- sets ---- */

int source_set_reserve(struct source_set *set, size_t n, struct error *error)
{
        set->objects = calloc(n, sizeof(*set->objects));
        set->n_objects = set->objects != NULL ? n : 0;
        return set->objects != NULL ? 0 : error_no_memory(error);
}

int source_set_index(struct source_set *set, struct error *error)
{
        const char *path = set->index_object.path;
        struct st_error st;
        if (st_index_parse(&set->index, set->index_text.data, set->index_text.size, &st) < 0)
                return error_set(error, st.rule == ST_NO_MEMORY ? STREAMER_ENOMEM : STREAMER_EFAILED, "%s (%s)",
                                 st.text, path);
        if (set->index.n_files == 0)
                return error_set(error, STREAMER_EFAILED, "the index names no file (%s)", path);
        if (set->index.n_files > SOURCE_FILES_MAX)
                return error_set(error, STREAMER_EFAILED, "the index names more than %d files (%s)", SOURCE_FILES_MAX,
                                 path);
        return 0;
}

int source_set_leave_out(struct source_set *set, const char *name, struct error *error)
{
        char **v =
                set->n_left_out < SOURCE_LEFT_OUT_MAX ? array_grow(set->left_out, set->n_left_out, sizeof(*v)) : NULL;
        if (set->n_left_out == SOURCE_LEFT_OUT_MAX)
                return 0;
        if (v == NULL)
                return error_no_memory(error);
        set->left_out = v;
        v[set->n_left_out] = strdup(name);
        return v[set->n_left_out] != NULL ? (set->n_left_out++, 0) : error_no_memory(error);
}

void source_set_drop_index(struct source_set *set)
{
        st_index_deinit(&set->index);
        text_deinit(&set->index_text);
        object_deinit(&set->index_object);
}

void source_set_close(struct source_set *set)
{
        for (size_t i = 0; i < set->n_objects; i++)
                set->objects[i].ops->deinit(&set->objects[i]);
        if (set->index_object.ops != NULL)
                set->index_object.ops->deinit(&set->index_object);
}

void source_set_deinit(struct source_set *set)
{
        for (size_t i = 0; i < set->n_objects; i++)
                object_deinit(&set->objects[i]);
        free(set->objects);
        for (size_t i = 0; i < set->n_left_out; i++)
                free(set->left_out[i]);
        free(set->left_out);
        free(set->fixed);
        source_set_drop_index(set);
        *set = (struct source_set){0};
}

/* ---- names ---- */

bool source_is_below(const char *folder, const char *path)
{
        size_t len = trimmed_len(folder, '/');
        return strncmp(folder, path, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

bool source_ends_with(const char *text, size_t len, const char *suffix)
{
        size_t n = strlen(suffix);
        return len >= n && memcmp(text + len - n, suffix, n) == 0;
}

size_t source_stem_len(const char *name, size_t len)
{
        size_t suffix = strlen(SOURCE_SUFFIX);
        return len > suffix && source_ends_with(name, len, SOURCE_SUFFIX) ? len - suffix : len;
}

bool source_is_index(const char *name)
{
        static const char infix[] = SOURCE_SUFFIX ".index.", suffix[] = ".json";
        const char *index = strstr(name, infix);
        if (index == NULL || index == name || name[0] == '.')
                return false;
        /* "json" or "fp16.json" */
        const char *rest = index + strlen(infix), *dot = strrchr(rest, '.');
        return strcmp(rest, suffix + 1) == 0 || (dot > rest && strchr(rest, '.') == dot && strcmp(dot, suffix) == 0);
}

size_t source_folder_len(const char *path)
{
        const char *slash = strrchr(path, '/');
        return slash != NULL && source_is_index(slash + 1) ? (size_t)(slash - path) : strlen(path);
}

char *source_last_components(const char *path, size_t len, unsigned n)
{
        while (len > 0 && path[len - 1] == '/')
                len--;
        size_t last = len;
        while (last > 0 && path[last - 1] != '/')
                last--;
        if (last == len)
                return strdup("model");
        size_t start = last;
        for (; n > 1 && start > 1 && path[start - 2] != '/'; n--)
                for (start--; start > 0 && path[start - 1] != '/';)
                        start--;
        return strndup(path + start, last - start + source_stem_len(path + last, len - last));
}

/* ---- versions ---- */

void source_identity(const struct source_set *set, struct source_identity *out)
{
        struct hash hash;
        *out = (struct source_identity){.sample = {0}};
        hash_init(&hash);
        for (size_t i = 0; i < set->n_objects; i++)
                set->objects[i].ops->identify(&set->objects[i], &hash);
        if (set->index.n_files > 0)
                set->index_object.ops->identify(&set->index_object, &hash);
        hash_final(&hash, out->digest);
}

bool source_answers(const struct source_set *set, unsigned char digest[16])
{
        struct hash hash;
        hash_init(&hash);
        for (size_t i = 0; i < set->n_objects + (set->index.n_files > 0); i++) {
                const struct object *object = i < set->n_objects ? &set->objects[i] : &set->index_object;
                if (object->ops->identify_answer == NULL)
                        return false;
                object->ops->identify_answer(object, &hash);
        }
        hash_final(&hash, digest);
        return true;
}

static bool is_weak(const struct object *object)
{
        return object->ops != NULL && object->ops->sample != NULL && object->version.is_weak;
}

bool source_is_weak(const struct source_set *set)
{
        bool weak = is_weak(&set->index_object);
        for (size_t i = 0; !weak && i < set->n_objects; i++)
                weak = is_weak(&set->objects[i]);
        return weak;
}

int source_identity_sample(const struct source_set *set, struct source_identity *identity, struct error *error)
{
        const struct object *index = &set->index_object;
        struct hash hash;
        if (!source_is_weak(set))
                return 0;
        hash_init(&hash);
        int r = is_weak(index) ? index->ops->sample(index, set->n_objects, &hash, error) : 0;
        for (size_t i = 0; r == 0 && i < set->n_objects; i++)
                if (is_weak(&set->objects[i]))
                        r = set->objects[i].ops->sample(&set->objects[i], set->n_objects, &hash, error);
        if (r == 0)
                hash_final(&hash, identity->sample);
        return r;
}

/* One allocation, since a model has it as long as it is resident: behind the files their digests and names. */
struct source_files *source_files_new(const struct source_set *set)
{
        size_t digests = 0, names = 0;
        for (size_t i = 0; i < set->n_objects; i++) {
                digests += set->objects[i].has_sha256;
                names += strlen(object_name(&set->objects[i])) + 1;
        }
        struct source_files *files =
                calloc(1, sizeof(*files) + set->n_objects * sizeof(files->v[0]) + digests * SHA256_SIZE + names);
        if (files == NULL)
                return NULL;
        unsigned char *digest = (unsigned char *)&files->v[set->n_objects];
        char *name = (char *)digest + digests * SHA256_SIZE;
        struct hash sums;
        files->refs = 1;
        hash_init(&sums);
        for (size_t i = 0; i < set->n_objects; i++) {
                const struct object *object = &set->objects[i];
                struct source_file *file = &files->v[files->n++];
                struct hash hash;
                hash_init(&hash);
                object->ops->identify(object, &hash);
                hash_final(&hash, file->identity);
                file->bytes = object->version.size;
                file->mtime_ns = object->version.mtime_ns;
                hash_update(&sums, object->sha256, SHA256_SIZE);
                if (object->has_sha256) {
                        file->sha256 = memcpy(digest, object->sha256, SHA256_SIZE);
                        digest += SHA256_SIZE;
                }
                file->name = strcpy(name, object_name(object));
                name += strlen(name) + 1;
        }
        hash_final(&sums, files->sums);
        return files;
}

struct source_files *source_files_ref(struct source_files *files)
{
        if (files != NULL)
                __atomic_fetch_add(&files->refs, 1, __ATOMIC_RELAXED);
        return files;
}

struct source_files *source_files_free(struct source_files *files)
{
        if (files == NULL || __atomic_sub_fetch(&files->refs, 1, __ATOMIC_ACQ_REL) > 0)
                return NULL;
        free(files);
        return NULL;
}

const struct source_file *source_files_find(const struct source_files *files, const char *name)
{
        for (size_t i = 0; i < files->n; i++)
                if (strcmp(files->v[i].name, name) == 0)
                        return &files->v[i];
        return NULL;
}

/* ---- notes ---- */

struct source_notes *source_notes_new(const struct source_set *set)
{
        struct source_notes *notes = calloc(1, sizeof(*notes));
        if (notes == NULL)
                return NULL;
        notes->refs = 1;
        require(set->n_left_out <= SOURCE_LEFT_OUT_MAX);
        for (size_t i = 0; i < set->n_left_out; i++)
                if ((notes->left_out[notes->n_left_out++] = strdup(set->left_out[i])) == NULL)
                        return source_notes_free(notes);
        return notes;
}

int source_notes_add_missing(struct source_notes *notes, const char *tensor)
{
        require(notes->refs == 1);
        char *name = notes->n_missing < SOURCE_MISSING_MAX ? strdup(tensor) : NULL;
        if (notes->n_missing < SOURCE_MISSING_MAX && name == NULL)
                return STREAMER_ENOMEM;
        if (name != NULL)
                notes->missing[notes->n_missing] = name;
        notes->n_missing++;
        return 0;
}

struct source_notes *source_notes_ref(struct source_notes *notes)
{
        if (notes != NULL)
                __atomic_fetch_add(&notes->refs, 1, __ATOMIC_RELAXED);
        return notes;
}

struct source_notes *source_notes_free(struct source_notes *notes)
{
        if (notes == NULL || __atomic_sub_fetch(&notes->refs, 1, __ATOMIC_ACQ_REL) > 0)
                return NULL;
        for (size_t i = 0; i < notes->n_left_out; i++)
                free(notes->left_out[i]);
        for (size_t i = 0; i < source_notes_named(notes); i++)
                free(notes->missing[i]);
        free(notes);
        return NULL;
}

/* ---- published digests, checks ---- */

int source_sum_differs(const unsigned char published[32], const unsigned char read[32], const char *path,
                       struct error *error)
{
        char want[65], got[65];
        hex_encode(want, published, 32);
        hex_encode(got, read, 32);
        return error_set(error, STREAMER_EFAILED, "SHA-256 differs: %s published, %s read (%s)", want, got, path);
}

int source_files_compare_sums(const struct source_files *before, const struct source_files *now, struct error *error)
{
        static const unsigned char none[SHA256_SIZE];
        for (size_t i = 0; i < now->n; i++) {
                const struct source_file *file = &now->v[i], *old = source_files_find(before, file->name);
                const unsigned char *sum = file->sha256 ?: none;
                if (old != NULL && old->sha256 != NULL && memcmp(old->sha256, sum, SHA256_SIZE) != 0)
                        return source_sum_differs(sum, old->sha256, file->name, error);
        }
        return 0;
}

int source_check(const struct source_set *set, struct error *error)
{
        cleanup_free const struct object **objects = calloc(set->n_objects + 1, sizeof(*objects));
        size_t n = 0;
        if (objects == NULL)
                return error_no_memory(error);
        if (set->index.n_files > 0)
                objects[n++] = &set->index_object;
        for (size_t i = 0; i < set->n_objects; i++)
                objects[n++] = &set->objects[i];
        return object_check_versions(objects, n, error);
}
