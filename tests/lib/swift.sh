#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# swift.sh DIR PORT: one OpenStack Swift on loopback that speaks S3 (s3api), in DIR, on PORT and the
# three above it. Prints "ready" when it answers; its servers end with this script, however it ends.
# Access key test:tester, secret testing; buckets also as hosts BUCKET.s3.localhost. Lists have pages
# of 10 keys, so that tests of paging need few objects.
set -eu

dir=$1 port=$2
mkdir -p "$dir/devices/d1" "$dir/log"
cd "$dir"

# Builds the three rings in one interpreter; swift-ring-builder would start nine.
rings() {
        /usr/bin/python3 - "$port" <<'END'
import sys
from swift.common.ring import RingBuilder

for offset, name in enumerate(("account", "container", "object"), 1):
    builder = RingBuilder(4, 1, 1)
    builder.add_dev({"region": 1, "zone": 1, "ip": "127.0.0.1", "port": int(sys.argv[1]) + offset, "device": "d1",
                     "weight": 1.0, "replication_ip": "127.0.0.1", "replication_port": int(sys.argv[1]) + offset,
                     "meta": ""})
    builder.rebalance()
    builder.get_ring().save(name + ".ring.gz")
END
}

common() {
        cat <<END
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = $1
user = $(id -un)
swift_dir = $dir
devices = $dir/devices
mount_check = false
workers = 0
log_level = WARNING
log_address = /dev/null
END
}

# Has its own hash instead of /etc/swift/swift.conf, which not all packages include.
printf '[swift-hash]\nswift_hash_path_suffix = streamerd\n' >swift.conf
cat >server.py <<'END'
import runpy
import sys

import swift.common.utils

swift.common.utils.SWIFT_CONF_FILE = "swift.conf"
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
END

start() {
        setpriv --pdeathsig KILL /usr/bin/python3 server.py "$(command -v "swift-$1-server")" "$1-server.conf" \
                >"log/$1" 2>&1 &
}

# The storage servers: account, container, object.
storage() {
        {
                common "$2"
                printf '[pipeline:main]\npipeline = %s-server\n[app:%s-server]\nuse = egg:swift#%s\n' "$1" "$1" "$1"
                echo "${3:-}"
        } >"$1-server.conf"
        start "$1"
}

rings
storage account $((port + 1))
storage container $((port + 2))
storage object $((port + 3)) 'fallocate_reserve = 0
disk_chunk_size = 1048576
network_chunk_size = 1048576'

{
        common "$port"
        cat <<END
[pipeline:main]
pipeline = catch_errors cache s3api tempauth slo proxy-server
[app:proxy-server]
use = egg:swift#proxy
allow_account_management = true
account_autocreate = true
client_chunk_size = 1048576
object_chunk_size = 1048576
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:1
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
storage_domain = s3.localhost
max_bucket_listing = 10
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = storesecret .admin
user_test_other = otherpw
[filter:slo]
use = egg:swift#slo
END
} >proxy-server.conf
start proxy

# The proxy may listen before the storage servers.
serves() {
        local p
        for p in "$port" $((port + 1)) $((port + 2)) $((port + 3)); do
                (: <"/dev/tcp/127.0.0.1/$p") 2>/dev/null || return 1
        done
}

for _ in $(seq 600); do
        if serves; then
                echo ready
                break
        fi
        sleep 0.1
done
wait
