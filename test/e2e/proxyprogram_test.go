package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
)

// TestProxyProgram changes kube-proxy's mode where it is a program of nodes, whose owner restarts it on one node after the other, under the same
// traffic as TestProxyMode: a person at gates on half of the nodes, killed on the way, and back; then an action there, killed, back, there again,
// and finish. No request is lost, and afterwards nodes have rules of one mode alone. The control restarts all in the new mode at once, and loses.
func TestProxyProgram(t *testing.T) {
	topology := named("e2e-proxy-program")
	topology.Nodes = []lab.ProxyMode{lab.IPTables, lab.IPTables, lab.IPTables}
	l := bringUp(t, topology)
	s := servingAllKinds(t, l, traffic.Calls.SeenAsAny)
	owner := proxyOwner{l}
	requireModeAtOnceLoses(t, l, l.NodeNames(), s, owner.restartAll)

	gates := writeMode(t, ", program: {}")
	half := s.during(t, "half of the nodes being restarted by a person", func() {
		owner.killed(t, lab.NFTables, gates, "clean/node1", "compare/node2")
	})
	half.requireNothingLost(t, traffic.Permitted)
	back := s.during(t, "half of the nodes coming back", func() {
		requireDone(t, owner.attend(t, lab.IPTables, nil, "rollback", toNFTables, "--yes"))
	})
	back.requireNothingLost(t, traffic.Permitted)
	requireRules(t, l, l.NodeNames(), lab.IPTables)

	action := writeMode(t, fmt.Sprintf(", nodes: {parallel: 2}, program: {restart: {http: {url: %q}}}", owner.serve(t)))
	apply := func() { requireDone(t, owner.attend(t, lab.NFTables, nil, "apply", "-f", action, "--yes")) }
	there := s.during(t, "the mode being changed by an action", func() {
		owner.killed(t, lab.NFTables, action, "forget/node3")
		apply()
	})
	there.requireNothingLost(t, traffic.Permitted)
	requireRules(t, l, l.NodeNames(), lab.NFTables)

	whole := s.during(t, "the mode being changed back", func() {
		requireDone(t, owner.attend(t, lab.IPTables, nil, "rollback", toNFTables, "--yes"))
	})
	whole.requireNothingLost(t, traffic.Permitted)
	requireRules(t, l, l.NodeNames(), lab.IPTables)

	again := s.during(t, "the mode being changed again", apply)
	again.requireNothingLost(t, traffic.Permitted)
	finish := s.during(t, "finish", func() { shown(t, l, "finish", toNFTables, "--yes") })
	finish.requireNothingLost(t, traffic.Permitted)
	requireRules(t, l, l.NodeNames(), lab.NFTables)
	requireNoTrace(t, l)
}

// proxyOwner restarts the kube-proxies of nodes.
type proxyOwner struct{ *lab.Lab }

func (o proxyOwner) restart(ctx context.Context, node string, mode lab.ProxyMode) error {
	return o.Workers().RestartProxyIn(ctx, node, mode)
}

// restartAll restarts all of them in a mode at once.
func (o proxyOwner) restartAll(t *testing.T, mode lab.ProxyMode) {
	t.Helper()
	all, ctx := errgroup.WithContext(t.Context())
	for _, node := range o.NodeNames() {
		all.Go(func() error { return o.restart(ctx, node, mode) })
	}
	must(t, all.Wait())
}

// attend runs a command with a person who restarts kube-proxy in a mode where a gate asks for it.
func (o proxyOwner) attend(t *testing.T, mode lab.ProxyMode, killAt func(engine.Event) bool, args ...string) int {
	t.Helper()
	acts := map[string]func(context.Context) error{}
	for _, node := range o.NodeNames() {
		acts["compare/"+node] = func(ctx context.Context) error { return o.restart(ctx, node, mode) }
	}
	run := operator{lab: o.Lab, killAt: killAt, instead: acts}
	_, code, _ := run.attend(t, command(t, "replumb", append(args, "-o", "json", "--kubeconfig", o.Kubeconfig())...))
	return code
}

// killed runs apply, and kills it before these steps, one after the other.
func (o proxyOwner) killed(t *testing.T, mode lab.ProxyMode, file string, steps ...string) {
	t.Helper()
	for _, step := range steps {
		if code := o.attend(t, mode, eventOf(engine.StepStarted, step), "apply", "-f", file, "--yes"); code != -1 {
			t.Fatalf("apply ended with exit code %d before %s", code, step)
		}
	}
}

// serve returns the URL of a webhook that restarts kube-proxies.
func (o proxyOwner) serve(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request struct {
			Node string
			Mode lab.ProxyMode
		}
		err := json.NewDecoder(r.Body).Decode(&request)
		if err == nil {
			err = o.restart(r.Context(), request.Node, request.Mode)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}
