#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# radosgw.sh DIR PORT: one Ceph object gateway on loopback in DIR: a monitor, one store in memory, and
# the gateway on PORT; the others use the ports above it. Prints "ready" when it answers; all processes end with
# this script, however it ends. Access key TESTACCESS, secret testsecret; STS is on.
set -eu

dir=$1 port=$2 mon=$((port + 1))
mkdir -p "$dir"/{mon,osd,run,log}
cd "$dir"
fsid=$(cat /proc/sys/kernel/random/uuid)
osd=$(cat /proc/sys/kernel/random/uuid)
classes=$(echo /usr/lib/*/rados-classes) # where they are: Debian 13's default is no absolute path

cat >ceph.conf <<END
[global]
fsid = $fsid
mon host = [v2:127.0.0.1:$mon,v1:127.0.0.1:$((mon + 1))]
keyring = $dir/keyring
auth allow insecure global id reclaim = false
public network = 127.0.0.0/8
public addr = 127.0.0.1
ms bind port min = $((mon + 2))
ms bind port max = $((mon + 40))
run dir = $dir/run
admin socket = $dir/run/\$name.asok
log file = $dir/log/\$name.log
pid file =
crash dir = $dir/run
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pg autoscale mode = off
mon allow pool size one = true
osd crush chooseleaf type = 0
mon data avail warn = 1
mon data avail crit = 1
[mon.a]
mon data = $dir/mon
[osd.0]
osd data = $dir/osd
osd objectstore = memstore
memstore device bytes = 8G
osd class dir = $classes
osd class load list = *
osd class default list = *
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:$port
rgw dns name = s3.localhost
rgw data = $dir/run
rgw s3 auth use sts = true
rgw sts key = abcdefghijklmnop
rgw crypt require ssl = false
END
export CEPH_CONF=$dir/ceph.conf

# Runs in the background and ends with this script.
start() {
        local name=$1
        shift
        setpriv --pdeathsig KILL "$@" -f >"log/$name" 2>&1 &
}

monmaptool --create --clobber --fsid "$fsid" --addv a "[v2:127.0.0.1:$mon,v1:127.0.0.1:$((mon + 1))]" monmap >/dev/null
ceph-authtool -C keyring --gen-key -n mon. --cap mon 'allow *' >/dev/null
ceph-authtool keyring --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *' >/dev/null
ceph-authtool keyring --gen-key -n client.rgw --cap mon 'allow rwx' --cap osd 'allow rwx' >/dev/null
ceph-authtool keyring --gen-key -n osd.0 --cap mon 'allow profile osd' --cap osd 'allow *' >/dev/null
ceph-mon -i a -c ceph.conf --mkfs --monmap monmap --keyring keyring >log/mon.mkfs 2>&1
start mon ceph-mon -i a -c ceph.conf
/usr/bin/ceph -c ceph.conf --connect-timeout 60 osd new "$osd" >/dev/null
ceph-osd -i 0 -c ceph.conf --mkfs --osd-uuid "$osd" >log/osd.mkfs 2>&1
start osd ceph-osd -i 0 -c ceph.conf
radosgw-admin -c ceph.conf -n client.rgw user create --uid=t --display-name=t --access-key=TESTACCESS \
        --secret-key=testsecret --caps='roles=*' >log/user 2>&1
radosgw-admin -c ceph.conf -n client.rgw role create --role-name=reader --path=/ \
        --assume-role-policy-doc='{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"AWS":["arn:aws:iam:::user/t"]},"Action":["sts:AssumeRole"]}]}' >log/role 2>&1
radosgw-admin -c ceph.conf -n client.rgw role-policy put --role-name=reader --policy-name=read \
        --policy-doc='{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["s3:GetObject","s3:ListBucket"],"Resource":"arn:aws:s3:::*"}]}' >>log/role 2>&1
start rgw radosgw -c ceph.conf -n client.rgw

for _ in $(seq 600); do
        if curl -s -o /dev/null "http://127.0.0.1:$port/"; then
                echo ready
                break
        fi
        sleep 0.1
done
wait
