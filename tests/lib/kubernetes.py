#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kubernetes.py CHECK: checks config/kubernetes, and prints what is wrong.

`write` writes its kustomize folders from the chart; `render_file VALUES` prints the chart's objects for a file of values, once
they are valid; `configuration VARIANT` prints the streamerd.yaml of a ConfigMap, `load_command VARIANT` what the sample's init
container runs. Runs in the environment of `make kubernetes`."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

TOP = Path(__file__).resolve().parents[2]
FOLDER = TOP / "config/kubernetes"
CHART = FOLDER / "chart"
BUILD = TOP / os.environ.get("STREAMERD_BUILD", "build")

SECRET: dict[str, Any] = {"metrics": {"secretName": "streamerd-metrics"}}
CERTIFICATE: dict[str, Any] = {"metrics": {"secretName": "streamerd-metrics", "auth": "certificate"}}
WATCHED = {"monitoring": {"enabled": True, "clientSecretName": "prometheus-client"}}
GPU = yaml.safe_load((CHART / "values-gpu.yaml").read_text())
CLAIM = {"name": "models", "mountPath": "/srv/models", "source": {"persistentVolumeClaim": {"claimName": "models"}}}
CSI = {"csi": {"driver": "csi.streamerd", "readOnly": True}}
IMAGE_VOLUME = {"volumes": [{"name": "llama", "mountPath": "/srv/models/llama", "source": {"image": {"reference": "r/m:1"}}}]}

