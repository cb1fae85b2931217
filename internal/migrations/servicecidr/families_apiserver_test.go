//go:build apiserver && long

package servicecidr

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/testing/apitest"
)

// bothRanges are those of an API server of both families.
const bothRanges = "10.96.0.0/16,fd00:10:96::/112"

// of gives a Service families.
func of(policy corev1.IPFamilyPolicy, families ...corev1.IPFamily) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = &policy, families }
}

// ofBothFamilies is a cluster of both families, whose Services move in one. kube-proxies are not
// asked: TestSentinelOfEachFamily does.
func ofBothFamilies(t *testing.T, both *apitest.Server, to string) (*fixture, []*corev1.Service) {
	t.Helper()
	f := setupOn(t, both, func(m *v1alpha1.Migration) {
		m.Spec.ServiceCIDR.To = []string{to}
		m.Spec.ServiceCIDR.Barrier = v1alpha1.BarrierSpec{Mode: v1alpha1.BarrierWait, Wait: &metav1.Duration{}}
	})
	dual := corev1.IPFamilyPolicyRequireDualStack
	was := []*corev1.Service{
		f.service("cart", of(dual, corev1.IPv4Protocol, corev1.IPv6Protocol)),
		f.service("six-first", of(dual, corev1.IPv6Protocol, corev1.IPv4Protocol)),
		f.service("outside", withoutSelector, of(dual, corev1.IPv4Protocol, corev1.IPv6Protocol)),
		f.service("ports", of(corev1.IPFamilyPolicyPreferDualStack), nodePort),
		f.service("four", of(corev1.IPFamilyPolicySingleStack, corev1.IPv4Protocol)),
		f.service("six", of(corev1.IPFamilyPolicySingleStack, corev1.IPv6Protocol)),
		f.service("headless", at("None"), of(dual, corev1.IPv4Protocol, corev1.IPv6Protocol)),
	}
	f.slice("outside", "192.0.2.7")
	return f, was
}

func bothFamiliesServer(t *testing.T) *apitest.Server {
	t.Helper()
	both, err := apitest.Run(bothRanges)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = both.Stop() })
	return both
}

// TestEitherFamilyMoves moves Services in one family and then the other, there and back. Each keeps
// its address of the other family, and the order of both; in its hop its bridge answers at all
// three, and afterwards at the one that was left.
func TestEitherFamilyMoves(t *testing.T) {
	both := bothFamiliesServer(t)
	for _, to := range []string{"10.97.0.0/16", "fd00:10:97::/112"} {
		t.Run(to, func(t *testing.T) {
			f, was := ofBothFamilies(t, both, to)
			wide := 0
			f.each(engine.StepStarted, func(e engine.Event) {
				for _, w := range was {
					if e.Step != "hop/shop/"+w.Name || len(w.Spec.ClusterIPs) < 2 {
						continue
					}
					wide++
					at := strings.Fields(f.answers(w))
					if len(at) != 3 || !slices.Contains(at, w.Spec.ClusterIPs[0]) || !slices.Contains(at, w.Spec.ClusterIPs[1]) {
						t.Errorf("before its hop the bridge of %s, at %v, answers on %v", w.Name, w.Spec.ClusterIPs, at)
					}
				}
			})
			f.apply()
			f.movedIn(to, was)
			f.must(f.rollback())
			for _, w := range was {
				is := f.get(w.Name)
				if !equality.Semantic.DeepEqual(w.Spec, is.Spec) || len(is.Annotations) > 0 {
					t.Errorf("rolled back to %+v with %v, from %+v", is.Spec, is.Annotations, w.Spec)
				}
			}
			f.nothingLeft()
			if wide != 4 {
				t.Errorf("saw %d hops of both families, want 4", wide)
			}
		})
	}
}

