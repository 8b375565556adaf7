{{/*
What the exporter may do and is shown in each profile; what it cannot see it is not asked for, so that
no collector fails. The table for people is on the page install.

user: of the container; minimal has root's group, to which newer kubelets restrict /var/log/pods, where the
pods' names are. hostPID: to know the driver's processes by their pids. capabilities: of the
container. unconfined: no AppArmor profile, which would hide other processes. folders: of the node,
all read-only.
*/}}
{{- define "vgpu.exporter.profiles" -}}
minimal:
  user: {runAsNonRoot: true, runAsUser: 65532, runAsGroup: 0}
  hostPID: false
  capabilities: []
  unconfined: false
  folders: [shims, old-shims, pod-logs, container-links]
  args: [--no-collector.process, --no-collector.limits, --no-collector.plugin, --kubelet.checkpoint=]
standard:
  user: {runAsUser: 0, runAsGroup: 0}
  hostPID: true
  capabilities: []
  unconfined: false
  folders: &all
    - shims
    - old-shims
    - pod-logs
    - container-links
    - cgroup
    - device-plugins
    - pod-resources
    - gpu-manager-vm
    - kubeshare
    - mps
    - state
  args:
    - --path.cgroupfs=/host/sys/fs/cgroup
    - --kubelet.pod-resources=/var/lib/kubelet/pod-resources/kubelet.sock
full:
  user: {runAsUser: 0, runAsGroup: 0}
  hostPID: true
  capabilities: [SYS_PTRACE] # to see the files inside other containers
  unconfined: true
  folders: *all
  args:
    - --path.cgroupfs=/host/sys/fs/cgroup
    - --kubelet.pod-resources=/var/lib/kubelet/pod-resources/kubelet.sock
    - --collector.bare
{{- end }}
