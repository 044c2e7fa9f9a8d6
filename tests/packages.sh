#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# packages.sh BUILD VERSION COMMIT RELEASE...: for each release of Debian (bookworm), makes a system to build in and one
# to install in below BUILD/packages/RELEASE, builds the packages there with `make deb`, runs lintian and piuparts, and then
# tests/integration/packages in the other one, whose /packages has
#
#   new        the packages, and their source
#   previous   those of the version before: those of $PREVIOUS/RELEASE, or the same with a lower version
#
# Everything that the tests install besides is in apt's cache there. A system of a release is downloaded once.
set -euo pipefail

build=$(realpath "$1") version=$2 commit=$3
shift 3
folder=$build/packages
systems=$build/systems
# shellcheck source=tests/lib/systems.sh
. tests/lib/systems.sh

previous() { # NEW FOLDER: the same packages with a lower version
        local package tree
        mkdir -p "$2"
        for package in "$1"/*.deb; do
                tree=$(mktemp -d)
                dpkg-deb --raw-extract "$package" "$tree"
                sed -i -E "s/(${version//./\\.})([^0-9])/0.0.9\2/" "$tree/DEBIAN/control"
                dpkg-deb --root-owner-group -Znone --build "$tree" "$2" >/dev/null
                rm -rf "$tree"
        done
}

check() { # RELEASE
        local release=$1 builder=$folder/$1/build target=$folder/$1/target
        echo "==> $release: build"
        system "$builder" "$release"
        inside "$builder" apt-get -qq -y --no-install-recommends install build-essential lintian piuparts >"$folder/$release/log"
        inside "$builder" make -C /src BUILD=/build COMMIT="$commit" deb >>"$folder/$release/log"
        echo "==> $release: lintian"
        inside "$builder" sh -c 'lintian --fail-on error --allow-root /build/deb/*.changes'
        system "$target" "$release"
        inside "$target" apt-get -qq -y --no-install-recommends install dbus systemd >>"$folder/$release/log"
        echo "==> $release: piuparts"
        tar -C "$target" --exclude=./complete --exclude=./src -czf "$builder/base.tar.gz" .
        inside "$builder" sh -c 'exec piuparts --distribution="$1" --basetgz=/base.tar.gz --keep-sources-list --no-eatmydata \
                /build/deb/*.deb' - "$release" >>"$folder/$release/log" 2>&1 || { tail -n 20 "$folder/$release/log" >&2; return 1; }
        echo "==> $release: install"
        mkdir -p "$target/packages"
        cp -r "$builder/build/deb" "$target/packages/new"
        if [ -n "${PREVIOUS:-}" ]; then
                cp -r "$PREVIOUS/$release" "$target/packages/previous"
        else
                previous "$target/packages/new" "$target/packages/previous"
        fi
        inside "$target" sh -c "apt-get -qq -y --download-only -o APT::Keep-Downloaded-Packages=true install \
                /packages/new/*.deb autopkgtest gcc libc6-dev pkgconf python3-numpy" >>"$folder/$release/log"
        rm "$target/usr/sbin/policy-rc.d"
        STREAMERD_PACKAGES=$target "$build/tests/integration/packages" 'debian_packages.*'
}

for release in "$@"; do
        mkdir -p "$folder/$release"
        check "$release"
done
