{{/*
What is there: the component of a pod -> whether it asks the API server, and the ports that serve metrics. Network
policies do not hold for one on the network of its node (hostNetwork).
*/}}
{{- define "vgpu.components" -}}
{{- if .Values.exporter.enabled }}
exporter: {api: {{ .Values.exporter.api }}, ports: {metrics: 9394}}
{{- end }}
{{- range $scheme := (include "vgpu.schemes" . | fromJson).names }}
{{- if (get $.Values.devicePlugin.schemes $scheme).nodeReconciler }}
device-plugin-{{ $scheme }}: {api: true, ports: {metrics: 9395, reconcile: 9396}}
{{- else }}
device-plugin-{{ $scheme }}: {api: true, ports: {metrics: 9395}}
{{- end }}
{{- end }}
{{- if eq .Values.reconciler.kind "Deployment" }}
reconciler: {api: true, ports: {reconcile: 9396}}
{{- else if eq .Values.reconciler.kind "CronJob" }}
reconciler: {api: true, ports: {}}
{{- end }}
{{- if .Values.reconciler.node.daemonSet }}
reconciler-node: {api: true, ports: {reconcile: 9396}}
{{- end }}
{{- if .Values.bill.enabled }}
bill: {api: false, ports: {}}
{{- end }}
{{- if .Values.fleet.enabled }}
fleet: {api: true, ports: {fleet: 9404}}
{{- end }}
{{- if .Values.feedback.enabled }}
feedback: {api: false, ports: {feedback: 9403}}
{{- end }}
{{- if .Values.tokens.enabled }}
tokens: {api: false, hostNetwork: true, ports: {tokens: 9402}}
{{- end }}
{{- if .Values.scheduler.enabled }}
scheduler: {api: true, ports: {scheduler: 9398}}
{{- end }}
{{- if .Values.kubeshare.enabled }}
kubeshare-controller: {api: true, ports: {kubeshare: 9399}}
kubeshare-node: {api: true, ports: {kubeshare: 9401}}
{{- end }}
{{- end }}

{{/*
Scrape jobs, named as alerts and dashboards know them: the port, and all components that may have it.
*/}}
{{- define "vgpu.jobs" -}}
{{- $plugins := list -}}
{{- range $scheme, $_ := .Values.devicePlugin.schemes }}{{ $plugins = append $plugins (printf "device-plugin-%s" $scheme) }}{{ end -}}
{{- if .Values.exporter.enabled }}
vgpu-exporter: {port: metrics, components: [exporter]}
{{- end }}
{{- if (include "vgpu.schemes" . | fromJson).names }}
vgpu-device-plugin: {port: metrics, components: {{ toJson $plugins }}}
{{- end }}
{{- if eq .Values.reconciler.kind "Deployment" }}
vgpu-reconciler: {port: reconcile, components: [reconciler]}
{{- end }}
{{- if include "vgpu.reconcilerNode.runs" . }}
vgpu-reconciler-node: {port: reconcile, components: {{ toJson (append $plugins "reconciler-node") }}}
{{- end }}
{{- if .Values.feedback.enabled }}
vgpu-feedback: {port: feedback, components: [feedback]}
{{- end }}
{{- if .Values.tokens.enabled }}
vgpu-tokens: {port: tokens, components: [tokens]}
{{- end }}
{{- if .Values.scheduler.enabled }}
vgpu-scheduler: {port: scheduler, components: [scheduler]}
{{- end }}
{{- if .Values.kubeshare.enabled }}
vgpu-kubeshare-controller: {port: kubeshare, components: [kubeshare-controller]}
vgpu-kubeshare-node: {port: kubeshare, components: [kubeshare-node]}
{{- end }}
{{- end }}

{{/*
One endpoint of a monitor: (list $ job port). Where each node has one, the node's name is the instance. The token
daemon declares no port.
*/}}
{{- define "vgpu.endpoint" -}}
{{- $monitoring := (index . 0).Values.monitoring -}}
{{- $isUndeclared := and (eq (index . 1) "vgpu-tokens") (eq $monitoring.kind "PodMonitor") }}
{{- if not $isUndeclared }}
port: {{ index . 2 }}
{{- end }}
interval: {{ $monitoring.interval }}
scrapeTimeout: {{ $monitoring.scrapeTimeout }}
honorLabels: {{ $monitoring.honorLabels }}
relabelings:
  - {targetLabel: job, replacement: {{ index . 1 }}}
  {{- if $isUndeclared }}
  - {sourceLabels: [__meta_kubernetes_pod_ip], targetLabel: __address__, replacement: "$1:9402"}
  {{- end }}
  {{- if not (has (index . 1) (list "vgpu-reconciler" "vgpu-scheduler" "vgpu-kubeshare-controller")) }}
  - {sourceLabels: [__meta_kubernetes_pod_node_name], targetLabel: instance}
  {{- end }}
  {{- with $monitoring.relabelings }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $monitoring.metricRelabelings }}
metricRelabelings: {{- toYaml . | nindent 2 }}
{{- end }}
{{- $secured := ternary (include "vgpu.scheduler.endpoint" (index . 0) | fromYaml) (dict) (eq (index . 1) "vgpu-scheduler") }}
{{- with merge (dict) $monitoring.endpoint $secured }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Name and labels of a monitor: (list $ job). */}}
{{- define "vgpu.monitorMetadata" -}}
name: {{ index . 1 }}
namespace: {{ (index . 0).Release.Namespace }}
labels:
  {{- include "vgpu.labels" (list (index . 0) "monitoring") | nindent 2 }}
  {{- with (index . 0).Values.monitoring.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* What a monitor selects pods or Services by: (list $ components). */}}
{{- define "vgpu.monitorSelector" -}}
matchLabels:
  app.kubernetes.io/name: {{ include "vgpu.name" (index . 0) }}
  app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
matchExpressions:
  - {key: app.kubernetes.io/component, operator: In, values: {{ toJson (index . 1) }}}
{{- end }}
