{{- /* A value in TOML. JSON's strings, numbers and booleans are TOML's; toToml would write whole numbers as 60.0. */ -}}
{{- define "edge-csi.toml.value" -}}
{{- if kindIs "map" . -}}
{ {{- range $place, $key := keys . | sortAlpha }}{{ if $place }},{{ end }} {{ toJson $key }} = {{ include "edge-csi.toml.value" (get $ $key) }}{{ end }} }
{{- else if kindIs "slice" . -}}
[{{ range $place, $value := . }}{{ if $place }}, {{ end }}{{ include "edge-csi.toml.value" $value }}{{ end }}]
{{- else -}}
{{- toJson . -}}
{{- end -}}
{{- end -}}

{{- define "edge-csi.toml.key" -}}
{{- if regexMatch "^[A-Za-z0-9_-]+$" . }}{{ . }}{{ else }}{{ toJson . }}{{ end -}}
{{- end -}}

{{- /* The keys of a section, without those that are null: so a default can be taken out. */ -}}
{{- define "edge-csi.toml.keys" -}}
{{- range $key := keys . | sortAlpha }}
{{- $value := get $ $key }}
{{- if not (kindIs "invalid" $value) }}
{{ include "edge-csi.toml.key" $key }} = {{ include "edge-csi.toml.value" $value }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* A configuration: its keys, its sections, and the sections of each driver. */ -}}
{{- define "edge-csi.toml" -}}
{{- $plain := dict -}}
{{- range $key, $value := . }}{{ if not (kindIs "map" $value) }}{{ $_ := set $plain $key $value }}{{ end }}{{ end -}}
{{- include "edge-csi.toml.keys" $plain | trim }}
{{- range $key, $value := . }}
{{- if eq $key "driver" }}
{{- range $name, $section := $value }}

[driver.{{ include "edge-csi.toml.key" $name }}]
{{- include "edge-csi.toml.keys" $section }}
{{- end }}
{{- else if kindIs "map" $value }}

[{{ include "edge-csi.toml.key" $key }}]
{{- include "edge-csi.toml.keys" $value }}
{{- end }}
{{- end }}
{{ end -}}

