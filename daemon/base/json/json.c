/* SPDX-License-Identifier: Apache-2.0
 *
 * The pull lexer. A header of 11 MB must be read in the time of a few blocks, so strings are
 * crossed eight bytes at a time up to the next byte that means something; everything else is rare.
 * Unescaping never makes a string longer, so the text serves as its own output.
 */
#include "daemon/base/json/json.h"

#include "daemon/base/error.h"
#include "daemon/base/util.h"
#include "proto/codec.h"

#include <openssl/crypto.h>

void json_init(struct json *j, char *text, size_t size)
{
        *j = (struct json){.text = text, .size = size};
}

void json_deinit(struct json *j)
{
        free(j->keys);
        nameset_deinit(&j->set);
}

bool json_fail(struct json *j, int fault, size_t at, const char *format, ...)
{
        if (j->fault != JSON_OK)
                return false;
        va_list args;
        va_start(args, format);
        vsnprintf(j->detail, sizeof(j->detail), format, args);
        va_end(args);
        j->fault = fault;
        j->fault_at = at;
        return false;
}

bool json_unexpected(struct json *j, const char *wanted)
{
        if (j->at == j->size)
                return json_fail(j, JSON_SYNTAX, j->at, "the text ends where %s is expected", wanted);
        return json_fail(j, JSON_SYNTAX, j->at, "%s is expected", wanted);
}

/* ---- punctuation ---- */

char json_peek(struct json *j)
{
        for (; j->at < j->size; j->at++) {
                char c = j->text[j->at];
                if (c != ' ' && c != '\n' && c != '\r' && c != '\t')
                        return c;
        }
        return 0;
}

bool json_open(struct json *j, char bracket)
{
        if (json_peek(j) != bracket || j->fault != JSON_OK)
                return false;
        j->at++;
        return true;
}

bool json_more(struct json *j, char bracket, size_t n)
{
        if (j->fault != JSON_OK)
                return false;
        char c = json_peek(j);
        if (c == bracket) {
                j->at++;
                return false;
        }
        if (n == 0)
                return true;
        if (c != ',')
                return json_unexpected(j, bracket == '}' ? "',' or '}'" : "',' or ']'");
        j->at++;
        return true;
}

bool json_end(struct json *j)
{
        json_peek(j);
        if (j->fault == JSON_OK && j->at < j->size)
                return json_fail(j, JSON_SYNTAX, j->at, "bytes follow the object");
        return j->fault == JSON_OK;
}

/* ---- strings ---- */

#define EACH(byte) (UINT64_C(0x0101010101010101) * (byte))

/* Marks the lowest byte that is zero; marks above it may be false. */
static uint64_t zeros(uint64_t word)
{
        return (word - EACH(1)) & ~word & EACH(0x80);
}

/* Marks the lowest byte that ends a plain run: a quote, a backslash, a control, a byte of UTF-8. */
static uint64_t special(uint64_t word)
{
        uint64_t controls = (word - EACH(0x20)) & ~word & EACH(0x80);
        return zeros(word ^ EACH('"')) | zeros(word ^ EACH('\\')) | controls | (word & EACH(0x80));
}

static size_t plain_run(const char *s, size_t len)
{
        size_t n = 0;
        for (; len - n >= 8; n += 8) {
                uint64_t word;
                memcpy(&word, s + n, 8);
                uint64_t marks = special(le64toh(word));
                if (marks != 0)
                        return n + (size_t)__builtin_ctzll(marks) / 8;
        }
        while (n < len && special((unsigned char)s[n] | EACH(0x7f) << 8) == 0)
                n++;
        return n;
}

static int hex4(const struct json *j, size_t at)
{
        int value = 0;
        if (j->size - at < 4)
                return -1;
        for (size_t i = at; i < at + 4; i++) {
                int digit = OPENSSL_hexchar2int((unsigned char)j->text[i]);
                if (digit < 0)
                        return -1;
                value = value << 4 | digit;
        }
        return value;
}

static size_t put_utf8(char *to, unsigned c)
{
        size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
        for (size_t i = n - 1; i > 0; i--, c >>= 6)
                to[i] = (char)(0x80 | (c & 0x3f));
        to[0] = (char)(lead[n] | c);
        return n;
}

/* \uXXXX, or two of them that make one character. j->at is at the backslash. */
static bool unicode_escape(struct json *j, size_t *end)
{
        int c = hex4(j, j->at + 2);
        if (c < 0)
                return json_fail(j, JSON_SYNTAX, j->at, "\\u wants four hex digits");
        size_t len = 6;
        if (c >= 0xd800 && c < 0xe000) {
                bool pair = j->size - j->at >= 12 && j->text[j->at + 6] == '\\' && j->text[j->at + 7] == 'u';
                int low = pair && c < 0xdc00 ? hex4(j, j->at + 8) : -1;
                if (low < 0xdc00 || low >= 0xe000)
                        return json_fail(j, JSON_NOT_UTF8, j->at, "a surrogate without its other half");
                c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
                len = 12;
        }
        j->at += len;
        *end += put_utf8(j->text + *end, (unsigned)c);
        return true;
}

