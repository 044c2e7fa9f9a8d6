#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kubernetes.py CHECK: checks config/kubernetes, and prints what is wrong.

`write` writes its kustomize folders from the chart; `render_file VALUES` prints the chart's objects for a file of values, once
they are valid; `configuration VARIANT` prints the streamerd.yaml of a ConfigMap. Runs in the environment of `make kubernetes`."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import yaml

TOP = Path(__file__).resolve().parents[2]
FOLDER = TOP / "config/kubernetes"
CHART = FOLDER / "chart"

SECRET: dict[str, Any] = {"metrics": {"secretName": "streamerd-metrics"}}
CERTIFICATE: dict[str, Any] = {"metrics": {"secretName": "streamerd-metrics", "auth": "certificate"}}
WATCHED = {"monitoring": {"enabled": True, "clientSecretName": "prometheus-client"}}
GPU = yaml.safe_load((CHART / "values-gpu.yaml").read_text())
IMAGE_VOLUME = {"volumes": [{"name": "llama", "mountPath": "/srv/models/llama", "source": {"image": {"reference": "r/m:1"}}}]}

# Values that people set, by name.
VARIANTS: dict[str, dict[str, Any]] = {
    "cpu": {},
    "gpu": GPU,
    "metrics-token": {**SECRET, **WATCHED},
    "metrics-certificate": {**CERTIFICATE, **WATCHED},
    "huge-pages": {"resources": {"memory": "2Gi", "hugepages": "64Gi"}},
    "disk-cache": {
        "hostPaths": {"diskCache": "/var/cache/streamerd"},
        "config": {"disk_cache": {"budget": "500GiB", "offline": "allow"}},
    },
    "rolling": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}},
    "labels": {"nodeLabels": {"enabled": True}},
    "engine": {"engine": {"enabled": True}},
    "engine-gpu": {**GPU, "engine": {**GPU["engine"], "enabled": True}},
    "engine-csi": {"engine": {"enabled": True, "socketVolume": {"csi": {"driver": "csi.streamerd", "readOnly": True}}}},
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
# Values that the schema refuses.
WRONG: list[dict[str, Any]] = [
    {"unknown": 1},
    {"config": {"devices": [], "roots": ["/srv"]}},
    {"config": {"socket": "/tmp/s"}},
    {"config": {"metrics": {"listen": "0.0.0.0:1"}}},
    {"resources": {"memory": "lots"}},
    {"resources": {"hugepages": "64 GiB"}},
    {"healthPort": 0},
    {"metrics": {"auth": "none"}},
    {"updateStrategy": {"type": "Recreate"}},
    {"volumes": [{"name": "models", "mountPath": "relative", "source": {"emptyDir": {}}}]},
    {"engine": {"timeout": "soon"}},
    {"priorityClass": {"value": 2000000000}},
    {"engine": {"socketVolume": {"csi": {}, "hostPath": {}}}},
]
# The kustomize folders, by the templates of their files.
FOLDERS = {
    "base": ["priorityclass.yaml", "daemonset.yaml", "networkpolicy.yaml"],
    "monitoring": ["monitoring.yaml"],
    "engine": ["engine.yaml"],
}
FOLDER_VALUES = {**SECRET, "monitoring": {"enabled": True}, "engine": {"enabled": True}}
COMMENT = "# Written by `make kubernetes` from config/kubernetes/chart.\n"
KUSTOMIZATION = """apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
"""
# Its name gets a suffix that changes with the contents, and so do the pods' templates.
CONFIG_MAP = """configMapGenerator:
  - name: streamerd-config
    files: [streamerd.yaml]
"""


# ---- rendering


@functools.cache
def rendered(values: str) -> dict[str, str]:
    from helm_python.chart import Chart

    with Chart.load(CHART) as chart:
        chart.validate_schema(json.loads(values))
        return dict(chart.render(json.loads(values), name="streamerd", namespace="streamerd"))


