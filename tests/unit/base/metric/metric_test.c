/* SPDX-License-Identifier: Apache-2.0
 *
 * Metrics: counting, the text format, and the pages and files that name metrics.
 */
#include "tests/lib/core.h"

#include "streamer/client.h"

#include <jansson.h>

static const struct row {
        const char *id, *kind, *name, *label, *help;
} rows[] = {
#define M(id, kind, name, label, help) {#id, #kind, name, #label, help},
        METRICS(M)
#undef M
};
#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

static void has_line(const char *text, const char *line)
{
        const char *at = strstr(text, line);
        ck_assert_msg(at != NULL && (at == text || at[-1] == '\n'), "no line %s in\n%s", line, text);
}

/* ---- counting ---- */

TEST(a_counter_has_help_and_type)
{
        metric_add(METRIC_ATTACHES, 2);
        metric_add(METRIC_ATTACHES, 1);
        ck_assert_str_eq(metric_text(METRIC_ATTACHES), "# HELP streamerd_attaches_total Successful attaches\n"
                                                       "# TYPE streamerd_attaches_total counter\n"
                                                       "streamerd_attaches_total 3\n");
}

TEST(time_is_counted_in_nanoseconds_and_exported_in_seconds)
{
        metric_add(METRIC_READ_TIME, 1500000000);
        metric_add_label(METRIC_LOAD_STAGES, STAGE_hash, 2500000000);
        has_line(metric_text(METRIC_READ_TIME), "streamerd_read_seconds_total 1.5\n");
        has_line(metric_text(METRIC_LOAD_STAGES), "streamerd_load_stage_seconds_total{stage=\"hash\"} 2.5\n");
}

TEST(every_label_value_is_exported_from_the_start)
{
        metric_add_code(METRIC_LOAD_ERRORS, STREAMER_ENOENT, 1);
        metric_add_label(METRIC_READ_BYTES, SOURCE_S3, UINT64_C(1) << 40);
        metric_add_label(METRIC_LOADS, RESULT_CANCELLED, 1);
        const char *errors = metric_text(METRIC_LOAD_ERRORS), *bytes = metric_text(METRIC_READ_BYTES);
        has_line(errors, "streamerd_load_errors_total{code=\"not-found\"} 1\n");
        has_line(errors, "streamerd_load_errors_total{code=\"failed\"} 0\n");
        has_line(errors, "streamerd_load_errors_total{code=\"no-memory\"} 0\n");
        has_line(bytes, "streamerd_read_bytes_total{source=\"file\"} 0\n");
        has_line(bytes, "streamerd_read_bytes_total{source=\"s3\"} 1099511627776\n");
        has_line(metric_text(METRIC_LOADS), "streamerd_loads_total{result=\"cancelled\"} 1\n");
}

TEST(the_scheme_of_a_source_determines_its_kind)
{
        ck_assert_int_eq(metric_source_of("/models/a"), SOURCE_FILE);
        ck_assert_int_eq(metric_source_of("s3://bucket/key"), SOURCE_S3);
        ck_assert_int_eq(metric_source_of("gs://bucket/key"), SOURCE_GCS);
        ck_assert_int_eq(metric_source_of("az://container/key"), SOURCE_AZURE);
        ck_assert_int_eq(metric_source_of("http://localhost/a"), SOURCE_HTTP);
        ck_assert_int_eq(metric_source_of("https://localhost/a"), SOURCE_HTTP);
        ck_assert_int_eq(metric_source_of("hf://org/name"), SOURCE_HF);
}

TEST(a_histogram_adds_its_buckets_up)
{
        metric_observe(METRIC_LOAD_SECONDS, 0);
        metric_observe(METRIC_LOAD_SECONDS, 10000000);         /* on the first bound: within it */
        metric_observe(METRIC_LOAD_SECONDS, 10000001);         /* above it */
        metric_observe(METRIC_LOAD_SECONDS, 3600000000000000); /* above all */
        const char *text = metric_text(METRIC_LOAD_SECONDS);
        has_line(text, "# TYPE streamerd_load_seconds histogram\n");
        has_line(text, "streamerd_load_seconds_bucket{le=\"0.01\"} 2\n");
        has_line(text, "streamerd_load_seconds_bucket{le=\"0.05\"} 3\n");
        has_line(text, "streamerd_load_seconds_bucket{le=\"1200\"} 3\n");
        has_line(text, "streamerd_load_seconds_bucket{le=\"+Inf\"} 4\n");
        has_line(text, "streamerd_load_seconds_count 4\n");
        metric_observe(METRIC_LOAD_BYTES, UINT64_C(16) << 20);
        has_line(metric_text(METRIC_LOAD_BYTES), "streamerd_load_bytes_bucket{le=\"16777216\"} 1\n");
        has_line(metric_text(METRIC_LOAD_BYTES), "streamerd_load_bytes_sum 16777216\n");
}

