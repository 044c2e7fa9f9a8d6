#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# arm64.sh BUILD COMMIT 'SIZE...' FILE... -- FILE...: cross-builds everything for arm64 in a system of Debian 12 below
# BUILD/arm64, which has the libraries of both architectures. It runs the tests of the first files there in qemu, with
# pages of each size (4, 16, 64: KiB), and of the other files with the first size. Programs that tests use, such as nginx,
# are this machine's. Then it builds the packages and the wheel, examines and uses them. The reports are in BUILD/arm64:
# SIZE, packages and wheel. Needs root and Linux 6.7. With $ONLY, as for `make check`, it runs tests alone.
set -euo pipefail

build=$(realpath "$1") commit=$2 sizes=$3
shift 3
with_pages=()
while [ "$1" != -- ]; do
        with_pages+=("$1")
        shift
done
shift
files=("${with_pages[@]}" "$@")
systems=$build/systems
# shellcheck source=tests/lib/systems.sh
. tests/lib/systems.sh
folder=$build/arm64 root=$build/arm64/root
mkdir -p "$folder"

# What the packages need to be built, of arm64, and what the tests need, of this machine.
if [ ! -e "$folder/complete" ]; then
        echo "==> a system to build in"
        system "$root" bookworm
        inside "$root" dpkg --add-architecture arm64
        inside "$root" apt-get -qq update
        mkdir -p "$root/root/streamerd"
        cp -r config/debian "$root/root/streamerd/debian"
        inside "$root" sh -c 'cd /root/streamerd && apt-get -qq -y --no-install-recommends --host-architecture arm64 \
                --build-profiles cross build-dep . && apt-get -qq -y --no-install-recommends install build-essential \
                check:arm64 crossbuild-essential-arm64 curl file git libmicrohttpd-dev:arm64 lintian man-db nginx-light openssl \
                python3 python3-botocore python3-venv qemu-user-static' >"$folder/log" 2>&1 || { tail -n 20 "$folder/log" >&2; exit 1; }
        touch "$folder/complete"
fi

echo "==> build"
arm64=(BUILD=/build CROSS_COMPILE=aarch64-linux-gnu- EMULATOR=qemu-aarch64 DEPS=0 "COMMIT=$commit")
inside "$root" make -C /src "-j$(nproc)" "${arm64[@]}" ONLY="${ONLY:-}" tests >>"$folder/log" 2>&1 ||
        { tail -n 40 "$folder/log" >&2; exit 1; }

# Failed tests, but those of the list, and files that did not end.
unexpected() { # REPORT
        sed -nE 's/^[^ :]*:[0-9]+:[FE]:([^:]*):([^:]*):[0-9]+: /\1.\2 /p' "$1" |
                grep -vFf <(sed -nE -e 's/^([a-z0-9_]+\.[a-z0-9_]+): .*/\1 /p' -e 's/^"(.*)": .*/\1/p' tests/arm64-exempt.txt) | sort -u || :
        grep -E '^FAILED: .*(no summary|did not end)' "$1" || :
}

