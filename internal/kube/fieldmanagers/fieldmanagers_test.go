package fieldmanagers

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

func TestManagers(t *testing.T) {
	entry := func(manager, subresource, fields string, minute int) metav1.ManagedFieldsEntry {
		at := metav1.NewTime(time.Date(2026, 11, 1, 10, minute, 0, 0, time.UTC))
		return metav1.ManagedFieldsEntry{
			Manager: manager, Subresource: subresource, Time: &at, FieldsV1: metav1.NewFieldsV1(fields),
		}
	}
	o := &metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
		entry("helm", "", `{"f:spec":{"f:template":{"f:spec":{}}}}`, 1),
		entry("operator", "", `{"f:spec":{"f:template":{"f:metadata":{}},"f:replicas":{}}}`, 2),
		entry("kube-controller-manager", "status", `{"f:status":{}}`, 4),
		entry(v1alpha1.FieldManager, "", `{"f:spec":{"f:template":{}}}`, 5),
	}}
	for _, tt := range []struct {
		of   string
		got  string
		want string
	}{
		{"template", Of(o, "spec", "template"), "operator, helm"},
		{"replicas", Of(o, "spec", "replicas"), "operator"},
		{"paused", Of(o, "spec", "paused"), Unknown},
		{"last", Last(o), "kube-controller-manager at 2026-11-01T10:04:00Z"},
		{"nothing", Last(&metav1.ObjectMeta{}), Unknown},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %q, want %q", tt.of, tt.got, tt.want)
		}
	}
}
