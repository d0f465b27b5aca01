{{- /* gateway.yaml. */ -}}
{{- define "stomp-gateway.configuration" -}}
{{- $config := deepCopy .Values.config -}}
{{- $defaults := $config.defaults | default dict -}}
{{- /* Without this key the gateway has a user for clients that send no login. */ -}}
{{- if not (hasKey $defaults "default_user") -}}
{{- $_ := set $defaults "default_user" nil -}}
{{- end -}}
{{- $_ := set $config "defaults" $defaults -}}
{{- $hosts := $config.virtual_hosts | default dict -}}
{{- $main := $config.default_vhost | default "/" -}}
{{- /* Where default_vhost is itself an alias, whoever wrote it has chosen the names. */ -}}
{{- if or (hasKey $hosts $main) (not $hosts) -}}
{{- $host := get $hosts $main | default dict -}}
{{- $service := include "stomp-gateway.fullname" . -}}
{{- $names := list $service -}}
{{- range list "" ".svc" ".svc.cluster.local" -}}
{{- $names = append $names (printf "%s.%s%s" $service $.Release.Namespace .) -}}
{{- end -}}
{{- /* A name that a virtual host has already stays there. */ -}}
{{- $taken := keys $hosts -}}
{{- range $hosts -}}
{{- $taken = concat $taken ((. | default dict).aliases | default list) -}}
{{- end -}}
{{- $aliases := $host.aliases | default list -}}
{{- range $names -}}
{{- if not (has . $taken) -}}
{{- $aliases = append $aliases . -}}
{{- end -}}
{{- end -}}
{{- $_ := set $host "aliases" $aliases -}}
{{- $_ := set $config "virtual_hosts" (set $hosts $main $host) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{- /* A changed configuration has another name: it makes new pods, and the old ones keep theirs. */ -}}
{{- define "stomp-gateway.configMap" -}}
{{ include "stomp-gateway.fullname" . }}-{{ include "stomp-gateway.configuration" . | sha256sum | trunc 8 }}
{{- end -}}

{{- /* The ports of the listeners as words like tcp-61613, which are also their names. Other listeners have none. */ -}}
{{- define "stomp-gateway.listeners" -}}
{{- $ports := list -}}
{{- range .Values.config.listeners -}}
{{- range $kind, $address := pick . "tcp" "websocket" -}}
{{- $ports = append $ports (printf "%s-%s" $kind (regexFind "[0-9]+$" $address)) -}}
{{- end -}}
{{- end -}}
{{- /* Listeners for IPv4 and IPv6 share a port. */ -}}
{{- $ports | uniq | join " " -}}
{{- end -}}

{{- define "stomp-gateway.adminPort" -}}
{{- regexFind "[0-9]+$" .Values.config.admin.address -}}
{{- end -}}

{{- define "stomp-gateway.adminScheme" -}}
{{- if .Values.config.admin.tls }}HTTPS{{ else }}HTTP{{ end -}}
{{- end -}}

{{- /* The ports of all brokers, as words. */ -}}
{{- define "stomp-gateway.brokerPorts" -}}
{{- $urls := (.Values.config.upstream | default dict).urls | default list -}}
{{- range .Values.config.virtual_hosts -}}
{{- $urls = concat $urls (((. | default dict).upstream | default dict).urls | default list) -}}
{{- end -}}
{{- $ports := list -}}
{{- range $urls | default (list "amqp://127.0.0.1") -}}
{{- $standard := hasPrefix "amqps" (lower .) | ternary "5671" "5672" -}}
{{- $ports = append $ports (regexFind ":[0-9]+$" . | trimPrefix ":" | default $standard) -}}
{{- end -}}
{{- $ports | uniq | join " " -}}
{{- end -}}

{{- /* A duration like 30, 500ms or 1m30s in seconds. */ -}}
{{- define "stomp-gateway.seconds" -}}
{{- $units := dict "ms" 0.001 "s" 1.0 "m" 60.0 "min" 60.0 "h" 3600.0 "d" 86400.0 -}}
{{- $seconds := 0.0 -}}
{{- range regexFindAll "[0-9.]+ *[a-z]*" (toString .) -1 -}}
{{- $unit := regexFind "[a-z]+" . | default "s" -}}
{{- $seconds = addf $seconds (mulf (regexFind "[0-9.]+" .) (get $units $unit)) -}}
{{- end -}}
{{- ceil $seconds | int64 -}}
{{- end -}}

{{- /* How long a gateway may take to end, with a few seconds for what takes a moment. */ -}}
{{- define "stomp-gateway.drainSeconds" -}}
{{- $delay := include "stomp-gateway.seconds" (.Values.config.drain_delay | default "0s") -}}
{{- $timeout := include "stomp-gateway.seconds" (.Values.config.drain_timeout | default "30s") -}}
{{- add (int $delay) (int $timeout) 10 -}}
{{- end -}}
