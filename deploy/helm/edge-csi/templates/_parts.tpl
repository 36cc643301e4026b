{{- /*
The manifests of deploy/kustomize are the only ones; here they are read, patched as kustomize patches them, and given
the values.
*/ -}}

{{- /* A file's documents, in the release's namespace. */ -}}
{{- define "edge-csi.file" -}}
{{- $text := .root.Files.Get .path -}}
{{- if not $text }}{{ fail (printf "the chart has no %s" .path) }}{{ end -}}
{{- $text | replace "namespace: edge-csi\n" (printf "namespace: %s\n" .root.Release.Namespace) -}}
{{- end -}}

{{- /* The JSON patches of a component over a workload: only what they have: `add` to lists and fields, and `replace`. */ -}}
{{- define "edge-csi.patch" -}}
{{- $spec := .workload.spec.template.spec -}}
{{- range .patches -}}
  {{- $value := .value -}}
  {{- $path := trimPrefix "/spec/template/spec/" .path -}}
  {{- if or (eq $path "containers/-") (eq $path "volumes/-") -}}
    {{- $list := trimSuffix "/-" $path -}}
    {{- $_ := set $spec $list (append (get $spec $list) $value) -}}
  {{- else if regexMatch "^containers/[0-9]+/[a-zA-Z]+(/-)?$" $path -}}
    {{- $parts := splitList "/" $path -}}
    {{- $container := index $spec.containers (index $parts 1 | int) -}}
    {{- $key := index $parts 2 -}}
    {{- if hasSuffix "/-" $path -}}
      {{- $_ := set $container $key (append (get $container $key) $value) -}}
    {{- else -}}
      {{- $_ := set $container $key $value -}}
    {{- end -}}
  {{- else if regexMatch "^[a-zA-Z]+$" $path -}}
    {{- $_ := set $spec $path $value -}}
  {{- else -}}
    {{- fail (printf "the chart cannot patch %s" .path) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{- /* An image by its digest if there is one, which no registry can change, and else by its tag. */ -}}
{{- define "edge-csi.image" -}}
{{- if get . "digest" }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag }}{{ end -}}
{{- end -}}

{{- /* A workload of the base with the components' patches, the images and what all pods get. */ -}}
{{- define "edge-csi.workload" -}}
{{- $root := .root -}}
{{- /* Refuses drivers that are not there. */ -}}
{{- $names := include "edge-csi.names" $root -}}
{{- $workload := include "edge-csi.file" (dict "root" $root "path" (printf "base/%s.yaml" .half)) | fromYaml -}}
{{- $half := .half -}}
{{- $components := list -}}
{{- if eq .half "edge" -}}
  {{- $components = $root.Values.drivers -}}
  {{- if $root.Values.direct }}{{ $components = append $components "direct" }}{{ end -}}
  {{- if $root.Values.kubeedge }}{{ $components = append $components "kubeedge" }}{{ end -}}
  {{- if $root.Values.edge.proxy }}{{ $components = append $components "proxy" }}{{ end -}}
{{- end -}}
{{- if and (eq .half "cloud") $root.Values.cloud.etcd.hosts }}{{ $components = append $components "ha" }}{{ end -}}
{{- if $root.Values.join.caHash }}{{ $components = append $components "join" }}{{ end -}}
{{- if and (eq .half "cloud") $root.Values.page }}{{ $components = append $components "page" }}{{ end -}}
{{- range $components -}}
  {{- $patches := include "edge-csi.file" (dict "root" $root "path" (printf "components/%s/%s.yaml" . $half)) | fromYamlArray -}}
  {{- include "edge-csi.patch" (dict "workload" $workload "patches" $patches) -}}
{{- end -}}
{{- include "edge-csi.images" (dict "root" $root "workload" $workload) -}}
{{- $first := first $workload.spec.template.spec.containers -}}
{{- with .resources }}{{ $_ := set $first "resources" . }}{{ end -}}
{{- /* A changed configuration starts the pods again, as the names with hashes do that kustomize makes. */ -}}
{{- $_ := set $workload.spec.template.metadata.annotations "checksum/config" (include (printf "edge-csi.%s.toml" .half) $root | sha256sum) -}}
{{- toYaml $workload | replace "$(POD_NAME).csi-cloud.example:" (printf "$(POD_NAME).%s:" $root.Values.cloud.etcd.domain) -}}
{{- end -}}

{{- /* The sidecars of a driver, with the images and what all pods get. */ -}}
{{- define "edge-csi.sidecars" -}}
{{- $workload := include "edge-csi.file" (dict "root" .root "path" (printf "components/%s/sidecars.yaml" .driver)) | fromYaml -}}
{{- if .root.Values.cloud.etcd.hosts -}}
  {{- $patches := include "edge-csi.file" (dict "root" .root "path" "components/ha/sidecars.yaml") | fromYamlArray -}}
  {{- include "edge-csi.patch" (dict "workload" $workload "patches" $patches) -}}
  {{- $_ := set $workload.spec "replicas" 3 -}}
{{- end -}}
{{- include "edge-csi.images" (dict "root" .root "workload" $workload) -}}
{{- toYaml $workload -}}
{{- end -}}