# Values that people set, by name.
VARIANTS: dict[str, dict[str, Any]] = {
    "cpu": {},
    "gpu": GPU,
    "metrics-token": {**SECRET, **WATCHED},
    "metrics-certificate": {**CERTIFICATE, **WATCHED},
    "metrics-authorities": {**CERTIFICATE, "monitoring": {**WATCHED["monitoring"], "caSecretName": "authority"}},
    "huge-pages": {"resources": {"memory": "2Gi", "hugepages": "64Gi"}},
    "huge-pages-512": {"resources": {"memory": "2Gi", "hugepages": "64Gi", "hugepageSize": "512Mi"}},
    "claims": {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "streamerd-gpus"}]},
    "disk-cache": {
        "hostPaths": {"diskCache": "/var/cache/streamerd"},
        "config": {"disk_cache": {"budget": "500GiB", "offline": "allow"}},
    },
    "rolling": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}},
    "labels": {"nodeLabels": {"enabled": True}},
    "engine": {"engine": {"enabled": True}},
    "engine-gpu": {**GPU, "engine": {**GPU["engine"], "enabled": True}},
    "engine-csi": {"engine": {"enabled": True, "socketVolume": CSI, "volumes": [CLAIM]}},
    "engine-store": {"engine": {"enabled": True, "socketVolume": CSI, "source": "s3://models/llama/"}},
    "image": IMAGE_VOLUME,
    "bare": {"priorityClass": {"create": False, "name": "system-node-critical"}, "networkPolicy": {"enabled": False}},
    "more": {
        "hostPID": True,
        "podLabels": {"team": "serving"},
        "podAnnotations": {"note": "x"},
        "imagePullSecrets": [{"name": "registry"}],
        "listen": "[::]",
    },
}
DISK_CACHE = {"hostPaths": {"diskCache": "/var/cache/streamerd"}}
# Values that the schema refuses.
WRONG: list[dict[str, Any]] = [
    {"unknown": 1},
    {"config": None},
    {"networkPolicy": None},
    {"metrics": {"port": None}},
    {"config": {"devices": [], "roots": ["/srv"]}},
    {"config": {"devices": [1]}},
    {"config": {"nosuch": 1}},
    {"config": {"limits": {"nosuch": 1}}},
    {"config": {"disk_cache": {"path": "/var/cache/streamerd"}}},
    {"config": {"socket": "/tmp/s"}},
    {"config": {"metrics": {"listen": "0.0.0.0:1"}}},
    {"listen": "::"},
    {"listen": "localhost"},
    {"resources": {"memory": "lots"}},
    {"resources": {"memory": "0"}},
    {"resources": {"hugepages": "64 GiB"}},
    {"resources": {"hugepageSize": "3Mi"}},
    {"resourceClaims": [{"name": "gpus"}]},
    {"image": {"tag": "sha256:" + 64 * "a"}},
    {"image": {"repository": "a: b"}},
    {"healthPort": 0},
    {"metrics": {"auth": "none"}},
    {"podLabels": {"app.kubernetes.io/name": "other"}},
    {"podLabels": {"note": "no: label"}},
    {"podAnnotations": {"checksum/config": "0"}},
    {"monitoring": {"labels": {"app.kubernetes.io/instance": "other"}}},
    {"updateStrategy": {"type": "Recreate"}},
    {"updateStrategy": {"type": "OnDelete", "rollingUpdate": {"maxUnavailable": 1}}},
    {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0}}},
    {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}},
    {"volumes": [{"name": "models", "mountPath": "relative", "source": {"emptyDir": {}}}]},
    {"volumes": [{"name": "config", "mountPath": "/srv/models", "source": {"emptyDir": {}}}]},
    {"volumes": [{"name": "models", "mountPath": "/srv/models", "source": {"nosuch": {}}}]},
    {"volumes": [{"name": 64 * "a", "mountPath": "/srv/models", "source": {"emptyDir": {}}}]},
    {"hostPaths": {"state": "/var/lib/../streamerd"}},
    {"hostPaths": {"socket": "/run/" + 88 * "a"}},
    {"engine": {"timeout": "soon"}},
    {"engine": {"image": ""}},
    {"engine": {"model": "--help"}},
    {"priorityClass": {"value": 2000000000}},
    {"priorityClass": {"name": ""}},
    {"priorityClass": {"name": "system-node-critical"}},
    {"engine": {"socketVolume": {"csi": {}, "hostPath": {}}}},
]
# Values that contradict each other, and what the chart says.
CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    (DISK_CACHE, "hostPaths.diskCache requires config.disk_cache.budget"),
    ({"config": {"disk_cache": {"budget": "1GiB"}}}, "config.disk_cache.budget requires hostPaths.diskCache"),
    ({"metrics": {"secretName": "s", "port": 9465}}, "metrics.port and healthPort are the same: 9465"),
    ({"hostPaths": {"state": "/run/streamerd"}}, "the path /run/streamerd is used twice"),
    ({"volumes": [CLAIM, {**CLAIM, "mountPath": "/srv/others"}]}, "volumes: the name models is used twice"),
    ({"volumes": [CLAIM, {**CLAIM, "name": "others"}]}, "the path /srv/models is used twice"),
    ({"resources": {"memory": "2Gi", "hugepages": "65Mi"}}, "65Mi is not a multiple of hugepageSize, 2Mi"),
    ({"resources": {"memory": "63Gi"}}, "resources.memory: less than the budgets"),
    ({"config": {"devices": ["host=32GiB", {"device": "host", "budget": "64GiB"}]}}, "resources.memory: less than the budgets"),
    ({**GPU, "resources": {"memory": "60Gi"}}, "resources.memory: less than twice config.host_cache"),
    ({"monitoring": {"enabled": True}}, "monitoring.enabled requires metrics.secretName"),
    ({**CERTIFICATE, "monitoring": {"enabled": True}}, "requires monitoring.clientSecretName"),
    ({"engine": {"enabled": True, "socketVolume": CSI}}, "engine.socketVolume: "),
    ({"resourceClaims": 2 * VARIANTS["claims"]["resourceClaims"]}, "resourceClaims: the name gpus is used twice"),
]
# Texts that are other kinds of values in YAML, where they are not quoted, and paths that are not part of a flow mapping.
WORDS = ["123", "1e3", "true", "on", "null", "0x10"]
PATHS = ["/a,b", "/a #b", "/a}b", '/a"b', "/a b", "/a{b"]
# The kustomize folders, by the templates of their files.
DAEMON = ["priorityclass.yaml", "daemonset.yaml", "networkpolicy.yaml"]
FOLDERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "base": ({}, DAEMON),
    "monitoring": ({**SECRET, "monitoring": {"enabled": True}}, [*DAEMON, "monitoring.yaml"]),
    "engine": ({"engine": {"enabled": True}}, ["engine.yaml"]),
}
COMMENT = "# Written by `make kubernetes` from config/kubernetes/chart.\n"
KUSTOMIZATION = """apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
"""
# Its name gets a suffix that changes with the contents, and so do the pods' templates.
CONFIG_MAP = """configMapGenerator:
  - name: streamerd-config
    files: [streamerd.yaml]
    options:
      labels:
"""


