{{- define "streamerd.selector" -}}
app.kubernetes.io/name: streamerd
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "streamerd.labels" -}}
{{ include "streamerd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "streamerd.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ printf "%s@%s" .repository .digest | quote }}
{{- else -}}
{{ printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) | quote }}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "streamerd.config" -}}
{{- $m := .Values.metrics -}}
{{- $own := dict
      "socket" (printf "%s/streamerd.sock" .Values.hostPaths.socket)
      "state" .Values.hostPaths.state
      "health" (dict "listen" (printf "%s:%d" .Values.listen (int .Values.healthPort))) -}}
{{- with .Values.hostPaths.diskCache -}}
{{- $_ := set $own "disk_cache" (dict "path" (printf "%s/cache" .)) -}}
{{- end -}}
{{- if $m.secretName -}}
{{- $metrics := dict
      "listen" (printf "%s:%d" .Values.listen (int $m.port))
      "certificate" "/etc/streamerd/metrics/tls.crt"
      "key" "/etc/streamerd/metrics/tls.key" -}}
{{- if eq $m.auth "token" -}}
{{- $_ := set $metrics "token_file" "/etc/streamerd/metrics/token" -}}
{{- else -}}
{{- $_ := set $metrics "client_ca" "/etc/streamerd/metrics/ca.crt" -}}
{{- end -}}
{{- $_ := set $own "metrics" $metrics -}}
{{- end -}}
{{ mergeOverwrite (deepCopy .Values.config) $own | toYaml }}
{{- end }}