static bool escape(struct json *j, size_t *end)
{
        static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
        char c = j->at + 1 < j->size ? j->text[j->at + 1] : 0;
        if (c == 'u')
                return unicode_escape(j, end);
        const char *known = c != 0 ? strchr(from, c) : NULL;
        if (known == NULL)
                return json_fail(j, JSON_SYNTAX, j->at, "an unknown escape");
        j->text[(*end)++] = to[known - from];
        j->at += 2;
        return true;
}

static void move_run(struct json *j, size_t *end, size_t n)
{
        if (*end != j->at && n > 0)
                memmove(j->text + *end, j->text + j->at, n);
        *end += n;
        j->at += n;
}

static bool foreign_run(struct json *j, size_t *end)
{
        size_t n = 1;
        while (j->at + n < j->size && (j->text[j->at + n] & 0x80) != 0)
                n++;
        if (!codec_utf8(j->text + j->at, n))
                return json_fail(j, JSON_NOT_UTF8, j->at, "not UTF-8");
        move_run(j, end, n);
        return true;
}

bool json_take_string(struct json *j, struct json_string *string)
{
        if (json_peek(j) != '"')
                return json_unexpected(j, "a string");
        size_t at = ++j->at, end = at; /* what is unescaped ends at `end` */
        for (;;) {
                move_run(j, &end, plain_run(j->text + j->at, j->size - j->at));
                if (j->at == j->size)
                        return json_fail(j, JSON_SYNTAX, at - 1, "a string is not closed");
                char c = j->text[j->at];
                if (c == '"')
                        break;
                if (c == '\\' ? !escape(j, &end) : (c & 0x80) != 0 && !foreign_run(j, &end))
                        return false;
                if ((unsigned char)c < 0x20)
                        return json_fail(j, JSON_SYNTAX, j->at, "a control character in a string");
        }
        j->text[end] = '\0';
        j->at++;
        *string = (struct json_string){(uint32_t)at, (uint32_t)(end - at)};
        return true;
}

bool json_member(struct json *j, size_t *n, struct json_string *key)
{
        if (!json_more(j, '}', (*n)++) || !json_take_string(j, key))
                return false;
        if (json_peek(j) != ':')
                return json_unexpected(j, "':'");
        j->at++;
        return true;
}

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
        if (j->n_keys == j->max_keys) {
                size_t max = 2 * j->max_keys + 64;
                struct json_string *keys = reallocarray(j->keys, max, sizeof(*keys));
                if (keys == NULL)
                        return json_fail(j, JSON_NO_MEMORY, key.at - 1, "no memory for the keys of an object");
                j->keys = keys;
                j->max_keys = max;
        }
        j->keys[j->n_keys++] = key;
        return true;
}

bool json_keys_end(struct json *j, size_t begin)
{
        size_t n = j->n_keys - begin;
        j->n_keys = begin;
        if (j->fault != JSON_OK || n == 0)
                return j->fault == JSON_OK;
        return json_distinct(j, j->keys + begin, sizeof(*j->keys), n);
}

static bool repeated_key(struct json *j, struct name name)
{
        char quoted[NAME_QUOTE];
        error_escape_n(quoted, sizeof(quoted), name.s, name.len);
        return json_fail(j, JSON_DUPLICATE_KEY, (size_t)(name.s - j->text) - 1, "the key '%s' is given twice", quoted);
}

/* Objects of a few keys are the rule: comparing each with each is cheaper than a set. */
#define FEW 8

bool json_distinct(struct json *j, const void *strings, size_t stride, size_t n)
{
        const struct names_in_text names = {j->text, strings, stride};
        struct name seen[FEW];
        if (n > FEW && !nameset_begin(&j->set, n))
                return json_fail(j, JSON_NO_MEMORY, j->at, "no memory to compare %zu keys", n);
        for (uint32_t i = 0; n <= FEW && i < n; i++) {
                seen[i] = names_in_text_at(&names, i);
                for (uint32_t k = 0; k < i; k++)
                        if (seen[k].len == seen[i].len && memcmp(seen[k].s, seen[i].s, seen[i].len) == 0)
                                return repeated_key(j, seen[i]);
        }
        for (uint32_t i = 0; n > FEW && i < n; i++)
                if (nameset_add(&j->set, names_in_text_at, &names, i) != NAMES_NONE)
                        return repeated_key(j, names_in_text_at(&names, i));
        return true;
}

bool json_append(struct json *j, void *list, size_t *n, const void *item, size_t size, size_t max, size_t at,
                 const char *what)
{
        char *items; /* list points to a pointer of another type */
        memcpy(&items, list, sizeof(items));
        if (*n == max)
                return json_fail(j, JSON_TOO_MANY, at, "more than %zu %s", max, what);
        items = array_grow(items, *n, size);
        if (items == NULL)
                return json_fail(j, JSON_NO_MEMORY, at, "no memory for %zu %s", *n + 1, what);
        memcpy(list, &items, sizeof(items));
        memcpy(items + (*n)++ * size, item, size);
        return true;
}

/* ---- values that are ignored ---- */

/* They must still be JSON without repeated keys, and must not be able to exhaust stack, memory or time: depth and keys
 * are capped, and the keys of the open objects lie on one stack. */

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

bool json_take_text(struct json *j, const char **text)
{
        struct json_string string;
        if (json_peek(j) != '"')
                return json_skip(j);
        if (!json_take_string(j, &string))
                return false;
        *text = j->text + string.at;
        return true;
}
