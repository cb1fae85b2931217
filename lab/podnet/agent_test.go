package main

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// inMemory is a table without a kernel.
type inMemory map[netip.Prefix]netip.Addr

func (m inMemory) list() (map[netip.Prefix]netip.Addr, error) { return maps.Clone(m), nil }
func (m inMemory) remove(to netip.Prefix) error               { delete(m, to); return nil }
func (m inMemory) set(to netip.Prefix, via netip.Addr) error  { m[to] = via; return nil }

func TestNodeIsRecreatedWithAnotherRange(t *testing.T) {
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	routes := inMemory{}
	var used []netip.Addr
	a := &agent{
		node: "here", config: filepath.Join(t.TempDir(), "net.d", "10-lab.conflist"), log: slog.New(slog.DiscardHandler),
		table: routes, nodes: listers.NewNodeLister(nodes), since: staleTimes{},
		pods: func(context.Context) ([]netip.Addr, error) { return used, nil },
	}
	start := time.Now()
	look := func(after time.Duration) {
		t.Helper()
		if err := a.reconcile(t.Context(), start.Add(after)); err != nil {
			t.Fatal(err)
		}
	}
	has := func(to string) bool { _, ok := routes[netip.MustParsePrefix(to)]; return ok }
	config := func() string { text, _ := os.ReadFile(a.config); return string(text) }
	set := func(name, podCIDR, address string) {
		_ = nodes.Add(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDR: podCIDR},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}},
		})
	}

	set("here", "10.1.0.0/24", "192.168.0.1")
	set("there", "10.1.1.0/24", "192.168.0.2")
	look(0)
	if !has("10.1.1.0/24") || has("10.1.0.0/24") || !strings.Contains(config(), "10.1.0.0/24") {
		t.Fatalf("at the start: routes %v, configuration %s", routes, config())
	}

	for _, name := range []string{"here", "there"} {
		_ = nodes.Delete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	used = []netip.Addr{netip.MustParseAddr("10.1.1.7")}
	look(time.Hour)
	if !has("10.1.1.0/24") || !strings.Contains(config(), "10.1.0.0/24") {
		t.Errorf("while the Nodes are gone: routes %v, configuration %s", routes, config())
	}

	set("here", "10.2.0.0/24", "192.168.0.1")
	set("there", "10.2.1.0/24", "192.168.0.2")
	look(2 * time.Hour)
	if !has("10.1.1.0/24") || !has("10.2.1.0/24") || !strings.Contains(config(), "10.2.0.0/24") {
		t.Errorf("with new ranges: routes %v, configuration %s", routes, config())
	}

	used = nil
	look(3 * time.Hour)
	if has("10.1.1.0/24") || !has("10.2.1.0/24") {
		t.Errorf("when nothing has an old address: routes %v", routes)
	}
}

// TestLeftForAnotherNetwork: what was removed from a node that has another network does not come back; what was never there is written.
func TestLeftForAnotherNetwork(t *testing.T) {
	dir := t.TempDir()
	a := &agent{config: filepath.Join(dir, "10-lab.conflist"), log: slog.New(slog.DiscardHandler)}
	other := filepath.Join(dir, "10-calico.conflist")
	ranges := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}
	written := func() bool {
		t.Helper()
		if err := a.configure(ranges); err != nil {
			t.Fatal(err)
		}
		_, err := os.Stat(a.config)
		return err == nil
	}
	if !written() {
		t.Error("nothing was written to an empty folder")
	}
	if err := os.WriteFile(other, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !written() {
		t.Error("the configuration went when another came")
	}
	if err := os.Remove(a.config); err != nil {
		t.Fatal(err)
	}
	if written() {
		t.Error("it was written again beside another")
	}
}
