{{/* Its user, as YAML. The group owns the volume, whose files keep mode 0600 after the first mount. */}}
{{- define "vgpu.bill.user" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}
