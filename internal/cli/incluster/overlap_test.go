package incluster

import (
	"errors"
	"slices"
	"testing"

	"github.com/replumb/replumb/internal/cli/command"
)

// TestReplicaSettings: a replica that lacks what it needs says what, before it connects anywhere.
func TestReplicaSettings(t *testing.T) {
	pod := map[string]string{"POD_NAME": "overlap-1", "POD_UID": "u"}
	for _, tt := range []struct {
		name string
		o    overlapOptions
		env  map[string]string
		want string
	}{
		{"no migration", overlapOptions{api: []string{"192.0.2.1:6443"}}, pod, "--migration is missing"},
		{"no API server", overlapOptions{migration: "m"}, pod, "--api does not name an API server as IP:port"},
		{"a name", overlapOptions{migration: "m", api: []string{"kubernetes:443"}}, pod, "--api does not name an API server as IP:port"},
		{"no pod", overlapOptions{migration: "m", api: []string{"192.0.2.1:6443"}}, nil, "POD_NAME is not in the environment"},
	} {
		_, err := tt.o.replica(func(key string) string { return tt.env[key] })
		if usage := (*command.UsageError)(nil); !errors.As(err, &usage) || usage.Problem != tt.want {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	o := overlapOptions{migration: "m", api: []string{"192.0.2.1:6443", "192.0.2.2:6443"}}
	env := map[string]string{
		"POD_NAME":                "overlap-1",
		"POD_UID":                 "u",
		"KUBERNETES_SERVICE_HOST": "10.96.0.1",
		"KUBERNETES_SERVICE_PORT": "443",
	}
	r, err := o.replica(func(key string) string { return env[key] })
	if err != nil || r.Name != "overlap-1" || r.UID != "u" {
		t.Errorf("got %+v, %v", r, err)
	}
	if service := fallback(func(key string) string { return env[key] }); !slices.Equal(service, []string{"10.96.0.1:443"}) {
		t.Errorf("the Service kubernetes is at %v", service)
	}
}
