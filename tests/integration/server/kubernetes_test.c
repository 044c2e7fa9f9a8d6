/* SPDX-License-Identifier: Apache-2.0
 *
 * The chart and the kustomize folders of config/kubernetes, as helm, kubectl and Kubernetes' schemas see them; their
 * scripts and their configuration with a real daemon.
 */
#include "tests/lib/gpu_fixture.h"
#include "tests/lib/streamerctl.h"
#include "tests/lib/suite.h"

static const char *python(void)
{
        return build_path("venv-kubernetes/bin/python");
}

static const char *missing(void)
{
        if (suite_short())
                return "not in the short set"; /* sanitizers find nothing in a chart */
        return access(python(), X_OK) == 0 ? NULL : "helm is not installed";
}

static void check(const char *what)
{
        char *said;
        int r = shell(&said, "%s tests/lib/kubernetes.py %s 2>&1", python(), what);
        ck_assert_msg(r == 0, "%s", said);
}

FIXTURE(.unavailable = missing, .timeout = 120);

/* One function of tests/lib/kubernetes.py each. */
static const char *const checks[] = {
        "lint",       "schema", "contradictions",   "configuration_keys", "manifests", "quoted",     "configurations",
        "probes",     "claims", "restricted",       "guaranteed",         "folders",   "monitoring", "checksum",
        "references", "engine", "base_is_complete", "disk_cache"};

TEST(the_chart_passes, EACH(checks))
{
        check(checks[_i]);
}

static const char *const files[] = {"values.yaml", "values-gpu.yaml"};

TEST(a_file_of_values_becomes_validated_objects, EACH(files))
{
        check(format_text("render_file config/kubernetes/chart/%s", files[_i]));
}

TEST(values_that_kubernetes_refuses_are_named)
{
        char *said, *path = suite_file("values.yaml", "tolerations: [{key: gpu, effekt: NoSchedule}]\n");
        int r = shell(&said, "%s tests/lib/kubernetes.py render_file %s 2>&1", python(), path);
        ck_assert_int_eq(r, 1);
        ck_assert_msg(strstr(said, "DaemonSet") != NULL && strstr(said, "effekt") != NULL, "%s", said);
}

/* By YAML's parser, by the schema, by the chart, by the daemon that reads the configuration. */
static const struct {
        const char *values, *says;
} refused[] = {
        {"config: {nosuch: 1\n", "values.yaml"},
        {"config: {nosuch: 1}\n", "nosuch"},
        {"hostPaths: {diskCache: /var/cache/streamerd}\n", "requires config.disk_cache.budget"},
        {"config: {io: {block_size: lots}}\n", "io.block_size"},
};

TEST(values_that_the_daemon_refuses_are_named, EACH(refused))
{
        char *said, *path = suite_file("values.yaml", refused[_i].values);
        int r = shell(&said, "%s tests/lib/kubernetes.py render_file %s 2>&1", python(), path);
        ck_assert_int_eq(r, 1);
        ck_assert_msg(strstr(said, refused[_i].says) != NULL && strstr(said, "Traceback") == NULL, "%s", said);
}

static const char *no_kubectl(void)
{
        return command_exists("kubectl") ? NULL : "kubectl is not installed";
}

FIXTURE(.unavailable = no_kubectl);

static const char *const folders[] = {"base", "monitoring", "engine"};

TEST(kubectl_builds_a_folder, EACH(folders))
{
        char *said;
        int r = shell(&said, "kubectl kustomize config/kubernetes/%s", folders[_i]);
        ck_assert_msg(r == 0, "%s", said);
        ck_assert_ptr_nonnull(strstr(said, "kind: "));
}

/* ---- the sample's init container ---- */

/* Its command for a variant of the values, where nvidia-smi names the third GPU. */
static void load_as_init_container(const char *variant, const char *source)
{
        char uuid[41], *command, *said;
        fake_gpu_uuid(2, uuid);
        char *smi = suite_file("nvidia-smi", format_text("#!/bin/sh\necho %s\n", uuid));
        must(chmod(smi, 0755));
        int r = shell(&command, "%s tests/lib/kubernetes.py load_command %s 2>/dev/null", python(), variant);
        ck_assert_int_eq(r, 0);
        setenv("SOURCE", source, 1);
        setenv("MODEL", "sample", 1);
        setenv("TIMEOUT", "60s", 1);
        setenv("STREAMERD_SOCKET", test_daemon.socket, 1);
        r = shell(&said, "PATH=%s:%s:$PATH\n%s", suite_folder(), build_path(""), command);
        ck_assert_msg(r == 0, "%s", said);
}

FIXTURE(.each = {gpu_begin_four, fixture_stop}, .unavailable = missing, .timeout = 120);

TEST(a_sample_of_a_daemon_on_gpus_alone_loads_on_the_gpu_of_its_pod)
{
        struct model *m = model_mixed(6, 1 << 20);
        load_as_init_container("engine-gpu", write_model(m, "sample.safetensors"));
        client_equals_on(client, "sample", "cuda:2", m);
        ck_assert_uint_eq(json_array_size(json_object_get(client_show(client, "sample"), "devices")), 1);
}

