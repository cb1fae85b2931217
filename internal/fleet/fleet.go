// Package fleet runs one migration over many clusters, in waves, with a replumb of its own for each
// cluster.
package fleet

import (
	"slices"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Kind of the document that Parse reads. No cluster knows it: only the command reads it.
const Kind = "Fleet"

// Fleet is one migration for many clusters.
type Fleet struct {
	Name string
	Spec Spec
	// Dir is the folder that relative paths in it are relative to.
	Dir string
}

// Spec is what the file says.
type Spec struct {
	Migration string    `json:"migration"`
	Clusters  []Cluster `json:"clusters"`
	Waves     []Wave    `json:"waves"`
	// Health is called after each wave and its soak. If it fails, no further wave begins.
	Health *v1alpha1.Action `json:"health,omitempty"`
	// OverlapPolicy Allow accepts target ranges that overlap those of another cluster. Default:
	// Refuse.
	Overlap OverlapPolicy `json:"overlap,omitempty"`
}

// OverlapPolicy is what becomes of target ranges that two clusters share.
type OverlapPolicy string

// The ways to take overlaps.
const (
	OverlapRefuse OverlapPolicy = "Refuse"
	OverlapAllow  OverlapPolicy = "Allow"
)

// Cluster is one of the fleet.
type Cluster struct {
	Name string `json:"name"`
	// Context of the kubeconfig.
	Context string `json:"context"`
	// Kubeconfig is a file of its own. Default: that of the command line, or the environment.
	Kubeconfig string         `json:"kubeconfig,omitempty"`
	With       map[string]any `json:"with,omitempty"`
}

// Wave is clusters that migrate before the next wave begins.
type Wave struct {
	Name     string   `json:"name"`
	Clusters []string `json:"clusters"`
	// Parallel is how many of them migrate at the same time. Default: 1.
	Parallel int `json:"parallel,omitempty"`
	// Soak is how long nothing further begins once the last of them is through, such as 30m.
	Soak string `json:"soak,omitempty"`

	soak time.Duration
}

// Pick is the fleet with the named waves and clusters alone; no names are all. Empty waves are left
// out.
func (f *Fleet) Pick(waves, clusters []string) *Fleet {
	picked := *f
	picked.Spec.Waves, picked.Spec.Clusters = nil, nil
	for _, w := range f.Spec.Waves {
		if !among(waves, w.Name) {
			continue
		}
		var members []string
		for _, name := range w.Clusters {
			if among(clusters, name) {
				members = append(members, name)
				picked.Spec.Clusters = append(picked.Spec.Clusters, *f.cluster(name))
			}
		}
		if w.Clusters = members; len(members) > 0 {
			picked.Spec.Waves = append(picked.Spec.Waves, w)
		}
	}
	return &picked
}

func among(names []string, name string) bool { return len(names) == 0 || slices.Contains(names, name) }

func (f *Fleet) cluster(name string) *Cluster {
	for i := range f.Spec.Clusters {
		if f.Spec.Clusters[i].Name == name {
			return &f.Spec.Clusters[i]
		}
	}
	return nil
}

// WaveOf is the name of the wave that a cluster is in.
func (f *Fleet) WaveOf(cluster string) string {
	for _, w := range f.Spec.Waves {
		if slices.Contains(w.Clusters, cluster) {
			return w.Name
		}
	}
	return ""
}
