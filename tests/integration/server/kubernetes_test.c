/* SPDX-License-Identifier: Apache-2.0
 *
 * The chart and the kustomize folders of config/kubernetes, as helm, kubectl and Kubernetes' schemas see them; their
 * scripts and their configuration with a real daemon.
 */
#include "tests/lib/fixture.h"
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
static const char *const checks[] = {"lint",    "schema",     "manifests", "probes",     "restricted", "guaranteed",
                                     "folders", "monitoring", "checksum",  "references", "disk_cache"};

TEST(the_chart_passes, EACH(checks))
{
        check(checks[_i]);
}

static const char *const variants[] = {"cpu",        "gpu",       "metrics-token", "metrics-certificate",
                                       "huge-pages", "disk-cache"};

TEST(the_configuration_of_the_config_map_is_valid, EACH(variants))
{
        char *said, *path = suite_path("config-%s.yaml", variants[_i]);
        int r = shell(&said, "%s tests/lib/kubernetes.py configuration %s >%s && %s --config %s --check-config",
                      python(), variants[_i], path, build_path("streamerd"), path);
        ck_assert_msg(r == 0, "%s", said);
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

/* ---- the labels of a node ---- */

FIXTURE(.all = {fixture_begin_default, fixture_end}, .each = {fixture_connect, fixture_disconnect});

TEST(ready_models_become_features_of_the_node)
{
        client_load(client, fixture_write(model_mixed(5, 1 << 16), "labelled.safetensors"), "org/a name");
        client_load_fails(client, fixture_path("absent.safetensors"), "absent", STREAMER_ENOENT, NULL);
        char *said, *features = suite_path("features");
        int r = shell(&said,
                      "PATH=%s:$PATH STREAMERD_SOCKET=%s ONCE=1 sh config/kubernetes/chart/files/label-models.sh %s",
                      build_path(""), test_daemon.socket, features);
        ck_assert_msg(r == 0, "%s", said);
        char *text = file_read(features, NULL);
        ck_assert_msg(strncmp(text, "# +expiry-time=20", 17) == 0, "%s", text);
        ck_assert_msg(strstr(text, "\nstreamerd-model-witness=true\n") != NULL, "%s", text);
        ck_assert_msg(strstr(text, "\nstreamerd-model-org_a_name=true\n") != NULL, "%s", text);
        ck_assert_msg(strstr(text, "absent") == NULL, "%s", text);
        client_unload(client, "org/a name");
}
