package offline

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/kube/references"
)

// redacted replaces the values of a Secret by the addresses, ranges and reverse zones in them,
// which checks look for. Annotations go too: kubectl apply writes the values into one.
func redacted(body json.RawMessage) (json.RawMessage, error) {
	s := &corev1.Secret{}
	if err := json.Unmarshal(body, s); err != nil {
		return nil, fmt.Errorf("reading a Secret: %w", err)
	}
	s.Annotations, s.ManagedFields = nil, nil
	for key, value := range s.Data {
		s.Data[key] = nil
		if scanned(s.Type) {
			s.Data[key] = []byte(strings.Join(references.Tokens(string(value)), "\n"))
		}
	}
	s.StringData = nil
	out, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("secret %s/%s: %w", s.Namespace, s.Name, err)
	}
	return out, nil
}

// scanned reports whether checks look into Secrets of a type (cluster.References leaves out the
// same).
func scanned(t corev1.SecretType) bool {
	switch t {
	case corev1.SecretTypeTLS, corev1.SecretTypeServiceAccountToken, corev1.SecretTypeBootstrapToken, helmRelease:
		return false
	}
	return true
}

// helmRelease is the type of Secrets that Helm keeps its releases in.
const helmRelease corev1.SecretType = "helm.sh/release.v1"

// lean is an object without what no check reads.
func lean(group, resource string, body json.RawMessage) (json.RawMessage, error) {
	switch resourceName(group, resource) {
	case "secrets":
		return redacted(body)
	case "services": // their managedFields say who owns clusterIPs
		return body, nil
	}
	var o map[string]json.RawMessage
	if err := json.Unmarshal(body, &o); err != nil {
		return nil, fmt.Errorf("reading one of %s: %w", resource, err)
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(o["metadata"], &m); err != nil || m["managedFields"] == nil {
		return body, err
	}
	delete(m, "managedFields")
	var err error
	if o["metadata"], err = json.Marshal(m); err != nil {
		return nil, err
	}
	return json.Marshal(o)
}
