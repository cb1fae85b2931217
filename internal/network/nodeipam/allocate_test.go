package nodeipam

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"
)

func TestAllocate(t *testing.T) {
	p := netip.MustParsePrefix
	from := []netip.Prefix{p("10.244.0.0/16")}
	for _, test := range []struct {
		name  string
		nodes []RangeHolder
		from  []netip.Prefix
		to    string
		bits  int
		want  map[string]string
	}{
		{
			name: "nodes keep their place", to: "10.245.0.0/16", bits: 24, from: from,
			nodes: []RangeHolder{{"b", p("10.244.0.0/24")}, {"a", p("10.244.7.0/24")}},
			want:  map[string]string{"a": "10.245.7.0/24", "b": "10.245.0.0/24"},
		},
		{
			name: "what has arrived stays, and its place is taken", to: "10.245.0.0/16", bits: 24, from: from,
			nodes: []RangeHolder{{"a", p("10.244.1.0/24")}, {"b", p("10.245.1.0/24")}},
			want:  map[string]string{"a": "10.245.0.0/24", "b": "10.245.1.0/24"},
		},
		{
			name: "a place beyond the end", to: "10.245.0.0/22", bits: 24, from: from,
			nodes: []RangeHolder{{"a", p("10.244.4.0/24")}, {"b", p("10.244.3.0/24")}},
			want:  map[string]string{"a": "10.245.0.0/24", "b": "10.245.3.0/24"},
		},
		{
			name: "another size", to: "10.245.0.0/16", bits: 26, from: from,
			nodes: []RangeHolder{{"a", p("10.244.0.0/24")}, {"b", p("10.244.1.0/24")}},
			want:  map[string]string{"a": "10.245.0.0/26", "b": "10.245.0.64/26"},
		},
		{
			name: "a node without a range", to: "10.245.0.0/16", bits: 24, from: from,
			nodes: []RangeHolder{{"a", netip.Prefix{}}, {"b", p("10.244.0.0/24")}},
			want:  map[string]string{"a": "10.245.1.0/24", "b": "10.245.0.0/24"},
		},
		{
			name: "too many", to: "10.245.0.0/24", bits: 24, from: from,
			nodes: []RangeHolder{{"a", p("10.244.0.0/24")}, {"b", p("10.244.1.0/24")}},
		},
		{name: "too large", to: "10.245.0.0/24", bits: 23, nodes: []RangeHolder{{"a", p("10.244.0.0/23")}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := Allocate(test.nodes, test.from, p(test.to), test.bits)
			if test.want == nil {
				if err == nil {
					t.Fatalf("gives %v, where there is not enough", got)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			text := map[string]string{}
			for name, r := range got {
				text[name] = r.String()
			}
			if !reflect.DeepEqual(text, test.want) {
				t.Errorf("got %v, want %v", text, test.want)
			}
		})
	}
}

// TestAllocateManyTimes moves node by node, as a migration that is killed before each does: no
// node's range changes.
func TestAllocateManyTimes(t *testing.T) {
	from, to := netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.64.0.0/18")
	var nodes []RangeHolder
	for i := range 64 {
		nodes = append(nodes, RangeHolder{Name: fmt.Sprintf("n%03d", i), Has: netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", 3*i))})
	}
	first, err := Allocate(nodes, []netip.Prefix{from}, to, 24)
	if err != nil {
		t.Fatal(err)
	}
	for i := range nodes {
		again, err := Allocate(nodes, []netip.Prefix{from}, to, 24)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(first, again) {
			t.Fatalf("after %d nodes: %v, and first %v", i, again, first)
		}
		nodes[i].Has = again[nodes[i].Name]
	}
}

func TestCover(t *testing.T) {
	p := netip.MustParsePrefix
	for want, of := range map[string][]netip.Prefix{
		"10.244.0.0/23": {p("10.244.0.0/24"), p("10.244.1.0/24")},
		"10.244.0.0/21": {p("10.244.6.0/24"), p("10.244.1.0/24"), p("10.244.0.0/22")},
		"10.244.3.0/24": {p("10.244.3.0/24")},
	} {
		if got := Cover(of); got.String() != want {
			t.Errorf("%v: %s, want %s", of, got, want)
		}
	}
}

// TestAllocateLast: from the end, whatever is taken there, and what has arrived stays.
func TestAllocateLast(t *testing.T) {
	p := netip.MustParsePrefix
	for _, test := range []struct {
		nodes []RangeHolder
		to    string
		bits  int
		want  string // or what the error says
	}{
		{
			nodes: []RangeHolder{{"b", p("10.244.0.0/24")}, {"a", p("10.244.7.0/24")}, {"c", p("10.245.3.0/24")}, {Name: "d"}},
			to:    "10.245.0.0/16", bits: 24, want: "map[a:10.245.255.0/24 b:10.245.254.0/24 c:10.245.3.0/24 d:10.245.253.0/24]",
		},
		{
			nodes: []RangeHolder{{"a", p("10.245.3.128/25")}, {Name: "b"}, {Name: "c"}},
			to:    "10.245.0.0/22", bits: 24, want: "map[a:10.245.3.128/25 b:10.245.2.0/24 c:10.245.1.0/24]",
		},
		{nodes: []RangeHolder{{Name: "a"}, {Name: "b"}, {Name: "c"}}, to: "10.245.0.0/23", bits: 24, want: "10.245.0.0/23 has no range of /24 left for node c"},
		{nodes: []RangeHolder{{Name: "a"}}, to: "10.245.0.0/24", bits: 23, want: "a range of /23 for each node is larger than 10.245.0.0/24"},
	} {
		got, err := AllocateLast(test.nodes, p(test.to), test.bits)
		if said := fmt.Sprint(got); err == nil && said != test.want || err != nil && err.Error() != test.want {
			t.Errorf("%v in %s: %s, %v, want %s", test.nodes, test.to, said, err, test.want)
		}
	}
}
