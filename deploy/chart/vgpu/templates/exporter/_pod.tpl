{{/*
The exporter in a pod; the DaemonSet and the chart's test give what differs: (list $ flags ports-and-probes).
*/}}
{{- define "vgpu.exporter.pod" -}}
{{- $root := index . 0 -}}
{{- $exporter := $root.Values.exporter -}}
{{- $profile := get (include "vgpu.exporter.profiles" $root | fromYaml) $exporter.profile -}}
{{- $folders := concat $profile.folders (include "vgpu.exporter.draFolders" $exporter | fromYamlArray) -}}
{{- $hidden := include "vgpu.exporter.hidden" $exporter | fromYaml -}}
{{ include "vgpu.account" (list $root "exporter") }}
automountServiceAccountToken: {{ or $exporter.api $exporter.dra }}
hostPID: {{ $profile.hostPID }}
{{- with include "vgpu.priorityClassName" $root }}
priorityClassName: {{ . }}
{{- end }}
{{ include "vgpu.onGpuNodes" (list $root (dict) $exporter.tolerations) }}
securityContext:
  {{- $security := printf "%s\nseccompProfile: {type: RuntimeDefault}" (toYaml $profile.user) }}
  {{- include "vgpu.overlaid" (list $security $exporter.podSecurityContext) | nindent 2 }}
containers:
  - name: exporter
    {{- include "vgpu.image" $root | nindent 4 }}
    args:
      - exporter
      {{- index . 1 | nindent 6 }}
      - --sample.interval={{ $exporter.sampleInterval }}
      {{- range $exporter.compat }}
      - --compat={{ . }}
      {{- end }}
      {{- range $profile.args }}
      - {{ . }}
      {{- end }}
      {{- if $exporter.api }}
      - --collector.api
      {{- end }}
      {{- if $exporter.dra }}
      - --collector.dra
      {{- end }}
      {{- if $exporter.draSpecs }}
      - --dra.spec-dir=/var/run/cdi
      - --dra.spec-dir=/etc/cdi
      {{- end }}
      {{- if include "vgpu.exporter.asksTokens" $root }}
      {{- include "vgpu.exporter.tokensArgs" $root | nindent 6 }}
      {{- end }}
      {{- range $exporter.extraArgs }}
      - {{ toJson . }}
      {{- end }}
    env:
      {{- if include "vgpu.exporter.asksTokens" $root }}
      - name: NODE_ADDRESS
        valueFrom: {fieldRef: {fieldPath: status.hostIP}}
      {{- end }}
      {{- include "vgpu.nodeEnv" (list $root $exporter.extraEnv) | nindent 6 }}
    {{- with index . 2 }}
    {{- nindent 4 . }}
    {{- end }}
    securityContext:
      {{- include "vgpu.security" (list $root $profile.capabilities $profile.unconfined $exporter.securityContext) | nindent 6 }}
    resources: {{- toYaml $exporter.resources | nindent 6 }}
    {{- $mounts := $exporter.extraVolumeMounts }}
    {{- $volumes := $exporter.extraVolumes }}
    {{- with and (include "vgpu.exporter.asksTokens" $root) $root.Values.tokens.client.secret }}
    {{- $mounts = prepend $mounts (dict "name" "tokens" "mountPath" "/etc/vgpu-tokens" "readOnly" true) }}
    {{- $volumes = prepend $volumes (dict "name" "tokens" "secret" (dict "secretName" .)) }}
    {{- end }}
    volumeMounts:
      {{- include "vgpu.mounts" (list $root $folders (list) (concat $hidden.mounts $mounts)) | nindent 6 }}
volumes:
  {{- include "vgpu.volumes" (list $root $folders (concat $hidden.volumes $volumes)) | nindent 2 }}
{{- end }}

{{/* The flags by which the exporter reads the page of the token daemon; the brackets are for an IPv6 address. */}}
{{- define "vgpu.exporter.tokensArgs" -}}
{{- $client := .Values.tokens.client -}}
- --collector.tokens
- --tokens.url={{ ternary $client.scheme "http" (not (empty $client.secret)) }}://[$(NODE_ADDRESS)]:9402/metrics
{{- if $client.secret }}
{{- if eq $client.scheme "https" }}
{{- range $flag, $key := dict "ca-file" $client.caFile "cert" $client.certFile "key" $client.keyFile }}
{{- with $key }}
- --tokens.{{ $flag }}=/etc/vgpu-tokens/{{ . }}
{{- end }}
{{- end }}
{{- with $client.serverName }}
- --tokens.server-name={{ . }}
{{- end }}
{{- end }}
{{- with $client.username }}
- {{ printf "--tokens.username=%s" . | toJson }}
- --tokens.password-file=/etc/vgpu-tokens/{{ $client.passwordFile }}
{{- end }}
{{- end }}
{{- end }}

{{/* Further folders of the node that it reads of dynamic resource allocation, as YAML. */}}
{{- define "vgpu.exporter.draFolders" -}}
{{- $folders := list -}}
{{- if .draState }}{{ $folders = append $folders "kubelet" }}{{ end -}}
{{- if .draCheckpoint }}{{ $folders = append $folders "dra-nvidia" }}{{ end -}}
{{- if .draSpecs }}{{ $folders = concat $folders (list "cdi" "cdi-static") }}{{ end -}}
{{- toYaml $folders }}
{{- end }}

{{/* What hides the volumes of all pods, and so their Secrets, in the kubelet's folder; as YAML. */}}
{{- define "vgpu.exporter.hidden" -}}
{{- if .draState -}}
mounts: [{name: no-pods, mountPath: /var/lib/kubelet/pods, readOnly: true}]
volumes: [{name: no-pods, emptyDir: {}}]
{{- else -}}
{mounts: [], volumes: []}
{{- end -}}
{{- end }}

{{/*
Whether the exporter reads the page of the token daemon, "true" or "": where that needs no password or the exporter has
it, and is on each of its nodes.
*/}}
{{- define "vgpu.exporter.asksTokens" -}}
{{- $tokens := .Values.tokens -}}
{{- if and $tokens.enabled (not $tokens.nodeSelector) (or $tokens.client.secret (not .Values.web.configSecret)) }}true{{ end -}}
{{- end }}
