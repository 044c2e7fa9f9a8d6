/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of a source's URI.
 */
#include "tests/lib/suite.h"

#include "daemon/source/source.h"

static struct error error;

/* ---- canonical form ---- */

static const struct {
        const char *source, *canonical;
} canonicals[] = {
        {"/models/x", "/models/x"},
        {"/", "/"},
        {"///", "/"},
        {"/a//b/./c///", "/a/b/c"},
        {"/./.", "/"},
        {"/a/..b/.c/...", "/a/..b/.c/..."},
        {"file:///models/x", "/models/x"},
        {"file://localhost/models/x", "/models/x"},
        {"file:///a%20b%2Fc%C3%A9", "/a b/c\xc3\xa9"},
        {"/a%20b", "/a%20b"},
        {"/odd://name", "/odd:/name"},
        {"FILE:///Models/X", "/Models/X"},
        {"S3://Bucket/Key.safetensors", "s3://Bucket/Key.safetensors"},
        {"HTTPS://Host/M.safetensors", "https://host/M.safetensors"},
        {"Gs://bucket/Key.safetensors", "gs://bucket/Key.safetensors"},
        {"gs://bucket", "gs://bucket/"},
        {"az://container", "az://container/"},
        {"AZ://container/Key.safetensors", "az://container/Key.safetensors"},
        {"abfs://container/a//b", "az://container/a//b/"},
        {"abfss://container@Account.dfs.core.windows.net/a", "az://container@account.blob.core.windows.net/a/"},
        {"az://$web@account.z01.blob.storage.azure.net/a/", "az://$web@account.z01.blob.storage.azure.net/a/"},
        {"az://container@account.blob.core.chinacloudapi.cn/a@b",
         "az://container@account.blob.core.chinacloudapi.cn/a@b/"},
        {"gs://bucket/a//b c%", "gs://bucket/a//b c%/"},
        {"gs://bucket/a/model.safetensors.index.json", "gs://bucket/a/model.safetensors.index.json"},
        {"Hf://Org/Name", "hf://Org/Name@main"},
        {"hf://org/name", "hf://org/name@main"},
        {"hf://org/name@", "hf://org/name@main"},
        {"hf://org/name/unet/", "hf://org/name@main/unet"},
        {"hf://org/name/a@b/c.safetensors", "hf://org/name@main/a@b/c.safetensors"},
        {"hf://org/name@v1/b", "hf://org/name@v1/b"},
        {"hf://gpt2@refs/pr/1/unet", "hf://gpt2@refs/pr/1/unet"},
};

TEST(a_source_has_one_canonical_form, EACH(canonicals))
{
        char *out;
        ck_assert_int_eq(source_canonical(canonicals[_i].source, &out, &error), 0);
        ck_assert_str_eq(out, canonicals[_i].canonical);
}

/* What of it may be persisted, or handed to clients. */
static const struct {
        const char *source, *without;
} queries[] = {
        {"https://host/m.safetensors?X-Signature=s", "https://host/m.safetensors"},
        {"http://host/a?b?c", "http://host/a"},
        {"https://host/m.safetensors", NULL},
        {"s3://bucket/what?", NULL},
        {"hf://org/name@what?", NULL},
        {"/models/what?", NULL},
};

TEST(only_a_url_has_a_query, EACH(queries))
{
        const char *source = queries[_i].source, *without = queries[_i].without;
        ck_assert(source_has_query(source) == (without != NULL));
        ck_assert_str_eq(source_without_query(source), without != NULL ? without : source);
}

static const struct {
        const char *a, *b;
        bool same;
} pairs[] = {
        {"https://host/m?v=1&X-Amz-Signature=a", "https://host/m?X-Amz-Date=2&X-Amz-Signature=b&v=1", true},
        {"https://host/m?X-Goog-Signature=a", "https://host/m", true},
        {"https://host/m?v=1", "https://host/m?v=2", false},
        {"https://host/m?X-Amz-Date=1", "https://host/n?X-Amz-Date=1", false},
        {"s3://b/m?X-Amz-Date=1", "s3://b/m?X-Amz-Date=2", false},
        {"/models/m", "/models/m", true},
        {"/models/m", "/models/n", false},
};

TEST(sources_that_differ_in_a_signature_are_the_same, EACH(pairs))
{
        ck_assert_int_eq(source_same(pairs[_i].a, pairs[_i].b), pairs[_i].same);
}

