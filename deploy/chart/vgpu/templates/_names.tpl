{{/* Names and labels. A "part" is one of exporter, device-plugin, reconciler, reconciler-node, scheduler,
kubeshare-controller, kubeshare-node, feedback, tokens, bill, fleet. */}}

{{- define "vgpu.name" -}}
{{- .Values.nameOverride | default "vgpu" -}}
{{- end }}

{{- define "vgpu.fullname" -}}
{{- $name := include "vgpu.name" . -}}
{{- $default := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- .Values.fullnameOverride | default $default | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* What selects the pods of a part: (list $ part). */}}
{{- define "vgpu.selector" -}}
app.kubernetes.io/name: {{ include "vgpu.name" (index . 0) }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Labels of a pod, which stay when only the chart is another: (list $ part). */}}
{{- define "vgpu.podLabels" -}}
{{ include "vgpu.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
{{- range $key, $text := omit (index . 0).Values.commonLabels "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart" }}
{{ $key }}: {{ $text | quote }}
{{- end }}
{{- end }}

{{/* Labels of an object: (list $ part). */}}
{{- define "vgpu.labels" -}}
{{ include "vgpu.podLabels" . }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Name, namespace and labels of an object of a part: (list $ part). */}}
{{- define "vgpu.metadata" -}}
name: {{ include "vgpu.fullname" (index . 0) }}-{{ index . 1 }}
namespace: {{ (index . 0).Release.Namespace }}
labels: {{- include "vgpu.labels" . | nindent 2 }}
{{- end }}

{{/* The same without namespace, for what is of the whole cluster: (list $ part). */}}
{{- define "vgpu.clusterMetadata" -}}
name: {{ include "vgpu.fullname" (index . 0) }}-{{ index . 1 }}
labels: {{- include "vgpu.labels" . | nindent 2 }}
{{- end }}

{{/* Settings of the ServiceAccount of a part, as JSON: (list $ part). */}}
{{- define "vgpu.accountValues" -}}
{{- $values := (index . 0).Values -}}
{{- $part := index . 1 -}}
{{- if eq $part "exporter" -}}
{{- toJson $values.exporter.serviceAccount -}}
{{- else if eq $part "reconciler" -}}
{{- toJson $values.reconciler.serviceAccount -}}
{{- else if eq $part "scheduler" -}}
{{- toJson $values.scheduler.serviceAccount -}}
{{- else if eq $part "kubeshare-controller" -}}
{{- toJson $values.kubeshare.controller.serviceAccount -}}
{{- else if eq $part "kubeshare-node" -}}
{{- toJson $values.kubeshare.node.serviceAccount -}}
{{- else if eq $part "bill" -}}
{{- toJson $values.bill.serviceAccount -}}
{{- else if eq $part "fleet" -}}
{{- toJson $values.fleet.serviceAccount -}}
{{- else if eq $part "feedback" -}}
{{- toJson $values.feedback.serviceAccount -}}
{{- else if eq $part "tokens" -}}
{{- toJson $values.tokens.serviceAccount -}}
{{- else if eq $part "reconciler-node" -}}
{{- toJson $values.reconciler.node.serviceAccount -}}
{{- else -}}
{{- toJson (get $values.devicePlugin.schemes (trimPrefix "device-plugin-" $part)).serviceAccount -}}
{{- end -}}
{{- end }}

{{/* Name of the ServiceAccount of a part: (list $ part). */}}
{{- define "vgpu.accountName" -}}
{{- (include "vgpu.accountValues" . | fromJson).name | default (printf "%s-%s" (include "vgpu.fullname" (index . 0)) (index . 1)) -}}
{{- end }}

{{/* The ServiceAccount of a part, unless it exists; pods that need a token ask for it: (list $ part). */}}
{{- define "vgpu.serviceAccount" -}}
{{- $account := include "vgpu.accountValues" . | fromJson -}}
{{- if $account.create -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "vgpu.accountName" . }}
  namespace: {{ (index . 0).Release.Namespace }}
  labels: {{- include "vgpu.labels" . | nindent 4 }}
  {{- with $account.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Role or ClusterRole of a name to the ServiceAccount of a part: (list $ kind name part). */}}
{{- define "vgpu.bound" -}}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ index . 1 }}
  name: {{ index . 2 }}
subjects:
  - kind: ServiceAccount
    name: {{ include "vgpu.accountName" (list (index . 0) (index . 3)) }}
    namespace: {{ (index . 0).Release.Namespace }}
{{- end }}

{{/* Name of the PriorityClass of exporter and reconciler, or nothing. It is of the whole cluster. */}}
{{- define "vgpu.priorityClassName" -}}
{{- with .Values.priorityClass -}}
{{- if .name -}}
{{- .name -}}
{{- else if .create -}}
{{- printf "%s-%s" $.Release.Namespace (include "vgpu.fullname" $) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Name of the PriorityClass of KubeShare's holder pods, or nothing. It is of the whole cluster. */}}
{{- define "vgpu.kubeshare.priorityClassName" -}}
{{- with .Values.kubeshare.holder.priorityClass -}}
{{- if .name -}}
{{- .name -}}
{{- else if .create -}}
{{- printf "%s-%s-holder" $.Release.Namespace (include "vgpu.fullname" $) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Schemes whose plugin is ours, sorted, as JSON: {"names": […]}. */}}
{{- define "vgpu.schemes" -}}
{{- $names := list -}}
{{- range $name, $scheme := .Values.devicePlugin.schemes -}}
{{- if $scheme.enabled }}{{ $names = append $names $name }}{{ end -}}
{{- end -}}
{{- dict "names" $names | toJson -}}
{{- end }}
