{{/* A duration such as 1m30s, or a number of seconds, in milliseconds. */}}
{{- define "vgpu.milliseconds" -}}
{{- $units := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 "d" 86400000 "" 1000 -}}
{{- $sum := 0.0 -}}
{{- range $part := regexFindAll "[0-9.]+(ms|s|m|h|d)?" . -1 -}}
{{- $number := regexFind "[0-9.]+" $part -}}
{{- $sum = addf $sum (mulf ($number | float64) (get $units (trimPrefix $number $part))) -}}
{{- end -}}
{{- $sum -}}
{{- end }}
