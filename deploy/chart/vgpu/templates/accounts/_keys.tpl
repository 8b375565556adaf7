{{/*
What the accounts of this release may write, by user name, for policy.yaml. files/accounts/written-keys.json has what each
program writes; several programs may have one account.
*/}}

{{/* Whether the policy is rendered: "true" or nothing. */}}
{{- define "vgpu.accounts.policy" -}}
{{- $enabled := toString .Values.accountPolicy.enabled -}}
{{- if eq $enabled "auto" -}}
{{- if and (semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version) (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy") -}}
true
{{- end -}}
{{- else if eq $enabled "true" -}}
true
{{- end -}}
{{- end }}

{{/* The parts that write, each with its account's part and whether it writes objects of its node alone, as JSON. */}}
{{- define "vgpu.accounts.parts" -}}
{{- $parts := list -}}
{{- range $scheme := (include "vgpu.schemes" . | fromJson).names -}}
{{- $account := printf "device-plugin-%s" $scheme -}}
{{- $parts = append $parts (dict "keys" $account "account" $account "node" true) -}}
{{- if (get $.Values.devicePlugin.schemes $scheme).nodeReconciler -}}
{{- $parts = append $parts (dict "keys" "reconciler-node" "account" $account "node" true) -}}
{{- end -}}
{{- end -}}
{{- /* Beside plugins, too: a node's reconciler of its own may be moved there, and the plain manifests have both. */ -}}
{{- if or .Values.reconciler.node.daemonSet $parts -}}
{{- $parts = append $parts (dict "keys" "reconciler-node" "account" "reconciler-node" "node" true) -}}
{{- end -}}
{{- if ne .Values.reconciler.kind "None" -}}
{{- $parts = append $parts (dict "keys" "reconciler" "account" "reconciler" "node" false) -}}
{{- end -}}
{{- if .Values.scheduler.enabled -}}
{{- $parts = append $parts (dict "keys" "scheduler" "account" "scheduler" "node" false) -}}
{{- end -}}
{{- if .Values.kubeshare.enabled -}}
{{- $parts = append $parts (dict "keys" "kubeshare-controller" "account" "kubeshare-controller" "node" false) -}}
{{- if .Values.kubeshare.labels.enabled -}}
{{- $parts = append $parts (dict "keys" "kubeshare-controller-labels" "account" "kubeshare-controller" "node" false) -}}
{{- end -}}
{{- $parts = append $parts (dict "keys" "kubeshare-node" "account" "kubeshare-node" "node" true) -}}
{{- end -}}
{{- dict "parts" $parts | toJson -}}
{{- end }}

{{/*
As JSON: "users" are the names of all users, "ofNodes" those that write objects of their own node alone, "keys" what each
writes, by "<user> <field>".
*/}}
{{- define "vgpu.accounts" -}}
{{- $table := .Files.Get "files/accounts/written-keys.json" | fromJson -}}
{{- $users := list -}}
{{- $ofNodes := list -}}
{{- $ofCluster := list -}}
{{- $keys := dict -}}
{{- range $part := (include "vgpu.accounts.parts" . | fromJson).parts -}}
{{- $user := printf "system:serviceaccount:%s:%s" $.Release.Namespace (include "vgpu.accountName" (list $ $part.account)) -}}
{{- $users = append $users $user -}}
{{- if $part.node }}{{ $ofNodes = append $ofNodes $user }}{{ else }}{{ $ofCluster = append $ofCluster $user }}{{ end -}}
{{- range $field, $names := get $table $part.keys -}}
{{- $place := printf "%s %s" $user $field -}}
{{- $_ := set $keys $place (concat (get $keys $place | default list) $names | uniq | sortAlpha) -}}
{{- end -}}
{{- if eq $part.keys "device-plugin-gaia" -}}
{{- $place := printf "%s node_labels" $user -}}
{{- range $label := $.Values.devicePlugin.schemes.gaia.nodeLabels -}}
{{- $_ := set $keys $place (append (get $keys $place | default list) (splitList "=" $label | first) | uniq) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $user := $ofCluster }}{{ $ofNodes = without $ofNodes $user }}{{ end -}}
{{- dict "users" (uniq $users) "ofNodes" (uniq $ofNodes) "keys" $keys | toJson -}}
{{- end }}

{{/* A list of texts in CEL. */}}
{{- define "vgpu.accounts.list" -}}
[{{ range $number, $text := . }}{{ if $number }}, {{ end }}'{{ $text }}'{{ end }}]
{{- end }}

{{/* The keys of a field that differ between the variables new and old, in CEL: a path of optional fields. */}}
{{- define "vgpu.accounts.changed" -}}
variables.new.{{ . }}.orValue({}).filter(k, !(k in variables.old.{{ . }}.orValue({})) ||
variables.new.{{ . }}.orValue({})[k] != variables.old.{{ . }}.orValue({})[k]) +
variables.old.{{ . }}.orValue({}).filter(k, !(k in variables.new.{{ . }}.orValue({})))
{{- end }}

{{/* Whether no key k that is written here covers it, in CEL: a field of the table. */}}
{{- define "vgpu.accounts.isStrange" -}}
!variables.keys[?request.userInfo.username + ' ' + {{ . }}].orValue([]).exists(w,
w == k || (w.endsWith('*') && k.startsWith(w.substring(0, size(w) - 1))))
{{- end }}
