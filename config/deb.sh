#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# deb.sh BUILD VERSION COMMIT [OPTION...]: makes BUILD/deb/*.deb, and the source package, of this tree. Options are
# dpkg-buildpackage's. $DEB_VERSION: the packages' version, by default with the system for which they are built
# (0.1.0+debian12), because its libraries differ from those of other ones. $ARCH: another architecture, cross-built.
set -eu
version=$2 commit=$3
mkdir -p "$1"
out=$(realpath "$1")/deb
shift 3

# shellcheck source=/dev/null
. /etc/os-release
full=${DEB_VERSION:-$version+$ID$VERSION_ID}
tree=$out/streamerd-$full
rm -rf "$out"
mkdir -p "$tree"
# What git has; without git, all but what was built.
if git ls-files --error-unmatch Makefile >/dev/null 2>&1; then
        git ls-files -z | tar --null --verbatim-files-from -T - -cf -
else
        tar --exclude='./build*' --exclude=./.git -cf - .
fi | tar -xf - -C "$tree"
cp -r config/debian "$tree/debian"
echo "$commit" >"$tree/debian/commit"
sed -i "1s/(.*)/($full)/" "$tree/debian/changelog"

cd "$tree"
cross=()
[ -z "${ARCH:-}" ] || [ "$ARCH" = "$(dpkg --print-architecture)" ] || cross=(-a"$ARCH" -Pcross)
# The variables of our Makefile are not meant for the one of the package.
env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS -u BUILD -u STREAMERD_BUILD -u CFLAGS -u LDFLAGS \
        dpkg-buildpackage -us -uc "${cross[@]}" "$@" >"$out/log" 2>&1 || { tail -n 40 "$out/log" >&2; exit 1; }
rm -rf "$tree"
ls "$out"/*.deb
