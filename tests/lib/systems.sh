# SPDX-License-Identifier: Apache-2.0
#
# Systems of releases of Debian to build and to install in, for scripts that source this. They set $systems, a folder
# that keeps one downloaded system of each release. Needs root and Debian's mirror.

# With the sources at /src, the machine's names and certificates and nothing of its environment, in namespaces that end
# with the command.
inside() { # ROOT COMMAND...
        unshare --mount --pid --fork --kill-child bash -ec '
                root=$1
                shift
                mount --bind "$root" "$root"
                mount -t proc proc "$root/proc"
                mount --rbind /dev "$root/dev"
                mount --rbind /sys "$root/sys"
                mkdir -p "$root/src"
                mount --bind . "$root/src"
                mount -o remount,bind,ro "$root/src"
                cp -L /etc/resolv.conf "$root/etc/resolv.conf"
                mkdir -p "$root/etc/ssl/certs" && cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
                # The root of the namespace, too: a process below another root may not make a user namespace.
                cd "$root"
                mount --move . /
                exec chroot . env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"' - "$@"
}

system() { # ROOT RELEASE: a new one, in which packages start no services
        local base=$systems/$2
        if [ ! -e "$base/complete" ]; then
                rm -rf "$base"
                mkdir -p "$base"
                debootstrap --variant=minbase --include=ca-certificates "$2" "$base" >"$base.log"
                printf '#!/bin/sh\nexit 101\n' >"$base/usr/sbin/policy-rc.d"
                chmod 755 "$base/usr/sbin/policy-rc.d"
                touch "$base/complete"
        fi
        rm -rf "$1"
        cp -a --reflink=auto "$base" "$1"
        echo force-unsafe-io >"$1/etc/dpkg/dpkg.cfg.d/unsafe-io" # it is thrown away
        inside "$1" apt-get -qq update
}
