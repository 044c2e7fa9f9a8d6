/* SPDX-License-Identifier: Apache-2.0
 *
 *   {"sha": "COMMIT", "siblings": [{"rfilename": "NAME", "size": N, "lfs": {"sha256": "HEX"}}, ...]}
 *
 * and much else, which is skipped.
 */
#include "daemon/source/hf/hf_reply.h"

#include "daemon/base/json/json.h"
#include "daemon/base/util.h"

#define FILES_MAX 65536u

/* Faults besides those of enum json_fault. */
enum { FAULT_MEMORY = JSON_FAULTS, FAULT_TOO_MANY_FILES };

static bool parse_lfs(struct json *j, struct hf_file *file)
{
        struct json_string key;
        if (!json_open(j, '{'))
                return json_skip(j);
        for (size_t n = 0; json_member(j, &n, &key);)
                if (!(JSON_IS(j, key, "sha256") ? json_take_text(j, &file->sha256) : json_skip(j)))
                        return false;
        return j->fault == JSON_OK;
}

static bool parse_file(struct json *j, struct hf_file *file)
{
        struct json_string key;
        *file = (struct hf_file){.sha256 = "", .size = UINT64_MAX};
        if (!json_open(j, '{'))
                return json_unexpected(j, "'{'");
        for (size_t n = 0; json_member(j, &n, &key);) {
                bool digit = json_peek(j) >= '0' && json_peek(j) <= '9';
                bool ok = JSON_IS(j, key, "rfilename")       ? json_take_text(j, &file->name)
                          : JSON_IS(j, key, "lfs")           ? parse_lfs(j, file)
                          : JSON_IS(j, key, "size") && digit ? json_whole(j, JSON_SYNTAX, &file->size)
                                                             : json_skip(j);
                if (!ok)
                        return false;
        }
        return j->fault == JSON_OK;
}

static bool parse_files(struct json *j, struct hf_info *info)
{
        struct hf_file file;
        if (!json_open(j, '['))
                return json_unexpected(j, "'['");
        for (size_t n = 0; json_more(j, ']', n); n++) {
                if (!parse_file(j, &file))
                        return false;
                if (file.name == NULL)
                        continue;
                if (info->n == FILES_MAX)
                        return json_fail(j, FAULT_TOO_MANY_FILES, j->at, "more than %u files", FILES_MAX);
                struct hf_file *files = array_grow(info->files, info->n, sizeof(*files));
                if (files == NULL)
                        return json_fail(j, FAULT_MEMORY, j->at, "no memory");
                info->files = files;
                info->files[info->n++] = file;
        }
        return j->fault == JSON_OK;
}

static bool parse_info(struct json *j, struct hf_info *info, const char **commit)
{
        struct json_string key;
        if (!json_open(j, '{'))
                return json_unexpected(j, "'{'");
        for (size_t n = 0; json_member(j, &n, &key);) {
                bool ok = JSON_IS(j, key, "sha")        ? json_take_text(j, commit)
                          : JSON_IS(j, key, "siblings") ? parse_files(j, info)
                                                        : json_skip(j);
                if (!ok)
                        return false;
        }
        return json_end(j);
}

static int compare_name(const void *a, const void *b)
{
        const struct hf_file *x = a, *y = b;
        return strcmp(x->name, y->name);
}

const struct hf_file *hf_info_find(const struct hf_info *info, const char *name)
{
        const struct hf_file wanted = {.name = name};
        return info->n > 0 ? bsearch(&wanted, info->files, info->n, sizeof(wanted), compare_name) : NULL;
}

/* It becomes part of a URL. */
static bool is_commit(const char *text)
{
        size_t len = text != NULL ? strlen(text) : 0;
        return len >= 7 && len <= 64 && strspn(text, "0123456789abcdef") == len;
}

int hf_info_parse(struct hf_info *info, char *text, size_t size, const char *shown, struct error *error)
{
        struct json json;
        const char *commit = NULL;
        *info = (struct hf_info){.n = 0};
        text[size] = '\0';
        json_init(&json, text, size);
        bool ok = parse_info(&json, info, &commit);
        int r = 0;
        if (json.fault == FAULT_MEMORY)
                r = error_no_memory(error);
        else if (json.fault == FAULT_TOO_MANY_FILES)
                r = error_set(error, STREAMER_EFAILED, "%s (%s)", json.detail, shown);
        else if (!ok)
                r = error_set(error, STREAMER_EFAILED, "the answer is not as the Hub's: %s (%s)", json.detail, shown);
        else if (!is_commit(commit))
                r = error_set(error, STREAMER_EFAILED, "the answer names no commit (%s)", shown);
        else
                snprintf(info->commit, sizeof(info->commit), "%s", commit);
        if (r == 0 && info->n > 0)
                qsort(info->files, info->n, sizeof(*info->files), compare_name);
        json_deinit(&json);
        if (r < 0)
                hf_info_deinit(info);
        return r;
}

void hf_info_deinit(struct hf_info *info)
{
        free(info->files);
        *info = (struct hf_info){.n = 0};
}
