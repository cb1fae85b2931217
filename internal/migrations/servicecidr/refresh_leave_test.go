//go:build apiserver && long

package servicecidr

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr/hop"
	"github.com/replumb/replumb/internal/network/bridge"
)

// witnesses keep what sentinels ask to forget, and answer for all nodes, or for none.
type witnesses struct {
	silent bool
	asked  []string
}

func (w *witnesses) Behind(_ context.Context, sentinel *corev1.Service, nodes []string) []string {
	w.asked = append(w.asked, sentinel.Annotations[v1alpha1.AnnotationForget])
	if w.silent {
		return nodes
	}
	return nil
}

// TestNodesForgetPods: agents are asked to forget a pod that has left its Services. Without them,
// and on the way back where they are silent, nodes are given time, and end it themselves after it.
func TestNodesForgetPods(t *testing.T) {
	f := setup(t)
	f.node("a", "192.0.2.1")
	f.service("cart")
	p := f.planner()
	pod := []netip.Addr{netip.MustParseAddr("10.244.0.4")}
	const named = "10.244.0.4"
	for name, tt := range map[string]struct {
		agents, back, silent bool
		// left and parted are what the sentinels asked to forget, until the pod had left, and after
		// it.
		left, parted []string
		rested       bool
	}{
		"agents":                           {agents: true, left: []string{named}},
		"no agents":                        {left: []string{""}, parted: []string{"", ""}, rested: true},
		"the way back":                     {agents: true, back: true, left: []string{named}},
		"the way back with silent agents":  {agents: true, back: true, silent: true, left: []string{named, "", ""}, rested: true},
		"the way there with silent agents": {agents: true, silent: true, left: []string{named}},
	} {
		all, alone := &witnesses{}, &witnesses{silent: tt.silent}
		b := p.barriers(engine.Forward)
		b.Limit = time.Second
		b.Witness = all
		if tt.agents {
			b.Agents, b.Witness = alone, alone
		}
		if tt.back {
			b.Witness = bridge.Either{First: alone, Second: all}
		}
		now, began := time.Now(), time.Now()
		b.Now = func() time.Time {
			now = now.Add(hop.RestFor / 2)
			return now
		}
		err := b.Leave(t.Context(), "cart-1", pod)
		if fails := tt.silent && !tt.back; (err != nil) != fails {
			t.Errorf("%s: %v", name, err)
		}
		all.asked = slices.Compact(append(slices.Compact(alone.asked), all.asked...))
		if want := slices.Compact(slices.Clone(tt.left)); !slices.Equal(all.asked, want) {
			t.Errorf("%s: sentinels asked to forget %q, want %q", name, all.asked, want)
		}
		if rested := now.Sub(began) >= hop.RestFor; rested != tt.rested {
			t.Errorf("%s: nodes were given time: %v", name, rested)
		}
		all.asked = nil
		f.must(b.Part(t.Context(), "cart-1"))
		if len(all.asked) != len(tt.parted) {
			t.Errorf("%s: %d barriers before it ends, want %d", name, len(all.asked), len(tt.parted))
		}
	}
}
