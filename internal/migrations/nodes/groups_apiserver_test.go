//go:build apiserver && long

package nodes

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

// TestProvisionIsTold: the program that makes nodes gets what has to find a place on its stdin, and
// the plan is the same whatever that is.
func TestProvisionIsTold(t *testing.T) {
	file := filepath.Join(t.TempDir(), "request.json")
	f := setup(t, func(m *v1alpha1.Migration) {
		m.Spec.Nodes.Join.Provision = &v1alpha1.Action{
			Exec:    &v1alpha1.ExecAction{Command: []string{"sh", "-c", "cat > " + file + ".new && mv " + file + ".new " + file}},
			Timeout: &metav1.Duration{Duration: 30 * time.Second},
		}
	})
	f.Deployment("web", 3)
	hash := func() string {
		p, err := f.job.Look(t.Context())
		f.Must(err)
		h, err := p.Apply().Hash()
		f.Must(err)
		return h
	}
	before := hash()
	f.Deployment("more", 1)
	if after := hash(); after != before {
		t.Errorf("another pod makes another plan: %s, %s", before, after)
	}
	ended := f.applying()
	f.Until("the call", func() bool { _, err := os.Stat(file); return err == nil })
	f.node("c", "198.51.100.1")
	f.node("d", "198.51.100.2")
	f.Must(<-ended)
	f.on("c d", "web", 3)
	body, err := os.ReadFile(file)
	f.Must(err)
	var r Request
	f.Must(json.Unmarshal(body, &r))
	nodes, pods := 0, int64(0)
	for _, g := range r.Groups {
		nodes += g.Nodes
		pods += g.Requests.Pods().Value()
	}
	if r.Action != actionProvision || r.Count != 2 || nodes != 2 || pods != 4 {
		t.Errorf("it was told: %s", body)
	}
}
