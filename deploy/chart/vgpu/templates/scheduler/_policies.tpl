{{/*
Admission policies for pods that request HAMi's resources, in place of HAMi's webhook: expressions in CEL, which
the API server evaluates itself.
*/}}

{{/* Which pods they are about, as YAML. */}}
{{- define "vgpu.policies.match" -}}
{{- $policies := .Values.scheduler.policies -}}
matchConstraints:
  {{- with $policies.namespaceSelector }}
  namespaceSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  objectSelector:
    matchExpressions:
      - {key: hami.io/webhook, operator: NotIn, values: [ignore]}
  resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
matchConditions:
  - name: is-scheduled-by-this-scheduler
    expression: object.spec.?schedulerName.orValue('default-scheduler') in {{ toJson $policies.schedulerNames | replace "\"" "'" }}
  - name: requests-a-gpu-of-hami
    expression: >-
      (object.spec.containers + object.spec.?initContainers.orValue([])).exists(c,
      c.?resources.?limits.orValue({}).exists(name, name in [{{ include "vgpu.policies.names" . }}]))
{{- end }}

{{/* Names of the resources, as a list of CEL. */}}
{{- define "vgpu.policies.names" -}}
'{{ include "vgpu.resource" (list $ "hami" "count") }}', '{{ include "vgpu.resource" (list $ "hami" "memory") }}', '{{ include "vgpu.resource" (list $ "hami" "memory-percentage") }}', '{{ include "vgpu.resource" (list $ "hami" "cores") }}', '{{ include "vgpu.resource" (list $ "hami" "priority") }}'
{{- end }}

{{/* Whether a container c requests a part of a GPU and no number of GPUs, in CEL. */}}
{{- define "vgpu.policies.lacksNumber" -}}
!('{{ include "vgpu.resource" (list $ "hami" "count") }}' in c.?resources.?limits.orValue({})) && ['{{ include "vgpu.resource" (list $ "hami" "memory") }}', '{{ include "vgpu.resource" (list $ "hami" "memory-percentage") }}',
'{{ include "vgpu.resource" (list $ "hami" "cores") }}'].exists(name, name in c.?resources.?limits.orValue({}))
{{- end }}

{{/* Whether a container c requests GPUs with all their memory and no cores, in CEL. */}}
{{- define "vgpu.policies.lacksCores" -}}
quantity(string(c.?resources.?limits[?'{{ include "vgpu.resource" (list $ "hami" "count") }}'].orValue('0'))).isGreaterThan(quantity('0')) &&
!('{{ include "vgpu.resource" (list $ "hami" "cores") }}' in c.resources.limits) && !('{{ include "vgpu.resource" (list $ "hami" "memory") }}' in c.resources.limits) &&
quantity(string(c.resources.limits[?'{{ include "vgpu.resource" (list $ "hami" "memory-percentage") }}'].orValue('100'))).compareTo(quantity('100')) == 0
{{- end }}

{{/* Whether a container c requests a percentage of memory that HAMi's webhook refuses, in CEL. */}}
{{- define "vgpu.policies.wrongPercentage" -}}
[quantity(string(c.?resources.?limits[?'{{ include "vgpu.resource" (list $ "hami" "memory-percentage") }}'].orValue('0')))].exists(q,
q.isLessThan(quantity('0')) || q.isGreaterThan(quantity('100')))
{{- end }}

{{/* Whether a container c requests a task priority of HAMi, and has none in its environment, in CEL. */}}
{{- define "vgpu.policies.lacksPriority" -}}
'{{ include "vgpu.resource" (list $ "hami" "priority") }}' in c.?resources.?limits.orValue({}) &&
!c.?env.orValue([]).exists(e, e.name == 'CUDA_TASK_PRIORITY')
{{- end }}

{{/* What happens to pods that HAMi's webhook refuses: "deny", "warn", or "" for nothing. */}}
{{- define "vgpu.policies.refuse" -}}
{{- $policies := .Values.scheduler.policies -}}
{{- if or $policies.validate (eq $policies.refuse "deny") -}}
deny
{{- else if and .Values.scheduler.enabled (eq $policies.refuse "warn") (semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version) -}}
warn
{{- end -}}
{{- end }}

{{/* Number of GPUs of a container that requests a part of one, in a pod that is completed or refused. */}}
{{- define "vgpu.policies.number" -}}
{{- max 1 (int64 .Values.scheduler.hami.defaultGPUNum) -}}
{{- end }}

{{/* API version of MutatingAdmissionPolicies that the cluster serves. */}}
{{- define "vgpu.policies.mutatingVersion" -}}
{{- $group := "admissionregistration.k8s.io" -}}
{{- ternary (printf "%s/v1" $group) (printf "%s/v1beta1" $group) (.Capabilities.APIVersions.Has (printf "%s/v1/MutatingAdmissionPolicy" $group)) -}}
{{- end }}