{{- define "edge-csi.cloud.toml" -}}
{{- $drivers := include "edge-csi.drivers" . | fromJson -}}
{{- $etcd := .Values.cloud.etcd -}}
{{- $join := include "edge-csi.join" . -}}
{{- $made := include "edge-csi.makesCA" . -}}
{{- $pki := ternary "/var/lib/edge-csi/pki/cloud" "/etc/edge-csi-tls/tls" (not (empty $made)) -}}
{{- $config := dict
  "listen" (list "wss://0.0.0.0:7443" "quic://0.0.0.0:7443")
  "drivers" (keys $drivers | sortAlpha)
  "relays" (list "https://0.0.0.0:7444")
  "admin" "/run/edge-csi/_admin.sock"
  "store" "file:/var/lib/edge-csi/cloud.redb"
  "http" "0.0.0.0:9808"
  "tls" (dict "ca" (printf "%s/ca.crt" (dir $pki)) "cert" (printf "%s.crt" $pki) "key" (printf "%s.key" $pki))
  "kubernetes" (dict "api" "in-cluster" "publish_csinode" .Values.publishCSINode)
  "driver" dict -}}
{{- range $name, $driver := $drivers -}}
  {{- $settings := merge (deepCopy (get $.Values.settings $name | default dict)) ($driver.settings | default dict) -}}
  {{- /* edged waits for an attachment of every volume. */ -}}
  {{- if and $.Values.kubeedge (not (hasKey $driver.sidecars "attacher")) }}{{ $_ := set $settings "attach_required" true }}{{ end -}}
  {{- if $settings }}{{ $_ := set $config.driver $name $settings }}{{ end -}}
{{- end -}}
{{- /* A driver without a definition announces itself, or edge.config names it. */ -}}
{{- $defined := dict -}}
{{- range .Values.definitions }}{{ $_ := set $defined .name true }}{{ end -}}
{{- range $name, $settings := .Values.settings -}}
  {{- if not (hasKey $defined $name) -}}
    {{- $_ := set $config "drivers" (append $config.drivers $name | sortAlpha) -}}
    {{- $_ := set $config.driver $name (deepCopy $settings) -}}
  {{- end -}}
{{- end -}}
{{- if $etcd.hosts -}}
  {{- $_ := set $config "store" (printf "etcd://%s/%s" (join "," $etcd.hosts) $etcd.prefix) -}}
  {{- $_ := set $config "etcd" (dict "ca" "/etc/edge-csi-etcd/ca.crt" "cert" "/etc/edge-csi-etcd/tls.crt" "key" "/etc/edge-csi-etcd/tls.key") -}}
{{- end -}}
{{- if $made -}}
  {{- $_ := set $config "ca" (dict "cert" "/var/lib/edge-csi/pki/ca.crt" "key" "/var/lib/edge-csi/pki/ca.key" "hosts" (include "edge-csi.hosts" . | fromJsonArray)) -}}
{{- else if ne $join "files" -}}
  {{- $_ := set $config "ca" (dict "cert" "/etc/edge-csi-ca/tls.crt" "key" "/etc/edge-csi-ca/tls.key") -}}
{{- end -}}
{{- if ne $join "files" -}}
  {{- /* Of several, each says its own (cloud.yaml). */ -}}
  {{- range (ternary (list) .Values.address (not (empty $etcd.hosts))) -}}
    {{- if hasPrefix "wss://" . }}{{ $_ := set $config "advertise" (get $config "advertise" | default .) }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- if eq $join "account" }}{{ $_ := set $config.kubernetes "join_service_account" (printf "%s/csi-edge" .Release.Namespace) }}{{ end -}}
{{- if .Values.metadata.enabled -}}
  {{- $_ := set $config.kubernetes "metadata" true -}}
  {{- with .Values.metadata.directHandlers }}{{ $_ := set $config.kubernetes "direct_handlers" . }}{{ end -}}
{{- end -}}
{{- if .Values.page.enabled }}{{ $_ := set $config "view" "/run/edge-csi/view/view.sock" }}{{ end -}}
{{- include "edge-csi.toml" (mergeOverwrite $config (deepCopy .Values.cloud.config)) -}}
{{- end -}}

{{- define "edge-csi.edge.toml" -}}
{{- $join := include "edge-csi.join" . -}}
{{- $sockets := list -}}
{{- range $name, $driver := include "edge-csi.drivers" . | fromJson -}}
  {{- $sockets = append $sockets (dict "name" $name "socket" (printf "/drivers/%s.sock" $name)) -}}
{{- end -}}
{{- $config := dict
  "cloud" .Values.address
  "fronts" "/fronts"
  "state" "/var/lib/edge-csi"
  "http" "127.0.0.1:29700"
  "drivers" $sockets -}}
{{- if .Values.kubeedge }}{{ $_ := set $config "node_expansion" "edge" }}{{ end -}}
{{- if eq $join "account" -}}
  {{- $_ := set $config "identity" "/var/lib/edge-csi/identity" -}}
  {{- $_ := set $config "join" (dict "token_file" "/var/run/secrets/edge-csi/token") -}}
  {{- /* That of a CA that csi-cloud makes is a flag (edge.yaml). */ -}}
  {{- with .Values.join.caHash }}{{ $_ := set $config.join "ca_hash" . }}{{ end -}}
{{- else if eq $join "token" -}}
  {{- $_ := set $config "identity" "/etc/edge-csi-tls" -}}
{{- else -}}
  {{- $_ := set $config "tls" (dict "ca" "/etc/edge-csi-tls/ca.crt" "cert" "/etc/edge-csi-tls/edge.crt" "key" "/etc/edge-csi-tls/edge.key") -}}
{{- end -}}
{{- if ne .Values.edge.kubelet "/var/lib/kubelet" }}{{ $_ := set $config "direct" (dict "targets" .Values.edge.kubelet) }}{{ end -}}
{{- with .Values.edge.announced }}{{ $_ := set $config "discovery" (dict "directory" "/var/lib/edge-csi/plugins_registry" "allow" .) }}{{ end -}}
{{- include "edge-csi.toml" (mergeOverwrite $config (deepCopy .Values.edge.config)) -}}
{{- end -}}