# ---- rendering


@functools.cache
def rendered(values: str, release: str) -> dict[str, str]:
    from helm_python.chart import Chart

    with Chart.load(CHART) as chart:
        chart.validate_schema(json.loads(values))
        return dict(chart.render(json.loads(values), name=release, namespace="streamerd"))


def render(values: dict[str, Any], release: str = "streamerd") -> dict[str, str]:
    """The text of each template that is not empty."""
    texts = rendered(json.dumps(values), release)
    return {Path(name).name: text for name, text in texts.items() if text.strip() and not name.endswith(".tpl")}


class UniqueKeys(yaml.SafeLoader):
    """Of two members of one name YAML's loader takes the last; Kubernetes refuses them."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]  # type: ignore[no-untyped-call]
        assert len(set(keys)) == len(keys), f"a key occurs twice: {keys}"
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def objects(values: dict[str, Any], release: str = "streamerd") -> list[dict[str, Any]]:
    return [o for text in render(values, release).values() for o in yaml.load_all(text, UniqueKeys) if o]


def one(values: dict[str, Any], kind: str) -> dict[str, Any]:
    found = [o for o in objects(values) if o["kind"] == kind]
    assert len(found) == 1, f"{len(found)} objects of the kind {kind}"
    return found[0]


def one_of(values: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    return next(o for o in objects(values) if o["kind"] == kind and o["metadata"]["name"] == name)


def pod(values: dict[str, Any], kind: str = "DaemonSet") -> dict[str, Any]:
    spec: dict[str, Any] = one(values, kind)["spec"]["template"]["spec"]
    return spec


def containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*spec.get("initContainers", []), *spec["containers"]]


def main_container(values: dict[str, Any]) -> dict[str, Any]:
    return next(c for c in pod(values)["containers"] if c["name"] == "streamerd")


def config(values: dict[str, Any]) -> str:
    text: str = one_of(values, "ConfigMap", "streamerd-config")["data"]["streamerd.yaml"]
    return text


# ---- the kustomize folders


def folder_files() -> dict[Path, str]:
    files: dict[Path, str] = {}
    for folder, (values, templates) in FOLDERS.items():
        rendered = render(values)
        for name in templates:
            lines = [line for line in rendered[name].splitlines(keepends=True) if "checksum/config" not in line]
            files[FOLDER / folder / name] = COMMENT + "".join(lines).replace("      annotations:\n    spec:", "    spec:").strip() + "\n"
        text = KUSTOMIZATION + "".join(f"  - {name}\n" for name in templates)
        if templates[0] in DAEMON:
            files[FOLDER / folder / "streamerd.yaml"] = COMMENT + config(values)
            labels = one_of(values, "ConfigMap", "streamerd-config")["metadata"]["labels"]
            text += CONFIG_MAP + "".join(f'        {key}: "{value}"\n' for key, value in labels.items())
        files[FOLDER / folder / "kustomization.yaml"] = COMMENT + text
    return files


def write() -> None:
    for path, text in folder_files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


# ---- checks


def lint() -> None:
    from helm_python.chart import lint as helm_lint

    for name, values in VARIANTS.items():
        report = helm_lint(CHART, values, strict=True)
        # That a chart has no icon is information.
        found = [m for m in report["messages"] if m["severity"] > 1]
        assert not found and not report["errors"], f"{name}: {found} {report['errors']}"


def schema() -> None:
    from helm_python.chart import Chart
    from helm_python.errors import HelmError

    with Chart.load(CHART) as chart:
        for values in VARIANTS.values():
            chart.validate_schema(values)
        for values in WRONG:
            try:
                chart.validate_schema(values)
            except HelmError:
                continue
            raise AssertionError(f"the schema accepts {values}")


def contradictions() -> None:
    from helm_python.errors import HelmError

    for values, says in CONTRADICTIONS:
        try:
            render(values)
        except HelmError as e:
            assert says in str(e), f"{values}: {e}"
            continue
        raise AssertionError(f"the chart accepts {values}")


def configuration_keys() -> None:
    """The schema knows the keys of the daemon's configuration, but for those that the chart sets."""
    table = re.findall(r'^        \{"([a-z0-9_.]+)",', (TOP / "daemon/config/table.c").read_text(), re.M)
    known = json.loads((CHART / "values.schema.json").read_text())["properties"]["config"]["properties"]
    keys = {f"{key}.{name}" for key, value in known.items() for name in value.get("propertyNames", {"enum": []})["enum"]}
    keys |= {key for key, value in known.items() if "propertyNames" not in value}
    own = {key for key in table if key in ("socket", "state", "disk_cache.path") or key.startswith(("metrics.", "health."))}
    assert keys == set(table) - own, f"{keys ^ (set(table) - own)}"


