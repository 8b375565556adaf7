{{/* What the device plugin is told, and needs of the node, by scheme. */}}

{{/*
Folders that it reads and writes, by scheme: (list $ scheme). It has those of `same` where the node has them,
since it names their files to the container runtime.
*/}}
{{- define "vgpu.devicePlugin.folders" -}}
read:
  - pod-resources
  - pod-logs
  - container-links
  - cgroup
  {{- if eq (index . 1) "gaia" }}
  - host # the driver's libraries, which are copied for the containers
  {{- end }}
write:
  - device-plugins # its socket, and the kubelet's
  - cdi # what each container is given
  - state # its checkpoint
  - run # late limits, without CDI
  {{- if eq (index . 1) "volcano" }}
  - vgpulock # which HAMi-core shares between containers
  {{- end }}
same:
  {{- if eq (index . 1) "volcano" }}
  - shims # libvgpu.so, and a folder of regions for each container
  {{- else if eq (index . 1) "gaia" }}
  - gpu-manager # limits, pids and the driver's mirror
  {{- else }} []
  {{- end }}
{{- end }}

{{/* Its user, as YAML. */}}
{{- define "vgpu.devicePlugin.user" -}}
runAsUser: 0 # all folders of the node that it writes to are root's
runAsGroup: 0
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "vgpu.devicePlugin.volcanoArgs" -}}
{{- $scheme := .Values.devicePlugin.schemes.volcano -}}
- --volcano.dialect={{ $scheme.dialect }}
- --volcano.split-count={{ int64 $scheme.splitCount }}
- --volcano.memory-factor={{ .Values.units.volcanoMemoryFactor | required "units.volcanoMemoryFactor: say how many MiB one unit of volcano.sh/vgpu-memory is; Volcano's own default is 1" | int64 }}
- --volcano.memory-scaling={{ $scheme.memoryScaling }}
- --volcano.core-scaling={{ $scheme.coreScaling }}
- --volcano.handshake={{ $scheme.handshake }}
- --volcano.core-policy={{ $scheme.corePolicy }}
{{- if $scheme.oversubscribe }}
- --volcano.oversubscribe
{{- end }}
{{- with $scheme.shimLibrary }}
- --volcano.shim-library={{ . }}
{{- end }}
{{- if ne .Values.paths.shims "/usr/local/vgpu" }}
- --volcano.shim-dir={{ .Values.paths.shims }}
{{- end }}
{{- end }}

{{- define "vgpu.devicePlugin.gpushareArgs" -}}
- --gpushare.memory-unit={{ .Values.units.gpushareMemoryUnit | required "units.gpushareMemoryUnit: say what one unit of aliyun.com/gpu-mem is, such as GiB or MiB; the original's own default is GiB" }}
{{- end }}

{{- define "vgpu.devicePlugin.gaiaArgs" -}}
{{- $scheme := .Values.devicePlugin.schemes.gaia -}}
- --gaia.host-root=/host/root
{{- with .Values.paths.gpuManager }}
{{- if ne . "/etc/gpu-manager" }}
- --gaia.limits-dir={{ . }}/vm
- --gaia.driver-dir={{ . }}/vdriver
- --gaia.checkpoint={{ . }}/checkpoint/gpumanager_internal_checkpoint
{{- end }}
{{- end }}
- --{{ if not $scheme.shareMode }}no-{{ end }}gaia.share-mode
{{- with $scheme.controlLibrary }}
- --gaia.control-library={{ . }}
{{- end }}
{{- range $scheme.nodeLabels }}
- --gaia.node-label={{ . }}
{{- end }}
{{- end }}
