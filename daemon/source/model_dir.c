/* SPDX-License-Identifier: Apache-2.0
 *
 * An index or model file that is listed and cannot be opened is an error later: falling back to other files would load
 * another model than the folder holds.
 */
#include "daemon/source/model_dir.h"

#include "daemon/base/util.h"
#include "daemon/source/source.h"

/* Names with a dot in front are not data: "._model.safetensors" is macOS's resource fork. */
int model_dir_offer(struct model_dir *folder, const char *name, const char *shown, struct error *error)
{
        size_t len = strlen(name);
        if (strcmp(name, MODEL_DIR_INDEX) == 0)
                folder->has_index = true;
        if (name[0] == '.' || source_stem_len(name, len) == len)
                return 0;
        if (folder->n == SOURCE_FILES_MAX)
                return error_set(error, STREAMER_EFAILED, "more than %d safetensors files (%s)", SOURCE_FILES_MAX,
                                 shown);
        char **names = array_grow(folder->names, folder->n, sizeof(*names));
        if (names == NULL)
                return error_no_memory(error);
        folder->names = names;
        names[folder->n] = strdup(name);
        if (names[folder->n] == NULL)
                return error_no_memory(error);
        folder->n++;
        return 0;
}

/* The files of lowest rank are the model: original weights in another layout (consolidated) and
 * adapters are one only where there is nothing else. */
static int rank(const char *name)
{
        if (strcmp(name, MODEL_DIR_MODEL) == 0)
                return 0;
        if (strncmp(name, "consolidated", strlen("consolidated")) == 0)
                return 2;
        if (strncmp(name, "adapter_model", strlen("adapter_model")) == 0)
                return 3;
        return 1;
}

static int compare(const void *a, const void *b)
{
        return strcmp(*(char *const *)a, *(char *const *)b);
}

int model_dir_choose(struct model_dir *folder, const char *where, const char *shown, struct error *error)
{
        int best = 3;
        size_t chosen = 0;
        if (folder->n == 0 && !folder->has_index)
                return error_set(error, STREAMER_ENOENT, "no safetensors files %s (%s)", where, shown);
        for (size_t i = 0; i < folder->n; i++)
                best = rank(folder->names[i]) < best ? rank(folder->names[i]) : best;
        for (size_t i = 0; i < folder->n; i++) {
                if (rank(folder->names[i]) == best)
                        folder->names[chosen++] = folder->names[i];
                else
                        free(folder->names[i]);
        }
        folder->n = chosen;
        if (chosen > 0)
                qsort(folder->names, chosen, sizeof(*folder->names), compare);
        return 0;
}

void model_dir_deinit(struct model_dir *folder)
{
        for (size_t i = 0; i < folder->n; i++)
                free(folder->names[i]);
        free(folder->names);
        *folder = (struct model_dir){0};
}
