{{/* The node's reconciler, as a container of a device plugin's pod or of a pod of its own. */}}

{{/* Folders that it reads, and with `apply` those it removes from: what shims left behind. */}}
{{- define "vgpu.reconcilerNode.folders" -}}
{{- $read := list "cgroup" "device-plugins" "pod-resources" "pod-logs" "container-links" "gpu-manager-vm" "kubeshare" "mps" "state" -}}
{{- if include "vgpu.readsResourceClaims" .Values.reconciler.node.config }}
{{- $read = concat $read (list "dra-nvidia" "cdi" "cdi-static") }}
{{- end }}
{{- $shims := list "shims" "old-shims" -}}
{{- if eq .Values.reconciler.mode "apply" -}}
{{- dict "read" $read "write" $shims | toJson -}}
{{- else -}}
{{- dict "read" (concat $read $shims) "write" list | toJson -}}
{{- end -}}
{{- end }}

{{- define "vgpu.reconcilerNode.container" -}}
{{- $values := .Values.reconciler.node -}}
{{- $folders := include "vgpu.reconcilerNode.folders" . | fromYaml -}}
name: reconcile
{{ include "vgpu.image" . }}
args:
  - reconcile
  - run
  - --scope=node
  - --mode={{ .Values.reconciler.mode }}
  - --config=/etc/vgpu/reconcile.yaml
  - --audit=-
  {{- if and (include "vgpu.accounts.policy" .) .Values.accountPolicy.ownNode }}
  - --require-node-token
  {{- end }}
  - --path.cgroupfs=/host/sys/fs/cgroup
  - --kubelet.pod-resources=/var/lib/kubelet/pod-resources/kubelet.sock
  {{- if include "vgpu.readsResourceClaims" .Values.reconciler.node.config }}
  - --dra.spec-dir=/var/run/cdi
  - --dra.spec-dir=/etc/cdi
  {{- end }}
  {{- include "vgpu.commonArgs" (list $ (list "web" "units") 9396) | nindent 2 }}
  {{- range $values.extraArgs }}
  - {{ toJson . }}
  {{- end }}
env:
  {{- include "vgpu.nodeEnv" (list $ $values.extraEnv) | nindent 2 }}
{{ include "vgpu.ports" (list "reconcile" 9396 .Values.web.configSecret) }}
securityContext:
  # DAC_READ_SEARCH and SYS_PTRACE show what other users' processes have open and mapped: no folder
  # is removed under one. Without these two orphan_shim_dir does nothing; all else works.
  {{- include "vgpu.security" (list $ (list "DAC_READ_SEARCH" "SYS_PTRACE") true $values.securityContext) | nindent 2 }}
resources: {{- toYaml $values.resources | nindent 2 }}
volumeMounts:
  {{- $more := concat (include "vgpu.configMount" . | fromYamlArray) $values.extraVolumeMounts }}
  {{- include "vgpu.mounts" (list $ $folders.read $folders.write $more) | nindent 2 }}
{{- end }}

{{/* Its user, as YAML. */}}
{{- define "vgpu.reconcilerNode.user" -}}
runAsUser: 0 # the kubelet's checkpoint and its pod-resources are root's
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* What it has beside folders of the node. */}}
{{- define "vgpu.reconcilerNode.volumes" -}}
{{- include "vgpu.configVolume" (list . "reconciler-node") }}
{{- with .Values.reconciler.node.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Its right to evict, which no rule needs by default. */}}
{{- define "vgpu.reconcilerNode.evictionRule" -}}
{{- if and .Values.reconciler.node.evict (eq .Values.reconciler.mode "apply") }}
- apiGroups: [""] # always with the pod's uid and resourceVersion
  resources: [pods/eviction]
  verbs: [create]
{{- end }}
{{- end }}

{{/* Its rights. RBAC cannot restrict a DaemonSet to its own node; the program's --node-name does. */}}
{{- define "vgpu.reconcilerNode.rules" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [""] # what its plugins have registered
  resources: [nodes]
  verbs: [get]
{{- if include "vgpu.readsResourceClaims" .Values.reconciler.node.config }}
- apiGroups: [resource.k8s.io] # only with the rule resource_claim; by name, those that the kubelet uses
  resources: [resourceclaims]
  verbs: [get]
- apiGroups: [resource.k8s.io] # of the node alone
  resources: [resourceslices]
  verbs: [list]
{{- end }}
{{- if eq .Values.reconciler.mode "apply" }}
- apiGroups: [""] # card_drift and recover; not needed if these rules are off
  resources: [pods/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, get, patch] # the same thing said again is counted
{{- end }}
{{- include "vgpu.reconcilerNode.evictionRule" . }}
{{- end }}

{{/* Whether it runs anywhere, "true" or "". */}}
{{- define "vgpu.reconcilerNode.runs" -}}
{{- $runs := .Values.reconciler.node.daemonSet -}}
{{- range .Values.devicePlugin.schemes }}
{{- $runs = or $runs (and .enabled .nodeReconciler) -}}
{{- end -}}
{{- ternary "true" "" $runs -}}
{{- end }}
