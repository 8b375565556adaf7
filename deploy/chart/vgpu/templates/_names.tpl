{{/* Names and labels. A "part" is one of exporter, device-plugin, reconciler, reconciler-node. */}}

{{- define "vgpu.fullname" -}}
{{- $default := ternary .Release.Name (printf "%s-vgpu" .Release.Name) (contains "vgpu" .Release.Name) -}}
{{- .Values.fullnameOverride | default $default | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* What selects the pods of a part: (list $ part). */}}
{{- define "vgpu.selector" -}}
app.kubernetes.io/name: vgpu
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Labels of an object: (list $ part). */}}
{{- define "vgpu.labels" -}}
{{ include "vgpu.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
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

{{/* Role or ClusterRole to ServiceAccount, all of one name: (list $ kind name). */}}
{{- define "vgpu.bound" -}}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ index . 1 }}
  name: {{ index . 2 }}
subjects:
  - kind: ServiceAccount
    name: {{ index . 2 }}
    namespace: {{ (index . 0).Release.Namespace }}
{{- end }}

{{/* Schemes whose plugin is ours, sorted, as JSON: {"names": […]}. */}}
{{- define "vgpu.schemes" -}}
{{- $names := list -}}
{{- range $name, $scheme := .Values.devicePlugin.schemes -}}
{{- if $scheme.enabled }}{{ $names = append $names $name }}{{ end -}}
{{- end -}}
{{- dict "names" $names | toJson -}}
{{- end }}
