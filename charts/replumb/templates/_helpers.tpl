{{/* Labels of all that the chart makes. */}}
{{- define "replumb.labels" -}}
{{ include "replumb.selector" . }}
{{ include "replumb.release" . }}
{{- end }}

{{/* What Helm and the user of the chart put on every object. */}}
{{- define "replumb.release" -}}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels of the operator's pods. They are those of replumb install, so that one can take over from the other. */}}
{{- define "replumb.selector" -}}
app.kubernetes.io/name: replumb
app.kubernetes.io/component: operator
{{- end }}

{{/* The version that the image is of; empty if it is not known. */}}
{{- define "replumb.version" -}}
{{- if .Values.image.tag -}}
{{- if regexMatch "^v[0-9]+\\.[0-9]+\\.[0-9]+$" .Values.image.tag -}}{{ .Values.image.tag }}{{- end -}}
{{- else if ne .Chart.AppVersion "unreleased" -}}
{{ .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "replumb.image" -}}
{{- $tag := .Values.image.tag -}}
{{- if and (not $tag) (ne .Chart.AppVersion "unreleased") -}}
{{- $tag = .Chart.AppVersion -}}
{{- end -}}
{{- if not (or $tag .Values.image.digest) -}}
{{- fail "this chart is of a source tree, and there is no image of that version: set image.tag or image.digest" -}}
{{- end -}}
{{ .Values.image.repository }}{{ with $tag }}:{{ . }}{{ end }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* Roles of replumb name its namespace, so it is the same in every cluster. */}}
{{- define "replumb.namespace" -}}
{{- if ne .Release.Namespace "replumb-system" -}}
{{- fail (printf "replumb cannot be installed in namespace %s: use --namespace replumb-system --create-namespace" .Release.Namespace) -}}
{{- end -}}
{{ .Release.Namespace }}
{{- end }}

{{/* The kinds of migrations that the operator has rights for; empty for all. */}}
{{- define "replumb.kinds" -}}
{{- if lt (len .Values.rbac.kinds) (len (.Files.Get "files/kinds.yaml" | fromYaml)) -}}
{{ join "," .Values.rbac.kinds }}
{{- end -}}
{{- end }}
