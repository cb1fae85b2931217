//go:build apiserver

package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/cli/tools"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/safety/backup"
	"github.com/replumb/replumb/internal/safety/freeze"
	"github.com/replumb/replumb/internal/testing/apitest"
)

// run runs one command against a cluster.
func run(t *testing.T, s *apitest.Server, make func(*command.App) *cobra.Command, args ...string) (string, error) {
	t.Helper()
	var out, progress bytes.Buffer
	a := command.New("replumb", nil, &out, &progress, command.Build{})
	a.Config.KubeConfig = &s.Kubeconfig
	cmd := make(a)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestUnfreezeAndBackup(t *testing.T) {
	s := plain.Get(t)
	if err := s.Wipe(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Namespace(t, v1alpha1.SystemNamespace)
	t.Run("unfreeze", func(t *testing.T) { testUnfreeze(t, s) })
	t.Run("backup", func(t *testing.T) { testBackup(t, s) })
}

func testUnfreeze(t *testing.T, s *apitest.Server) {
	step := &freeze.Step{Client: s, Migration: "move"}
	plan := &engine.Plan{Phases: []engine.Phase{{Name: "p", Groups: []engine.Group{{Parallel: 1, Steps: []engine.Step{step}}}}}}
	if err := (&engine.Runner{Sink: func(engine.Event) {}}).Run(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		out, err := run(t, s, tools.Unfreeze)
		if err != nil || out != "nothing is frozen\n" {
			t.Errorf("printed %q, %v", out, err)
		}
	}
	if enforced, err := freeze.Prove(t.Context(), s); err != nil || enforced {
		t.Errorf("enforced: %v, %v", enforced, err)
	}
}

func testBackup(t *testing.T, s *apitest.Server) {
	if err := s.InstallCRD(t.Context()); err != nil {
		t.Fatal(err)
	}
	m := &v1alpha1.Migration{
		ObjectMeta: metav1.ObjectMeta{Name: "move"},
		Spec:       v1alpha1.MigrationSpec{ServiceCIDR: &v1alpha1.ServiceCIDRSpec{To: []string{"172.24.0.0/16"}}},
	}
	svc := &corev1.Service{}
	if err := s.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "kubernetes"}, svc); err != nil {
		t.Fatal(err)
	}
	steps := []engine.Step{create{s, m}, backup.NewStep(s, m, "secure/backup", "Back up", []client.Object{svc})}
	plan := &engine.Plan{Phases: []engine.Phase{{Name: "p", Groups: []engine.Group{{Parallel: 1, Steps: steps}}}}}
	if err := (&engine.Runner{Sink: func(engine.Event) {}}).Run(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "backup")
	want := filepath.Join(dir, "service-default-kubernetes.yaml")
	out, err := run(t, s, tools.Backup, "move", dir)
	if err != nil || out != want+"\n" {
		t.Errorf("printed %q, %v", out, err)
	}
	if body, err := os.ReadFile(want); err != nil || !strings.Contains(string(body), "clusterIP: 10.96.0.1") {
		t.Errorf("%s, %v", body, err)
	}
	_, err = run(t, s, tools.Backup, "move", dir)
	if err == nil || command.HintOf(err) == "" || !strings.Contains(err.Error(), want) {
		t.Errorf("exported twice: %v", err)
	}
	if _, err := run(t, s, tools.Backup, "nosuch", dir); err == nil || command.HintOf(err) == "" {
		t.Errorf("no backups: %v", err)
	}
	if _, err := run(t, s, tools.Backup, "move"); command.ExitCode(err) != fault.ExitUsage {
		t.Errorf("no directory: %v", err)
	}
}

// create makes an object, as soon as its kind is served.
type create struct {
	client.Client
	object client.Object
}

func (create) ID() string                                  { return "create" }
func (create) Title() string                               { return "Create" }
func (create) State(context.Context) (engine.State, error) { return engine.Pending, nil }
func (create) Verify(context.Context) error                { return nil }
func (s create) Do(ctx context.Context) error {
	if err := s.Create(ctx, s.object); apierrors.IsNotFound(err) {
		return engine.NotYet("%w", err)
	} else if err != nil {
		return err
	}
	return nil
}
