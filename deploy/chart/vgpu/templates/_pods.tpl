{{/* What the pods of several parts have in common. */}}

{{/*
Labels and annotations of a pod: (list $ part its-values names-of-unconfined-containers config). A program
reads its configuration once: when that changes, so does the pod.
*/}}
{{- define "vgpu.podMetadata" -}}
{{- $values := index . 2 -}}
{{- $annotations := merge (dict) $values.podAnnotations -}}
{{- with index . 4 -}}
{{- $_ := set $annotations "vgpu.dev/config-sha256" (sha256sum .) -}}
{{- end -}}
{{- if semverCompare "<1.30-0" (index . 0).Capabilities.KubeVersion.Version -}}
{{- range index . 3 -}}
{{- $_ := set $annotations (printf "container.apparmor.security.beta.kubernetes.io/%s" .) "unconfined" -}}
{{- end -}}
{{- end -}}
labels: {{- toYaml (merge (include "vgpu.podLabels" . | fromYaml) $values.podLabels) | nindent 2 }}
{{- with $annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Whose account a pod has, and who may pull its image: (list $ account). */}}
{{- define "vgpu.account" -}}
serviceAccountName: {{ include "vgpu.accountName" . }}
{{- with (index . 0).Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Where pods run that belong on every GPU node: (list $ more-labels more-tolerations). */}}
{{- define "vgpu.onGpuNodes" -}}
{{- $nodes := (index . 0).Values.gpuNodes -}}
tolerations: {{- toYaml (concat $nodes.tolerations (index . 2)) | nindent 2 }}
{{- with merge (dict) (index . 1) $nodes.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $nodes.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $nodes.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- end }}

{{/* Whether all nodes of a second nodeSelector are of the first, "true" or "": (list $first $second). */}}
{{- define "vgpu.covers" -}}
{{- $covers := true -}}
{{- $second := index . 1 -}}
{{- range $key, $text := index . 0 -}}
{{- $covers = and $covers (hasKey $second $key) (eq $text (get $second $key)) -}}
{{- end -}}
{{- ternary "true" "" $covers -}}
{{- end }}

