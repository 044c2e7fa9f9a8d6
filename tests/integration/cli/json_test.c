/* SPDX-License-Identifier: Apache-2.0
 *
 * docs/json.md describes the JSON of streamerctl: each member of each object is on the page with its type, and each one
 * that is not optional is in the object. Every verb that prints JSON has a section.
 */
#include "tests/integration/cli_fixture.h"

#define ROWS_MAX 100

struct row {
        char path[100], type[80];
        bool optional;
};

struct section {
        const char *name;
        struct row rows[ROWS_MAX];
        size_t n;
};

/* ---- the page ---- */

/* The text below "## `A`, `B`" where one of these is `name`, up to the next heading; NULL. */
static char *section_text(const char *page, const char *name)
{
        char *quoted = format_text("`%s`", name), *text = NULL;
        for (const char *at = page; !text && (at = strstr(at, "\n## ")) != NULL; at++) {
                size_t line = strcspn(at + 1, "\n");
                const char *next = strstr(at + 1, "\n## ");
                char *title = strndup(at + 1, line);
                if (strstr(title, quoted))
                        text = next ? strndup(at + 1, (size_t)(next - at)) : strdup(at + 1);
                free(title);
        }
        free(quoted);
        return text;
}

static void read_section(struct section *s, const char *name)
{
        char *page = file_read("docs/json.md", NULL), *text = section_text(page, name);
        *s = (struct section){.name = name};
        ck_assert_msg(text != NULL, "docs/json.md has no section of %s", name);
        for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
                struct row *r = &s->rows[s->n];
                if (sscanf(line, "| `%99[^`]` | %79[^|] |", r->path, r->type) != 2)
                        continue;
                ck_assert_uint_lt(++s->n, ROWS_MAX);
                while (isspace((unsigned char)r->type[strlen(r->type) - 1]))
                        r->type[strlen(r->type) - 1] = '\0';
                char *mark = strchr(r->path, '?');
                r->optional = mark != NULL;
                if (mark)
                        *mark = '\0';
        }
        free(text);
        free(page);
}

/* ---- the comparison ---- */

static const char *type_of(const json_t *value)
{
        return json_is_object(value)    ? "object"
               : json_is_array(value)   ? "array"
               : json_is_string(value)  ? "string"
               : json_is_integer(value) ? "integer"
               : json_is_boolean(value) ? "boolean"
               : json_is_null(value)    ? "null"
                                        : "real";
}

static const struct row *find_row(const struct section *s, const char *path)
{
        for (size_t i = 0; i < s->n; i++)
                if (strcmp(s->rows[i].path, path) == 0)
                        return &s->rows[i];
        return NULL;
}

static void check_value(const struct section *s, const char *path, const json_t *value);

/* A member whose direct parent is `path`. */
static const char *member_of(const char *row, const char *path)
{
        size_t len = strlen(path);
        if (len > 0 && (strncmp(row, path, len) != 0 || row[len] != '.'))
                return NULL;
        const char *member = len > 0 ? row + len + 1 : row;
        return strpbrk(member, ".[") ? NULL : member;
}

static void check_object(const struct section *s, const char *path, const json_t *object)
{
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)(uintptr_t)object, key, value)
        {
                if (path[0] == '\0' && strcmp(key, "schema") == 0)
                        continue;
                char *member = format_text("%s%s%s", path, path[0] ? "." : "", key);
                check_value(s, member, value);
                free(member);
        }
        for (size_t i = 0; i < s->n; i++) {
                const char *member = member_of(s->rows[i].path, path);
                ck_assert_msg(!member || s->rows[i].optional || json_object_get(object, member), "%s: '%s' is missing",
                              s->name, s->rows[i].path);
        }
}

static void check_value(const struct section *s, const char *path, const json_t *value)
{
        const struct row *row = find_row(s, path);
        const char *type = type_of(value);
        bool element = path[strlen(path) - 1] == ']';
        ck_assert_msg(row != NULL || (element && json_is_object(value)), "docs/json.md: %s has no '%s'", s->name, path);
        if (row != NULL) {
                const char *found = strstr(row->type, type);
                ck_assert_msg(found != NULL, "%s: '%s' is %s, not %s", s->name, path, type, row->type);
                if (strstr(row->type, ", see "))
                        return;
        }
        if (json_is_object(value))
                check_object(s, path, value);
        char *item_path = format_text("%s[]", path);
        for (size_t i = 0; i < json_array_size(value); i++)
                check_value(s, item_path, json_array_get(value, i));
        free(item_path);
}

static void check(const char *name, const json_t *object)
{
        struct section section;
        read_section(&section, name);
        ck_assert_int_eq(json_integer_value(json_object_get(object, "schema")), 1);
        check_object(&section, "", object);
}

