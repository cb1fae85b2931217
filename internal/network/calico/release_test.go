//go:build apiserver && long

package calico_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
)

// lazy is shared by the tests of this package, which take blocks of different ranges.
var lazy = &apitest.Lazy{Range: "10.96.0.0/16", Options: []apitest.Option{apitest.Calico()}}

func TestMain(m *testing.M) { os.Exit(lazy.Main(m)) }

// block makes a block of node a with one address for each user, and returns its range.
func block(t *testing.T, c client.Client, cidr string, handles ...string) netip.Prefix {
	t.Helper()
	p := netip.MustParsePrefix(cidr)
	b := fakekubelet.NewBlock(p, "a")
	objects := []client.Object{fakekubelet.NewAffinity(p, "a"), b}
	for _, h := range handles {
		if _, err := fakekubelet.Assign(
			b,
			fakekubelet.User{Handle: h, Attributes: map[string]string{"namespace": "shop", "pod": h}},
		); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, fakekubelet.NewHandle(h, map[string]any{cidr: int64(1)}))
	}
	for _, o := range objects {
		if err := c.Create(t.Context(), o); client.IgnoreAlreadyExists(err) != nil {
			t.Fatal(err)
		}
	}
	return p
}

func exists(t *testing.T, c client.Client, kind, name string) bool {
	t.Helper()
	u := calico.Empty(kind, name)
	err := c.Get(t.Context(), client.ObjectKeyFromObject(u), u)
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return err == nil
}

func TestReleaseBlock(t *testing.T) {
	c := lazy.Get(t)
	p := block(t, c, "10.1.0.0/28")
	if err := calico.ReleaseBlock(t.Context(), c, p); err != nil {
		t.Fatal(err)
	}
	if exists(t, c, "IPAMBlock", fakekubelet.BlockName(p)) || exists(t, c, "BlockAffinity", "a-"+fakekubelet.BlockName(p)) {
		t.Error("something is left")
	}
	if err := calico.ReleaseBlock(t.Context(), c, p); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

func TestReleaseBlockInUse(t *testing.T) {
	c := lazy.Get(t)
	p := block(t, c, "10.2.0.0/28", "r1", "r2", "r3", "r4")
	err := calico.ReleaseBlock(t.Context(), c, p)
	var used *calico.InUseError
	if !errors.As(err, &used) || len(used.Allocations) != 4 {
		t.Fatalf("got %v", err)
	}
	if want := "block 10.2.0.0/28 is in use: 10.2.0.0 (pod shop/r1), 10.2.0.1 (pod shop/r2), 10.2.0.2 (pod shop/r3), and 1 more"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	if !exists(t, c, "IPAMBlock", fakekubelet.BlockName(p)) {
		t.Error("the block is gone")
	}
}

// meanwhile lets another client act right before the first write of a kind.
type meanwhile struct {
	client.Client
	kind string
	act  func()
}

func (m *meanwhile) before(o client.Object) {
	if act := m.act; act != nil && o.(*unstructured.Unstructured).GetKind() == m.kind {
		m.act = nil
		act()
	}
}

func (m *meanwhile) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	m.before(o)
	return m.Client.Delete(ctx, o, opts...)
}

func (m *meanwhile) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	m.before(o)
	return m.Client.Update(ctx, o, opts...)
}

// TestReleaseBlockMeetsAnAllocation: a node gives an address out between the look and the delete.
func TestReleaseBlockMeetsAnAllocation(t *testing.T) {
	c := lazy.Get(t)
	p := block(t, c, "10.3.0.0/28")
	books := &fakekubelet.Blocks{Client: c}
	err := calico.ReleaseBlock(t.Context(), &meanwhile{Client: c, kind: "IPAMBlock", act: func() {
		pools := []calico.Pool{{CIDR: p, Spec: calico.PoolSpec{BlockSize: 28}}}
		if _, err := books.Take(t.Context(), pools, fakekubelet.User{Node: "a", Handle: "late"}); err != nil {
			t.Error(err)
		}
	}}, p)
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "ipamblock 10-3-0-0-28") {
		t.Fatalf("got %v", err)
	}
	var used *calico.InUseError
	if err := calico.ReleaseBlock(t.Context(), c, p); !errors.As(err, &used) {
		t.Errorf("then: %v", err)
	}
}

