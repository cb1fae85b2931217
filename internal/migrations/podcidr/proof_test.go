package podcidr

import (
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/spec"
)

func watched(m *v1alpha1.Migration) {
	m.Spec.Proof = v1alpha1.ProofSpec{Agents: v1alpha1.AgentsEnabled, Wait: &metav1.Duration{Duration: patience}}
}

func TestAgentsWithoutImage(t *testing.T) {
	m := sample()
	watched(m)
	var wrong *spec.Error
	if _, err := NewJob(Deps{}, m); !errors.As(err, &wrong) || wrong.Field != "spec.image" {
		t.Errorf("got %v", err)
	}
	m.Spec.Image = "example.com/replumb:v1"
	if _, err := NewJob(Deps{}, m); err != nil {
		t.Error(err)
	}
}
