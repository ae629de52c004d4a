{{- define "sidetrack.labels" -}}
app.kubernetes.io/name: sidetrack
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- /* Others than the agents': their DaemonSet selects by its own. */}}
{{- define "sidetrack.webhookLabels" -}}
app.kubernetes.io/name: sidetrack-webhook
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- /* How a monitor of the Prometheus operator scrapes an agent. The series of single pods bring their own namespace and pod. */}}
{{- define "sidetrack.scrape" -}}
port: metrics
path: /metrics
interval: {{ .interval }}
honorLabels: true
relabelings:
- {sourceLabels: [__meta_kubernetes_pod_node_name], targetLabel: node}
{{- end }}
