/* SPDX-License-Identifier: Apache-2.0
 *
 * Each load that ends logs one line: with its figures if it is ready, with its code if it failed, and without secrets
 * of its source.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

static json_t *find_line(const char *text, const char *id, const char *model)
{
        while (*text != '\0') {
                size_t len = strcspn(text, "\n");
                json_t *o = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
                ck_assert_msg(o != NULL, "no JSON: %.*s", (int)len, text);
                const char *have_id = json_string_value(json_object_get(o, "message_id"));
                const char *have_model = json_string_value(json_object_get(o, "model"));
                if (have_id && have_model && strcmp(have_id, id) == 0 && strcmp(have_model, model) == 0)
                        return o;
                json_decref(o);
                text += len + (text[len] == '\n');
        }
        ck_abort_msg("no line of %s", model);
        return NULL;
}

TEST(each_load_logs_one_line_with_its_figures)
{
        struct daemon d;
        struct model *m = model_mixed(11, 1 << 20);
        char *file = suite_path("line.safetensors");
        const char *source_kind, *device, *level, *code;
        json_int_t generation, bytes, load_ns, busy;
        DAEMON_START(&d, suite_path("log"), "--device", "host=64MiB", "--root", suite_folder(), "--log-format", "json");
        streamer_client *c = client_open(&d);
        model_write(m, file);
        client_load(c, file, "a \"model\"");
        ck_assert_int_ne(client_load_result(c, "/etc/passwd", "b", (char[1024]){0}), 0);
        ck_assert_int_ne(client_load_result(c, "http://u:hidden@127.0.0.1:1/x?sig=hidden", "c", (char[1024]){0}), 0);
        ck_assert_int_eq(daemon_stop(&d), 0);
        char *said = file_read(d.log, NULL);
        json_t *o = find_line(said, "f556871bc85f4a2cb3e2fc44114610b9", "a \"model\"");
        ck_assert_int_eq(json_unpack(o, "{s:s, s:I, s:s, s:I, s:I, s:I, s:s}", "level", &level, "generation",
                                     &generation, "device", &device, "bytes", &bytes, "load_ns", &load_ns,
                                     "read_busy_percent", &busy, "source_kind", &source_kind),
                         0);
        ck_assert_str_eq(level, "info");
        ck_assert_str_eq(device, "host");
        ck_assert_str_eq(source_kind, "file");
        ck_assert_int_eq(generation, 1);
        ck_assert_int_eq(bytes, (json_int_t)m->bytes);
        ck_assert_int_gt(load_ns, 0);
        ck_assert(busy >= 0 && busy <= 100);
        o = find_line(said, "623544edab8e4812a6fe71f8ef889b4e", "b");
        ck_assert_int_eq(json_unpack(o, "{s:s, s:s}", "level", &level, "code", &code), 0);
        ck_assert_str_eq(level, "warn");
        ck_assert_ptr_null(strstr(said, "hidden"));
}