// movedIn fails unless Services have moved to a range, and kept all else.
func (f *fixture) movedIn(to string, was []*corev1.Service) {
	f.Helper()
	r := netip.MustParsePrefix(to)
	for _, w := range was {
		is := f.get(w.Name)
		f.sameButAddress(w, is)
		if len(is.Spec.ClusterIPs) != len(w.Spec.ClusterIPs) {
			f.Errorf("%s is at %v", w.Name, is.Spec.ClusterIPs)
			continue
		}
		for i, text := range w.Spec.ClusterIPs {
			old, err := netip.ParseAddr(text)
			if err != nil || old.Is4() != r.Addr().Is4() {
				if is.Spec.ClusterIPs[i] != text {
					f.Errorf("%s did not keep %s: it is at %v", w.Name, text, is.Spec.ClusterIPs)
				}
				continue
			}
			if now := netip.MustParseAddr(is.Spec.ClusterIPs[i]); !r.Contains(now) {
				f.Errorf("%s is at %v", w.Name, is.Spec.ClusterIPs)
			}
			f.answersAt(w, text)
			b := f.get(bridge.Name(w.Name, w.UID))
			if len(b.Spec.ClusterIPs) != len(w.Spec.ClusterIPs) {
				f.Errorf("the bridge of %s is at %v", w.Name, b.Spec.ClusterIPs)
			}
			if got, want := f.owner(text), "services shop/"+b.Name; got != want {
				f.Errorf("old address %s is owned by %q, want %q", text, got, want)
			}
		}
	}
}

// TestBothFamiliesFinish goes to the end.
func TestBothFamiliesFinish(t *testing.T) {
	f, was := ofBothFamilies(t, bothFamiliesServer(t), "fd00:10:97::/112")
	f.apply()
	f.movedIn("fd00:10:97::/112", was)
	f.must(f.finish())
	f.nothingLeft()
}

// TestSingleBecomesDualAndBack has users give Services a second family, and take one away, while
// both addresses of a move answer: what they have now goes back with them, and so does a Service
// that had changed before its first hop.
func TestSingleBecomesDualAndBack(t *testing.T) {
	f, _ := ofBothFamilies(t, bothFamiliesServer(t), "10.97.0.0/16")
	f.apply()
	becomes := func(name string, policy corev1.IPFamilyPolicy) {
		t.Helper()
		svc := f.get(name)
		svc.Spec.IPFamilyPolicy = &policy
		if policy == corev1.IPFamilyPolicySingleStack {
			svc.Spec.IPFamilies, svc.Spec.ClusterIPs = svc.Spec.IPFamilies[:1], svc.Spec.ClusterIPs[:1]
		}
		f.must(server.Update(t.Context(), svc))
	}
	becomes("four", corev1.IPFamilyPolicyPreferDualStack)
	becomes("cart", corev1.IPFamilyPolicySingleStack)
	f.again()
	f.apply()
	wide := map[string]int{}
	f.each(engine.StepStarted, func(e engine.Event) {
		for _, name := range []string{"four", "cart"} {
			if e.Step == "return/shop/"+name {
				wide[name] = len(strings.Fields(f.answers(f.get(name))))
			}
		}
	})
	four, cart := f.get("four"), f.get("cart")
	f.must(f.rollback())
	if wide["four"] != 3 || wide["cart"] != 2 {
		t.Errorf("before their hops bridges answer at %v addresses, want 3 of four and 2 of cart", wide)
	}
	for name, want := range map[string][]string{"four": four.Spec.ClusterIPs[1:], "cart": nil} {
		is := f.get(name)
		if !strings.HasPrefix(is.Spec.ClusterIP, "10.96.") || !slices.Equal(is.Spec.ClusterIPs[1:], want) {
			t.Errorf("%s is back at %v, and was to keep %v", name, is.Spec.ClusterIPs, want)
		}
	}
	if policy := f.get("cart").Spec.IPFamilyPolicy; *policy != *cart.Spec.IPFamilyPolicy {
		t.Errorf("cart is %s", *policy)
	}
	f.nothingLeft()
}

