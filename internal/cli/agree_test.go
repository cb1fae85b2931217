//go:build apiserver

package cli

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/testing/apitest"
)

// TestCheckAgreesWithTheAPIServer gives Migrations to an API server, as kubectl apply does, and to
// replumb check -f. What the one refuses the other refuses too. replumb.yaml has what only replumb
// can see.
func TestCheckAgreesWithTheAPIServer(t *testing.T) {
	s := plain.Get(t)
	if err := s.Wipe(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.InstallCRD(t.Context()); err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); ; {
		if ok, err := s.CRDCurrent(t.Context()); err == nil && ok && offer(t, s, "serviceCIDR: {to: [172.24.0.0/16]}") == nil {
			break
		}
		if time.Since(start) > time.Minute {
			t.Fatal("the definition is not served")
		}
	}
	for _, tt := range []struct {
		file            string
		server, replumb bool
	}{{"accepted.yaml", true, true}, {"refused.yaml", false, false}, {"replumb.yaml", true, false}} {
		for _, spec := range specs(t, tt.file) {
			t.Run(tt.file+" "+spec, func(t *testing.T) {
				err := offer(t, s, spec)
				if err != nil && !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
					t.Fatal(err)
				}
				if accepts := err == nil; accepts != tt.server {
					t.Errorf("API server: %v", err)
				}
				if err := refusal(t, spec); (err == nil) != tt.replumb {
					t.Errorf("replumb: %v", err)
				}
			})
		}
	}
}

// specs are the lines of a file in testdata/agree, each the inside of a spec.
func specs(t *testing.T, file string) (all []string) {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("testdata/agree", file))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(body)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			all = append(all, line)
		}
	}
	return all
}

func manifest(spec string) []byte {
	return []byte("apiVersion: replumb.dev/v1alpha1\nkind: Migration\nmetadata: {name: m}\nspec: {" + spec + "}\n")
}

// offer asks an API server whether it would take a Migration, as strictly as kubectl does.
func offer(t *testing.T, s *apitest.Server, spec string) error {
	t.Helper()
	m := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(manifest(spec), &m.Object); err != nil {
		t.Fatal(err)
	}
	return s.Create(t.Context(), m, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict))
}

func refusal(t *testing.T, spec string) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "m.yaml")
	if err := os.WriteFile(file, manifest(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := NewCommand("replumb", strings.NewReader(""), io.Discard, io.Discard)
	cmd.SetArgs([]string{"check", "-f", file, "--kubeconfig", "nonexistent"})
	if err := cmd.ExecuteContext(t.Context()); command.ExitCode(err) == fault.ExitUsage {
		return err
	}
	return nil // it got as far as looking for a cluster
}
