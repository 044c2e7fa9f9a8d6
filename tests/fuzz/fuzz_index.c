/* SPDX-License-Identifier: Apache-2.0
 *
 * model.safetensors.index.json. In an accepted one every name is found and every file is below the index's folder.
 */
#include "daemon/model/safetensors.h"
#include "proto/codec.h"
#include "tests/fuzz/fuzz.h"

static void check_entries(const struct st_index *index, size_t size)
{
        for (size_t i = 0; i < index->n_entries; i++) {
                const struct st_index_entry *entry = &index->entries[i];
                const char *name = index->text + entry->name;
                holds(entry->name > 0 && entry->name < size && entry->name_len < size - entry->name);
                holds(strlen(name) == entry->name_len && codec_utf8(name, entry->name_len));
                holds(entry->file < index->n_files);
                holds(st_index_find(index, name, entry->name_len) == entry); /* so it is listed once */
        }
}

static void check_files(const struct st_index *index)
{
        for (size_t i = 0; i < index->n_files; i++) {
                const char *file = st_index_file(index, i);
                for (const char *at = file;; at++) {
                        size_t len = strcspn(at, "/");
                        holds(len > 2 || (len > 0 && strspn(at, ".") < len));
                        at += len;
                        if (*at == '\0')
                                break;
                }
                holds(codec_utf8(file, strlen(file)));
                holds(i == 0 || strcmp(st_index_file(index, i - 1), file) < 0);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct st_index index;
        struct st_error error;
        char *text = fuzz_copy(data, size, 0);
        if (st_index_parse(&index, text, size, &error) == 0) {
                check_entries(&index, size);
                check_files(&index);
                st_index_deinit(&index);
        } else {
                holds(error.rule != ST_OK && error.offset <= size);
                holds(index.entries == NULL && index.files == NULL);
        }
        free(text);
        return 0;
}
