{{/* The image, pinned by its digest where there is one. */}}
{{- define "flexlvm.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* A flag; a list gives it once for each of its values. Helm reads the numbers of a values file, which the
     schema requires to be whole, as floating-point numbers, and %v would write 1000000 as 1e+06, which flags refuse. */}}
{{- define "flexlvm.flag" -}}
{{- $name := .name -}}
{{- range (kindIs "slice" .value | ternary .value (list .value)) }}
{{- if kindIs "float64" . }}
- {{ printf "--%s=%.0f" $name . | quote }}
{{- else }}
- {{ printf "--%s=%v" $name . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* Arguments: those that are fixed, then flags in the order of the manifests, then those that were added. Helm removes
     a value that is null and has a default, also the map flags itself, but keeps a null without a default. */}}
{{- define "flexlvm.flags" -}}
{{- $flags := dict -}}
{{- range $name, $value := .flags }}
{{- if not (kindIs "invalid" $value) }}
{{- $_ := set $flags $name $value }}
{{- end }}
{{- end }}
{{- $order := .order -}}
{{- range .fixed }}
- {{ . | quote }}
{{- end }}
{{- range $order }}
{{- if hasKey $flags . }}
{{- include "flexlvm.flag" (dict "name" . "value" (get $flags .)) }}
{{- end }}
{{- end }}
{{- range $name, $value := $flags }}
{{- if not (has $name $order) }}
{{- include "flexlvm.flag" (dict "name" $name "value" $value) }}
{{- end }}
{{- end }}
{{- end }}

{{/* The port of the flag address, of which the last one counts; the default without the flag, or if it names no port. */}}
{{- define "flexlvm.port" -}}
{{- $address := get (.flags | default dict) "address" -}}
{{- if kindIs "slice" $address -}}
{{- $address = last $address -}}
{{- end -}}
{{- regexFind "[1-9][0-9]*$" (toString $address) | default .default -}}
{{- end }}
