{{/*
The severities of alerts by monitoring.alerts, as JSON: name -> severity. An alert that is not in it is not made.

  of the word `default` or `all`  =  the severities of that column of files/rules/severities.json
  of the word `none`              =  no alert
  of a list without a word        =  info of all alerts
  a listed name                   =  what it has already, but not info: then that of the column `listed`
  a listed name with a `-`        =  info
*/}}
{{- define "vgpu.severities" -}}
{{- $table := .Files.Get "files/rules/severities.json" | fromJson -}}
{{- $entries := .Values.monitoring.alerts -}}
{{- if kindIs "invalid" $entries }}{{ $entries = "default" }}{{ end -}}
{{- if kindIs "string" $entries }}{{ $entries = list $entries }}{{ end -}}
{{- $words := list "default" "all" "none" -}}
{{- $word := "" -}}
{{- $added := list -}}
{{- $removed := list -}}
{{- range $entry := $entries -}}
{{- $name := trimPrefix "-" $entry -}}
{{- if has $entry $words -}}
{{- if and $word (ne $word $entry) -}}
{{- fail (printf "monitoring.alerts: %s and %s contradict each other: give one of them" $word $entry) -}}
{{- end -}}
{{- $word = $entry -}}
{{- else if not (hasKey $table $name) -}}
{{- $known := concat $words (keys $table | sortAlpha) -}}
{{- fail (printf "monitoring.alerts: there is no alert %q; the nearest name is %s" $entry (include "vgpu.nearest" (list $name $known))) -}}
{{- else if hasPrefix "-" $entry -}}
{{- $removed = append $removed $name -}}
{{- else -}}
{{- $added = append $added $name -}}
{{- end -}}
{{- end -}}
{{- $severities := dict -}}
{{- if ne $word "none" -}}
{{- range $name, $columns := $table }}{{ $_ := set $severities $name (get $columns $word | default "info") }}{{ end -}}
{{- end -}}
{{- range $name := $removed -}}
{{- if has $name $added -}}
{{- fail (printf "monitoring.alerts: %s and -%s contradict each other: give one of them" $name $name) -}}
{{- else if not (has $word (list "default" "all")) -}}
{{- fail (printf "monitoring.alerts: -%s is without effect, since only default and all have alerts to remove" $name) -}}
{{- end -}}
{{- $_ := set $severities $name "info" -}}
{{- end -}}
{{- range $name := $added -}}
{{- if has (get $severities $name) (list "" "info") -}}
{{- $_ := set $severities $name (get $table $name).listed -}}
{{- end -}}
{{- end -}}
{{- toJson $severities -}}
{{- end }}

{{/*
The name of a list that has most in common with a text: (list text names). Common are sequences of three characters;
of two equal names the shorter, then the first.
*/}}
{{- define "vgpu.nearest" -}}
{{- $text := printf " %s " (index . 0 | lower) -}}
{{- $nearest := "" -}}
{{- $most := -1000 -}}
{{- range $name := index . 1 -}}
{{- $other := printf " %s " (lower $name) -}}
{{- $common := 0 -}}
{{- range $from := until (max 0 (sub (len $text) 2) | int) -}}
{{- if contains (substr $from (add $from 3 | int) $text) $other }}{{ $common = add1 $common }}{{ end -}}
{{- end -}}
{{- $score := sub (mul 1000 $common) (len $other) -}}
{{- if gt $score $most }}{{ $most = $score }}{{ $nearest = $name }}{{ end -}}
{{- end -}}
{{- $nearest -}}
{{- end }}
