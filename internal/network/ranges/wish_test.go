package ranges

import (
	"fmt"
	"testing"
)

func TestWishes(t *testing.T) {
	for _, tt := range []struct {
		name  string
		all   []string
		sizes Sizes
		want  string
	}{
		{"as it is", []string{"Services 10.96.0.0/16", "pods 10.244.0.0/14"}, Sizes{}, "Services/16 pods/14"},
		{
			"both families",
			[]string{"Services 10.96.0.0/16", "Services fd00::/108", "pods 10.244.0.0/16", "pods fd01::/56"},
			Sizes{},
			"Services/16 Services/108 pods/16 pods/56",
		},
		{
			"asked for",
			[]string{"Services 10.96.0.0/16", "pods 10.244.0.0/16"},
			Sizes{Services: []int{20}, Pods: []int{56, 12}},
			"Services/20 pods/12 pods/56",
		},
		{"of no known size", []string{"Services 10.96.0.0/16", "pods 172.20.0.8/31 172.20.0.8"}, Sizes{}, "Services/16 pods/0"},
		{"of no known size, asked for", []string{"pods 172.20.0.8/31 172.20.0.8"}, Sizes{Services: []int{16}, Pods: []int{16}}, "Services/16 pods/16"},
		{"too wide", []string{"Services 10.0.0.0/8", "pods fd00::/30"}, Sizes{}, "Services/9 Services/0 pods/0 pods/33"},
		{"nodes alone", []string{"nodes 192.0.2.1/32 192.0.2.1"}, Sizes{}, ""},
	} {
		all := []Range{of(t, "b", "Services 10.0.0.0/12"), of(t, "b", "pods fd05::/40")}
		for _, text := range tt.all {
			all = append(all, of(t, "a", text))
		}
		got := ""
		for _, w := range Wishes("a", "seed", all, tt.sizes) {
			got += fmt.Sprintf(" %s/%d", w.Use, w.Bits)
			if w.Cluster != "a" || w.Seed != "seed" || w.Bits != 0 && w.IPv6 != IPv6Size(w.Bits) {
				t.Errorf("%s: %+v", tt.name, w)
			}
		}
		if got != "" {
			got = got[1:]
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
