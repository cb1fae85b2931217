//go:build apiserver

package servicecidr

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/bridge"
)

// TestHopRefusesWithoutABridge is the control of the most important guard: a Service must not leave
// its address before the bridge is proven.
func TestHopRefusesWithoutABridge(t *testing.T) {
	f := setup(t)
	was := f.service("cart")
	p := f.planner()
	err := p.steps(engine.Forward).Hop(p.Inventory.Moves[0], engine.Forward).Do(t.Context())
	var missing *bridge.MissingError
	if !errors.As(err, &missing) {
		t.Errorf("got %v", err)
	}
	if is := f.get("cart"); is.ResourceVersion != was.ResourceVersion {
		t.Errorf("the Service was written: %+v", is.Spec)
	}
}

func TestHopRepairsABridgeThatDrifted(t *testing.T) {
	f := setup(t)
	was := f.service("cart")
	p := f.planner()
	e := p.Inventory.Moves[0]
	f.must((&engine.Runner{}).Run(t.Context(), single1(p.steps(engine.Forward).Bridge(e))))
	svc := f.get("cart")
	svc.Spec.Ports[0].Port = 8081
	f.must(server.Update(t.Context(), svc))
	f.must((&engine.Runner{}).Run(t.Context(), single1(p.steps(engine.Forward).Hop(e, engine.Forward))))
	if got := f.get(bridge.Name(was.Name, was.UID)).Spec.Ports[0].Port; got != 8081 {
		t.Errorf("the bridge answers at port %d", got)
	}
	if got := f.get("cart").Spec.ClusterIP; got != e.New.String() {
		t.Errorf("the Service is at %s", got)
	}
}

func TestBridgeGoesToTheNextAddressWhenTheTargetIsTaken(t *testing.T) {
	f := setup(t)
	f.service("cart", at("10.96.3.7"))
	p := f.planner()
	f.service("thief", at("172.24.3.7"))
	e := p.Inventory.Moves[0]
	f.must((&engine.Runner{}).Run(t.Context(), single1(p.steps(engine.Forward).Bridge(e))))
	f.must((&engine.Runner{}).Run(t.Context(), single1(p.steps(engine.Forward).Hop(e, engine.Forward))))
	is := f.get("cart")
	if is.Spec.ClusterIP == "172.24.3.7" || is.Annotations[v1alpha1.AnnotationTargetIP] != is.Spec.ClusterIP {
		t.Errorf("at %s, annotations %v", is.Spec.ClusterIP, is.Annotations)
	}
}

func TestConflictingEditIsFollowed(t *testing.T) {
	f := setup(t)
	f.service("cart")
	p := f.planner()
	e := p.Inventory.Moves[0]
	f.must((&engine.Runner{}).Run(t.Context(), single1(p.steps(engine.Forward).Bridge(e))))
	cut := *p.Tools.Cluster
	edit := func() {
		svc := f.get("cart")
		svc.Spec.Ports[0].TargetPort = intstr.FromInt32(9090)
		f.must(server.Update(context.Background(), svc))
	}
	cut.WithWatch = &editor{WithWatch: server.WithWatch, edit: edit}
	p.Tools.Cluster = &cut
	f.must((&engine.Runner{}).Run(t.Context(), single1(p.steps(engine.Forward).Hop(e, engine.Forward))))
	if b := f.get(e.BridgeKey().Name); b.Spec.Ports[0].TargetPort.IntValue() != 9090 {
		t.Errorf("the bridge did not follow: %+v", b.Spec.Ports)
	}
	is := f.get("cart")
	if is.Spec.Ports[0].TargetPort.IntValue() != 9090 || !strings.HasPrefix(is.Spec.ClusterIP, "172.24.") {
		t.Errorf("is %+v", is.Spec)
	}
}

// editor lets another client write right before the first patch.
type editor struct {
	client.WithWatch
	edit func()
	once sync.Once
}

func (c *editor) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	if !triesPatch(opts) {
		c.once.Do(c.edit)
	}
	return c.WithWatch.Patch(ctx, o, p, opts...)
}

func TestBarrierNamesTheNodeThatHasNotAnswered(t *testing.T) {
	f := setup(t)
	f.node("a", "192.0.2.1")
	f.node("deaf", "192.0.2.2")
	was := f.service("cart")
	p := f.planner()
	f.probe.deaf = map[string]bool{"deaf": true}
	b := p.barriers(engine.Forward).Proof("batch 1 of 1")
	b.Limit = 3 * time.Second
	err := (&engine.Runner{}).Run(t.Context(), single1(b))
	if err == nil || !strings.Contains(err.Error(), "deaf") || strings.Contains(err.Error(), "node a,") {
		t.Errorf("got %v", err)
	}
	if is := f.get("cart"); is.ResourceVersion != was.ResourceVersion {
		t.Error("the Service was written")
	}
}

// triesPatch says of a patch's options that it is a dry run.
func triesPatch(opts []client.PatchOption) bool {
	all := &client.PatchOptions{}
	all.ApplyOptions(opts)
	return len(all.DryRun) > 0
}