static const struct {
        const char *source;
        int code;
        const char *what;
} refused_texts[] = {
        {"", STREAMER_EINVAL, "not an absolute path"},
        {"models/x", STREAMER_EINVAL, "not an absolute path"},
        {"~/x", STREAMER_EINVAL, "not an absolute path"},
        {"org/name", STREAMER_EINVAL, "not an absolute path"},
        {"file://host/x", STREAMER_EINVAL, "not an absolute path"},
        {"/a/../b", STREAMER_EINVAL, "'..'"},
        {"/..", STREAMER_EINVAL, "'..'"},
        {"file:///a/%2e%2E/b", STREAMER_EINVAL, "'..'"},
        {"file:///a%00b", STREAMER_EINVAL, "%-escape"},
        {"file:///a%2", STREAMER_EINVAL, "%-escape"},
        {"file:///a%", STREAMER_EINVAL, "%-escape"},
        {"file:///a%zz", STREAMER_EINVAL, "%-escape"},
        {"file:///a%ff", STREAMER_EINVAL, "UTF-8"},
        {"ftp://bucket/key", STREAMER_EUNSUPPORTED, "no source of this kind"},
        {"rsync://host/x", STREAMER_EUNSUPPORTED, "no source of this kind"},
        {"hf://org/x@../../y", STREAMER_EINVAL, "hf://org/x@../../y: not a revision"},
        {"hf://", STREAMER_EINVAL, "not hf://org/name[@revision][/path]"},
        {"hf:///x", STREAMER_EINVAL, "not hf://org/name[@revision][/path]"},
        {"hf://org/x/../y", STREAMER_EINVAL, "hf://org/x/../y: not a path in a repository"},
        {"hf://org/x//y", STREAMER_EINVAL, "hf://org/x//y: not a path in a repository"},
        {"hf://org/x@a//y", STREAMER_EINVAL, "hf://org/x@a//y: not a revision"},
        {"hf://../x", STREAMER_EINVAL, "not hf://org/name[@revision][/path]"},
        {"hf://org/..", STREAMER_EINVAL, "not hf://org/name[@revision][/path]"},
        {"hf://o rg/x", STREAMER_EINVAL, "not hf://org/name[@revision][/path]"},
        {"s3://", STREAMER_EINVAL, "not the name of a bucket"},
        {"s3:///key", STREAMER_EINVAL, "not the name of a bucket"},
        {"gs://", STREAMER_EINVAL, "not the name of a bucket"},
        {"az://", STREAMER_EINVAL, "not the name of a container"},
        {"az://Upper/x", STREAMER_EINVAL, "not the name of a container"},
        {"az://container@evil.com/x", STREAMER_EINVAL, "not a host of Azure's"},
        {"az://container@core.windows.net/x", STREAMER_EINVAL, "not a host of Azure's"},
        {"az://container@a.blob.core.windows.net.evil.com/x", STREAMER_EINVAL, "not a host of Azure's"},
        {"az://container@a.b:80@x.blob.core.windows.net/x", STREAMER_EINVAL, "not a host of Azure's"},
        {"gs://Bucket/key", STREAMER_EINVAL, "not the name of a bucket"},
        {"s3://a b/key", STREAMER_EINVAL, "not the name of a bucket"},
        {"s3://models@evil/key", STREAMER_EINVAL, "not the name of a bucket"},
};

TEST(a_text_that_names_no_source_is_refused, EACH(refused_texts))
{
        char *out = NULL;
        FAILS_WITH(error, source_canonical(refused_texts[_i].source, &out, &error), refused_texts[_i].code,
                   refused_texts[_i].what);
        ck_assert_ptr_null(out);
}

static const char *const links[] = {
        "s3://b/m.safetensors?X-Amz-Algorithm=x&X-Amz-Signature=thesecret",
        "gs://bucket/m/?X-Goog-Signature=thesecret",
        "az://container/m/?sv=1&sig=thesecret",
        "abfss://container@acct.dfs.core.windows.net/m?x=1&sv=1&sig=thesecret",
};

TEST(a_link_with_a_signature_is_no_source_of_a_store, EACH(links))
{
        char *out = NULL;
        FAILS_WITH(error, source_canonical(links[_i], &out, &error), STREAMER_EINVAL,
                   "?...: a link with a signature, which is no part of a source: the settings have it, or the link is "
                   "https://...");
        ck_assert_ptr_null(strstr(error.text, "thesecret"));
        ck_assert_ptr_null(out);
}

