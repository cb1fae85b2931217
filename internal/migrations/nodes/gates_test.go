package nodes

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/reporting/notify"
)

// byHand is a migration in which everything outside of the cluster is done by hand.
const byHand = `
apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: vpc}
spec:
  image: replumb
  proof: {agents: Disabled}
  nodes:
    old: {cidrs: [10.1.0.0/16]}
    new: {cidrs: [10.2.0.0/16]}
    records: [{name: www.example.com, from: [10.1.0.80], to: [10.2.0.80], provider: {manual: {}}}]
    controlPlane:
      etcd: {endpoints: ["https://10.1.0.11:2379"], caFile: ca.crt, certFile: client.crt, keyFile: client.key, snapshotUnencrypted: true}
      records: [{name: api.example.com, from: [10.1.0.6], to: [10.2.0.6], provider: {manual: {}}}]
`

const oneOfEach = `
apiVersion: v1
kind: Node
metadata: {name: old1}
status: {addresses: [{type: InternalIP, address: 10.1.0.1}], conditions: [{type: Ready, status: "True"}]}
`

// gates are the steps of all plans that wait for people.
func gates(t *testing.T, migration string) map[string]engine.Step {
	t.Helper()
	p, _ := planner(t, map[string][]byte{
		"migration.yaml": []byte(migration), "cluster.yaml": []byte(oneOfEach),
		"facts.yaml": []byte(`etcd: [{ID: 11, Name: cp1, PeerURLs: ["https://10.1.0.11:2380"], Healthy: true}]`),
	})
	all := map[string]engine.Step{}
	for _, plan := range []*engine.Plan{p.Apply(), p.Rollback(), p.Finish()} {
		for _, s := range plan.Steps() {
			if _, ok := s.(engine.Guide); ok {
				all[s.ID()] = s
			}
		}
	}
	return all
}

// waiting is a step that has to wait for people, and nothing else of it.
type waiting struct{ engine.Step }

func (waiting) State(context.Context) (engine.State, error) { return engine.Pending, nil }
func (waiting) Do(context.Context) error                    { return nil }
func (waiting) Verify(context.Context) error                { return engine.NotYet("not yet") }
func (waiting) Waits()                                      {}
func (w waiting) Guide() string                             { return w.Step.(engine.Guide).Guide() }

// notified runs a step until it waits, and returns what its operator is sent.
func notified(t *testing.T, s engine.Step) string {
	t.Helper()
	var mu sync.Mutex
	var sent []string
	board := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		sent = append(sent, string(body))
	}))
	defer board.Close()
	n := notify.New([]v1alpha1.Notifier{{HTTPAction: v1alpha1.HTTPAction{URL: board.URL}}}, nil)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	sink := func(e engine.Event) {
		if n.Event(e); e.Kind == engine.StepWaiting {
			stop()
		}
	}
	plan := &engine.Plan{Phases: []engine.Phase{{Groups: engine.InOrder(waiting{s})}}}
	if err := (&engine.Runner{Sink: sink}).Run(ctx, plan); err == nil {
		t.Error("a step that waits for people has ended")
	}
	if err := n.Close(context.WithoutCancel(ctx)); err != nil {
		t.Error(err)
	}
	i := slices.IndexFunc(sent, func(body string) bool { return strings.Contains(body, string(engine.StepWaiting)) })
	if i < 0 {
		return ""
	}
	return sent[i]
}

// TestOperatorsHearOfGates: every step that waits for people is a gate, and is reported with its
// instructions when it begins to wait. Those of records have none before they have seen that there
// is something to do.
func TestOperatorsHearOfGates(t *testing.T) {
	all := gates(t, byHand)
	for _, id := range []string{"join", "terminate/old1", "provision/cp1", "retire/cp1", "terminate/cp1"} {
		if all[id] == nil {
			t.Errorf("step %s does not wait for people", id)
		}
	}
	records := 0
	for id, s := range all {
		if role := engine.RoleOf(s); role != engine.RoleGate {
			t.Errorf("step %s waits for people and has the role %s", id, role)
		}
		if strings.Contains(id, "record/") {
			records++
			continue
		}
		if body := notified(t, s); !strings.Contains(body, "replumb goes on by itself") || !strings.Contains(body, id) {
			t.Errorf("of step %s the operator is sent %q", id, body)
		}
	}
	if records == 0 {
		t.Error("no step waits for people to change a record")
	}
}

// TestActionsAreNoGates: operators are not asked for what an action does.
func TestActionsAreNoGates(t *testing.T) {
	const action = "{exec: {command: [/srv/machines.sh]}}"
	all := gates(t, strings.NewReplacer("  nodes:", "  nodes:\n    join: {provision: "+action+"}\n    terminate: {action: "+action+"}",
		"controlPlane:", "controlPlane:\n      provision: "+action+"\n      retire: "+action+"\n      terminate: "+action).Replace(byHand))
	for id := range all {
		if !strings.Contains(id, "record/") {
			t.Errorf("step %s waits for people", id)
		}
	}
}
