#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# build-deps.sh SET...: lists the missing packages of each set (build, test, servers, bench, guard, fuzz, lint, python, wheel, deb,
# packages, image) and installs them through apt. DEPS=0 never installs. It checks for libraries and commands, those for which $CC and
# $PKG_CONFIG build; for a missing one it installs the first of the alternative package names that apt knows, because names differ
# between Debian and Ubuntu.
#
# The set `servers` is optional: `make check` does without, and tests skip what needs a missing server. Services of an installed package are
# neither started nor enabled; tests start their own.
set -eu

# probe                     packages, one of
table() {
        case $1 in
        build) echo "
command:cc                  gcc
header:stdio.h              libc6-dev
command:pkg-config          pkg-config pkgconf
library:libuv               libuv1-dev
library:libcurl             libcurl4-openssl-dev
library:msgpack,msgpack-c   libmsgpack-c-dev libmsgpack-dev
library:libxxhash           libxxhash-dev
library:libssl              libssl-dev
library:yaml-0.1            libyaml-dev
library:libsystemd          libsystemd-dev
library:expat               libexpat1-dev
library:jansson             libjansson-dev
library:ncursesw            libncurses-dev" ;;
        test) echo "
command:pkg-config          pkg-config pkgconf
library:check               check
library:libmicrohttpd       libmicrohttpd-dev
command:openssl             openssl
command:curl                curl
command:setpriv             util-linux
command:c++                 g++
command:python3             python3
file:/usr/sbin/nginx        nginx-light nginx
command:man                 man-db
python:botocore             python3-botocore" ;;
        servers) echo "
command:promtool            prometheus
command:zsh                 zsh
command:fish                fish
command:systemd-nspawn      systemd-container
command:mksquashfs          squashfs-tools
command:mkfs.erofs          erofs-utils
command:mkfs.ext4           e2fsprogs
command:swift-proxy-server  swift-proxy
command:swift-account-server                   swift-account
command:swift-container-server                 swift-container
command:swift-object-server swift-object
command:radosgw             radosgw
command:ceph-mon            ceph-mon
command:ceph-osd            ceph-osd
command:ceph                ceph-common
command:kubectl             kubernetes-client
command:ip                  iproute2" ;;
        bench) echo "
command:fio                 fio
command:curl                curl
command:openssl             openssl
file:/usr/sbin/nginx        nginx-light nginx
python:numpy                python3-numpy" ;;
        guard) echo "
command:valgrind            valgrind
command:python3             python3" ;;
        python) echo "
command:python3             python3
python:ensurepip            python3-venv
command:setpriv             util-linux" ;;
        wheel) echo "
command:dpkg-source         dpkg-dev
command:make                make" ;;
        deb) echo "
command:dpkg-buildpackage   dpkg-dev
command:dh                  debhelper
command:dh_python3          dh-python
file:/usr/share/pkgconfig/systemd.pc           systemd-dev systemd" ;;
        packages) echo "
command:debootstrap         debootstrap
file:/etc/ssl/certs/ca-certificates.crt        ca-certificates
command:systemd-nspawn      systemd-container" ;;
        image) echo "
command:buildah             buildah" ;;
        fuzz) echo "
command:clang-14,clang-18,clang                clang-14 clang-18 clang
archive:fuzzer              libclang-rt-14-dev libclang-rt-18-dev" ;;
        lint) echo "
command:clang-14,clang-18,clang                clang-14 clang-18 clang
command:clang-format-14     clang-format-14
command:abidiff             abigail-tools" ;;
        *)
                echo "build-deps.sh: unknown set '$1'" >&2
                exit 2
                ;;
        esac
}

# True if any of the comma-separated alternatives is present.
there() {
        kind=${1%%:*}
        for name in $(echo "${1#*:}" | tr , ' '); do
                case $kind in
                file) [ -e "$name" ] && return ;;
                command) command -v "$name" >/dev/null && return ;;
                python) /usr/bin/python3 -c "import $name" 2>/dev/null && return ;;
                header) echo "#include <$name>" | ${CC:-cc} -E - >/dev/null 2>&1 && return ;;
                library) ${PKG_CONFIG:-pkg-config} --exists "$name" 2>/dev/null && return ;;
                archive) ls /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt."$name"-*.a >/dev/null 2>&1 && return ;;
                esac
        done
        return 1
}

missing() {
        for set_name in "$@"; do
                table "$set_name" | while read -r probe packages; do
                        [ -z "$probe" ] || there "$probe" || echo "$packages"
                done
        done
}

known() {
        apt-cache policy "$1" 2>/dev/null | grep -q 'Candidate: [^(]'
}

# Prints one package per line of alternatives.
choose() {
        while read -r packages; do
                for package in $packages; do
                        if known "$package"; then
                                echo "$package"
                                continue 2
                        fi
                done
                [ "$optional" = 1 ] || echo "${packages%% *}"
        done
}

absent=$(missing "$@")
[ -n "$absent" ] || exit 0
[ "$*" = servers ] && optional=1 || optional=0

# A missing package fails the build, unless it is optional.
give_up() {
        if [ "$optional" = 1 ]; then
                echo "$1: tests that need them are skipped" >&2
                exit 0
        fi
        echo "$1" >&2
        exit 1
}

list=$(echo "$absent" | sed 's/ / or /g' | paste -sd, | sed 's/,/, /g')
[ "${DEPS:-1}" != 0 ] || give_up "missing packages: $list (DEPS=0: not installed)"
command -v apt-get >/dev/null || give_up "missing packages, by their Debian names: $list"
as_root=
if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || give_up "missing packages: $list (install them as root)"
        as_root=sudo
fi

# Serialises concurrent calls, because apt runs once at a time.
exec 9<"$0"
flock 9
absent=$(missing "$@")
[ -n "$absent" ] || exit 0
echo "missing packages: $list; installing them" >&2
# While this file exists, Debian's packages do not start services.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' | $as_root tee $policy >/dev/null
        $as_root chmod 755 $policy
        # shellcheck disable=SC2064 # as they are now
        trap "$as_root rm -f $policy" EXIT
fi

enabled() {
        find /etc/systemd/system -path '*.wants/*' 2>/dev/null | sort
}
before=$(enabled)

# A machine that has just started often runs apt itself. install waits for its lock; update does not.
attempts=6
until $as_root apt-get -qq update; do
        attempts=$((attempts - 1))
        [ $attempts -gt 0 ] || give_up "apt-get update failed; missing packages: $list"
        sleep 10
done
# shellcheck disable=SC2046 # one word for each package
$as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=300 --no-install-recommends install \
        $(echo "$absent" | choose) >/dev/null || [ "$optional" = 1 ]
# Nor does the next boot start them. Without links dpkg counts them as disabled.
enabled | while read -r unit; do
        echo "$before" | grep -qxF "$unit" || $as_root rm -f "$unit"
done
absent=$(missing "$@")
[ -z "$absent" ] || give_up "still missing after installation: $(echo "$absent" | paste -sd' ')"
