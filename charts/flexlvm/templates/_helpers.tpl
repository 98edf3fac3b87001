{{/* The image, pinned by its digest where there is one. */}}
{{- define "flexlvm.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* Arguments: those that are fixed, then flags in the order of the manifests, then those that were added. */}}
{{- define "flexlvm.flags" -}}
{{- $flags := .flags -}}
{{- $order := .order -}}
{{- range .fixed }}
- {{ . | quote }}
{{- end }}
{{- range $order }}
{{- if hasKey $flags . }}
- {{ printf "--%s=%v" . (get $flags .) | quote }}
{{- end }}
{{- end }}
{{- range $name, $value := $flags }}
{{- if not (has $name $order) }}
- {{ printf "--%s=%v" $name $value | quote }}
{{- end }}
{{- end }}
{{- end }}