def validate(values: dict[str, Any], version: str, release: str = "streamerd") -> None:
    """Kubernetes' own objects, strictly."""
    import kubernetes_validate

    for o in objects(values, release):
        if o["apiVersion"].startswith("monitoring.coreos.com/"):
            continue
        try:
            kubernetes_validate.validate(o, version, strict=True)
        except kubernetes_validate.ValidationError as e:
            raise AssertionError(f"{version}: {o['kind']}: {list(e.path)}: {e.message}") from e


def latest() -> str:
    import kubernetes_validate

    version: str = kubernetes_validate.latest_version()
    return version


def manifests() -> None:
    """For an old version that the chart supports, and the newest one that is known."""
    for version in (latest(), "1.31"):
        for values in VARIANTS.values():
            validate(values, version)


def quoted() -> None:
    """A text stays the text that it is, whatever it would be in YAML."""
    everything = {**GPU, **SECRET, "nodeLabels": {"enabled": True}, "engine": {"enabled": True}}
    for word in WORDS:
        values = {
            **everything,
            "metrics": {"secretName": word},
            "monitoring": {"enabled": True, "namespace": word, "caSecretName": word, "labels": {"team": word}},
            "runtimeClassName": word,
            "priorityClass": {"name": word},
            "volumes": [{**CLAIM, "name": word}],
            "image": {"repository": word, "tag": word},
            "podLabels": {"team": word},
            "engine": {"enabled": True, "image": word, "model": word},
        }
        validate(values, latest(), word)
        found = objects(values, word)
        assert {o["metadata"]["name"] for o in found} == {word, f"{word}-config", f"{word}-dashboard", f"{word}-engine"}
        for o in found:
            labels = o["metadata"].get("labels", {})
            assert labels["app.kubernetes.io/instance"] == word and all(isinstance(v, str) for v in labels.values())
    for path in PATHS:
        values = {
            **everything,
            **{"hostPaths": {"socket": path, "state": f"{path}/state", "diskCache": f"{path}/cache"}},
            "config": {**GPU["config"], "disk_cache": {"budget": "1GiB"}},
            "volumes": [{**CLAIM, "mountPath": f"{path}/models"}],
            "nodeLabels": {"enabled": True, "path": f"{path}/features"},
            "engine": {"enabled": True, "source": f"{path}/models/m"},
        }
        validate(values, latest())
        assert {m["mountPath"] for m in main_container(values)["volumeMounts"]} >= {path, f"{path}/state", f"{path}/models"}
        assert f"{path}/cache" in pod(values)["initContainers"][0]["command"]
    image = {"image": {"repository": "registry:5000/streamerd", "digest": "sha256:" + 64 * "a"}}
    assert main_container(image)["image"] == "registry:5000/streamerd@sha256:" + 64 * "a"


