{{- /* The bytes of a quantity of Kubernetes or of a size of streamerd.yaml(5); nothing: it is neither. */ -}}
{{- define "streamerd.bytes" -}}
{{- if kindIs "string" . -}}
{{- $unit := regexFind "[A-Za-z]*$" . -}}
{{- $number := trimSuffix $unit . -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000
      "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776
      "KiB" 1024 "MiB" 1048576 "GiB" 1073741824 "TiB" 1099511627776 -}}
{{- if and (hasKey $units $unit) (regexMatch "^[0-9]+(\\.[0-9]+)?$" $number) -}}
{{- mulf (float64 $number) (get $units $unit) | int64 -}}
{{- end -}}
{{- else if . -}}
{{- int64 . -}}
{{- end -}}
{{- end }}

{{- /* The name of an entry of the configuration's devices. */ -}}
{{- define "streamerd.deviceName" -}}
{{- if kindIs "map" . }}{{ .device }}{{ else }}{{ regexFind "^[^=]*" . }}{{ end -}}
{{- end }}

{{- /* "true" if the daemon has host memory for models, nothing otherwise. */ -}}
{{- define "streamerd.hasHost" -}}
{{- range .Values.config.devices -}}
{{- if has (include "streamerd.deviceName" .) (list "host" "cpu") }}true{{ end -}}
{{- end -}}
{{- end }}

{{- /* The bytes of host memory that the configuration's devices have as budgets, and of the host cache. */ -}}
{{- define "streamerd.hostMemory" -}}
{{- $sum := include "streamerd.bytes" .Values.config.host_cache | int64 -}}
{{- range .Values.config.devices -}}
{{- $name := include "streamerd.deviceName" . -}}
{{- $budget := "" -}}
{{- if kindIs "map" . -}}
{{- $budget = .budget -}}
{{- else -}}
{{- $budget = trimPrefix (printf "%s=" $name) . -}}
{{- end -}}
{{- if has $name (list "host" "cpu") -}}
{{- $sum = add $sum (include "streamerd.bytes" $budget | int64) -}}
{{- end -}}
{{- end -}}
{{- $sum -}}
{{- end }}

{{- /* What the schema cannot say: values that contradict each other. Kubernetes or the daemon would refuse the objects. */ -}}
{{- define "streamerd.checks" -}}
{{- $v := .Values -}}
{{- $budget := ($v.config.disk_cache | default dict).budget -}}
{{- if and $v.hostPaths.diskCache (not $budget) -}}
{{- fail "hostPaths.diskCache requires config.disk_cache.budget" -}}
{{- end -}}
{{- if and $budget (not $v.hostPaths.diskCache) -}}
{{- fail "config.disk_cache.budget requires hostPaths.diskCache" -}}
{{- end -}}
{{- if and $v.metrics.secretName (eq (int $v.metrics.port) (int $v.healthPort)) -}}
{{- fail (printf "metrics.port and healthPort are the same: %d" (int $v.healthPort)) -}}
{{- end -}}
{{- $paths := list "/etc/streamerd/streamerd.yaml" $v.hostPaths.socket $v.hostPaths.state -}}
{{- with $v.hostPaths.diskCache -}}
{{- $paths = append $paths . -}}
{{- end -}}
{{- if $v.metrics.secretName -}}
{{- $paths = append $paths "/etc/streamerd/metrics" -}}
{{- end -}}
{{- include "streamerd.unique" (dict "what" "hostPaths and volumes: the path" "of" (concat $paths (include "streamerd.fields" (dict "of" $v.volumes "field" "mountPath") | fromJsonArray))) -}}
{{- include "streamerd.unique" (dict "what" "volumes: the name" "of" (include "streamerd.fields" (dict "of" $v.volumes "field" "name") | fromJsonArray)) -}}
{{- include "streamerd.unique" (dict "what" "resourceClaims: the name" "of" (include "streamerd.fields" (dict "of" $v.resourceClaims "field" "name") | fromJsonArray)) -}}
{{- $memory := include "streamerd.bytes" $v.resources.memory | int64 -}}
{{- $pages := include "streamerd.bytes" $v.resources.hugepages | int64 -}}
{{- $page := include "streamerd.bytes" $v.resources.hugepageSize | int64 -}}
{{- if ne (mod $pages $page) 0 -}}
{{- fail (printf "resources.hugepages: %s is not a multiple of hugepageSize, %s" $v.resources.hugepages $v.resources.hugepageSize) -}}
{{- end -}}
{{- if lt (add $memory $pages) (include "streamerd.hostMemory" . | int64) -}}
{{- fail "resources.memory: less than the budgets of config.devices and config.host_cache in host memory" -}}
{{- end -}}
{{- if lt $memory (mul 2 (include "streamerd.bytes" $v.config.host_cache | int64)) -}}
{{- fail "resources.memory: less than twice config.host_cache, which takes at most half of it" -}}
{{- end -}}
{{- end }}

{{- /* A field of each, as JSON. */ -}}
{{- define "streamerd.fields" -}}
{{- $found := list -}}
{{- range .of -}}
{{- $found = append $found (get . $.field) -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}

{{- define "streamerd.unique" -}}
{{- $seen := dict -}}
{{- range .of -}}
{{- if hasKey $seen . -}}
{{- fail (printf "%s %s is used twice" $.what .) -}}
{{- end -}}
{{- $_ := set $seen . true -}}
{{- end -}}
{{- end }}
