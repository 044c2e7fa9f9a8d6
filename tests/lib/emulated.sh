#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# emulated.sh QEMU COMMAND...: runs a command, whose processes may execute programs for arm64: the kernel starts them in
# QEMU, a static qemu-aarch64. It is registered with the binfmt_misc of a user namespace, not with that of the machine
# (Linux 6.7). All users are mapped to themselves. Needs root.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkfifo "$folder/up" "$folder/mapped"
exec 3<>"$folder/up" # so that no open waits for a process that has failed

# The new namespace waits until it has its users.
unshare --user --mount bash -c '
        echo >"$1/up" && read -r _ <"$1/mapped" && mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc &&
        # Magic and mask of an ELF header: 64 bits, little-endian, executable or shared object, arm64. P: with argv[0];
        # F: QEMU is opened now, and used in every root.
        printf "%s" ":arm64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:"\
"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:$2:PF" >/proc/sys/fs/binfmt_misc/register &&
        shift 2 && exec "$@"' - "$folder" "$@" <&0 3<&- &
child=$!
read -r -t 30 _ <&3
echo 0 0 4294967295 >"/proc/$child/uid_map"
echo 0 0 4294967295 >"/proc/$child/gid_map"
echo >"$folder/mapped"
wait "$child"
