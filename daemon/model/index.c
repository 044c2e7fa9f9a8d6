/* SPDX-License-Identifier: Apache-2.0
 *
 * model.safetensors.index.json: which file holds which tensor. The entries stay in the file's order; the set that finds
 * repeated names also serves st_index_find(). Neighbouring entries mostly name the same file, so files are compared by
 * runs of such entries.
 */
#include "daemon/base/util.h"
#include "daemon/model/safetensors.h"

#define ENTRIES_MAX ((size_t)2 << 20)

struct parser {
        struct json json;
        struct st_index *index;   /* `file` of an entry: the number of its run */
        struct json_string *runs; /* the file of each run of entries */
        size_t n_runs;
        struct json_string name; /* being read */
        bool has_map, in_entry;
};

/* ---- files ---- */

/* A file beside the index or below, not a way to another folder. */
static bool check_file(struct json *j, struct json_string file)
{
        const char *s = j->text + file.at;
        if (file.len == 0)
                return json_fail(j, ST_BAD_ENTRY, file.at - 1, "the file name is empty");
        if (memchr(s, 0, file.len) != NULL)
                return json_fail(j, ST_NUL_IN_NAME, file.at - 1, "the file name holds a NUL");
        for (const char *at = s;; at++) {
                size_t len = strcspn(at, "/");
                if (len == 0 || (len <= 2 && strspn(at, ".") >= len))
                        return json_fail(j, ST_BAD_ENTRY, file.at - 1,
                                         "the file name is not relative, or has an empty, '.' or '..' component");
                at += len;
                if (*at == '\0')
                        return true;
        }
}

/* "./name" is the name. */
static struct json_string plain_file(const struct json *j, struct json_string file)
{
        while (file.len > 2 && strncmp(j->text + file.at, "./", 2) == 0) {
                file.at += 2;
                file.len -= 2;
        }
        return file;
}

/* Begins another run, unless it is the same file as before. */
static bool add_run(struct parser *p, struct json_string file)
{
        struct json *j = &p->json;
        const struct json_string *last = p->n_runs > 0 ? &p->runs[p->n_runs - 1] : NULL;
        if (last != NULL && last->len == file.len && memcmp(j->text + last->at, j->text + file.at, file.len) == 0)
                return true;
        return check_file(j, file) &&
               json_append(j, &p->runs, &p->n_runs, &file, sizeof(file), ENTRIES_MAX, file.at - 1, "files");
}

/* ---- weight_map ---- */

static bool parse_entry(struct parser *p)
{
        struct json *j = &p->json;
        struct json_string file;
        p->in_entry = true;
        if (memchr(j->text + p->name.at, 0, p->name.len) != NULL)
                return json_fail(j, ST_NUL_IN_NAME, p->name.at - 1, "a tensor's name holds a NUL");
        if (json_peek(j) != '"')
                return json_fail(j, ST_BAD_ENTRY, j->at, "the file name is not a string");
        if (!json_take_string(j, &file) || !add_run(p, plain_file(j, file)))
                return false;
        const struct st_index_entry entry = {p->name.at, p->name.len, (uint32_t)p->n_runs - 1};
        if (!json_append(j, &p->index->entries, &p->index->n_entries, &entry, sizeof(entry), ENTRIES_MAX,
                         p->name.at - 1, "tensors"))
                return false;
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

static struct names_in_text entry_names(const struct st_index *index)
{
        return (struct names_in_text){index->text, index->entries, sizeof(*index->entries)};
}

/* The set of all names, which st_index_find() also uses. */
static bool collect_names(struct json *j, struct st_index *index)
{
        const struct names_in_text names = entry_names(index);
        if (!nameset_begin(&index->names, index->n_entries))
                return json_fail(j, ST_NO_MEMORY, j->at, "no memory for %zu names", index->n_entries);
        for (uint32_t i = 0; i < index->n_entries; i++)
                if (nameset_add(&index->names, names_in_text_at, &names, i) != NAMES_NONE)
                        return json_distinct(j, index->entries, sizeof(*index->entries),
                                             index->n_entries); /* says so */
        return true;
}

/* The distinct files of all runs in byte order; entries follow with their numbers. */
static bool order_files(struct parser *p)
{
        struct st_index *index = p->index;
        size_t n = p->n_runs;
        const struct names_in_text names = {index->text, p->runs, sizeof(*p->runs)};
        cleanup_free uint32_t *order = calloc(n + 1, sizeof(*order));
        cleanup_free uint32_t *numbers = calloc(n + 1, sizeof(*numbers));
        uint32_t *files = index->files = calloc(n + 1, sizeof(*files));
        if (order == NULL || numbers == NULL || files == NULL)
                return json_fail(&p->json, ST_NO_MEMORY, p->json.at, "no memory for %zu files", n);
        names_sort(order, n, names_in_text_at, &names);
        for (size_t i = 0; i < n; i++) {
                uint32_t file = p->runs[order[i]].at;
                if (i == 0 || strcmp(index->text + file, st_index_file(index, index->n_files - 1)) != 0)
                        files[index->n_files++] = file;
                numbers[order[i]] = (uint32_t)index->n_files - 1;
        }
        for (size_t i = 0; i < index->n_entries; i++)
                index->entries[i].file = numbers[index->entries[i].file];
        return true;
}

int st_index_parse(struct st_index *index, char *text, size_t n, struct st_error *error)
{
        *index = (struct st_index){.text = text};
        if (n > ST_HEADER_MAX)
                return rule_refuse(error, ST_HEADER_TOO_LARGE, "the index is longer than 100,000,000 bytes");
        struct parser p = {.index = index};
        json_init(&p.json, text, n);
        bool ok = parse_object(&p) && collect_names(&p.json, index) && order_files(&p);
        if (!ok) {
                rule_report(error, &p.json, 0, p.in_entry ? &p.name : NULL);
                st_index_deinit(index);
        }
        json_deinit(&p.json);
        free(p.runs);
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
        const struct names_in_text names = entry_names(index);
        uint32_t i = nameset_find(&index->names, names_in_text_at, &names, (struct name){name, len});
        return i == NAMES_NONE ? NULL : &index->entries[i];
}