// TestKeptAddressSurvivesAKill ends a run between the patches, where the Service has no address:
// the next one brings both back.
func TestKeptAddressSurvivesAKill(t *testing.T) {
	both := bothFamiliesServer(t)
	for name, act := range map[string]func(*fixture) error{
		"apply":    func(f *fixture) error { _, err := f.job.Apply(t.Context(), f.runner); return err },
		"rollback": (*fixture).rollback,
	} {
		t.Run(name, func(t *testing.T) {
			f, was := ofBothFamilies(t, both, "10.97.0.0/16")
			cut := *f.job.Deps.Cluster
			cut.WithWatch = &killedInHop{WithWatch: server.WithWatch, name: "cart"}
			f.through(&cut, func() {
				if _, err := f.job.Apply(t.Context(), f.runner); err == nil {
					t.Fatal("the run got through")
				}
			})
			if !f.half(f.get("cart")) {
				t.Fatal("cart is not in the middle of a hop")
			}
			f.again()
			f.must(act(f))
			if is := f.get("cart"); is.Spec.ClusterIPs[1] != was[0].Spec.ClusterIPs[1] {
				t.Errorf("cart was at %v and is at %v", was[0].Spec.ClusterIPs, is.Spec.ClusterIPs)
			}
		})
	}
}

// familyThief makes a Service at an address as soon as another gives it up.
type familyThief struct {
	client.WithWatch
	name, address string
	stole         bool
}

func (c *familyThief) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	body, _ := p.Data(o)
	err := c.WithWatch.Patch(ctx, o, p, opts...)
	if err == nil && !c.stole && o.GetName() == c.name && !triesPatch(opts) && strings.Contains(string(body), `"type":"ExternalName"`) {
		c.stole = true
		return c.Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "thief"},
			Spec:       corev1.ServiceSpec{ClusterIP: c.address, Ports: []corev1.ServicePort{{Port: 80}}},
		})
	}
	return err
}

// TestKeptAddressIsTaken has another Service be given the address that is to be kept, between the
// patches. The run says who has it, and once that has gone the next one goes on.
func TestKeptAddressIsTaken(t *testing.T) {
	f, was := ofBothFamilies(t, bothFamiliesServer(t), "10.97.0.0/16")
	kept := was[0].Spec.ClusterIPs[1]
	robbed := *f.job.Deps.Cluster
	robbed.WithWatch = &familyThief{WithWatch: server.WithWatch, name: "cart", address: kept}
	f.on(engine.StepStarted, "hop/shop/cart", func() { f.runner.Deadline = 3 * time.Second }) // of that step alone
	f.through(&robbed, func() {
		_, err := f.job.Apply(t.Context(), f.runner)
		if err == nil || !strings.Contains(err.Error(), "cannot keep its address "+kept) || !strings.Contains(err.Error(), "shop/thief") {
			t.Fatalf("apply ended with %v", err)
		}
	})
	f.must(server.Delete(t.Context(), f.get("thief")))
	f.again()
	f.apply()
	f.movedIn("10.97.0.0/16", was)
}

// TestSentinelOfEachFamily looks at what a barrier asks nodes about where Services keep an address
// of the other family.
func TestSentinelOfEachFamily(t *testing.T) {
	f, _ := ofBothFamilies(t, bothFamiliesServer(t), "10.97.0.0/16")
	f.node("a", "192.0.2.1")
	f.planner() // opens the range
	b := &bridge.Barrier{
		Client: f.job.Deps.Cluster, Witness: bridge.HealthChecks{Probe: f.probe}, Migration: "m", Name: "x", Limit: time.Second,
		Pool: cidr.NewPool([]netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")}, nil), Also: corev1.IPv6Protocol,
	}
	f.must(b.Do(t.Context()))
	all := &corev1.ServiceList{}
	f.must(server.List(t.Context(), all, client.MatchingLabels{v1alpha1.LabelRole: v1alpha1.RoleSentinel}))
	var families []string
	for _, s := range all.Items {
		families = append(families, string(s.Spec.IPFamilies[0]))
		if len(s.Spec.IPFamilies) != 1 {
			t.Errorf("sentinel %s is of %v", s.Name, s.Spec.IPFamilies)
		}
	}
	slices.Sort(families)
	if !slices.Equal(families, []string{"IPv4", "IPv6"}) {
		t.Errorf("sentinels of %v", families)
	}
	f.must(b.Verify(t.Context()))
	if f.probe.asked != 2 {
		t.Errorf("kube-proxy was asked %d times", f.probe.asked)
	}
}
