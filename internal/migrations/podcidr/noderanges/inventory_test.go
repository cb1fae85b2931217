package noderanges

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/network/nodeipam"
	"github.com/replumb/replumb/internal/spec"
)

// carrying is a Node with a range; original is the one it had before, if that is another.
func carrying(name, has, original string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if has != "" {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = has, []string{has}
	}
	if original != "" {
		n.Annotations = map[string]string{v1alpha1.AnnotationPodCIDRs: original}
	}
	return n
}

func found(to string, nodes ...corev1.Node) *podmove.Inventory {
	s := &podmove.Inventory{Nodes: nodes, Workloads: &rollout.State{}}
	s.Spec.To = []netip.Prefix{netip.MustParsePrefix(to)}
	return s
}

// TestNew meets a migration half way: one node has moved, one has not, one joined without a range,
// and one is gone while it is recreated.
func TestNew(t *testing.T) {
	gone := carrying("d", "10.244.3.0/24", "")
	s, err := New(
		found("10.245.0.0/16",
			carrying("a", "10.245.0.0/24", "10.244.0.0/24"), carrying("b", "10.244.1.0/24", ""), carrying("c", "", "")),
		Sources{Saved: map[string]*nodeipam.SavedNode{"d": {Node: &gone}}, Configured: netip.MustParsePrefix("10.244.0.0/16")},
	)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Spec.From; len(got) != 1 || got[0].String() != "10.244.0.0/16" {
		t.Errorf("from %v", got)
	}
	for i, want := range []struct{ name, original, target string }{
		{"a", "10.244.0.0/24", "10.245.0.0/24"},
		{"b", "10.244.1.0/24", "10.245.1.0/24"},
		{"c", "10.244.2.0/24", "10.245.2.0/24"},
		{"d", "10.244.3.0/24", "10.245.3.0/24"},
	} {
		r := s.NodeRanges[i]
		if r.Node.Name != want.name || !slices.Equal(r.Original, []string{want.original}) ||
			!slices.Equal(r.Target, []string{want.target}) {
			t.Errorf("%s: from %v to %v, want %+v", r.Node.Name, r.Original, r.Target, want)
		}
	}
	if r := s.NodeRanges[3]; !r.Gone || !r.Kept {
		t.Errorf("the node that is gone: %+v", r)
	}
	if got := names(s.Outstanding(forward)); !slices.Equal(got, []string{"Node b", "Node c", "Node d"}) {
		t.Errorf("to be moved: %v", got)
	}
	if got := names(s.Outstanding(backward)); !slices.Equal(got, []string{"Node a", "Node c", "Node d"}) {
		t.Errorf("to be moved back: %v", got)
	}
	if got := s.Ranges(); s.Switched() || len(got) != 1 || got[0].Place != podmove.PositionBoth {
		t.Errorf("switched %v, ranges %+v", s.Switched(), got)
	}
}

// TestNodesAreBelievedAsFarAsTheyHarmNoOther: a kubelet may write on its own Node which range it
// had.
func TestNodesAreBelievedAsFarAsTheyHarmNoOther(t *testing.T) {
	for name, claim := range map[string]string{
		"the range of a node that has not moved": "10.244.1.0/24", "the range of one that has": "10.244.2.0/24",
		"a range of others": "192.0.2.0/24", "a wide one": "10.244.0.0/16", "another size": "10.244.128.0/20", "none": "everything",
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(found("10.245.0.0/16",
				carrying("a", "10.245.0.0/24", claim), carrying("b", "10.244.1.0/24", ""), carrying("c", "10.245.2.0/24", "10.244.2.0/24")),
				Sources{Configured: netip.MustParsePrefix("10.244.0.0/16")})
			if err != nil {
				t.Fatal(err)
			}
			seen := map[string]bool{}
			for _, r := range s.NodeRanges {
				p, err := netip.ParsePrefix(r.Original[0])
				if err != nil || seen[r.Original[0]] || p.Bits() != 24 || !netip.MustParsePrefix("10.244.0.0/16").Contains(p.Addr()) {
					t.Errorf("node %s gets %v back", r.Node.Name, r.Original)
				}
				seen[r.Original[0]] = true
			}
			if !s.NodeRanges[0].Doubted || !slices.Equal(s.NodeRanges[1].Original, []string{"10.244.1.0/24"}) {
				t.Errorf("%+v", s.NodeRanges)
			}
		})
	}
}

func TestPlace(t *testing.T) {
	for _, tt := range []struct {
		has  string
		want podmove.Position
	}{{"10.244.0.0/24", podmove.PositionOld}, {"10.245.0.0/24", podmove.PositionNew}} {
		s, err := New(found("10.245.0.0/16", carrying("a", tt.has, "10.244.0.0/24")), Sources{})
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Ranges()[0].Place; got != tt.want {
			t.Errorf("a node with %s: %s, want %s", tt.has, got, tt.want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	stray := found("10.245.0.0/16", carrying("a", "10.244.0.0/24", ""))
	stray.Workloads.Pods = []corev1.Pod{{Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.9.0.1"}}}}}
	two := found("10.245.0.0/16", carrying("a", "10.244.0.0/24", ""))
	two.Spec.To = append(two.Spec.To, netip.MustParsePrefix("10.246.0.0/16"))
	for _, tt := range []struct {
		name, field string
		survey      *podmove.Inventory
	}{
		{"two targets", "spec.podCIDR.to", two},
		{"no ranges at all", "spec.podCIDR", found("10.245.0.0/16", carrying("a", "", ""))},
		{
			"ranges of different sizes", "spec.podCIDR.blockSize",
			found("10.245.0.0/16", carrying("a", "10.244.0.0/24", ""), carrying("b", "10.244.2.0/23", "")),
		},
		{
			"a target that is too small", "spec.podCIDR.to",
			found("10.245.0.0/24", carrying("a", "10.244.0.0/24", ""), carrying("b", "10.244.1.0/24", "")),
		},
		{"a pod of another range", "spec.podCIDR", stray},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := New(tt.survey, Sources{})
			var wrong *spec.Error
			if !errors.As(err, &wrong) || wrong.Field != tt.field || wrong.Hint == "" {
				t.Errorf("got %v, want an error about %s", err, tt.field)
			}
		})
	}
}
