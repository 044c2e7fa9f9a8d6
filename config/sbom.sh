#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# sbom.sh VERSION COMMIT: prints a software bill of materials of this system, CycloneDX 1.5 in JSON: streamerd, and every
# package of the distribution with its licences, as far as its copyright file has a form that a program can read.
set -eu

# shellcheck source=/dev/null
. /etc/os-release
export ID VERSION_ID

licences() { # PACKAGE: a JSON array's contents
        awk '/^License:[ \t]*[^ \t]/ { sub(/^License:[ \t]*/, ""); gsub(/[^A-Za-z0-9.+() ,\/-]/, ""); if (!seen[$0]++)
                printf "%s{\"license\": {\"name\": \"%s\"}}", n++ ? ", " : "", $0 }' "/usr/share/doc/$1/copyright" 2>/dev/null || :
}

cat <<END
{
  "bomFormat": "CycloneDX",
  "specVersion": "1.5",
  "version": 1,
  "metadata": {
    "component": {
      "type": "application",
      "bom-ref": "streamerd",
      "name": "streamerd",
      "version": "$1",
      "licenses": [{"license": {"id": "Apache-2.0"}}],
      "properties": [{"name": "commit", "value": "$2"}]
    }
  },
  "components": [
    {"type": "operating-system", "bom-ref": "system", "name": "$ID", "version": "$VERSION_ID"}
END
# shellcheck disable=SC2016 # dpkg-query's variables
dpkg-query --show --showformat '${db:Status-Abbrev}|${Package}|${Version}|${Architecture}|${source:Package}\n' |
        sed -n 's/^ii *|//p' | while IFS='|' read -r name version architecture source; do
        url="pkg:deb/$ID/$name@$(echo "$version" | sed -e 's/:/%3A/g' -e 's/+/%2B/g')?arch=$architecture&distro=$ID-$VERSION_ID"
        printf '    ,{"type": "library", "bom-ref": "%s", "name": "%s", "version": "%s", "purl": "%s",\n' "$url" "$name" "$version" "$url"
        printf '     "licenses": [%s], "properties": [{"name": "source", "value": "%s"}]}\n' "$(licences "$name")" "$source"
done
cat <<END
  ]
}
END
