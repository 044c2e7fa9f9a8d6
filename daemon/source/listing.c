/* SPDX-License-Identifier: Apache-2.0
 *
 * An index or model file that is listed and cannot be opened is an error later: falling back to other files would load
 * another model than the folder holds.
 */
#include "daemon/source/listing.h"

#include "daemon/base/util.h"
#include "daemon/source/source.h"
#include "daemon/source/sums.h"
#include "proto/codec.h"

/* ---- names ---- */

int sidecar_check_name(const char *name, struct error *error)
{
        if (strlen(name) > SIDECAR_NAME_MAX)
                return error_set(error, STREAMER_EINVAL, "the file's name is longer than %d bytes", SIDECAR_NAME_MAX);
        for (const char *at = name;; at++) {
                size_t len = strcspn(at, "/");
                bool dots = (len == 1 || len == 2) && strspn(at, ".") >= len;
                if (len == 0 || dots)
                        return error_set(error, STREAMER_EINVAL,
                                         "'%s': not the name of a file beside the weights: it is relative, without "
                                         "empty, '.' or '..' components",
                                         name);
                at += len;
                if (*at == '\0')
                        return 0;
        }
}

static bool is_sidecar(const char *name, bool with_weights)
{
        static const char *const weights[] = {".safetensors", ".bin", ".ckpt",      ".gguf", ".h5",  ".msgpack",
                                              ".onnx",        ".ot",  ".onnx_data", ".pt",   ".pth", ".tflite"};
        const char *suffix = strrchr(name, '.') ?: "";
        struct error ignored;
        for (size_t i = 0; i < ARRAY_SIZE(weights); i++)
                if (!with_weights && strcmp(suffix, weights[i]) == 0)
                        return false;
        return name[0] != '.' && strstr(name, "/.") == NULL && codec_utf8(name, strlen(name)) &&
               sidecar_check_name(name, &ignored) == 0;
}

/* ---- lists ---- */

static void file_deinit(struct listed_file *file)
{
        free(file->name);
        free(file->tag);
}

int listing_add(struct listing *list, const char *name, uint64_t bytes, const char *tag, struct error *error)
{
        const unsigned max = list->sidecars ? SIDECAR_FILES_MAX : SOURCE_FILES_MAX;
        bool is_index = !list->sidecars && strcmp(name, LISTING_INDEX) == 0;
        if (!list->sidecars && strchr(name, '/') != NULL)
                return 0;
        list->has_sums |= strcmp(name, SUMS_NAME) == 0;
        list->has_index |= is_index;
        /* Names with a dot in front are not data: "._model.safetensors" is macOS's resource fork. */
        bool is_weights = name[0] != '.' && source_stem_len(name, strlen(name)) < strlen(name);
        if (!(list->sidecars ? is_sidecar(name, list->weights) : is_index || is_weights))
                return 0;
        if (list->n == max + list->has_index)
                return error_set(error, STREAMER_EFAILED, "more than %u %s (%s)", max,
                                 list->sidecars ? "files beside the weights" : "safetensors files", list->shown);
        struct listed_file *v = array_grow(list->v, list->n, sizeof(*v));
        if (v == NULL)
                return error_no_memory(error);
        list->v = v;
        v[list->n] = (struct listed_file){strdup(name), strdup(tag), bytes};
        if (v[list->n].name == NULL || v[list->n].tag == NULL) {
                file_deinit(&v[list->n]);
                return error_no_memory(error);
        }
        list->n++;
        return 0;
}

static int compare(const void *a, const void *b)
{
        return strcmp(((const struct listed_file *)a)->name, ((const struct listed_file *)b)->name);
}

void listing_sort(struct listing *list)
{
        if (list->n > 0)
                qsort(list->v, list->n, sizeof(*list->v), compare);
}

const struct listed_file *listing_find(const struct listing *list, const char *name)
{
        const struct listed_file key = {.name = (char *)(uintptr_t)name};
        return list->n > 0 ? bsearch(&key, list->v, list->n, sizeof(key), compare) : NULL;
}

void listing_deinit(struct listing *list)
{
        for (size_t i = 0; i < list->n; i++)
                file_deinit(&list->v[i]);
        free(list->v);
        *list = (struct listing){.shown = list->shown, .sidecars = list->sidecars, .weights = list->weights};
}

/* ---- the model ---- */

/* The files of lowest rank are the model: original weights in another layout (consolidated) and
 * adapters are one only where there is nothing else. */
static int rank(const char *name)
{
        if (strcmp(name, "model.safetensors") == 0)
                return 0;
        if (strncmp(name, "consolidated", strlen("consolidated")) == 0)
                return 2;
        if (strncmp(name, "adapter_model", strlen("adapter_model")) == 0)
                return 3;
        return 1;
}

int listing_choose(struct listing *list, const char *where, struct error *error)
{
        int best = 3;
        size_t chosen = 0;
        listing_sort(list);
        if (list->has_index)
                return 0;
        if (list->n == 0)
                return error_set(error, STREAMER_ENOENT, "no safetensors files %s (%s)", where, list->shown);
        for (size_t i = 0; i < list->n; i++)
                best = rank(list->v[i].name) < best ? rank(list->v[i].name) : best;
        for (size_t i = 0; i < list->n; i++) {
                if (rank(list->v[i].name) == best)
                        list->v[chosen++] = list->v[i];
                else
                        file_deinit(&list->v[i]);
        }
        list->n = chosen;
        return 0;
}
