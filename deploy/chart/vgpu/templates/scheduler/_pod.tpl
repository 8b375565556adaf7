{{/* The scheduler: its flags, how it is secured, and the part of kube-scheduler's configuration. */}}

{{- define "vgpu.scheduler.args" -}}
- scheduler
- --web.listen-address=:9398
- --lease-namespace={{ include "vgpu.scheduler.leaseNamespace" . }}
- --node-policy={{ .Values.scheduler.nodePolicy }}
{{- with .Values.scheduler.gpuPolicy }}
- --gpu-policy={{ . }}
{{- end }}
{{- if .Values.scheduler.originalPlugin }}
- --original-plugin
{{- end }}
{{- if not .Values.scheduler.quotas }}
- --no-quotas
{{- end }}
{{- with .Values.scheduler.hami }}
{{- if .defaultMemory }}
- --hami.default-memory={{ .defaultMemory | int64 }}
{{- end }}
{{- if .defaultCores }}
- --hami.default-cores={{ .defaultCores | int64 }}
{{- end }}
{{- if ne (int64 .defaultGPUNum) 1 }}
- --hami.default-gpu-num={{ .defaultGPUNum | int64 }}
{{- end }}
{{- end }}
{{- range .Values.scheduler.compat }}
- --compat={{ . }}
{{- end }}
{{- if .Values.scheduler.allowAnonymous }}
- --web.allow-anonymous
{{- end }}
{{- range .Values.scheduler.clientSans }}
- --extender.client-san={{ . }}
{{- end }}
{{- range .Values.scheduler.pageSans }}
- --web.pages-client-san={{ . }}
{{- end }}
{{- if .Values.scheduler.tlsSecret }}
{{ include "vgpu.webConfigArgs" 9398 }}
{{ include "vgpu.commonArgs" (list $ (list "units")) }}
{{- else }}
{{ include "vgpu.commonArgs" (list $ (list "web" "units") 9398) }}
{{- end }}
{{- range .Values.scheduler.extraArgs }}
- {{ toJson . }}
{{- end }}
{{- end }}

{{- define "vgpu.scheduler.leaseNamespace" -}}
{{- .Values.scheduler.leaseNamespace | default .Release.Namespace -}}
{{- end }}

{{/* Its user, as YAML. */}}
{{- define "vgpu.scheduler.user" -}}
runAsNonRoot: true
runAsUser: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Its web config file, with a tlsSecret. */}}
{{- define "vgpu.scheduler.webConfig" -}}
tls_server_config:
  cert_file: tls.crt
  key_file: tls.key
  client_ca_file: ca.crt
  client_auth_type: RequireAndVerifyClientCert
{{- end }}

{{/* The web config file and the certificates beside it, as volumes. */}}
{{- define "vgpu.scheduler.volumes" -}}
{{- if .Values.scheduler.tlsSecret }}
- name: web
  projected:
    sources:
      - configMap: {name: {{ include "vgpu.fullname" . }}-scheduler}
      - secret: {name: {{ .Values.scheduler.tlsSecret }}}
{{- else if .Values.web.configSecret }}
- {name: web, secret: {secretName: {{ .Values.web.configSecret }}}}
{{- end }}
{{- end }}

{{/* Whether it has a web config file, "true" or "". */}}
{{- define "vgpu.scheduler.isLocked" -}}
{{- ternary "true" "" (not (empty (.Values.scheduler.tlsSecret | default .Values.web.configSecret))) -}}
{{- end }}

{{/* The DNS name of its Service, which its certificate has. */}}
{{- define "vgpu.scheduler.serverName" -}}
{{- printf "%s-scheduler.%s.svc" (include "vgpu.fullname" .) .Release.Namespace -}}
{{- end }}

{{/* What a monitor needs to scrape it with a tlsSecret: its own certificate may be that of a client, too. */}}
{{- define "vgpu.scheduler.endpoint" -}}
{{- with .Values.scheduler.tlsSecret }}
{{- $client := $.Values.scheduler.scrapeSecret | default . }}
scheme: https
tlsConfig:
  serverName: {{ include "vgpu.scheduler.serverName" $ }}
  ca: {secret: {name: {{ . }}, key: ca.crt}}
  cert: {secret: {name: {{ $client }}, key: tls.crt}}
  keySecret: {name: {{ $client }}, key: tls.key}
{{- end }}
{{- end }}

{{/* The part of the KubeSchedulerConfiguration, as YAML. */}}
{{- define "vgpu.scheduler.stanza" -}}
{{- $name := include "vgpu.scheduler.serverName" . -}}
{{- $address := .Values.scheduler.service.clusterIP | default $name -}}
{{- if contains ":" $address }}{{ $address = printf "[%s]" $address }}{{ end -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
percentageOfNodesToScore: 100
extenders:
  - urlPrefix: {{ ternary "https" "http" (eq (include "vgpu.scheduler.isLocked" .) "true") }}://{{ $address }}:9398
    filterVerb: filter
    prioritizeVerb: prioritize
    preemptVerb: preempt
    bindVerb: bind
    weight: 100
    nodeCacheCapable: true
    httpTimeout: 5s
    {{- if include "vgpu.scheduler.isLocked" . }}
    enableHTTPS: true
    tlsConfig:
      serverName: {{ $name }}
      caFile: /etc/kubernetes/vgpu/ca.crt
      certFile: /etc/kubernetes/vgpu/tls.crt
      keyFile: /etc/kubernetes/vgpu/tls.key
    {{- end }}
    managedResources:
      - {name: {{ include "vgpu.resource" (list $ "gpushare" "memory") }}, ignoredByScheduler: false}
      - {name: {{ include "vgpu.resource" (list $ "gaia" "cores") }}, ignoredByScheduler: false}
      - {name: {{ include "vgpu.resource" (list $ "gaia" "memory") }}, ignoredByScheduler: false}
      - {name: {{ include "vgpu.resource" (list $ "volcano" "count") }}, ignoredByScheduler: false}
      - {name: {{ include "vgpu.resource" (list $ "volcano" "memory") }}, ignoredByScheduler: false}
      - {name: {{ include "vgpu.resource" (list $ "volcano" "cores") }}, ignoredByScheduler: false}
      - {name: {{ include "vgpu.resource" (list $ "volcano" "memory-percentage") }}, ignoredByScheduler: true}
      - {name: {{ include "vgpu.resource" (list $ "hami" "count") }}, ignoredByScheduler: false}
      - {name: {{ include "vgpu.resource" (list $ "hami" "memory") }}, ignoredByScheduler: true}
      - {name: {{ include "vgpu.resource" (list $ "hami" "memory-percentage") }}, ignoredByScheduler: true}
      - {name: {{ include "vgpu.resource" (list $ "hami" "cores") }}, ignoredByScheduler: true}
      - {name: {{ include "vgpu.resource" (list $ "hami" "priority") }}, ignoredByScheduler: true}
{{- end }}
