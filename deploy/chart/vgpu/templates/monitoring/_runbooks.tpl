{{/*
Where alerts and dashboards find the runbooks: rules.runbooks, else the address that the files have of the
project's site, else nowhere.
*/}}

{{/* Annotations of an alert as YAML: (list $ rule). */}}
{{- define "vgpu.alertAnnotations" -}}
{{- $values := (index . 0).Values.rules -}}
{{- $rule := index . 1 -}}
{{- with $values.runbooks }}
{{- $page := printf "%s/alerts/%s%s" . $rule.alert $values.runbookSuffix }}
{{- toYaml (merge (dict "runbook_url" $page) (omit $rule.annotations "runbook")) }}
{{- else }}
{{- toYaml $rule.annotations }}
{{- end }}
{{- end }}

{{/* A dashboard as JSON: (list $ text). A link to a runbook is the only one of its panel. */}}
{{- define "vgpu.dashboard" -}}
{{- $values := (index . 0).Values.rules -}}
{{- $text := index . 1 -}}
{{- if $values.runbooks }}
{{- $link := printf "\"$${runbooks}/${1}%s\"" $values.runbookSuffix }}
{{- $text = regexReplaceAll `"\$\{runbooks\}/([^"]*)\.html"` $text $link }}
{{- $base := printf "${1}%s" (toJson $values.runbooks | replace "$" "$$") }}
{{- regexReplaceAll `("name": "runbooks",\s*"query": )"[^"]*"` $text $base }}
{{- else if contains "https://runbooks.invalid" $text }}
{{- $text = regexReplaceAll `"links": \[\s*\{[^{}]*"url": "\$\{runbooks\}/[^"]*"\s*\}\s*\]` $text `"links": []` }}
{{- regexReplaceAll `,\s*\{[^{}]*"name": "runbooks",[^{}]*\}` $text "" }}
{{- else }}
{{- $text }}
{{- end }}
{{- end }}
