/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads from S3 stores on loopback. The ceiling is the best of 1 to 16 curl processes with a signed URL: the store
 * shares the processors with the reader in both cases.
 */
#include "tests/bench/bench.h"
#include "tests/lib/s3_store.h"

static void row_store(const struct bench *b, enum row row, struct s3_store *store, const char *path,
                      const struct model *m)
{
        double rates[ROUNDS_MAX];
        unsigned rounds = curls_rounds(b);
        const char *url = s3_store_do(store, "presign\tmodels\tbench.safetensors");
        struct bench_daemon daemon;
        struct curls c = {.url = url, .size = file_size(path)};
        struct load_figures f;
        bench_daemon_start(&daemon, b, b->hugetlb ? "hugetlb" : "auto",
                           format_text("s3: {endpoint: '%s', access_key: '%s', secret_key: '%s'}\n", store->url,
                                       store->access, store->secret));
        report_note("%s: the ceiling is the best of 1, 2, 4, 8 and 16 of: curl -s -f -o /dev/null -r FROM-TO URL",
                    store->kind);
        for (unsigned i = 0; i < rounds; i++) {
                curls_round(&c);
                ceiling_touch(m->bytes);
                bench_load(&daemon, "s3://models/bench.safetensors", m, false, &f);
                rates[i] = f.gib_per_s;
                report_note("round %u: curls %s GiB/s, load %.2f GiB/s", i + 1, curls_reported(&c), rates[i]);
        }
        struct curl_ceiling best = curls_best(&c);
        report_row(row, median(rates, rounds) / best.gib_per_s, best.gib_per_s);
        bench_daemon_stop(&daemon);
}

static void measure(const struct bench *b, enum row row, const char *kind, const char *path, const struct model *m)
{
        struct s3_store store;
        if (s3_store_missing(kind)) {
                report_note("%s: not measured: %s", kind, s3_store_missing(kind));
                return;
        }
        s3_store_start(&store, kind, format_text("%s/%s", b->folder, kind));
        s3_store_do(&store, "bucket\tmodels");
        s3_store_do(&store, "put\tmodels\tbench.safetensors\t%s", path);
        row_store(b, row, &store, path, m);
        s3_store_stop(&store);
}

void rows_stores(const struct bench *b)
{
        struct model *m = model_new(10);
        model_add_many(m, "model.layers.weight", 100, GIB / b->shrink / 100);
        const char *path = bench_file(b, m, "stores");
        measure(b, ROW_swift_vs_curl, "swift", path, m);
        measure(b, ROW_radosgw_vs_curl, "radosgw", path, m);
        unlink(path);
        model_free(m);
}