def check_configuration(values: dict[str, Any]) -> None:
    """As the daemon does that reads it."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(config(values))
        file.flush()
        command = [BUILD / "streamerd", "--config", file.name, "--check-config"]
        result = subprocess.run(command, capture_output=True, text=True, env={}, check=False)
    said = (result.stdout + result.stderr).replace(file.name, "streamerd.yaml").strip()
    assert result.returncode == 0, f"config: {said}"


def configurations() -> None:
    for values in VARIANTS.values():
        check_configuration(values)


def render_file(path: str) -> None:
    """Prints the objects of a file of values, once they and the configuration are valid."""
    from helm_python.errors import HelmError

    try:
        with Path(path).open() as file:
            values = yaml.safe_load(file) or {}
        render(values)
    except (OSError, yaml.YAMLError, HelmError) as e:
        raise AssertionError(e) from e
    validate(values, latest())
    check_configuration(values)
    for name, text in sorted(render(values).items()):
        print(f"---\n# {name}\n{text.strip()}")


def probes() -> None:
    """Each its own page; readiness never restarts a pod, and liveness does not ask for it."""
    for values in (VARIANTS["cpu"], VARIANTS["gpu"]):
        c = main_container(values)
        pages = {k: c[k]["httpGet"]["path"] for k in c if k.endswith("Probe")}
        assert pages == {"startupProbe": "/startupz", "readinessProbe": "/readyz", "livenessProbe": "/livez"}, pages
        port = next(p for p in c["ports"] if p["name"] == "health")["containerPort"]
        assert yaml.safe_load(config(values))["health"]["listen"] == f"0.0.0.0:{port}"
        assert all(c[k]["httpGet"]["port"] == "health" for k in pages)
        assert c["startupProbe"]["periodSeconds"] * c["startupProbe"]["failureThreshold"] == 300


def restricted() -> None:
    """What the pod security profile of this name asks of containers; but for the init container's CHOWN, and what is root's."""
    for values in VARIANTS.values():
        spec = pod(values)
        assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
        assert spec["securityContext"]["runAsNonRoot"] and not spec["automountServiceAccountToken"]
        for c in containers(spec):
            security = c["securityContext"]
            assert not security["allowPrivilegeEscalation"] and security["readOnlyRootFilesystem"], c["name"]
            assert security["capabilities"]["drop"] == ["ALL"], c["name"]
            added = security["capabilities"].get("add", [])
            assert added == (["CHOWN"] if c["name"] == "directories" else []), c["name"]
    for name in ("engine", "engine-gpu", "engine-csi", "engine-store"):
        spec = pod(VARIANTS[name], "Deployment")
        security = spec["securityContext"]
        assert security["runAsNonRoot"] and security["supplementalGroups"] == [990]
        for c in containers(spec):
            assert not c["securityContext"]["allowPrivilegeEscalation"]
            assert c["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    for name in ("engine-csi", "engine-store"):
        kinds = {next(k for k in v if k != "name") for v in pod(VARIANTS[name], "Deployment")["volumes"]}
        assert kinds <= {"csi", "emptyDir", "persistentVolumeClaim"}, "a volume that the profile forbids"


def guaranteed() -> None:
    """Requests are limits, of processors and memory, in each container."""
    for name, values in VARIANTS.items():
        for c in containers(pod(values)):
            r = c["resources"]
            assert r["requests"] == r["limits"] and {"cpu", "memory"} <= set(r["limits"]), f"{name}: {c['name']}"
    for name, size in (("huge-pages", "2Mi"), ("huge-pages-512", "512Mi")):
        limits = main_container(VARIANTS[name])["resources"]["limits"]
        assert {k: v for k, v in limits.items() if k.startswith("hugepages-")} == {f"hugepages-{size}": "64Gi"}


def claims() -> None:
    """The pod has them, and so has the daemon's container."""
    values = VARIANTS["claims"]
    assert pod(values)["resourceClaims"] == values["resourceClaims"]
    assert main_container(values)["resources"]["claims"] == [{"name": "gpus"}]


def engine() -> None:
    """A server sees the files of a path, at the same path as the daemon, and writes below a folder of its own."""
    for name in ("engine", "engine-gpu", "engine-csi"):
        values = VARIANTS[name]
        spec = pod(values, "Deployment")
        c = spec["containers"][0]
        assert c["command"] == ["vllm", "serve"], "the entry point of vLLM's images differs between versions"
        source = c["args"][0]
        mounts = {m["mountPath"]: m for m in c["volumeMounts"]}
        assert any(source.startswith(path + "/") and mounts[path]["readOnly"] for path in mounts), f"{name}: no volume with {source}"
        home = next(e["value"] for e in c["env"] if e["name"] == "HOME")
        assert not mounts[home].get("readOnly"), f"{name}: {home}"
        # A daemon on GPUs alone has nothing for an engine that asks for host memory.
        own_gpu = name == "engine-gpu"
        assert ('--model-loader-extra-config={"alias": true}' in c["args"]) == own_gpu, name
        assert spec["initContainers"][0].get("resources") == (c["resources"] if own_gpu else None), name
    volumes = {v["name"] for v in pod(VARIANTS["engine-store"], "Deployment")["volumes"]}
    assert volumes == {"streamerd", "cache"}, f"of a store: {volumes}"


