{{/* Labels of each object. */}}
{{- define "aiprof.labels" -}}
app.kubernetes.io/name: aiprof
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "aiprof.compactLabels" -}}
app.kubernetes.io/name: aiprof-compact
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
