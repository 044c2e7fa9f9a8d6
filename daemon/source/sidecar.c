/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/source/sidecar.h"

#include "daemon/base/util.h"
#include "proto/codec.h"

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

static bool holds_weights(const char *name)
{
        static const char *const suffixes[] = {".safetensors", ".bin", ".ckpt",      ".gguf", ".h5",  ".msgpack",
                                               ".onnx",        ".ot",  ".onnx_data", ".pt",   ".pth", ".tflite"};
        const char *suffix = strrchr(name, '.') ?: "";
        for (size_t i = 0; i < ARRAY_SIZE(suffixes); i++)
                if (strcmp(suffix, suffixes[i]) == 0)
                        return true;
        return false;
}

int sidecar_list_add(struct sidecar_list *list, const char *name, uint64_t bytes, const char *shown,
                     struct error *error)
{
        struct error ignored;
        bool hidden = name[0] == '.' || strstr(name, "/.") != NULL;
        if (hidden || holds_weights(name) || !codec_utf8(name, strlen(name)) || sidecar_check_name(name, &ignored) < 0)
                return 0;
        if (list->n == SIDECAR_FILES_MAX)
                return error_set(error, STREAMER_EFAILED, "more than %d files beside the weights (%s)",
                                 SIDECAR_FILES_MAX, shown);
        struct sidecar *v = array_grow(list->v, list->n, sizeof(*v));
        if (v == NULL)
                return error_no_memory(error);
        list->v = v;
        v[list->n] = (struct sidecar){strdup(name), bytes};
        if (v[list->n].name == NULL)
                return error_no_memory(error);
        list->n++;
        return 0;
}

static int compare(const void *a, const void *b)
{
        return strcmp(((const struct sidecar *)a)->name, ((const struct sidecar *)b)->name);
}

void sidecar_list_sort(struct sidecar_list *list)
{
        if (list->n > 0)
                qsort(list->v, list->n, sizeof(*list->v), compare);
}

void sidecar_list_deinit(struct sidecar_list *list)
{
        for (size_t i = 0; i < list->n; i++)
                free(list->v[i].name);
        free(list->v);
        *list = (struct sidecar_list){0};
}
