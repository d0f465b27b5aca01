{{- define "stomp-gateway.fullname" -}}
{{- $name := .Release.Name -}}
{{- if not (contains .Chart.Name $name) -}}
{{- $name = printf "%s-%s" $name .Chart.Name -}}
{{- end -}}
{{- /* Room for the suffix of another object. */ -}}
{{- .Values.fullnameOverride | default $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- /* One release may have two of this chart, under aliases, so the release's name is not enough. */ -}}
{{- define "stomp-gateway.ownLabels" -}}
app.kubernetes.io/name: stomp-gateway
app.kubernetes.io/instance: {{ include "stomp-gateway.fullname" . }}
{{- end -}}

{{- define "stomp-gateway.labels" -}}
{{ include "stomp-gateway.ownLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* Of the pods that have a gateway in them. */ -}}
{{- define "stomp-gateway.podLabels" -}}
{{- if .Values.sidecar.podLabels -}}
{{ toYaml .Values.sidecar.podLabels }}
{{- else -}}
{{ include "stomp-gateway.ownLabels" . }}
{{- end -}}
{{- end -}}

{{- /* Of the Secret with the certificate; empty if there is none. */ -}}
{{- define "stomp-gateway.tlsSecret" -}}
{{- if .Values.tls.secret -}}
{{ .Values.tls.secret }}
{{- else if .Values.tls.issuer -}}
{{ include "stomp-gateway.fullname" . }}-tls
{{- end -}}
{{- end -}}
