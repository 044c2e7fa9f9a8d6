/* SPDX-License-Identifier: Apache-2.0
 *
 * model.safetensors.index.json: which file holds which tensor. The entries stay in the file's order; the set that finds
 * repeated names also serves st_index_find(). Neighbouring entries mostly name the same file, so a file is looked up
 * only where the name changes.
 */
#include "daemon/base/util.h"
#include "daemon/model/safetensors.h"

#define ENTRIES_MAX ((size_t)2 << 20)
#define FILES_MAX ((size_t)65536)

struct parser {
        struct json json;
        struct st_index_entry *entries;
        struct json_string *files; /* distinct, in order of appearance */
        size_t n_entries, n_files;
        struct nameset file_set;
        struct json_string name; /* being read */
        bool has_map, in_entry;
};

/* ---- files ---- */

static struct name file_at(const void *owner, uint32_t i)
{
        const struct parser *p = owner;
        return (struct name){p->json.text + p->files[i].at, p->files[i].len};
}

/* A file beside the index, not a way to another folder. */
static bool check_file(struct json *j, struct json_string file)
{
        const char *s = j->text + file.at;
        if (file.len == 0)
                return json_fail(j, ST_BAD_ENTRY, file.at - 1, "the file name is empty");
        if (memchr(s, 0, file.len) != NULL)
                return json_fail(j, ST_NUL_IN_NAME, file.at - 1, "the file name holds a NUL");
        if (memchr(s, '/', file.len) != NULL || strcmp(s, ".") == 0 || strcmp(s, "..") == 0)
                return json_fail(j, ST_BAD_ENTRY, file.at - 1, "the file name is not a plain name");
        return true;
}

static bool add_file(struct parser *p, struct json_string file, uint32_t *number)
{
        struct json *j = &p->json;
        *number = nameset_find(&p->file_set, file_at, p, (struct name){j->text + file.at, file.len});
        if (*number != NAMES_NONE)
                return true;
        struct json_string *files = json_grow(j, p->files, p->n_files, sizeof(*files), FILES_MAX, file.at - 1, "files");
        if (files == NULL)
                return false;
        p->files = files;
        /* At powers of two the set doubles, and the present files are inserted again. */
        bool grow = (p->n_files & (p->n_files - 1)) == 0;
        if (grow && !nameset_begin(&p->file_set, 2 * p->n_files + 8))
                return json_fail(j, ST_NO_MEMORY, file.at - 1, "no memory for %zu files", p->n_files + 1);
        for (uint32_t i = 0; grow && i < p->n_files; i++)
                nameset_add(&p->file_set, file_at, p, i);
        *number = (uint32_t)p->n_files++;
        files[*number] = file;
        nameset_add(&p->file_set, file_at, p, *number);
        return true;
}

static bool file_number(struct parser *p, struct json_string file, uint32_t *number)
{
        if (p->n_entries > 0) {
                *number = p->entries[p->n_entries - 1].file;
                struct name last = file_at(p, *number);
                if (last.len == file.len && memcmp(last.s, p->json.text + file.at, file.len) == 0)
                        return true;
        }
        return check_file(&p->json, file) && add_file(p, file, number);
}

/* ---- weight_map ---- */

static bool parse_entry(struct parser *p)
{
        struct json *j = &p->json;
        struct json_string file;
        uint32_t number;
        p->in_entry = true;
        if (memchr(j->text + p->name.at, 0, p->name.len) != NULL)
                return json_fail(j, ST_NUL_IN_NAME, p->name.at - 1, "a tensor's name holds a NUL");
        if (json_peek(j) != '"')
                return json_fail(j, ST_BAD_ENTRY, j->at, "the file name is not a string");
        if (!json_take_string(j, &file) || !file_number(p, file, &number))
                return false;
        struct st_index_entry *entries =
                json_grow(j, p->entries, p->n_entries, sizeof(*entries), ENTRIES_MAX, p->name.at - 1, "tensors");
        if (entries == NULL)
                return false;
        p->entries = entries;
        entries[p->n_entries++] = (struct st_index_entry){p->name.at, p->name.len, number};
        p->in_entry = false;
        return true;
}