status=0 table=
for size in $sizes; do
        [ ${#files[@]} -gt 0 ] || break
        echo "==> pages of $size KiB"
        # The kernel's size of a huge page, as one with these pages has it. Emulation is slow.
        inside "$root" bash -c '
                echo $(($1 * $1 * 1024 * 128)) >/tmp/huge && mount --bind /tmp/huge /sys/kernel/mm/transparent_hugepage/hpage_pmd_size &&
                export QEMU_PAGESIZE=$(($1 * 1024)) STREAMERD_BUILD=/build CK_TIMEOUT_MULTIPLIER=10 STREAMERD_TEST_SHORT=1 \
                        TEST_TIMEOUT=3000 && cd /src && shift &&
                exec tests/lib/emulated.sh /usr/bin/qemu-aarch64-static tests/check.sh "$@"' - \
                "$size" "/build${ONLY:+/only}" "${files[@]}" >"$folder/$size" 2>&1 || :
        files=("${with_pages[@]}")
        result=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$folder/$size") || { status=1 result='no result' && tail -n 5 "$folder/$size"; }
        table+=$(printf 'pages of %2s KiB: %s' "$size" "$result")$'\n'
        found=$(unexpected "$folder/$size")
        [ -z "$found" ] || { status=1 && printf '%s\n' "$found"; }
done
[ $status -ne 0 ] || table+="the failed ones are those of tests/arm64-exempt.txt"$'\n'

# As a user does, in qemu.
use='
        sh /src/config/debian/tests/model /tmp/model.safetensors
        streamerd --device host=64MiB --root /tmp --socket /tmp/socket & daemon=$!
        export STREAMERD_SOCKET=/tmp/socket
        until [ -S $STREAMERD_SOCKET ]; do kill -0 $daemon; sleep 0.1; done
        streamerctl load /tmp/model.safetensors
        [ "$(streamerctl cat model greeting)" = hello ]'
used='
        kill $daemon
        wait $daemon'
emulated=(/src/tests/lib/emulated.sh /usr/bin/qemu-aarch64-static sh -eu -c)
# Prints the programs and libraries below a folder that are not for arm64, and fails if there is none that is.
all_arm64='
        list=$(find "$1" -type f -exec file {} + | grep "ELF ")
        ! echo "$list" | grep -v "ARM aarch64"'

# Installed beside this machine's libraries.
packages() {
        inside "$root" make -C /src BUILD=/packages DEPS=0 "COMMIT=$commit" ARCH=arm64 deb
        inside "$root" sh -c 'lintian --fail-on error --allow-root /packages/deb/*.changes'
        inside "$root" sh -euc 'rm -rf /packages/files
                for package in /packages/deb/*_arm64.deb; do
                        dpkg-deb -f "$package" Package Architecture Depends
                        dpkg-deb -x "$package" /packages/files
                done'
        inside "$root" sh -euc "$all_arm64" - /packages/files
        inside "$root" sh -c 'apt-get -qq -y --no-install-recommends install --reinstall /packages/deb/*_arm64.deb'
        inside "$root" "${emulated[@]}" "streamerd --version $use $used"
        inside "$root" apt-get -qq -y purge streamerd libstreamer-client-dev
}

# Of Python for arm64 only the files are here, since this machine's is installed.
wheel() {
        inside "$root" make -C /src "${arm64[@]}" wheel
        inside "$root" sh -euc 'rm -rf /wheel && mkdir /wheel && python3 -m zipfile -e /build/wheel/*.whl /wheel
                chmod +x /wheel/streamerd/bin/*'
        inside "$root" sh -euc "$all_arm64" - /wheel
        [ -e "$root/python/complete" ] || inside "$root" sh -euc 'rm -rf /python && mkdir /python && cd /python
                for package in libpython3.11-minimal libpython3.11-stdlib python3.11-minimal libffi8 zlib1g; do
                        apt-get -qq download $package:arm64
                        dpkg-deb -x ${package}_*.deb .
                done
                /build/venv-wheel/bin/pip download --quiet --no-deps --only-binary :all: --platform manylinux2014_aarch64 \
                        --python-version 3.11 numpy==2.2.6
                python3 -m zipfile -e numpy-*.whl .
                touch complete'
        inside "$root" "${emulated[@]}" "export PATH=/wheel/streamerd/bin:\$PATH; $use
                PYTHONHOME=/python/usr PYTHONPATH=/wheel:/python LD_LIBRARY_PATH=/python/usr/lib/aarch64-linux-gnu \
                        /python/usr/bin/python3.11 -c 'import streamerd
model = streamerd.open(\"model\", framework=\"numpy\")
assert bytes(model[\"greeting\"]) == b\"hello\"' $used"
}

step() { # packages or wheel
        local result=ok
        echo "==> $1"
        # A subshell of its own for errors to end.
        bash -euo pipefail -c "$(declare -f inside packages wheel); $(declare -p root commit arm64 use used emulated all_arm64); $1" \
                >"$folder/$1" 2>&1 || { status=1 result=FAILED && tail -n 20 "$folder/$1"; }
        table+="$1: $result"$'\n'
}
if [ -z "${ONLY:-}" ]; then
        step packages
        step wheel
fi
printf '\n%s' "$table"
exit $status
