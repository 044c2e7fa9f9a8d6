#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# minimal.sh DIR: static libraries for the wheel in DIR/lib, with their licences in DIR/licenses: libcurl and libexpat of
# the distribution's own sources, with its security patches, without what streamerd does not use. The distribution's libraries need 26 others: HTTP/2, international names, RTMP, SSH, Kerberos, LDAP, compression.
# They call no function of glibc that is newer than those of the programs. Needs no rights: apt has its lists below DIR.
# $HOST: for another architecture (aarch64-linux-gnu), with $CC, $AR and $PKG_CONFIG for it.
set -eu
dir=$1
rm -rf "$dir"
mkdir -p "$dir"/apt/{parts,lists/partial,cache/archives/partial} "$dir/licenses"
dir=$(realpath "$dir")
log=$dir/log
unset MAKEFLAGS MFLAGS MAKEOVERRIDES # the variables of a make that runs this are not those of the libraries

give_up() {
        tail -n 20 "$log" >&2
        echo "minimal.sh: $1 (log: $log); make wheel MINIMAL=0 takes the distribution's libraries" >&2
        exit 1
}

# The distribution's sources, from where its packages come.
for list in /etc/apt/sources.list.d/{debian,ubuntu}.sources; do
        [ ! -e "$list" ] || sed 's/^Types:.*/Types: deb-src/' "$list" >"$dir/apt/parts/${list##*/}"
done
[ ! -e /etc/apt/sources.list ] || sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >"$dir/apt/parts/main.list"
apt=(apt-get -q -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$dir/apt/parts" -o "Dir::State::lists=$dir/apt/lists"
        -o "Dir::Cache=$dir/apt/cache" -o "APT::Sandbox::User=$(id -un)")
cd "$dir"
"${apt[@]}" update >"$log" 2>&1 || give_up 'apt has no lists of sources'

# The newest version that can be had: a mirror may lack the latest.
for name in curl expat; do
        for version in $(apt-cache "${apt[@]:1}" showsrc "$name" 2>/dev/null | sed -n 's/^Version: //p' | sort -Vru); do
                "${apt[@]}" source "$name=$version" >>"$log" 2>&1 && break
        done
        ls -d "$name"-*/ >/dev/null 2>&1 || give_up "no source of $name"
done

# The patches change files from which others are generated; these are used as they were released.
find curl-*/ \( -name aclocal.m4 -o -name configure -o -name Makefile.in -o -name '*config.h.in' \) -exec touch {} +
export ac_cv_func_arc4random=no ac_cv_func_arc4random_buf=no
export CFLAGS='-O2 -g0 -fPIC -ffunction-sections -fdata-sections'
build() { # NAME MAKE-FOLDERS CONFIGURE-OPTION...
        local name=$1 parts=$2
        shift 2
        cd "$dir/$name"-*/
        ./configure --quiet ${HOST:+--host="$HOST"} --prefix="$dir" --disable-shared "$@" >>"$log" 2>&1 || give_up "$name cannot be configured"
        for part in $parts; do
                make -s "-j$(nproc)" -C "$part" install >>"$log" 2>&1 || give_up "$name cannot be built"
        done
        make -s install-pkgconfigDATA >>"$log" 2>&1 || give_up "$name cannot be installed"
        cp debian/copyright "$dir/licenses/${name/#curl/libcurl}"
}
build curl 'lib include' --with-openssl --with-ca-bundle=/etc/ssl/certs/ca-certificates.crt --without-zlib --without-brotli \
        --without-zstd --without-nghttp2 --without-libidn2 --without-libpsl --without-librtmp --without-libssh2 --disable-ldap \
        --disable-ldaps --disable-rtsp --disable-dict --disable-telnet --disable-tftp --disable-pop3 --disable-imap --disable-smb \
        --disable-smtp --disable-gopher --disable-mqtt --disable-ftp --disable-file --disable-manual

# Its source has no configure, and needs none.
cd "$dir"/expat-*/
folder=$(dirname "$(find . -name xmlparse.c | head -n 1)")
touch "$folder/expat_config.h"
for file in xmlparse xmltok xmlrole; do
        # shellcheck disable=SC2086 # options
        ${CC:-cc} $CFLAGS -DHAVE_GETRANDOM -DXML_NS -DXML_DTD -DXML_GE=1 -DXML_CONTEXT_BYTES=1024 -DBYTEORDER=1234 "-I$folder" \
                -c -o "$file.o" "$folder/$file.c" >>"$log" 2>&1 || give_up 'expat cannot be built'
done
"${AR:-ar}" rcs "$dir/lib/libexpat.a" xml*.o
cp debian/copyright "$dir/licenses/libexpat"
cd "$dir"
rm -rf apt {curl,expat}[-_]*
touch complete