def base_is_complete() -> None:
    """It needs no object that it does not have: no secret, and its own ConfigMap and PriorityClass."""
    text = "".join(path.read_text() for path in (FOLDER / "base").iterdir())
    assert "secret" not in text.lower(), "base needs a secret"
    priority = yaml.safe_load((FOLDER / "base/priorityclass.yaml").read_text())["metadata"]["name"]
    assert yaml.safe_load((FOLDER / "base/daemonset.yaml").read_text())["spec"]["template"]["spec"]["priorityClassName"] == priority


def folders() -> None:
    files = folder_files()
    for path, text in files.items():
        assert path.exists() and path.read_text() == text, f"{path.relative_to(TOP)} differs from the chart: make kubernetes"
    present = {p for folder in FOLDERS for p in (FOLDER / folder).iterdir()}
    assert present == set(files), f"not of the chart: {present - set(files)}"


def monitoring() -> None:
    """The project's own rules and dashboard; the job that they select; the proof that the daemon asks for."""
    for name in ("metrics-token", "metrics-certificate", "metrics-authorities"):
        values = VARIANTS[name]
        rule = one(values, "PrometheusRule")
        assert rule["spec"] == yaml.safe_load((TOP / "config/alerts.yaml").read_text())
        dashboard = next(o for o in objects(values) if o["metadata"]["name"] == "streamerd-dashboard")
        assert json.loads(dashboard["data"]["streamerd.json"]) == json.loads((TOP / "config/grafana-dashboard.json").read_text())
        endpoint = one(values, "PodMonitor")["spec"]["podMetricsEndpoints"][0]
        assert endpoint["scheme"] == "https" and {"targetLabel": "job", "replacement": "streamerd"} in endpoint["relabelings"]
        daemon = yaml.safe_load(config(values))["metrics"]
        assert ("authorization" in endpoint) == ("token_file" in daemon), name
        assert ("cert" in endpoint["tlsConfig"]) == ("client_ca" in daemon), name
        ca = values["monitoring"].get("caSecretName", "streamerd-metrics")
        assert endpoint["tlsConfig"]["ca"]["secret"] == {"name": ca, "key": "ca.crt"}, name
        labels = one(values, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
        for selector in (one(values, "PodMonitor")["spec"]["selector"], one(values, "NetworkPolicy")["spec"]["podSelector"]):
            assert selector["matchLabels"].items() <= labels.items()


def disk_cache() -> None:
    """It is the daemon's to write, and its own."""
    values = VARIANTS["disk-cache"]
    mounts = {m["name"]: m for m in main_container(values)["volumeMounts"]}
    assert yaml.safe_load(config(values))["disk_cache"] == {
        # The kubelet makes the mounted folder open to all; the daemon makes this one.
        "path": mounts["disk-cache"]["mountPath"] + "/cache",
        "budget": "500GiB",
        "offline": "allow",
    }
    assert not mounts["disk-cache"].get("readOnly")
    assert "/var/cache/streamerd" in pod(values)["initContainers"][0]["command"]


def checksum() -> None:
    """The pods' template changes with the configuration."""

    def of(values: dict[str, Any]) -> str:
        text: str = one(values, "DaemonSet")["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        return text

    other = {"config": {"devices": ["host=1GiB"], "roots": ["/srv/models"]}}
    assert of({}) == of(VARIANTS["rolling"]) and of({}) != of(other)


def references() -> None:
    """Each mount has its volume and each named port is one of the container's; a selector selects its own pods."""
    for name, values in VARIANTS.items():
        for o in objects(values):
            if o["kind"] not in ("DaemonSet", "Deployment"):
                continue
            template = o["spec"]["template"]
            assert o["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
            volumes = {v["name"] for v in template["spec"]["volumes"]}
            mounted = {m["name"] for c in containers(template["spec"]) for m in c.get("volumeMounts", [])}
            assert mounted == volumes, f"{name}: {mounted ^ volumes}"


def main() -> int:
    if sys.argv[1] == "configuration":
        print(config(VARIANTS[sys.argv[2]]), end="")
        return 0
    if sys.argv[1] == "load_command":
        print(pod(VARIANTS[sys.argv[2]], "Deployment")["initContainers"][0]["command"][-1])
        return 0
    try:
        globals()[sys.argv[1]](*sys.argv[2:])
    except AssertionError as e:
        print(f"{sys.argv[1]}: {e}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