FIXTURE(.all = {fixture_begin_default, fixture_end}, .each = {fixture_connect, fixture_disconnect},
        .unavailable = missing, .timeout = 120);

TEST(a_sample_of_a_daemon_with_host_memory_loads_there)
{
        struct model *m = model_mixed(6, 1 << 20);
        load_as_init_container("engine", fixture_write(m, "sample.safetensors"));
        client_equals_on(client, "sample", "host", m);
        client_unload(client, "sample");
}

/* ---- the labels of a node ---- */

FIXTURE(.all = {fixture_begin_default, fixture_end}, .each = {fixture_connect, fixture_disconnect});

#define SCRIPT "config/kubernetes/chart/files/label-models.sh"

/* What the script writes in one look at the daemon of this socket. */
static char *features(const char *socket)
{
        char *said, *path = suite_path("features-%d", (int)getpid());
        file_write(path, "before", 6);
        shell(&said, "PATH=%s:$PATH STREAMERD_SOCKET=%s ONCE=1 sh " SCRIPT " %s 2>&1", build_path(""), socket, path);
        char *text = file_read(path, NULL);
        ck_assert_msg(strncmp(text, "# +expiry-time=20", 17) == 0, "%s: %s", said, text);
        return text;
}

static char *label_of(const char *name)
{
        char *said;
        int r = shell(&said, "sh " SCRIPT " --label '%s'", name);
        ck_assert_msg(r == 0, "%s", said);
        said[strcspn(said, "\n")] = '\0';
        return said;
}

static bool has_label(const char *text, const char *label)
{
        return strstr(text, format_text("\n%s=true\n", label)) != NULL;
}

TEST(ready_models_become_features_of_the_node)
{
        client_load(client, fixture_write(model_mixed(5, 1 << 16), "labelled.safetensors"), "org/a \"name");
        char *text = features(test_daemon.socket);
        ck_assert_msg(has_label(text, "streamerd-model-witness"), "%s", text);
        ck_assert_msg(has_label(text, label_of("org/a \"name")), "%s", text);
        client_unload(client, "org/a \"name");
        ck_assert(!has_label(features(test_daemon.socket), label_of("org/a \"name")));
}

/* Its name is the last one of the list. */
TEST(a_model_that_is_not_ready_hides_no_other)
{
        char *path = fixture_path("broken.safetensors");
        file_write(path, "no model", 8);
        client_load_fails(client, path, "zzz", STREAMER_EFAILED, NULL);
        ck_assert_str_eq(client_state(client, "zzz"), "failed");
        char *text = features(test_daemon.socket);
        ck_assert_msg(has_label(text, "streamerd-model-witness"), "%s", text);
        ck_assert_msg(strstr(text, "zzz") == NULL, "%s", text);
        client_unload(client, "zzz");
}

TEST(without_a_daemon_no_model_is_ready)
{
        ck_assert_ptr_null(strstr(features(suite_path("no-socket")), "true"));
}

static const char *const names[] = {
        "llama-3-8b",
        "A_B",
        "the-name-of-a-model-that-just-fits-into-a-label",
        "A/B",
        "A:B",
        "-dash",
        "trail.",
        "...",
        "a b",
        "a\"b",
        "a\\b",
        "$(id)",
        "*",
        "org/the-name-of-a-model-that-is-longer-than-a-label-may-be-1",
        "org/the-name-of-a-model-that-is-longer-than-a-label-may-be-2",
};
#define PLAIN_NAMES 3

/* As Kubernetes asks: at most 63 of these characters, a letter or a digit at each end. */
TEST(models_have_labels_of_their_own, EACH(names))
{
        const char *label = label_of(names[_i]);
        ck_assert_uint_le(strlen(label), 63);
        ck_assert_uint_eq(strspn(label, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."),
                          strlen(label));
        ck_assert_ptr_null(strchr("-_.", label[strlen(label) - 1]));
        for (int i = 0; i < _i; i++)
                ck_assert_str_ne(label, label_of(names[i]));
        if (_i < PLAIN_NAMES)
                ck_assert_str_eq(label, format_text("streamerd-model-%s", names[_i]));
}

/* Its signal has no default action in the first process of a container. */
TEST(the_script_ends_at_once_and_takes_the_labels_along)
{
        char *said, *path = suite_path("running");
        int r = shell(&said,
                      "PATH=%s:$PATH STREAMERD_SOCKET=%s INTERVAL=60 sh " SCRIPT
                      " %s & script=$!; until [ -e %s ]; do sleep 0.01; done; kill $script; wait $script",
                      build_path(""), test_daemon.socket, path, path);
        ck_assert_msg(r == 0, "%d: %s", r, said);
        ck_assert_int_eq(access(path, F_OK), -1);
}
