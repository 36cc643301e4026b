{{- /* An image by its digest if there is one, which no registry can change, and else by its tag. */ -}}
{{- define "edge-csi.image" -}}
{{- if get . "digest" }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag }}{{ end -}}
{{- end -}}

{{- /* Somebody else's image, or what the values put in its place: (list root image). */ -}}
{{- define "edge-csi.other" -}}
{{- get (index . 0).Values.images.others (index . 1) | default (index . 1) -}}
{{- end -}}

{{- /* Who has a role: (list root kind role account). */ -}}
{{- define "edge-csi.binding" -}}
{{- $namespace := (index . 0).Release.Namespace -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ index . 1 }}Binding
metadata:
  name: {{ index . 2 }}
  {{- if eq (index . 1) "Role" }}
  namespace: {{ $namespace }}
  {{- end }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: {{ index . 1 }}, name: {{ index . 2 }}}
subjects:
  - {kind: ServiceAccount, name: {{ index . 3 }}, namespace: {{ $namespace }}}
{{- end -}}

{{- /* A Service by which edges dial. */ -}}
{{- define "edge-csi.dialed" -}}
type: {{ .Values.cloud.service.type }}
{{- if ne .Values.cloud.service.type "ClusterIP" }}
externalTrafficPolicy: Local
{{- end }}
{{- end -}}

{{- /* Pods that are not at edges, as "restricted" wants them. */ -}}
{{- define "edge-csi.central" -}}
priorityClassName: system-cluster-critical
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
            - {key: edge-csi.io/edge, operator: DoesNotExist}
            - {key: node-role.kubernetes.io/edge, operator: DoesNotExist}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- /* A container without any privilege. */ -}}
{{- define "edge-csi.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* The drivers that were chosen, by their CSI names and sorted by these: each its definition and its `key`. */ -}}
{{- define "edge-csi.drivers" -}}
{{- $chosen := dict -}}
{{- range $key := .Values.drivers -}}
  {{- $driver := get $.Values.definitions $key -}}
  {{- if not $driver }}{{ fail (printf "drivers: there is no driver %q; definitions has %s" $key (keys $.Values.definitions | sortAlpha | join ", ")) }}{{ end -}}
  {{- $_ := set $chosen $driver.name (merge (dict "key" $key) $driver) -}}
{{- end -}}
{{- toJson $chosen -}}
{{- end -}}

{{- /* Where csi-edge runs. KubeEdge labels its nodes itself; a selector that you set counts all the same. */ -}}
{{- define "edge-csi.selector" -}}
{{- $own := dict "edge-csi.io/edge" "true" -}}
{{- if and .Values.kubeedge (eq (toJson .Values.edge.nodeSelector) (toJson $own)) -}}
{{- toJson (dict "node-role.kubernetes.io/edge" "") -}}
{{- else -}}
{{- toJson .Values.edge.nodeSelector -}}
{{- end -}}
{{- end -}}

{{- /* How nodes join. */ -}}
{{- define "edge-csi.join" -}}
{{- $join := .Values.join -}}
{{- if and (eq $join.method "account") (not $join.caHash) .Values.cloud.etcd.hosts -}}
{{- fail "join.caHash is missing: several csi-clouds share a CA that you make, and nodes that join with a token of csi-edge's ServiceAccount know it by its hash. Set it to what `echo sha256:$(openssl x509 -in pki/ca.crt -outform DER | sha256sum | cut -d' ' -f1)` prints. Nodes that have their certificates already: join.method=files" -}}
{{- end -}}
{{- $join.method -}}
{{- end -}}

{{- /* "true" if csi-cloud makes its CA, in its own volume: one csi-cloud alone, and no other CA is named by its hash. */ -}}
{{- define "edge-csi.makesCA" -}}
{{- if not (or (eq .Values.join.method "files") .Values.join.caHash .Values.cloud.etcd.hosts) -}}true{{- end -}}
{{- end -}}

{{- /* By which names csi-cloud is dialed: by edges, and by the sidecars' relays. */ -}}
{{- define "edge-csi.hosts" -}}
{{- $hosts := list -}}
{{- range .Values.address -}}
  {{- $hosts = append $hosts (. | trimPrefix "wss://" | trimPrefix "quic://" | splitList ":" | initial | join ":" | trimPrefix "[" | trimSuffix "]") -}}
{{- end -}}
{{- append $hosts "csi-cloud-relays" | uniq | toJson -}}
{{- end -}}