TEST(a_label_value_cannot_break_out_of_its_quotes)
{
        char text[128] = "";
        FILE *out = fmemopen(text, sizeof(text), "w");
        metric_sample(out, METRIC_DEVICE_USED, "a\"} 1\n\\", 2);
        must(fclose(out));
        ck_assert_str_eq(text, "streamerd_device_used_bytes{device=\"a\\\"} 1\\n\\\\\"} 2\n");
}

static void *count_many(void *arg)
{
        for (int i = 0; i < 100000; i++) {
                metric_add(METRIC_EVICTIONS, 1);
                metric_observe(METRIC_LOOP_CPU, 20000000);
        }
        return arg;
}

TEST(threads_count_without_losing_any)
{
        pthread_t threads[4];
        for (size_t i = 0; i < 4; i++)
                pthread_create(&threads[i], NULL, count_many, NULL);
        for (size_t i = 0; i < 4; i++)
                pthread_join(threads[i], NULL);
        has_line(metric_text(METRIC_EVICTIONS), "streamerd_evictions_total 400000\n");
        has_line(metric_text(METRIC_LOOP_CPU), "streamerd_loop_cpu_seconds_count 400000\n");
        has_line(metric_text(METRIC_LOOP_CPU), "streamerd_loop_cpu_seconds_sum 8000\n");
}

/* ---- owners of metrics ---- */

static const char *type_of(const struct row *row)
{
        if (strcmp(row->kind, "GAUGE") == 0)
                return "gauge";
        return strncmp(row->kind, "COUNTER", 7) == 0 ? "counter" : "histogram";
}

static char *label_of(const struct row *row)
{
        char *label = strcmp(row->label, "NONE") == 0 ? strdup(" ") : format_text(" `%s` ", row->label);
        for (char *c = label; *c != '\0'; c++)
                *c = (char)tolower((unsigned char)*c);
        return label;
}

TEST(the_page_lists_every_metric)
{
        char *page = file_read("docs/metrics.md", NULL);
        size_t listed = 0;
        for (size_t i = 0; i < N_ROWS; i++) {
                char *label = label_of(&rows[i]);
                char *row =
                        format_text("\n| `%s` | %s |%s| %s |\n", rows[i].name, type_of(&rows[i]), label, rows[i].help);
                ck_assert_msg(strstr(page, row) != NULL, "docs/metrics.md has no row %s", row);
        }
        for (const char *at = page; (at = strstr(at, "\n| `streamerd_")) != NULL; at++)
                listed++;
        ck_assert_uint_eq(listed, N_ROWS);
}

TEST(names_are_used_once_and_counters_end_in_total)
{
        for (size_t i = 0; i < N_ROWS; i++) {
                size_t len = strlen(rows[i].name);
                bool counter = strcmp(type_of(&rows[i]), "counter") == 0;
                ck_assert_msg(counter == (strcmp(rows[i].name + len - 6, "_total") == 0), "%s", rows[i].name);
                for (size_t k = 0; k < i; k++)
                        ck_assert_str_ne(rows[i].name, rows[k].name);
        }
}

/* The series of a histogram have its name and a suffix. */
static bool is_series(const char *word, size_t len)
{
        static const char *const suffixes[] = {"", "_bucket", "_sum", "_count"};
        for (size_t i = 0; i < N_ROWS; i++) {
                size_t n = strcmp(type_of(&rows[i]), "histogram") == 0 ? 4 : 1;
                for (size_t s = n == 4; s < n; s++) {
                        char *series = format_text("%s%s", rows[i].name, suffixes[s]);
                        if (strlen(series) == len && strncmp(series, word, len) == 0)
                                return true;
                }
        }
        return false;
}

static const char *const users[] = {"config/alerts.yaml", "config/grafana-dashboard.json"};

TEST(alerts_and_the_dashboard_use_exported_metrics, .to = 2)
{
        char *text = file_read(users[_i], NULL);
        size_t found = 0;
        for (const char *at = text; (at = strstr(at, "streamerd_")) != NULL; found++) {
                size_t len = strspn(at, "abcdefghijklmnopqrstuvwxyz_");
                ck_assert_msg(is_series(at, len), "%s: no metric %.*s", users[_i], (int)len, at);
                at += len;
        }
        ck_assert_uint_gt(found, 5);
}

TEST(the_dashboard_is_json)
{
        json_error_t error;
        json_t *o = json_load_file("config/grafana-dashboard.json", JSON_REJECT_DUPLICATES, &error);
        ck_assert_msg(o != NULL, "%s:%d", error.text, error.line);
        ck_assert_uint_gt(json_array_size(json_object_get(o, "panels")), 5);
}
