package lossguard

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

func TestAgentConfig(t *testing.T) {
	own := pull.Image{Name: "own"}
	for _, tt := range []struct {
		name   string
		config AgentConfig
		image  string
		wrong  bool
	}{
		{"this version's image", AgentConfig{Runnable: own}, "own", false},
		{"no image", AgentConfig{}, "", false},
		{"no image, and they are asked for", AgentConfig{Spec: v1alpha1.ProofSpec{Agents: v1alpha1.AgentsEnabled}}, "", true},
		{"nothing to see", AgentConfig{Runnable: own, None: true, Spec: v1alpha1.ProofSpec{Agents: v1alpha1.AgentsEnabled}}, "", false},
		{"done without", AgentConfig{Runnable: own, Spec: v1alpha1.ProofSpec{Agents: v1alpha1.AgentsDisabled}}, "", false},
	} {
		c := &tt.config
		err := c.Check()
		if c.Image().Name != tt.image || errors.As(err, new(*spec.Error)) != tt.wrong {
			t.Errorf("%s: image %q, %v", tt.name, c.Image().Name, err)
		}
		p, k := c.New(2), c.Keep(&migration.Keeper{}, false)
		if (p != nil) != (tt.image != "") || (k.Guard != nil) && p == nil {
			t.Errorf("%s: there are agents: %v, guard %v", tt.name, p != nil, k.Guard)
		}
		if n := len(p.Install()); (n > 0) != (p != nil) || len(p.InstallIfPossible()) != n || (len(p.Dismiss()) > 0) != (p != nil) {
			t.Errorf("%s: %d groups of steps", tt.name, n)
		}
	}
}

// TestBring: agents run what the Migration names for all pods, with its pull secrets, which are
// looked for if there are to be agents.
func TestBring(t *testing.T) {
	secrets := []string{"registry", "mirror"}
	for _, tt := range []struct {
		name  string
		spec  v1alpha1.MigrationSpec
		none  bool
		image string
		want  []string
	}{
		{"this version's image", v1alpha1.MigrationSpec{ImagePullSecrets: secrets}, false, "own", secrets},
		{"another one", v1alpha1.MigrationSpec{Image: "other"}, false, "other", nil},
		{"no agents", v1alpha1.MigrationSpec{ImagePullSecrets: secrets, Proof: v1alpha1.ProofSpec{Agents: v1alpha1.AgentsDisabled}}, false, "", nil},
		{"nothing to see", v1alpha1.MigrationSpec{ImagePullSecrets: secrets}, true, "", nil},
	} {
		c := &AgentConfig{None: tt.none}
		c.Bring(migration.Deps{Image: pull.Image{Name: "own"}}, "m", &tt.spec)
		if got := c.Image(); got.Name != tt.image || !slices.Equal(got.Secrets, tt.want) {
			t.Errorf("%s: %+v", tt.name, got)
		}
		if p := c.New(1); p != nil && !slices.Equal(p.Image.Secrets, tt.want) {
			t.Errorf("%s: agents have %v", tt.name, p.Image.Secrets)
		}
		found, err := c.AbsentSecrets(t.Context(), migrationtest.Lacking{"mirror"})
		found = slices.DeleteFunc(found, func(r findings.Result) bool { return r.Outcome == findings.Skipped })
		if err != nil || len(found) != len(tt.want)/2 {
			t.Errorf("%s: found %v, %v", tt.name, found, err)
		}
	}
}

func TestWait(t *testing.T) {
	if w := (&AgentConfig{}).Wait(); w != 2*time.Minute {
		t.Error(w)
	}
	if w := (&AgentConfig{Spec: v1alpha1.ProofSpec{Wait: &metav1.Duration{Duration: time.Second}}}).Wait(); w != time.Second {
		t.Error(w)
	}
}

func TestInterval(t *testing.T) {
	for nodes, want := range map[int]time.Duration{0: 2 * time.Second, 20: 2 * time.Second, 21: 4 * time.Second, 5000: 512 * time.Second} {
		if got := interval(nodes); got != want {
			t.Errorf("%d nodes: every %s, want %s", nodes, got, want)
		}
	}
}

// stuck is a step that never comes to its end.
type stuck struct{ err error }

func (*stuck) ID() string                                  { return "stuck" }
func (*stuck) Title() string                               { return "stuck" }
func (*stuck) Waits()                                      {}
func (*stuck) State(context.Context) (engine.State, error) { return engine.Pending, nil }
func (*stuck) Do(context.Context) error                    { return nil }
func (s *stuck) Verify(context.Context) error              { return s.err }

// TestBestEffort: what would be good to have has its time, and what is wrong for good is not passed
// over.
func TestBestEffort(t *testing.T) {
	now := begin
	s := &bestEffortStep{Step: &stuck{engine.NotYet("no report")}, limit: time.Minute, now: func() time.Time { return now }}
	for range 3 {
		if err := s.Verify(t.Context()); err == nil || s.Note() != "" {
			t.Fatalf("at once: %v, %q", err, s.Note())
		}
		now = now.Add(20 * time.Second)
	}
	if err := s.Verify(t.Context()); err != nil || s.Note() != "rolling back without agents: no report" {
		t.Errorf("in the end: %v, %q", err, s.Note())
	}
	s = &bestEffortStep{Step: &stuck{errors.New("forbidden")}, now: func() time.Time { return now }}
	if err := s.Verify(t.Context()); err == nil {
		t.Error("an error was passed over")
	}
}
