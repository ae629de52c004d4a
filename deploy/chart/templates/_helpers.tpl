{{- /* What selectors and pods have: no selector can be changed by an upgrade. */}}
{{- define "sidetrack.selectorLabels" -}}
app.kubernetes.io/name: sidetrack
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- /* Others than the agents': their DaemonSet selects by its own. */}}
{{- define "sidetrack.webhookSelectorLabels" -}}
app.kubernetes.io/name: sidetrack-webhook
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "sidetrack.probeSelectorLabels" -}}
app.kubernetes.io/name: sidetrack-interception-probe
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- /* What every object has beside its name and instance. */}}
{{- define "sidetrack.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: sidetrack
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- define "sidetrack.labels" -}}
{{ include "sidetrack.selectorLabels" . }}
{{ include "sidetrack.commonLabels" . }}
{{- end }}
{{- define "sidetrack.webhookLabels" -}}
{{ include "sidetrack.webhookSelectorLabels" . }}
{{ include "sidetrack.commonLabels" . }}
{{- end }}
{{- /* The image; a digest wins over the tag that it stands beside. A tag of digits is a number to Helm, and one of a file
       is printed with an exponent. */}}
{{- define "sidetrack.image" -}}
{{- with .Values.image -}}
{{- $tag := .tag }}
{{- if and (kindIs "float64" $tag) (eq $tag (floor $tag)) }}{{ $tag = int64 $tag }}{{ end -}}
{{ .repository }}:{{ $tag | default $.Chart.AppVersion }}{{ with .digest }}@{{ . }}{{ end }}
{{- end }}
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
