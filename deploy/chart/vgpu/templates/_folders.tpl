{{/*
Folders of the node: name -> where it is on the node (path), and in a container unless it is the same
(at). `must` are there on every node; others are made, so that what comes later is seen. Where a system is
not used its folder can be left out, for nodes on which it cannot be made.
*/}}
{{- define "vgpu.folders" -}}
cdi: {path: {{ .Values.paths.cdi }}, at: /var/run/cdi}
cdi-static: {path: /etc/cdi}
cgroup: {path: /sys/fs/cgroup, at: /host/sys/fs/cgroup, must: true}
container-links: {path: /var/log/containers}
device-plugins: {path: {{ .Values.paths.kubelet }}/device-plugins, at: /var/lib/kubelet/device-plugins, must: true}
{{- with .Values.paths.gpuManager }}
gpu-manager: {path: {{ . }}, at: /etc/gpu-manager}
gpu-manager-vm: {path: {{ . }}/vm, at: /etc/gpu-manager/vm}
{{- end }}
dra-nvidia: {path: {{ .Values.paths.kubelet }}/plugins/gpu.nvidia.com, at: /var/lib/kubelet/plugins/gpu.nvidia.com}
host: {path: /, at: /host/root, must: true}
{{- with .Values.paths.kubeshare }}
kubeshare: {path: {{ . }}, at: /kubeshare/scheduler/config}
kubeshare-scheduler: {path: {{ dir . }}, at: /kubeshare/scheduler}
{{- end }}
kubelet: {path: {{ .Values.paths.kubelet }}, at: /var/lib/kubelet, must: true}
kubeshare-library: {path: /kubeshare/library}
{{- with .Values.paths.oldShims }}
old-shims: {path: {{ . }}, at: /tmp/vgpu}
old-regions: {path: {{ . }}/containers, at: /tmp/vgpu/containers}
{{- end }}
{{- with .Values.paths.mps }}
mps: {path: {{ . }}, at: /run/nvidia/mps}
{{- end }}
pod-logs: {path: /var/log/pods}
pod-resources: {path: {{ .Values.paths.kubelet }}/pod-resources, at: /var/lib/kubelet/pod-resources, must: true}
run: {path: /run/vgpu}
{{- with .Values.paths.shims }}
shims: {path: {{ . }}, at: /usr/local/vgpu}
hami-regions: {path: {{ . }}/containers, at: /usr/local/vgpu/containers}
volcano-regions: {path: {{ . }}/vgpu/containers, at: /usr/local/vgpu/vgpu/containers}
{{- end }}
state: {path: /var/lib/vgpu}
tokens-run: {path: /run/vgpu/tokens}
vgpulock: {path: /tmp/vgpulock}
{{- end }}

{{/* Volumes of folders: (list $ names). A name may occur twice. */}}
{{- define "vgpu.folderVolumes" -}}
{{- $folders := include "vgpu.folders" (index . 0) | fromYaml }}
{{- range $name := index . 1 | uniq }}
{{- with get $folders $name }}
- name: {{ $name }}
  hostPath: {path: {{ .path }}{{ if not .must }}, type: DirectoryOrCreate{{ end }}}
{{- end }}
{{- end }}
{{- end }}

{{/* Mounts of folders: (list $ names-to-read names-to-write). */}}
{{- define "vgpu.folderMounts" -}}
{{- $folders := include "vgpu.folders" (index . 0) | fromYaml }}
{{- range $name := index . 1 }}
{{- with get $folders $name }}
- {name: {{ $name }}, mountPath: {{ .at | default .path }}, readOnly: true}
{{- end }}
{{- end }}
{{- range $name := index . 2 }}
{{- with get $folders $name }}
- {name: {{ $name }}, mountPath: {{ .at | default .path }}}
{{- end }}
{{- end }}
{{- end }}

{{/* Mounts of folders to write, at their place on the node: (list $ names). */}}
{{- define "vgpu.sameMounts" -}}
{{- $folders := include "vgpu.folders" (index . 0) | fromYaml }}
{{- range $name := index . 1 }}
{{- with get $folders $name }}
- {name: {{ $name }}, mountPath: {{ .path }}}
{{- end }}
{{- end }}
{{- end }}
