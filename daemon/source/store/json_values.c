/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/source/store/json_values.h"

#include "daemon/base/json/json.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"

#include <errno.h>

#define DEPTH_MAX 8
#define PATH_SIZE 256
#define FAULT_LIMIT JSON_FAULTS /* too many values, too deep, or a path that is too long */

static bool add(struct json *j, struct json_values *values, const char *path, const char *text, size_t len)
{
        struct json_value *v = values->n < JSON_VALUES_MAX ? array_grow(values->v, values->n, sizeof(*v)) : NULL;
        if (v == NULL)
                return json_fail(j, FAULT_LIMIT, j->at, "more than %d values", JSON_VALUES_MAX);
        values->v = v;
        v[values->n] = (struct json_value){strdup(path), strndup(text, len)};
        values->n++;
        return (v[values->n - 1].path != NULL && v[values->n - 1].text != NULL) ||
               json_fail(j, JSON_NO_MEMORY, j->at, "no memory");
}

static bool take_value(struct json *j, struct json_values *values, char path[PATH_SIZE], unsigned depth);

/* Appends the name to the path, takes the value, and removes it again. */
static bool take_member(struct json *j, struct json_values *values, char path[PATH_SIZE], const char *name,
                        unsigned depth)
{
        size_t len = strlen(path);
        if (len + strlen(name) + 2 > PATH_SIZE)
                return json_skip(j);
        format_append(path, PATH_SIZE, "%s%s", len > 0 ? "." : "", name);
        bool ok = take_value(j, values, path, depth + 1);
        path[len] = '\0';
        return ok;
}

static bool take_value(struct json *j, struct json_values *values, char path[PATH_SIZE], unsigned depth)
{
        char first = json_peek(j);
        struct json_string string;
        if (depth > DEPTH_MAX)
                return json_fail(j, FAULT_LIMIT, j->at, "depth");
        if (json_open(j, '{')) {
                size_t begin = j->n_keys;
                for (size_t n = 0; json_member(j, &n, &string);) {
                        if (!json_keys_add(j, begin, string) ||
                            !take_member(j, values, path, j->text + string.at, depth))
                                return false;
                }
                return json_keys_end(j, begin);
        }
        if (json_open(j, '[')) {
                for (size_t n = 0; json_more(j, ']', n); n++) {
                        char index[24];
                        snprintf(index, sizeof(index), "%zu", n);
                        if (!take_member(j, values, path, index, depth))
                                return false;
                }
                return j->fault == JSON_OK;
        }
        if (first == '"')
                return json_take_string(j, &string) && add(j, values, path, j->text + string.at, string.len);
        size_t from = j->at;
        if (!json_skip(j))
                return false;
        return first == 'n' || add(j, values, path, j->text + from, j->at - from);
}

bool json_values_init(struct json_values *values, char *text, size_t size)
{
        struct json j;
        char path[PATH_SIZE] = "";
        *values = (struct json_values){.n = 0};
        json_init(&j, text, size);
        bool ok = json_peek(&j) == '{' && take_value(&j, values, path, 0) && json_end(&j);
        json_deinit(&j);
        return ok;
}

void json_values_deinit(struct json_values *values)
{
        for (size_t i = 0; i < values->n; i++) {
                free(values->v[i].path);
                secret_free(values->v[i].text);
        }
        free(values->v);
        *values = (struct json_values){.n = 0};
}

const char *json_values_get(const struct json_values *values, const char *path)
{
        for (size_t i = 0; i < values->n; i++)
                if (values->v[i].path != NULL && strcmp(values->v[i].path, path) == 0)
                        return filled(values->v[i].text);
        return NULL;
}

const char *json_values_below(const struct json_values *values, const char *prefix, const char *path)
{
        char whole[PATH_SIZE];
        snprintf(whole, sizeof(whole), "%s%s%s", prefix, prefix[0] != '\0' ? "." : "", path);
        return json_values_get(values, whole);
}

uint64_t json_values_number(const struct json_values *values, const char *path)
{
        const char *text = json_values_get(values, path);
        if (text == NULL || text[strspn(text, "0123456789")] != '\0')
                return 0;
        errno = 0;
        uint64_t n = strtoull(text, NULL, 10);
        return errno == 0 ? n : 0;
}