/* ---- output ---- */

/* Its name is "m". */
static const char *write_model(const char *file, uint64_t seed)
{
        return fixture_write(model_mixed(seed, 1 << 16), file);
}

FIXTURE(.all = {fixture_begin_default, fixture_end});

TEST(loads_are_as_documented)
{
        const char *path = write_model("m.safetensors", 1), *more = write_model("n.safetensors", 2);
        check("load --dry-run", JSON("load", path, "--dry-run", "--json"));
        json_t *loaded = JSON("load", path, "--json");
        check("load", loaded);
        ck_assert(json_is_false(json_object_get(loaded, "resident")));
        loaded = JSON("load", path, "--json");
        check("load", loaded);
        ck_assert(json_is_true(json_object_get(loaded, "resident")));
        check("load --detach", JSON("load", more, "--detach", "--json"));
        check("wait", JSON("wait", "n", "--json"));
        file_write(fixture_path("config.json"), "{}", 2);
        check("fetch", JSON("fetch", path, "--list", "--json"));
        RUN(0, "unload", "m", "n");
}

TEST(models_are_as_documented)
{
        streamer_client *c = client_open(&test_daemon);
        char *bad = fixture_path("bad.safetensors");
        file_write(bad, "hello, world", 12);
        RUN(1, "load", bad);
        check("list", JSON("list", "--json"));
        check("show", JSON("show", "witness", "--tensors", "--json"));
        check("verify", JSON("verify", "witness", "--json"));
        check("pin", JSON("pin", "witness", "--json"));
        check("unpin", JSON("unpin", "witness", "--json"));
        check("keep-alive", JSON("keep-alive", "witness", "default", "--json"));
        check("set-priority", JSON("set-priority", "witness", "100", "--json"));
        check("unload --dry-run", JSON("unload", "bad", "--dry-run", "--json"));
        check("unload", JSON("unload", "bad", "--json"));
        check("explain", JSON("explain", "bad", "--json"));
        check("diff", JSON("diff", "witness", write_model("other.safetensors", 3), "--json"));
        streamer_lease *lease = client_attach(c, "witness");
        check("ps", JSON("ps", "--json"));
        streamer_detach(lease);
        client_wait_leases(c, 0);
        streamer_close(c);
}

TEST(the_daemon_is_as_documented)
{
        check("status", JSON("status", "--json"));
        check("metrics", JSON("metrics", "--json"));
        check("whoami", JSON("whoami", "--json"));
        check("config", JSON("config", "--json"));
        check("ping", JSON("ping", "--json"));
        check("version", JSON("version", "--json"));
        struct ctl r;
        ctl(&r, test_daemon.socket, "doctor", "--json", NULL);
        check("doctor", json_loads(r.out, JSON_REJECT_DUPLICATES, NULL));
}

TEST(errors_are_as_documented)
{
        static const struct {
                int code;
                const char *name, *model, *args[5];
        } cases[] = {
                {2, "invalid", NULL, {"--json", "lod"}},
                {2, "invalid", NULL, {"list", "--no-such-flag", "-o", "json"}},
                {3, "not-found", "nobody", {"show", "nobody", "--json"}},
                {1, "failed", "passwd", {"load", "/etc/passwd", "--json", "--no-progress"}},
        };
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct ctl r = run(cases[i].code, cases[i].args);
                json_t *object = json_loads(r.err, JSON_REJECT_DUPLICATES, NULL);
                check("error", object);
                json_t *error = json_object_get(object, "error");
                ck_assert_str_eq(json_text(error, "code"), cases[i].name);
                ck_assert_str_eq(json_text(error, "model"), cases[i].model ? cases[i].model : "");
                ck_assert_ptr_null(strstr(json_text(error, "text"), "passwd:"));
        }
        struct ctl r;
        ctl(&r, suite_path("no-socket"), "list", "--json", NULL);
        ck_assert_int_eq(r.code, 4);
        check("error", json_loads(r.err, JSON_REJECT_DUPLICATES, NULL));
}

static void has_section(const char *verb)
{
        static const char *const none[] = {"cat", "top", "run", "help"};
        struct section section;
        for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
                if (strcmp(none[i], verb) == 0)
                        return;
        read_section(&section, verb);
}

TEST(every_verb_has_a_section)
{
        char *help = RUN(0, "help").out, *line = strstr(help, "Verbs:\n"), verb[64];
        size_t n = 0;
        for (line = strchr(line, '\n') + 1; *line != '\n'; line = strchr(line, '\n') + 1) {
                if (strncmp(line, "   ", 3) == 0 || sscanf(line, " %63s", verb) != 1)
                        continue;
                has_section(verb);
                n++;
        }
        ck_assert_uint_gt(n, 20);
}
