package offline

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
)

// TestEveryCheckFiresAndPasses: what a snapshot does not tell is a finding each, and of a cluster
// itself there is none.
func TestEveryCheckFiresAndPasses(t *testing.T) {
	for name, test := range map[string]struct {
		of   *Reading
		want string
	}{
		"a cluster": {nil, ""},
		"a whole snapshot": {
			&Reading{Head: Head{Server: "192.0.2.1:6443", Replumb: "v1"}},
			"RP0001 this is of a snapshot, taken at 0001-01-01T00:00:00Z by replumb v1, of 192.0.2.1:6443",
		},
		"one that was asked to try something": {
			&Reading{Untried: []string{"dry run not made"}}, "RP0001 this; RP0002 dry run not made",
		},
		"one of a user who may not read all": {
			&Reading{NotRead: []string{"nodes", "pods"}, Unknown: []string{"right not known"}},
			"RP0001 this; RP0003 not read as a whole, for lack of rights to list them: nodes, pods; RP0003 right not known",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			passed := map[string]bool{}
			for _, f := range test.of.Found() {
				if !f.Open() {
					passed[f.Code] = true
					continue
				}
				if f.Severity != findings.Warning || f.Group != "Snapshot" || f.Fix == "" {
					t.Errorf("finding %+v", f)
				}
				message := f.Message
				if !strings.Contains(test.want, message) {
					message = strings.Fields(message)[0]
				}
				got = append(got, f.Code+" "+message)
			}
			if text := strings.Join(got, "; "); text != test.want {
				t.Errorf("found %q, want %q", text, test.want)
			}
			for _, c := range Checks() {
				if passed[c.Code] == strings.Contains(test.want, c.Code) {
					t.Errorf("%s passes: %v", c.Code, passed[c.Code])
				}
			}
		})
	}
}

// TestReading is of what was asked since the last time.
func TestReading(t *testing.T) {
	s, c := served(t)
	try := func() {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "new"}}
		if err := c.Create(t.Context(), pod, client.DryRunAll); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Access(t.Context(), []access.Right{{Verb: "list", Resource: "pods"}}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		try()
		r := s.Reading()
		if len(r.Untried) != 1 || len(r.Unknown) != 1 || len(r.NotRead) != 1 || r.NotRead[0] != "nodes" || r.Head.Replumb != "v1" {
			t.Errorf("%+v", r)
		}
	}
	if r := s.Reading(); len(r.Warnings()) > 0 {
		t.Errorf("nothing was asked, and %v is said", r.Warnings())
	}
}

// TestUntold: groups whose API server is away are named, where checks look at them.
func TestUntold(t *testing.T) {
	a := &answers{Paths: map[string]answer{
		"/api/v1": {Code: 200}, "/apis": {Code: 200}, "/apis/a.example/v1": {Code: 503}, "/apis/b.example/v1": {Code: 503},
		"/apis/apps/v1": {Code: 200},
	}}
	taker := &Taker{Rights: []access.Right{
		{Verb: "list", Group: "a.example", Resource: "things"}, {Verb: "list", Group: "apps", Resource: "x"},
	}}
	if got := strings.Join(taker.untold(a), " "); got != "all of a.example/v1" {
		t.Errorf("untold: %q", got)
	}
}