{{- define "vgpu.imageName" -}}
{{- $image := .Values.image -}}
{{- if not $image.repository -}}
{{- fail (include "vgpu.noImage" .) -}}
{{- end -}}
{{ $image.repository }}{{ with $image.digest }}@{{ . }}{{ else }}:{{ $image.tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "vgpu.image" -}}
image: {{ include "vgpu.imageName" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{/* A mapping as YAML, with the fields of another one over it: (list text over). */}}
{{- define "vgpu.overlaid" -}}
{{- if index . 1 -}}
{{- toYaml (mergeOverwrite (index . 0 | fromYaml) (deepCopy (index . 1))) -}}
{{- else -}}
{{- index . 0 -}}
{{- end -}}
{{- end }}

{{/* What a container may do, apart from its user: (list $ capabilities unconfined over). */}}
{{- define "vgpu.security" -}}
{{- include "vgpu.overlaid" (list (include "vgpu.ownSecurity" .) (index . 3)) -}}
{{- end }}
{{- define "vgpu.ownSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  {{- with index . 1 }}
  add: {{ toJson . }}
  {{- end }}
{{- if and (index . 2) (semverCompare ">=1.30-0" (index . 0).Capabilities.KubeVersion.Version) }}
appArmorProfile: {type: Unconfined} # a profile hides other processes
{{- end }}
{{- end }}

{{/* Environment of a program on a GPU node: (list $ extra). */}}
{{- define "vgpu.nodeEnv" -}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- {name: MALLOC_ARENA_MAX, value: "1"} # threads share one heap: less memory
- {name: NVIDIA_VISIBLE_DEVICES, value: all} # to ask the driver; nothing is computed
- {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
{{- with index . 1 }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
Flags that several programs have: (list $ which port). `web` is of those that serve, on this port; `units` of those
that only read what was allocated.
*/}}
{{- define "vgpu.commonArgs" -}}
{{- $values := (index . 0).Values -}}
- --log.level={{ $values.log.level }}
- --log.format={{ $values.log.format }}
{{- if and (has "web" (index . 1)) $values.web.configSecret }}
{{ include "vgpu.webConfigArgs" (index . 2) }}
{{- end }}
{{- if has "units" (index . 1) }}
{{- with $values.units.volcanoMemoryFactor }}
- --volcano.memory-factor={{ int64 . }}
{{- end }}
{{- with $values.units.gpushareMemoryUnit }}
- --gpushare.memory-unit={{ . }}
{{- end }}
{{- range $values.nvidia.resources }}
- --nvidia.resource={{ . }}
{{- end }}
{{- end }}
{{- if or (has "units" (index . 1)) (has "names" (index . 1)) }}
{{- range $system := list "hami" "volcano" "gpushare" "gaia" }}
{{- range $role, $name := (index $values $system).resources }}
- --{{ $system }}.resource={{ $role }}={{ $name }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The name of a resource: (list $ system role). */}}
{{- define "vgpu.resource" -}}
{{- $names := dict
  "hami" (dict "count" "nvidia.com/gpu" "memory" "nvidia.com/gpumem" "memory-percentage" "nvidia.com/gpumem-percentage"
    "cores" "nvidia.com/gpucores" "priority" "nvidia.com/priority")
  "volcano" (dict "count" "volcano.sh/vgpu-number" "memory" "volcano.sh/vgpu-memory" "memory-percentage"
    "volcano.sh/vgpu-memory-percentage" "cores" "volcano.sh/vgpu-cores")
  "gpushare" (dict "count" "aliyun.com/gpu-count" "memory" "aliyun.com/gpu-mem")
  "gaia" (dict "memory" "tencent.com/vcuda-memory" "cores" "tencent.com/vcuda-core")
-}}
{{- get (index (index . 0).Values (index . 1)).resources (index . 2) | default (get (get $names (index . 1)) (index . 2)) -}}
{{- end }}

{{/* Flags of a program that serves on this port by a web config file. The kubelet has neither its password nor a
certificate, so the probes have a port of their own. */}}
{{- define "vgpu.webConfigArgs" -}}
- --web.config.file=/etc/vgpu-web/web-config.yaml
- --web.probe-address=:{{ add 100 . }}
{{- end }}

{{/* Ports and probes of a container: (list name port is-locked). With a web config file the probes have a port. */}}
{{- define "vgpu.ports" -}}
{{- $name := index . 0 -}}
{{- $probed := ternary (printf "%s-probe" $name) $name (not (empty (index . 2))) -}}
ports:
  - {name: {{ $name }}, containerPort: {{ index . 1 }}}
  {{- if ne $probed $name }}
  - {name: {{ $probed }}, containerPort: {{ add 100 (index . 1) }}}
  {{- end }}
{{- range $probe, $path := dict "livenessProbe" "/-/healthy" "readinessProbe" "/-/ready" }}
{{ $probe }}:
  httpGet: {path: {{ $path }}, port: {{ $probed }}}
{{- end }}
{{- end }}

{{/* Mounts of a container: (list $ folders-to-read folders-to-write more). */}}
{{- define "vgpu.mounts" -}}
{{- include "vgpu.folderMounts" . | trim }}
{{- if (index . 0).Values.web.configSecret }}
- {name: web, mountPath: /etc/vgpu-web, readOnly: true}
{{- end }}
{{- with index . 3 }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Volumes of a pod: (list $ folders more). */}}
{{- define "vgpu.volumes" -}}
{{- include "vgpu.folderVolumes" . | trim }}
{{- with (index . 0).Values.web.configSecret }}
- {name: web, secret: {secretName: {{ . }}}}
{{- end }}
{{- with index . 2 }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
A reconciler's configuration as YAML. Values have lost what a number and `off` were written as: whole numbers
are written without an exponent, and a mode that is false is off.
*/}}
{{- define "vgpu.config" -}}
{{- range $key, $value := . }}
{{- if kindIs "map" $value }}
{{- with include "vgpu.config" $value }}
{{ $key }}:
  {{- nindent 2 (trim .) }}
{{- end }}
{{- else if and (eq $key "mode") (eq (toString $value) "false") }}
{{ $key }}: "off"
{{- else if and (kindIs "float64" $value) (eq $value (floor $value)) }}
{{ $key }}: {{ int64 $value }}
{{- else if kindIs "string" $value }}
{{ $key }}: {{ toYaml $value }}
{{- else if not (kindIs "invalid" $value) }}
{{ $key }}: {{ toJson $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* Where a reconciler finds its configuration, as mounts and volumes: (list $ part). */}}
{{- define "vgpu.configMount" -}}
- {name: config, mountPath: /etc/vgpu, readOnly: true}
{{- end }}
{{- define "vgpu.configVolume" -}}
- {name: config, configMap: {name: {{ include "vgpu.fullname" (index . 0) }}-{{ index . 1 }}}}
{{- end }}