{{- /* Puts the images of the values into a workload, and the Secrets that they are pulled with. */ -}}
{{- define "edge-csi.images" -}}
{{- $root := .root -}}
{{- $spec := .workload.spec.template.spec -}}
{{- $images := $root.Values.images -}}
{{- $edge := ternary $images.edgeDirect $images.edge $root.Values.direct -}}
{{- $ours := dict "csi-cloud" (include "edge-csi.image" $images.cloud) "csi-edge" (include "edge-csi.image" $edge) -}}
{{- range $spec.containers -}}
  {{- $_ := set . "image" (get $ours .image | default (get $images.others .image) | default .image) -}}
{{- end -}}
{{- with $root.Values.imagePullSecrets }}{{ $_ := set $spec "imagePullSecrets" . }}{{ end -}}
{{- end -}}

{{- /* The CSI names of the drivers that were chosen, sorted. */ -}}
{{- define "edge-csi.names" -}}
{{- $names := list -}}
{{- range .Values.drivers -}}
  {{- $sidecars := $.Files.Get (printf "components/%s/sidecars.yaml" .) | fromYaml -}}
  {{- if not $sidecars }}{{ fail (printf "there is no driver %q; there are hostpath, nfs and lvm" .) }}{{ end -}}
  {{- range (first $sidecars.spec.template.spec.containers).args -}}
    {{- if hasPrefix "--driver=" . }}{{ $names = append $names (trimPrefix "--driver=" .) }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- toJson (sortAlpha $names) -}}
{{- end -}}

{{- define "edge-csi.cloud.toml" -}}
{{- $names := include "edge-csi.names" . | fromJsonArray -}}
# All that there is to say: deploy/cloud.toml.
listen = ["wss://0.0.0.0:7443", "quic://0.0.0.0:7443"]
drivers = {{ toJson $names }}
holders = ["https://0.0.0.0:7444"]
admin = "/run/edge-csi/_admin.sock"
{{- if .Values.cloud.etcd.hosts }}
store = "etcd://{{ join "," .Values.cloud.etcd.hosts }}/{{ .Values.cloud.etcd.prefix }}"
{{- else }}
store = "file:/var/lib/edge-csi/cloud.redb"
{{- end }}
http = "0.0.0.0:9808"

[tls]
ca = "/etc/edge-csi-tls/ca.crt"
cert = "/etc/edge-csi-tls/tls.crt"
key = "/etc/edge-csi-tls/tls.key"
{{- if .Values.cloud.etcd.hosts }}

[etcd]
ca = "/etc/edge-csi-etcd/ca.crt"
cert = "/etc/edge-csi-etcd/tls.crt"
key = "/etc/edge-csi-etcd/tls.key"
{{- end }}
{{- if .Values.join.caHash }}

[ca]
cert = "/etc/edge-csi-ca/tls.crt"
key = "/etc/edge-csi-ca/tls.key"
{{- end }}
{{- if .Values.page }}

[page]
listen = "https://0.0.0.0:7445"
token_file = "/etc/edge-csi-page/tokens"
{{- end }}

[kubernetes]
api = "in-cluster"
publish_csinode = {{ .Values.publishCSINode | quote }}
{{- if .Values.join.caHash }}
join_service_account = {{ printf "%s/csi-edge" .Release.Namespace | quote }}
{{- end }}
{{- if .Values.metadata.enabled }}
metadata = true
{{- with .Values.metadata.directHandlers }}
direct_handlers = {{ toJson . }}
{{- end }}
{{- end }}
{{- range $name := $names }}

[driver.{{ $name | quote }}]
{{- range $key, $value := get $.Values.settings $name }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{ end -}}

{{- define "edge-csi.edge.toml" -}}
# All that there is to say: deploy/edge.toml. Where the cloud is, as the edges reach it from outside:
cloud = {{ toJson .Values.address }}
fronts = "/fronts"
state = "/var/lib/edge-csi"
http = "127.0.0.1:29700"
{{- if .Values.kubeedge }}
node_expansion = "edge"
{{- end }}
{{- if .Values.join.caHash }}
identity = "/var/lib/edge-csi/identity"

[join]
ca_hash = {{ .Values.join.caHash | quote }}
token_file = "/var/run/secrets/edge-csi/token"
{{- else }}

[tls]
ca = "/etc/edge-csi-tls/ca.crt"
cert = "/etc/edge-csi-tls/edge.crt"
key = "/etc/edge-csi-tls/edge.key"
{{- end }}
{{- if ne .Values.edge.kubelet "/var/lib/kubelet" }}

[direct]
targets = {{ .Values.edge.kubelet | quote }}
{{- end }}
{{- with .Values.edge.announced }}

[discovery]
directory = "/var/lib/edge-csi/plugins_registry"
allow = {{ toJson . }}
{{- end }}
{{- range include "edge-csi.names" . | fromJsonArray }}

[[drivers]]
name = {{ . | quote }}
socket = "/drivers/{{ . }}.sock"
{{- end }}
{{ end -}}
