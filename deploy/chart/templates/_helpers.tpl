{{- define "sidetrack.labels" -}}
app.kubernetes.io/name: sidetrack
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- /* Others than the agents': their DaemonSet selects by its own. */}}
{{- define "sidetrack.webhookLabels" -}}
app.kubernetes.io/name: sidetrack-webhook
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
