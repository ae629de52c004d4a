{{- define "sidetrack.labels" -}}
app.kubernetes.io/name: sidetrack
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
