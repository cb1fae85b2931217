package ranges

import (
	"net/netip"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// rangeOf is a ServiceCIDR of the cluster's own.
func rangeOf(name string, cidrs ...string) networkingv1.ServiceCIDR {
	return networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}

// notedOf is the ServiceCIDR by which the migration keeps a range of the other family, and notes
// what the one had that it is from.
func notedOf(name, kept, was string) networkingv1.ServiceCIDR {
	c := rangeOf("m-keep-of-"+name, kept)
	c.Labels = map[string]string{v1alpha1.LabelMigration: "m", v1alpha1.LabelRole: v1alpha1.RoleKeep}
	c.Annotations = map[string]string{v1alpha1.AnnotationRanges: was}
	return c
}

// TestDefaultsOfBothFamilies has the default ServiceCIDR of both families before, in and after a
// move, in either family and order. What it is to be keeps the range of the other family and the
// order of both, and what it was is known wherever a run was killed.
func TestDefaultsOfBothFamilies(t *testing.T) {
	const four, six, newFour, newSix = "10.96.0.0/16", "fd00:10:96::/112", "10.97.0.0/16", "fd00:10:97::/112"
	const both, sixFirst = four + "," + six, six + "," + four
	whole, going := rangeOf(DefaultRange, four, six), rangeOf(DefaultRange, four, six)
	going.DeletionTimestamp = &metav1.Time{}
	type cidrs []networkingv1.ServiceCIDR
	for name, tt := range map[string]struct {
		has      cidrs
		from, to string
		stay     bool
		// apart is what a ServiceCIDR of its own keeps while the default one goes.
		was, becomes, apart string
		moves               bool
	}{
		"before":              {has: cidrs{whole}, to: newFour, was: both, becomes: newFour + "," + six, apart: six},
		"the second family":   {has: cidrs{whole}, to: newSix, was: both, becomes: four + "," + newSix, apart: four},
		"six first":           {has: cidrs{rangeOf(DefaultRange, six, four)}, to: newFour, was: sixFirst, becomes: six + "," + newFour, apart: six},
		"they stay":           {has: cidrs{whole}, to: newFour, stay: true},
		"kept apart":          {has: cidrs{whole, notedOf(DefaultRange, six, both)}, from: four, to: newFour, was: both, becomes: newFour + "," + six, apart: six, moves: true},
		"going":               {has: cidrs{going, notedOf(DefaultRange, six, both)}, from: four, to: newFour, was: both, becomes: newFour + "," + six, apart: six, moves: true},
		"gone":                {has: cidrs{notedOf(DefaultRange, six, both)}, from: four, to: newFour, was: both, becomes: newFour + "," + six, moves: true},
		"gone, second family": {has: cidrs{notedOf(DefaultRange, four, sixFirst)}, from: six, to: newSix, was: sixFirst, becomes: newSix + "," + four, moves: true},
		"made again": {
			has: cidrs{rangeOf(DefaultRange, newFour, six), notedOf(DefaultRange, six, both)}, from: four, to: newFour,
			was: both, becomes: newFour + "," + six, moves: true,
		},
		"another's range is kept": {has: cidrs{rangeOf(DefaultRange, "10.98.0.0/16", "fd00:10:98::/112"), notedOf("old", six, both)}, from: four, to: newFour},
		"one family":              {has: cidrs{rangeOf(DefaultRange, four)}, to: newFour, was: four, becomes: newFour},
		"more than is named":      {has: cidrs{whole}, from: "10.96.8.0/24", to: newFour},
		"not the default one":     {has: cidrs{rangeOf("old", four, six)}, to: newFour, apart: six},
	} {
		spec := services.Spec{Name: "m", Mode: v1alpha1.ModeMove, To: parsePrefixes(tt.to), ClusterServices: v1alpha1.ClusterServicesMove}
		if tt.from != "" {
			spec.From = parsePrefixes(tt.from)
		}
		if tt.stay {
			spec.ClusterServices = v1alpha1.ClusterServicesStay
		}
		s := services.Load(&inventory.Snapshot{ServiceCIDRs: tt.has}, spec)
		was, becomes, moves := DefaultRanges(s)
		if FlagText(was) != tt.was || FlagText(becomes) != tt.becomes || moves != tt.moves {
			t.Errorf("%s: was %q, becomes %q, moves %v", name, FlagText(was), FlagText(becomes), moves)
		}
		var apart []string
		for _, a := range (&RangePlan{Inventory: s}).aparts() {
			apart = append(apart, a.Cidr.String())
		}
		if strings.Join(apart, " ") != tt.apart {
			t.Errorf("%s: keeps %v apart", name, apart)
		}
	}
}

// TestDefaultIsLookedAtUntilItIsWhole has apply wait for the default ServiceCIDR of both families
// also where one was made that is another, which a run that was ended by that would else pass over.
func TestDefaultIsLookedAtUntilItIsWhole(t *testing.T) {
	kept := notedOf(DefaultRange, "fd00:10:96::/112", "10.96.0.0/16,fd00:10:96::/112")
	for name, tt := range map[string]struct {
		has  []networkingv1.ServiceCIDR
		want bool
	}{
		"none":         {[]networkingv1.ServiceCIDR{kept}, true},
		"one family":   {[]networkingv1.ServiceCIDR{kept, rangeOf(DefaultRange, "10.97.0.0/16")}, true},
		"others":       {[]networkingv1.ServiceCIDR{kept, rangeOf(DefaultRange, "10.97.0.0/16", "fd00:10:99::/112")}, true},
		"in its order": {[]networkingv1.ServiceCIDR{kept, rangeOf(DefaultRange, "10.97.0.0/16", "fd00:10:96::/112")}, false},
	} {
		spec := services.Spec{
			Name:            "m",
			Mode:            v1alpha1.ModeMove,
			From:            parsePrefixes("10.96.0.0/16"),
			To:              parsePrefixes("10.97.0.0/16"),
			ClusterServices: v1alpha1.ClusterServicesMove,
		}
		steps := 0
		for _, g := range (&RangePlan{Inventory: services.Load(&inventory.Snapshot{ServiceCIDRs: tt.has}, spec)}).Repoint() {
			steps += len(g.Steps)
		}
		if steps != map[bool]int{true: 1}[tt.want] {
			t.Errorf("%s: %d steps", name, steps)
		}
	}
}

// TestNewDefaultFits has the default ServiceCIDR of both families be what is wanted in both, and in
// their order.
func TestNewDefaultFits(t *testing.T) {
	both := parsePrefixes("10.97.0.0/16", "fd00::/112")
	for _, tt := range []struct {
		want, have []netip.Prefix
		fits       bool
	}{
		{both, parsePrefixes("10.97.0.0/16", "fd00::/112"), true},
		{both, parsePrefixes("fd00::/112", "10.97.0.0/16"), false},
		{both, parsePrefixes("10.97.0.0/16"), false},
		{both, parsePrefixes("10.97.0.0/16", "fd01::/112"), false},
		{parsePrefixes("10.97.0.0/16"), parsePrefixes("10.97.0.0/16"), true},
		{parsePrefixes("10.97.0.0/16", "10.98.0.0/16"), parsePrefixes("10.98.0.0/16"), true},
		{parsePrefixes("10.97.0.0/16"), nil, false},
	} {
		if got := (newDefault{want: tt.want}).fits(tt.have); got != tt.fits {
			t.Errorf("%v where %v is wanted: %v", tt.have, tt.want, got)
		}
	}
}

// TestGuidesOfBothFamilies has people be told the whole list of ranges, and to leave the cluster
// DNS address of the other family where it is.
func TestGuidesOfBothFamilies(t *testing.T) {
	both := parsePrefixes("10.97.0.0/16", "fd00:10:96::/112")
	kept := []netip.Addr{netip.MustParseAddr("fd00:10:96::a")}
	for _, d := range []inventory.Origin{
		{},
		{Distribution: inventory.Kubeadm},
		{Distribution: inventory.K3s},
		{Distribution: inventory.RKE2},
		{Distribution: inventory.KOps},
		{Distribution: inventory.Talos},
		{Distribution: inventory.EKS},
		{Distribution: inventory.Kubeadm, ClusterAPI: true},
	} {
		if guide := APIServerGuide(d, both); !strings.Contains(guide, "10.97.0.0/16,fd00:10:96::/112") || strings.Contains(guide, "%!") {
			t.Errorf("%v: %s", d, guide)
		}
		guide := KubeletGuide(d, "10.97.0.10", kept)
		if !strings.Contains(guide, "10.97.0.10") || !strings.Contains(guide, "names fd00:10:96::a as well") ||
			strings.Contains(guide, "%!") {
			t.Errorf("%v: %s", d, guide)
		}
		if strings.Contains(KubeletGuide(d, "10.97.0.10", nil), "as well goes on") {
			t.Errorf("%v tells of another family where there is none", d)
		}
	}
}

func parsePrefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}
