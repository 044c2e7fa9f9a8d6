/* SPDX-License-Identifier: Apache-2.0
 *
 * Values: whole numbers, and everything that is read only to be stepped over. What is ignored must
 * still be JSON without repeated keys, and must not be able to exhaust stack, memory or time: depth
 * and keys are capped, and the keys of the open objects lie on one stack.
 */
#include "daemon/base/json/json.h"

#include <string.h>

/* ---- numbers ---- */

static bool is_digit(const struct json *j)
{
        return j->at < j->size && j->text[j->at] >= '0' && j->text[j->at] <= '9';
}

static bool is_one_of(const struct json *j, char a, char b)
{
        return j->at < j->size && (j->text[j->at] == a || j->text[j->at] == b);
}

static bool digits(struct json *j)
{
        if (!is_digit(j))
                return json_unexpected(j, "a digit");
        while (is_digit(j))
                j->at++;
        return true;
}

/* No digit follows a leading zero. */
static bool leading_zero(struct json *j)
{
        size_t at = j->at;
        if (j->text[j->at++] == '0' && is_digit(j))
                return json_fail(j, JSON_SYNTAX, at, "a number with a leading zero");
        j->at = at;
        return true;
}

static bool skip_number(struct json *j)
{
        j->at += is_one_of(j, '-', '-');
        if (!is_digit(j))
                return json_unexpected(j, "a value");
        if (!leading_zero(j) || !digits(j))
                return false;
        if (is_one_of(j, '.', '.')) {
                j->at++;
                if (!digits(j))
                        return false;
        }
        if (!is_one_of(j, 'e', 'E'))
                return true;
        j->at++;
        j->at += is_one_of(j, '+', '-');
        return digits(j);
}

bool json_whole(struct json *j, int fault, uint64_t *value)
{
        json_peek(j);
        size_t at = j->at;
        if (is_one_of(j, '-', '-'))
                return json_fail(j, fault, at, "a negative number");
        if (!is_digit(j))
                return json_fail(j, fault, at, "not a number");
        if (!leading_zero(j))
                return false;
        uint64_t n = 0;
        for (; is_digit(j); j->at++)
                if (__builtin_mul_overflow(n, 10u, &n) ||
                    __builtin_add_overflow(n, (unsigned)(j->text[j->at] - '0'), &n))
                        return json_fail(j, fault, at, "a number does not fit 64 bits");
        if (is_one_of(j, 'e', 'E') || is_one_of(j, '.', '.'))
                return json_fail(j, fault, at, "not a whole number");
        *value = n;
        return true;
}

/* ---- the keys of an object ---- */

bool json_keys_add(struct json *j, size_t begin, struct json_string key)
{
        if (j->n_keys - begin == JSON_FIELDS)
                return json_fail(j, JSON_TOO_MANY, key.at - 1, "more than %d keys in an object", JSON_FIELDS);
        if (!pages_reserve(&j->keys, (j->n_keys + 1) * sizeof(key)))
                return json_fail(j, JSON_NO_MEMORY, key.at - 1, "no memory for the keys of an object");
        ((struct json_string *)j->keys.p)[j->n_keys++] = key;
        return true;
}

bool json_keys_end(struct json *j, size_t begin)
{
        size_t n = j->n_keys - begin;
        j->n_keys = begin;
        if (j->fault != JSON_OK || n == 0)
                return j->fault == JSON_OK;
        return json_distinct(j, (const struct json_string *)j->keys.p + begin, sizeof(struct json_string), n);
}

bool json_distinct(struct json *j, const void *strings, size_t stride, size_t n)
{
        struct names_in_text names = {j->text, strings, stride};
        uint32_t repeated;
        if (!names_repeated(&j->set, &names, n, &repeated))
                return json_fail(j, JSON_NO_MEMORY, j->at, "no memory to compare %zu keys", n);
        if (repeated == NAMES_NONE)
                return true;
        struct name name = names_in_text_at(&names, repeated);
        char quoted[NAME_QUOTE];
        name_quote(quoted, name);
        return json_fail(j, JSON_DUPLICATE_KEY, (size_t)(name.s - j->text) - 1, "the key '%s' is given twice", quoted);
}

/* ---- values that are ignored ---- */

static bool skip_word(struct json *j, const char *word)
{
        size_t len = strlen(word);
        if (j->size - j->at < len || memcmp(j->text + j->at, word, len) != 0)
                return json_unexpected(j, "a value");
        j->at += len;
        return true;
}

static bool skip_nested(struct json *j, char bracket)
{
        if (j->depth == JSON_DEPTH)
                return json_fail(j, JSON_TOO_DEEP, j->at, "a value is nested deeper than %d levels", JSON_DEPTH);
        size_t begin = j->n_keys, n = 0;
        struct json_string key;
        j->depth++;
        j->at++;
        if (bracket == '{') {
                while (json_member(j, &n, &key) && json_keys_add(j, begin, key) && json_skip(j))
                        ;
        } else {
                while (json_more(j, ']', n++) && json_skip(j))
                        ;
        }
        j->depth--;
        return json_keys_end(j, begin);
}

bool json_skip(struct json *j)
{
        struct json_string string;
        char c = json_peek(j);
        switch (c) {
        case '{':
        case '[':
                return skip_nested(j, c);
        case '"':
                return json_take_string(j, &string);
        case 't':
                return skip_word(j, "true");
        case 'f':
                return skip_word(j, "false");
        case 'n':
                return skip_word(j, "null");
        default:
                return skip_number(j);
        }
}