TEST(a_key_has_a_length_that_is_bounded)
{
        char *out = NULL, key[1024 + 2] = "";
        memset(key, 'k', 1024 + 1);
        FAILS_SAYING(error, source_canonical(format_text("s3://b/%s", key), &out, &error), STREAMER_EINVAL,
                     format_text("s3://b/%.193s...: longer than a key can be", key));
        key[1024] = '\0';
        ck_assert_int_eq(source_canonical(format_text("s3://b/%s", key), &out, &error), 0);
}

TEST(a_path_of_any_length_is_handled)
{
        char *out = NULL, *path = must_alloc(100000);
        memset(path, '/', 99999);
        for (size_t i = 1; i < 99999; i += 2)
                path[i] = 'x';
        ck_assert_int_eq(source_canonical(path, &out, &error), STREAMER_EINVAL);
}

/* n: the candidate's number. */
static const struct {
        const char *canonical, *name;
        unsigned n;
} names[] = {
        {"/models/llama", "llama", 0},
        {"/models/llama.safetensors", "llama", 0},
        {"/models/llama.safetensors", "models/llama", 1},
        {"/models/llama.safetensors", "models/llama", 9},
        {"/a/b.safetensors/c", "b.safetensors/c", 1},
        {"/a/b.safetensors/c", "a/b.safetensors/c", 2},
        {"/", "model", 3},
        {"/a", "a", 1},
        {"/hub/models--org--name/snapshots/abc", "org/name@abc", 1},
        {"/hub/models--org--name/snapshots/abc/unet/model.safetensors", "org/name@abc/unet/model", 1},
        {"/hub/models--org--name/snapshots/abc", "org/name@abc", 2},
        {"s3://bucket/a/llama.safetensors", "llama", 0},
        {"s3://bucket/a/llama.safetensors", "a/llama", 1},
        {"s3://bucket/a/llama.safetensors", "bucket/a/llama", 2},
        {"s3://bucket/a/llama.safetensors", "bucket/a/llama", 3},
        {"s3://bucket/", "bucket", 1},
        {"gs://bucket/a/llama.safetensors", "a/llama", 1},
        {"gs://bucket/a/llama/", "llama", 0},
        {"az://container@a.blob.core.windows.net/llama/", "llama", 0},
        {"az://container@a.blob.core.windows.net/llama/", "container/llama", 1},
        {"az://container/llama/", "container/llama", 1},
        {"az://container/", "container", 0},
        {"s3://bucket/a//b/", "b", 1},
        {"https://host/a/llama.safetensors?sig=secret", "llama", 0},
        {"https://host/a/llama.safetensors?sig=secret", "a/llama", 1},
        {"https://host/a/llama.safetensors?sig=secret", "a/llama", 2},
        {"https://host/a/b/model.safetensors.index.json", "a/b", 1},
        {"https://host/a%20b%C3%A9.safetensors", "a b\xc3\xa9", 0},
        {"https://host/%ff.safetensors", "%ff", 0},
        {"https://host/a%zz.safetensors", "a%zz", 0},
        {"hf://org/name@main", "org/name", 0},
        {"hf://org/name@main", "org/name@main", 1},
        {"hf://org/name@main", "org/name@main", 2},
        {"hf://org/name@v1/b", "org/name", 0},
        {"hf://org/name@v1/b", "org/name@v1/b", 1},
        {"hf://org/name@main/unet", "org/name/unet", 0},
        {"hf://org/name@main/unet", "org/name@main/unet", 1},
        {"hf://org/name@refs/pr/1/unet/model.safetensors", "org/name/unet/model", 0},
        {"/models/.safetensors", ".safetensors", 0},
        {"/", "model", 0},
        {"/hub/models--org--name/snapshots/abc", "org/name", 0},
        {"/hub/models--gpt2/snapshots/abc", "gpt2", 0},
        {"/hub/models--org--name/snapshots/abc/model.safetensors", "org/name/model", 0},
        {"/hub/models--org--name/snapshots/abc/unet/model.safetensors", "org/name/unet/model", 0},
        {"/hub/models--org--name", "models--org--name", 0},
        {"/hub/models--org--name/refs/main", "main", 0},
};

TEST(a_model_is_named_after_its_source, EACH(names))
{
        char *name = source_default_name(names[_i].canonical, names[_i].n);
        ck_assert_str_eq(name, names[_i].name);
}

TEST(paths_of_one_mount_share_a_lane)
{
        ck_assert_uint_eq(source_lane("/proc/self"), source_lane("/proc/no/such/path"));
        ck_assert_uint_ne(source_lane("/proc/self"), source_lane("/"));
        ck_assert_uint_eq(source_lane("/procession"), source_lane("/"));
        ck_assert_uint_ne(source_lane("/"), 0);
}
