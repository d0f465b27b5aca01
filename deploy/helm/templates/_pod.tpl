{{- /* The gateway, as an entry of a pod's containers. */ -}}
{{- define "stomp-gateway.container" -}}
- name: stomp-gateway
  {{- $missing := "image.repository is missing: name the registry to which you pushed the image" }}
  image: {{ required $missing .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
  {{- with .Values.env }}
  env:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.envFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    {{- range splitList " " (include "stomp-gateway.listeners" .) }}
    - name: {{ . }}
      containerPort: {{ regexFind "[0-9]+$" . }}
    {{- end }}
    - name: stomp-admin
      containerPort: {{ include "stomp-gateway.adminPort" . }}
  startupProbe:
    {{- include "stomp-gateway.ask" (list . "/healthz") | nindent 4 }}
    periodSeconds: 1
    failureThreshold: 30
  # Alive: the process answers. If the broker is down, a restart of the gateway would not help.
  livenessProbe:
    {{- include "stomp-gateway.ask" (list . "/healthz") | nindent 4 }}
    periodSeconds: 10
    timeoutSeconds: 3
    failureThreshold: 3
  # Ready: its listeners are open and it reaches a broker.
  readinessProbe:
    {{- include "stomp-gateway.ask" (list . "/readyz") | nindent 4 }}
    periodSeconds: 5
    timeoutSeconds: 3
    failureThreshold: 2
  resources:
    {{- toYaml .Values.resources | nindent 4 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
    seccompProfile:
      type: RuntimeDefault
  volumeMounts:
    - name: gateway-configuration
      mountPath: /etc/stomp-gateway
      readOnly: true
    - name: gateway-journal
      mountPath: /var/lib/stomp-gateway
    {{- if include "stomp-gateway.tlsSecret" . }}
    - name: gateway-tls
      mountPath: /etc/stomp-gateway-tls
      readOnly: true
    {{- end }}
    {{- with .Values.volumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- /* What a probe asks; takes a list: the chart's scope and a path. */ -}}
{{- define "stomp-gateway.ask" -}}
httpGet:
  path: {{ last . }}
  port: stomp-admin
  scheme: {{ include "stomp-gateway.adminScheme" (first .) }}
{{- end -}}

{{- /* The entries of the pod's volumes that the container needs. */ -}}
{{- define "stomp-gateway.volumes" -}}
- name: gateway-configuration
  configMap:
    name: {{ include "stomp-gateway.configMap" . }}
- name: gateway-journal
  emptyDir:
    sizeLimit: {{ .Values.journalSize }}
{{- with include "stomp-gateway.tlsSecret" . }}
- name: gateway-tls
  secret:
    secretName: {{ . }}
{{- end }}
{{- with .Values.volumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /*
The lifecycle of RabbitMQ's container beside a gateway. Kubernetes stops both at once. The gateway needs the broker for
its drain, so RabbitMQ waits until the gateway's admin port is closed.
*/ -}}
{{- define "stomp-gateway.rabbitmqLifecycle" -}}
preStop:
  exec:
    command:
      - bash
      - -c
      - for i in {1..{{ include "stomp-gateway.drainSeconds" . }}}; do
        (exec 3<>/dev/tcp/127.0.0.1/{{ include "stomp-gateway.adminPort" . }}) 2>/dev/null || exit 0; sleep 1; done
{{- end -}}