static bool parse_map(struct parser *p)
{
        struct json *j = &p->json;
        p->has_map = true;
        if (!json_open(j, '{'))
                return json_fail(j, ST_BAD_ENTRY, j->at, "the weight_map is not an object");
        for (size_t n = 0; json_member(j, &n, &p->name);)
                if (!parse_entry(p))
                        return false;
        return j->fault == ST_OK;
}

/* A second weight_map adds to the first, for as long as it takes to find that the key is repeated. */
static bool parse_object(struct parser *p)
{
        struct json *j = &p->json;
        struct json_string key;
        if (!json_open(j, '{'))
                return json_fail(j, ST_NOT_JSON, j->at, "the index does not begin with '{'");
        size_t keys = j->n_keys;
        for (size_t n = 0; json_member(j, &n, &key);)
                if (!json_keys_add(j, keys, key) || !(JSON_IS(j, key, "weight_map") ? parse_map(p) : json_skip(j)))
                        return false;
        size_t end = j->at - 1;
        if (!json_keys_end(j, keys) || !json_end(j))
                return false;
        return p->has_map || json_fail(j, ST_BAD_ENTRY, end, "weight_map is missing");
}

/* ---- the index ---- */

static struct name entry_at(const void *owner, uint32_t i)
{
        const struct st_index *index = owner;
        return (struct name){index->text + index->entries[i].name, index->entries[i].name_len};
}

/* The set of all names, which st_index_find() also uses. */
static bool collect_names(struct parser *p, struct st_index *index)
{
        struct json *j = &p->json;
        if (!nameset_begin(&index->names, index->n_entries))
                return json_fail(j, ST_NO_MEMORY, j->at, "no memory for %zu names", index->n_entries);
        for (uint32_t i = 0; i < index->n_entries; i++) {
                if (nameset_add(&index->names, entry_at, index, i) == NAMES_NONE)
                        continue;
                char quoted[NAME_QUOTE];
                name_quote(quoted, entry_at(index, i));
                return json_fail(j, ST_DUPLICATE_KEY, index->entries[i].name - 1, "the key '%s' is given twice",
                                 quoted);
        }
        return true;
}

/* Files in byte order; entries follow with their numbers. */
static bool order_files(struct parser *p, struct st_index *index)
{
        size_t n = p->n_files;
        uint32_t *files = calloc(n + 1, sizeof(*files));
        cleanup_free uint32_t *ranks = calloc(n + 1, sizeof(*ranks));
        index->files = files;
        if (files == NULL || ranks == NULL)
                return json_fail(&p->json, ST_NO_MEMORY, p->json.at, "no memory for %zu files", n);
        names_sort(files, n, file_at, p);
        for (uint32_t i = 0; i < n; i++) {
                ranks[files[i]] = i;
                files[i] = p->files[files[i]].at;
        }
        for (size_t i = 0; i < index->n_entries; i++)
                index->entries[i].file = ranks[index->entries[i].file];
        index->n_files = n;
        return true;
}

int st_index_parse(struct st_index *index, char *text, size_t n, struct st_error *error)
{
        *index = (struct st_index){0};
        if (n > ST_HEADER_MAX)
                return rule_refuse(error, ST_HEADER_TOO_LARGE, "the index is longer than 100,000,000 bytes");
        struct parser p = {0};
        json_init(&p.json, text, n);
        bool ok = parse_object(&p);
        index->text = text;
        index->n_entries = p.n_entries;
        index->entries = p.entries;
        ok = ok && collect_names(&p, index) && order_files(&p, index);
        if (!ok) {
                struct name name = {0};
                if (p.in_entry)
                        name = (struct name){p.json.text + p.name.at, p.name.len};
                rule_report(error, &p.json, 0, name);
                st_index_deinit(index);
        }
        json_deinit(&p.json);
        free(p.files);
        nameset_deinit(&p.file_set);
        return ok ? 0 : -1;
}

void st_index_deinit(struct st_index *index)
{
        free(index->entries);
        free(index->files);
        nameset_deinit(&index->names);
        *index = (struct st_index){0};
}

const struct st_index_entry *st_index_find(const struct st_index *index, const char *name, size_t len)
{
        uint32_t i = nameset_find(&index->names, entry_at, index, (struct name){name, len});
        return i == NAMES_NONE ? NULL : &index->entries[i];
}
