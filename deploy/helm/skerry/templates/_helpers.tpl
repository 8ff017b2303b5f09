{{- define "skerry.name" -}}
{{- if contains "skerry" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-skerry" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "skerry.labels" -}}
app.kubernetes.io/name: skerry
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* (root, component) */}}
{{- define "skerry.selector" -}}
app.kubernetes.io/name: skerry
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "skerry.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "skerry.host" -}}
{{ include "skerry.name" . }}.{{ .Release.Namespace }}.svc
{{- end }}

{{/* The name of the broker inside the cluster */}}
{{- define "skerry.brokerHost" -}}
{{- if eq .Values.broker.kind "external" }}{{ .Values.broker.host }}
{{- else }}{{ include "skerry.name" . }}-mqtt.{{ .Release.Namespace }}.svc{{ end }}
{{- end }}

{{/* KubeRay names the head's Service after its cluster */}}
{{- define "skerry.rayHead" -}}
{{ include "skerry.name" . }}-ray-head-svc.{{ .Release.Namespace }}.svc:6379
{{- end }}

{{/* No package reports to its maker: the list of wire/telemetry.py */}}
{{- define "skerry.noTelemetry" -}}
- {name: DO_NOT_TRACK, value: "1"}
- {name: ORT_DISABLE_TELEMETRY, value: "1"}
- {name: HF_HUB_DISABLE_TELEMETRY, value: "1"}
- {name: HF_HUB_DISABLE_UPDATE_CHECK, value: "1"}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
- {name: VLLM_NO_USAGE_STATS, value: "1"}
{{- end }}

{{- define "skerry.rayEnvironment" -}}
- {name: RAY_AUTH_MODE, value: token}
- name: RAY_AUTH_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .Values.ray.tokenSecret.name }}, key: {{ .Values.ray.tokenSecret.key }}}}
- {name: SKERRY_BUNDLES, value: /models}
{{- end }}

{{/* Bundles, as every node of a hub's models has them */}}
{{- define "skerry.modelsVolume" -}}
{{- if .Values.bundles.claim }}
- name: models
  persistentVolumeClaim: {claimName: {{ .Values.bundles.claim }}, readOnly: {{ not .Values.bundles.writable }}}
{{- else if .Values.bundles.image }}
- name: models
  emptyDir: {}
{{- end }}
{{- end }}

{{- define "skerry.modelsCopy" -}}
- name: models
  image: {{ .Values.bundles.image }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [cp, -R, /models/., /copy/]
  securityContext: {{- include "skerry.containerSecurity" . | nindent 4 }}
  resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {memory: 256Mi}}
  volumeMounts:
    - {name: models, mountPath: /copy}
{{- end }}

{{/* (root, resources, command): a Ray node's container. Its sockets and store lie in /tmp and /dev/shm. */}}
{{- define "skerry.rayNode" -}}
{{- $root := index . 0 }}
image: {{ include "skerry.image" $root }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
env:
  - {name: HOME, value: /tmp}
  {{- include "skerry.noTelemetry" $root | nindent 2 }}
  {{- include "skerry.rayEnvironment" $root | nindent 2 }}
securityContext: {{- include "skerry.containerSecurity" $root | nindent 2 }}
resources: {{- toYaml (index . 1) | nindent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: shm, mountPath: /dev/shm}
  - {name: models, mountPath: /models, readOnly: true}
{{- end }}

{{/* What the chart sets in hub.toml goes over what the values say; whole numbers are written without a fraction. */}}
{{- define "skerry.hubToml" -}}
{{- $broker := dict "start" (eq .Values.broker.kind "child") "host" (eq .Values.broker.kind "child" | ternary .Values.api.listen (include "skerry.brokerHost" .)) "port" .Values.broker.port "devices" .Values.broker.devices "address" (.Values.broker.address | default (include "skerry.brokerHost" .)) "names" (concat (list (include "skerry.brokerHost" .)) .Values.broker.names | uniq) }}
{{- $api := dict "host" .Values.api.listen "port" 8080 "tls" true "url" (.Values.api.url | default (printf "https://%s:8080" (include "skerry.host" .))) }}
{{- $own := dict "state" "/var/lib/skerry/hub" "hub" (dict "drain_s" .Values.drainSeconds) "api" $api "broker" $broker "store" (dict "url" .Values.store.url) }}
{{- if or .Values.bundles.claim .Values.bundles.image }}{{ $_ := set $own "models_folder" "/models" }}{{ end }}
{{- if ne .Values.autoscaling.kind "none" }}{{ $_ := set $own "scaling" (dict "obey" false) }}{{ end }}
{{- if .Values.ray.enabled }}{{ $_ := set $own "ray" (dict "address" (include "skerry.rayHead" .) "nodes" .Values.ray.nodes "ports" "20000-20099") }}{{ end }}
{{- regexReplaceAll "(?m)(= -?[0-9]+)\\.0$" (mergeOverwrite (deepCopy .Values.config) $own | toToml) "${1}" | trim }}
{{- end }}

{{- define "skerry.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "skerry.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* How a container reaches the database and region.key, and where it may write */}}
{{- define "skerry.environment" -}}
{{ include "skerry.noTelemetry" . }}
- {name: HOME, value: /tmp}
- {name: PYTHONUNBUFFERED, value: "1"}
{{- with .Values.store.passwordSecret }}{{ if .name }}
- name: PGPASSWORD
  valueFrom: {secretKeyRef: {name: {{ .name }}, key: {{ .key }}}}
{{- end }}{{ end }}
{{- if .Values.store.caSecret.name }}
- {name: PGSSLMODE, value: verify-full}
- {name: PGSSLROOTCERT, value: /etc/skerry/database/ca.crt}
{{- end }}
{{- end }}

{{- define "skerry.configMounts" -}}
- {name: config, mountPath: /etc/skerry/config, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if .Values.store.caSecret.name }}
- {name: database-ca, mountPath: /etc/skerry/database, readOnly: true}
{{- end }}
{{- end }}

{{- define "skerry.configVolumes" -}}
- name: config
  configMap: {name: {{ include "skerry.name" . }}}
- name: tmp
  emptyDir: {}
{{- with .Values.store.caSecret }}{{ if .name }}
- name: database-ca
  secret: {secretName: {{ .name }}, items: [{key: {{ .key }}, path: ca.crt}], defaultMode: 0440}
{{- end }}{{ end }}
{{- with .Values.region.keySecret }}{{ if .name }}
- name: region-key
  secret: {secretName: {{ .name }}, items: [{key: {{ .key }}, path: region.key}], defaultMode: 0440}
{{- end }}{{ end }}
{{- end }}

{{- define "skerry.scheduling" -}}
automountServiceAccountToken: false
serviceAccountName: {{ include "skerry.name" . }}
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end }}
