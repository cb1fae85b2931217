package dnscutover

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// TestQuiet: twice nothing, some time apart, and nothing else in between.
func TestQuiet(t *testing.T) {
	dir := t.TempDir()
	said := func(answers ...string) v1alpha1.Action {
		script := fmt.Sprintf(`cat > %[1]s/asked; n=$(cat %[1]s/n 2>/dev/null || echo 0); echo $((n+1)) > %[1]s/n; case $n in `, dir)
		for i, a := range answers {
			script += strconv.Itoa(i) + ") " + a + ";; "
		}
		_ = os.Remove(filepath.Join(dir, "n"))
		return v1alpha1.Action{Exec: &v1alpha1.ExecAction{Command: []string{"/bin/sh", "-c", script + "esac"}}}
	}
	none, some := `echo '{"newConnections": 0}'`, `echo '{"newConnections": 7}'`
	for _, tt := range []struct {
		name    string
		answers []string
		after   []time.Duration
		waits   []string
	}{
		{"at once", []string{none, none}, []time.Duration{0, 5}, []string{"has to be so for 5s", ""}},
		{"too early", []string{none, none, none}, []time.Duration{0, 3, 5}, []string{"5s", "5s", ""}},
		{
			"some in between",
			[]string{none, some, none, none},
			[]time.Duration{0, 6, 7, 12},
			[]string{"5s", "has 7 new connections", "5s", ""},
		},
		{
			"trouble in between",
			[]string{none, "echo broken >&2; exit 1", none, `echo '{}'`, none, none},
			[]time.Duration{0, 6, 7, 12, 13, 18},
			[]string{"5s", "exit status 1; its output is on", "5s", "no newConnections", "5s", ""},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			start := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
			now := start
			o := Options{Migration: "m", Now: func() time.Time { return now }, Quiet: ptr.To(said(tt.answers...))}
			leads := []*PairedName{{Name: v1alpha1.RedirectName{Name: "b.example.com", From: []string{"192.0.2.1"}, To: []string{"192.0.2.2"}}}}
			step := quiet(leads, o, engine.Backward)
			for i, want := range tt.waits {
				now = start.Add(tt.after[i] * time.Second)
				err := step.Verify(t.Context())
				if want == "" && err != nil || want != "" && (!engine.Retryable(err) || !strings.Contains(err.Error(), want)) {
					t.Errorf("%d: got %v, not %q", i, err, want)
				}
			}
			asked, err := os.ReadFile(filepath.Join(dir, "asked"))
			if want := `{"migration":"m","side":"Target","names":["b.example.com"],"addresses":["192.0.2.2"]}`; string(asked) != want {
				t.Errorf("asked %s (%v)", asked, err)
			}
		})
	}
}

// TestNothingToLead makes no steps, and asks no server.
func TestNothingToLead(t *testing.T) {
	o := Options{Quiet: &v1alpha1.Action{}}
	if groups := slices.Concat(There(nil, o), LeadBack(nil, o), Restore(nil)); len(groups) > 0 {
		t.Errorf("%d groups", len(groups))
	}
}
