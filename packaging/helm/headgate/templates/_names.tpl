{{- define "headgate.labels" -}}
app.kubernetes.io/name: headgate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "headgate.secret" -}}
{{ .Values.existingSecret | default (printf "%s-headgate" .Release.Name) }}
{{- end }}
{{- define "headgate.probes" -}}
startupProbe: {httpGet: {path: /health/live, port: {{ .port }}, scheme: {{ .scheme }}}, periodSeconds: 5, failureThreshold: 60}
# A process whose loop has not answered for a minute is stuck: only a restart helps.
livenessProbe: {httpGet: {path: /health/live, port: {{ .port }}, scheme: {{ .scheme }}}, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 6}
readinessProbe: {httpGet: {path: /health/ready, port: {{ .port }}, scheme: {{ .scheme }}}, timeoutSeconds: 5}
{{- end }}
{{- define "headgate.pod" -}}
{{- $root := .root -}}
{{- $values := .root.Values -}}
{{- $jobs := has .kind (list "run" "executor") -}}
{{- $pages := has .kind (list "run" "web") -}}
{{- $metrics := index $values.metricsPorts .kind | default 0 | int -}}
metadata:
  labels:
    {{- include "headgate.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .kind }}
  annotations:
    checksum/settings: {{ print $values.settings $values.tenants (toJson $values.files) | sha256sum }}
spec:
  {{- if and $values.serviceAccount (has .kind (list "run" "launcher")) }}
  serviceAccountName: {{ $values.serviceAccount }}
  {{- else }}
  automountServiceAccountToken: false
  {{- end }}
  enableServiceLinks: false
  {{- if and $values.sandbox $jobs }}
  hostUsers: false
  {{- end }}
  {{- with $values.imagePullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - {name: {{ . }}}
    {{- end }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector: {{ toJson . }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations: {{ toJson . }}
  {{- end }}
  {{- if $values.fleet }}
  # Web processes read logs from executors under their host names, which are those of their pods.
  dnsConfig: {searches: [{{ $root.Release.Name }}-executor.{{ $root.Release.Namespace }}.svc.{{ $values.clusterDomain }}]}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "headgate.labels" $root | nindent 10 }}
          app.kubernetes.io/component: {{ .kind }}
  {{- end }}
  terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
  securityContext: {runAsUser: 990, runAsGroup: 990, fsGroup: 990, fsGroupChangePolicy: OnRootMismatch, runAsNonRoot: true}
  containers:
    - name: headgate
      image: "{{ $values.image.repository }}:{{ $values.image.tag | default $root.Chart.AppVersion }}"
      imagePullPolicy: {{ $values.image.pullPolicy }}
      args: [{{ .kind }}, --config, /etc/headgate/headgate.conf]
      {{- if $pages }}
      ports: [{name: http, containerPort: 9000}]
      {{- else if $metrics }}
      ports: [{name: metrics, containerPort: {{ $metrics }}}]
      {{- end }}
      {{- if and $values.probeScheme (or $pages $metrics) }}
      {{- include "headgate.probes" (dict "port" (ternary "http" "metrics" $pages) "scheme" $values.probeScheme) | nindent 6 }}
      {{- end }}
      {{- if eq .kind "web" }}
      # Until load balancers no longer send requests.
      lifecycle: {preStop: {exec: {command: [sleep, "5"]}}}
      {{- end }}
      {{- if and $values.sandbox $jobs }}
      securityContext: {procMount: Unmasked, seccompProfile: {type: Unconfined}}
      {{- else }}
      securityContext:
        allowPrivilegeEscalation: false
        capabilities: {drop: [ALL]}
        readOnlyRootFilesystem: {{ not $jobs }}
        seccompProfile: {type: RuntimeDefault}
      {{- end }}
      resources: {{ index $values.resources .kind | default $values.resources.default | toJson }}
      volumeMounts:
        - {name: settings, mountPath: /etc/headgate, readOnly: true}
        - {name: state, mountPath: /var/lib/headgate}
        - {name: tmp, mountPath: /tmp}
  volumes:
    - {name: settings, secret: {secretName: {{ include "headgate.secret" $root }}, defaultMode: 0440}}
    - {name: tmp, emptyDir: {}}
    {{- if not $jobs }}
    - {name: state, emptyDir: {sizeLimit: {{ $values.storage }}}}
    {{- end }}
{{- end }}