// TestReleaseBlockTakesUpWhereKilled: the block is gone, the affinity is not.
func TestReleaseBlockTakesUpWhereKilled(t *testing.T) {
	c := lazy.Get(t)
	p := block(t, c, "10.4.0.0/28")
	killed := errors.New("killed")
	ctx, cancel := context.WithCancelCause(t.Context())
	err := calico.ReleaseBlock(ctx, &meanwhile{Client: c, kind: "BlockAffinity", act: func() {}}, p)
	if err != nil {
		t.Fatal(err)
	}
	p = block(t, c, "10.4.0.0/28")
	stop := &meanwhile{Client: c, kind: "IPAMBlock"}
	stop.act = func() { stop.kind, stop.act = "BlockAffinity", func() { cancel(killed) } }
	if err := calico.ReleaseBlock(ctx, stop, p); err == nil {
		t.Fatal("it was not killed")
	}
	if exists(t, c, "IPAMBlock", fakekubelet.BlockName(p)) || !exists(t, c, "BlockAffinity", "a-"+fakekubelet.BlockName(p)) {
		t.Fatal("it was not killed between block and affinity")
	}
	if err := calico.ReleaseBlock(t.Context(), c, p); err != nil || exists(t, c, "BlockAffinity", "a-"+fakekubelet.BlockName(p)) {
		t.Errorf("the affinity is left: %v", err)
	}
}

func TestFree(t *testing.T) {
	c := lazy.Get(t)
	p := block(t, c, "10.5.0.0/28", "F1", "F2")
	first, second := netip.MustParseAddr("10.5.0.0"), netip.MustParseAddr("10.5.0.1")
	if err := calico.Free(t.Context(), c, first, "another-handle"); err != nil {
		t.Fatal(err)
	}
	state, err := calico.Load(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if b := state.BlockAt(p); len(b.Allocations) != 2 {
		t.Fatalf("freed for another handle: %+v", b.Allocations)
	}
	for range 2 { // a second time is no harm
		if err := calico.Free(t.Context(), c, first, "F1"); err != nil {
			t.Fatal(err)
		}
	}
	if state, err = calico.Load(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	b := state.BlockAt(p)
	if len(b.Allocations) != 1 || b.Allocations[0].Addr != second || b.Allocations[0].Handle != "F2" {
		t.Errorf("left: %+v", b.Allocations)
	}
	if exists(t, c, "IPAMHandle", "f1") || !exists(t, c, "IPAMHandle", "f2") {
		t.Error("the wrong handles are left")
	}
	// Calico gives out the address that was freed again, after all others.
	free, _, err := unstructured.NestedSlice(b.Object.Object, "spec", "unallocated")
	if err != nil || len(free) != 15 || free[14] != int64(0) {
		t.Errorf("free: %v, %v", free, err)
	}
}

// TestFreeMeetsAnAllocation: the block changes between the look and the write.
func TestFreeMeetsAnAllocation(t *testing.T) {
	c := lazy.Get(t)
	p := block(t, c, "10.6.0.0/28", "G1")
	books := &fakekubelet.Blocks{Client: c}
	err := calico.Free(t.Context(), &meanwhile{Client: c, kind: "IPAMBlock", act: func() {
		pools := []calico.Pool{{CIDR: p, Spec: calico.PoolSpec{BlockSize: 28}}}
		if _, err := books.Take(t.Context(), pools, fakekubelet.User{Node: "a", Handle: "G2"}); err != nil {
			t.Error(err)
		}
	}}, p.Addr(), "G1")
	if !apierrors.IsConflict(err) {
		t.Fatalf("got %v", err)
	}
	if !exists(t, c, "IPAMHandle", "g1") {
		t.Error("the handle is gone though its address is not free")
	}
	if err := calico.Free(t.Context(), c, p.Addr(), "G1"); err != nil || exists(t, c, "IPAMHandle", "g1") {
		t.Errorf("then: %v", err)
	}
}

// TestFreeKeepsAHandleOfMore: a handle of addresses in several blocks, or of several in one, stays
// until the last.
func TestFreeKeepsAHandleOfMore(t *testing.T) {
	c := lazy.Get(t)
	p := block(t, c, "10.7.0.0/28")
	h := fakekubelet.NewHandle("wide", map[string]any{p.String(): int64(1), "10.8.0.0/28": int64(1)})
	if err := c.Create(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if err := calico.Free(t.Context(), c, p.Addr(), "wide"); err != nil || !exists(t, c, "IPAMHandle", "wide") {
		t.Errorf("the handle is gone: %v", err)
	}
}

func TestLoadWithoutCalico(t *testing.T) {
	bare := apitest.Start(t, "10.97.0.0/16")
	if _, err := calico.Load(t.Context(), bare); !errors.Is(err, calico.ErrAbsent) {
		t.Errorf("got %v", err)
	}
}
