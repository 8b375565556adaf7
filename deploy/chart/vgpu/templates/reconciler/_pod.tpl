{{/*
The cluster's reconciler in a pod; a Deployment and a CronJob give the command, and what a program that
goes on running needs beside it: (list $ command-and-flags ports-and-probes).
*/}}
{{- define "vgpu.reconciler.pod" -}}
{{- $root := index . 0 -}}
{{- $values := $root.Values.reconciler -}}
{{ include "vgpu.account" (list $root "reconciler") }}
{{- with include "vgpu.priorityClassName" $root }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "vgpu.overlaid" (list (include "vgpu.reconciler.user" $root) $values.podSecurityContext) | nindent 2 }}
containers:
  - name: reconcile
    {{- include "vgpu.image" $root | nindent 4 }}
    args:
      {{- index . 1 | nindent 6 }}
      - --config=/etc/vgpu/reconcile.yaml
      {{- range $values.extraArgs }}
      - {{ toJson . }}
      {{- end }}
    env:
      - name: VGPU_STATE_NAMESPACE
        valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
      {{- with $values.extraEnv }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- with index . 2 }}
    {{- nindent 4 . }}
    {{- end }}
    securityContext:
      {{- include "vgpu.security" (list $root (list) false $values.securityContext) | nindent 6 }}
    resources: {{- toYaml $values.resources | nindent 6 }}
    volumeMounts:
      {{- include "vgpu.mounts" (list $root (list) (list) (concat (include "vgpu.configMount" $root | fromYamlArray) $values.extraVolumeMounts)) | trim | nindent 6 }}
volumes:
  {{- include "vgpu.volumes" (list $root (list) (concat (include "vgpu.configVolume" (list $root "reconciler") | fromYamlArray) $values.extraVolumes)) | trim | nindent 2 }}
{{- end }}

{{/* Its user, as YAML. */}}
{{- define "vgpu.reconciler.user" -}}
runAsNonRoot: true
runAsUser: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "vgpu.reconciler.run" -}}
- reconcile
- run
- --mode={{ .Values.reconciler.mode }}
- --audit=-
{{ include "vgpu.commonArgs" (list $ (list "web" "units") 9396) }}
{{- end }}

{{/* `report` ends well whatever is wrong; `plan` would make each Job with a finding a failed one. */}}
{{- define "vgpu.reconciler.once" -}}
- reconcile
{{- if eq .Values.reconciler.mode "apply" }}
- apply
- --yes
- --audit=-
{{- else }}
- report
{{- end }}
{{ include "vgpu.commonArgs" (list $ (list "units")) }}
{{- end }}

{{/* Lists and reports once, whatever the mode: the chart's test. */}}
{{- define "vgpu.reconciler.report" -}}
- reconcile
- report
{{ include "vgpu.commonArgs" (list $ (list "units")) }}
{{- end }}

{{/* Not empty if a rule about quotas is on; YAML reads the word off as false. */}}
{{- define "vgpu.readsQuotas" -}}
{{- range $rule, $default := dict "over_quota" "plan" "quota_drift" "plan" "quota_mark" "off" }}
{{- $mode := dig "rules" $rule "mode" $default ($ | default dict) | toString }}
{{- if not (has $mode (list "off" "false")) }}true{{ end }}
{{- end }}
{{- end }}

{{/* Not empty if the rule about ResourceClaims is on. */}}
{{- define "vgpu.readsResourceClaims" -}}
{{- $mode := dig "rules" "resource_claim" "mode" "off" (. | default dict) | toString }}
{{- if not (has $mode (list "off" "false")) }}true{{ end }}
{{- end }}

{{/* Not empty if a policy of this configuration selects namespaces by their labels. */}}
{{- define "vgpu.readsNamespaces" -}}
{{- range .policies }}
{{- if hasKey . "selector" }}true{{ end }}
{{- end }}
{{- end }}
