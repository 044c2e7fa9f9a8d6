/* SPDX-License-Identifier: Apache-2.0
 *
 *   {"sha": "COMMIT", "siblings": [{"rfilename": "NAME", "size": N, "lfs": {"sha256": "HEX"}}, ...]}
 *
 * and much else, which is skipped.
 */
#include "daemon/source/hf/hf_reply.h"

#include "daemon/base/json/json.h"
#include "daemon/base/util.h"

#define FAULT_NOT_ADDED JSON_FAULTS /* the list's own error */

struct file {
        const char *name, *sha256; /* in the text */
        uint64_t bytes;
};

static bool parse_lfs(struct json *j, struct file *file)
{
        struct json_string key;
        if (!json_open(j, '{'))
                return json_skip(j);
        for (size_t n = 0; json_member(j, &n, &key);)
                if (!(JSON_IS(j, key, "sha256") ? json_take_text(j, &file->sha256) : json_skip(j)))
                        return false;
        return j->fault == JSON_OK;
}

static bool parse_file(struct json *j, struct file *file)
{
        struct json_string key;
        *file = (struct file){.sha256 = "", .bytes = UINT64_MAX};
        if (!json_open(j, '{'))
                return json_unexpected(j, "'{'");
        for (size_t n = 0; json_member(j, &n, &key);) {
                bool digit = json_peek(j) >= '0' && json_peek(j) <= '9';
                bool ok = JSON_IS(j, key, "rfilename")       ? json_take_text(j, &file->name)
                          : JSON_IS(j, key, "lfs")           ? parse_lfs(j, file)
                          : JSON_IS(j, key, "size") && digit ? json_whole(j, JSON_SYNTAX, &file->bytes)
                                                             : json_skip(j);
                if (!ok)
                        return false;
        }
        return j->fault == JSON_OK;
}

static bool parse_files(struct json *j, struct listing *list, struct error *error)
{
        struct file file;
        if (!json_open(j, '['))
                return json_unexpected(j, "'['");
        for (size_t n = 0; json_more(j, ']', n); n++) {
                if (!parse_file(j, &file))
                        return false;
                if (file.name != NULL && listing_add(list, file.name, file.bytes, file.sha256, error) < 0)
                        return json_fail(j, FAULT_NOT_ADDED, j->at, "not added");
        }
        return j->fault == JSON_OK;
}

static bool parse_reply(struct json *j, const char **commit, struct listing *list, struct error *error)
{
        struct json_string key;
        if (!json_open(j, '{'))
                return json_unexpected(j, "'{'");
        for (size_t n = 0; json_member(j, &n, &key);) {
                bool ok = JSON_IS(j, key, "sha")        ? json_take_text(j, commit)
                          : JSON_IS(j, key, "siblings") ? parse_files(j, list, error)
                                                        : json_skip(j);
                if (!ok)
                        return false;
        }
        return json_end(j);
}

/* It becomes part of a URL. */
static bool is_commit(const char *text)
{
        size_t len = text != NULL ? strlen(text) : 0;
        return len >= 7 && len < HF_COMMIT && strspn(text, "0123456789abcdef") == len;
}

int hf_reply_parse(char *text, size_t size, char commit[HF_COMMIT], struct listing *list, struct error *error)
{
        struct json json;
        const char *sha = NULL;
        text[size] = '\0';
        json_init(&json, text, size);
        bool ok = parse_reply(&json, &sha, list, error);
        int r = 0;
        if (json.fault == FAULT_NOT_ADDED)
                r = error->code;
        else if (!ok)
                r = error_set(error, STREAMER_EFAILED, "the answer is not as the Hub's: %s (%s)", json.detail,
                              list->shown);
        else if (!is_commit(sha))
                r = error_set(error, STREAMER_EFAILED, "the answer names no commit (%s)", list->shown);
        else
                snprintf(commit, HF_COMMIT, "%s", sha);
        json_deinit(&json);
        return r;
}