def render(values: dict[str, Any]) -> dict[str, str]:
    """The text of each template that is not empty."""
    texts = rendered(json.dumps(values))
    return {Path(name).name: text for name, text in texts.items() if text.strip() and not name.endswith(".tpl")}


def objects(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [o for text in render(values).values() for o in yaml.safe_load_all(text) if o]


def one(values: dict[str, Any], kind: str) -> dict[str, Any]:
    found = [o for o in objects(values) if o["kind"] == kind]
    assert len(found) == 1, f"{len(found)} objects of the kind {kind}"
    return found[0]


def pod(values: dict[str, Any], kind: str = "DaemonSet") -> dict[str, Any]:
    spec: dict[str, Any] = one(values, kind)["spec"]["template"]["spec"]
    return spec


def containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*spec.get("initContainers", []), *spec["containers"]]


def main_container(values: dict[str, Any]) -> dict[str, Any]:
    return next(c for c in pod(values)["containers"] if c["name"] == "streamerd")


def config(values: dict[str, Any]) -> str:
    found = [o for o in objects(values) if o["kind"] == "ConfigMap" and o["metadata"]["name"] == "streamerd-config"]
    text: str = found[0]["data"]["streamerd.yaml"]
    return text


# ---- the kustomize folders


def folder_files() -> dict[Path, str]:
    rendered = render(FOLDER_VALUES)
    files: dict[Path, str] = {}
    for folder, templates in FOLDERS.items():
        for name in templates:
            lines = [line for line in rendered[name].splitlines(keepends=True) if "checksum/config" not in line]
            files[FOLDER / folder / name] = COMMENT + "".join(lines).replace("      annotations:\n    spec:", "    spec:").strip() + "\n"
        text = KUSTOMIZATION + "".join(f"  - {name}\n" for name in templates)
        files[FOLDER / folder / "kustomization.yaml"] = COMMENT + text + (CONFIG_MAP if folder == "base" else "")
    files[FOLDER / "base/streamerd.yaml"] = COMMENT + config(FOLDER_VALUES)
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


def validate(values: dict[str, Any], version: str) -> None:
    """Kubernetes' own objects, strictly."""
    import kubernetes_validate

    for o in objects(values):
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


def render_file(path: str) -> None:
    """Prints the objects of a file of values, once they are valid."""
    values = yaml.safe_load(Path(path).read_text()) or {}
    validate(values, latest())
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
    for name in ("engine", "engine-gpu", "engine-csi"):
        spec = pod(VARIANTS[name], "Deployment")
        security = spec["securityContext"]
        assert security["runAsNonRoot"] and security["supplementalGroups"] == [990]
        for c in containers(spec):
            assert not c["securityContext"]["allowPrivilegeEscalation"]
            assert c["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    kinds = [next(k for k in v if k != "name") for v in pod(VARIANTS["engine-csi"], "Deployment")["volumes"]]
    assert kinds == ["csi"], "a volume that the profile forbids"


def guaranteed() -> None:
    """Requests are limits, of processors and memory, in each container."""
    for name, values in VARIANTS.items():
        for c in containers(pod(values)):
            r = c["resources"]
            assert r["requests"] == r["limits"] and {"cpu", "memory"} <= set(r["limits"]), f"{name}: {c['name']}"
    assert main_container(VARIANTS["huge-pages"])["resources"]["limits"]["hugepages-2Mi"] == "64Gi"


def folders() -> None:
    files = folder_files()
    for path, text in files.items():
        assert path.exists() and path.read_text() == text, f"{path.relative_to(TOP)} differs from the chart: make kubernetes"
    present = {p for folder in FOLDERS for p in (FOLDER / folder).iterdir()}
    assert present == set(files), f"not of the chart: {present - set(files)}"


def monitoring() -> None:
    """The project's own rules and dashboard; the job that they select; the proof that the daemon asks for."""
    for name in ("metrics-token", "metrics-certificate"):
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
    try:
        globals()[sys.argv[1]](*sys.argv[2:])
    except AssertionError as e:
        print(f"{sys.argv[1]}: {e}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
