{{- define "headgate.labels" -}}
app.kubernetes.io/name: headgate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "headgate.secret" -}}
{{ .Values.existingSecret | default (printf "%s-headgate" .Release.Name) }}
{{- end }}
{{- define "headgate.pod" -}}
{{- $root := .root -}}
metadata:
  labels:
    {{- include "headgate.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .kind }}
  annotations:
    checksum/settings: {{ print $root.Values.settings $root.Values.tenants | sha256sum }}
spec:
  automountServiceAccountToken: false
  {{- if and $root.Values.sandbox (has .kind (list "run" "executor")) }}
  hostUsers: false
  {{- end }}
  terminationGracePeriodSeconds: 60
  securityContext: {runAsUser: 990, runAsGroup: 990, fsGroup: 990, runAsNonRoot: true}
  containers:
    - name: headgate
      image: "{{ $root.Values.image.repository }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}"
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      args: [{{ .kind }}, --config, /etc/headgate/headgate.conf]
      {{- if has .kind (list "run" "web") }}
      ports: [{name: http, containerPort: 9000}]
      readinessProbe: {httpGet: {path: /health/ready, port: http}}
      {{- end }}
      {{- if and $root.Values.sandbox (has .kind (list "run" "executor")) }}
      securityContext: {procMount: Unmasked, seccompProfile: {type: Unconfined}}
      {{- else }}
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}
      {{- end }}
      resources: {{ toJson $root.Values.resources }}
      volumeMounts:
        - {name: settings, mountPath: /etc/headgate, readOnly: true}
        - {name: state, mountPath: /var/lib/headgate}
  volumes:
    - {name: settings, secret: {secretName: {{ include "headgate.secret" $root }}, defaultMode: 0440}}
    {{- if not (has .kind (list "run" "executor")) }}
    - {name: state, emptyDir: {}}
    {{- end }}
{{- end }}
