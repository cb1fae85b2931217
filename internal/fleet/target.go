package fleet

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/spec"
)

// ClusterTarget is a cluster with the Migration that is for it.
type ClusterTarget struct {
	Cluster
	Wave string
	// Manifest is the Migration as JSON, and Dir the folder that relative paths in it are from.
	Manifest []byte
	Dir      string
	// Migration is the same, read.
	Migration *v1alpha1.Migration
	// Ranges are those that the Migration takes for Services and pods.
	Ranges []netip.Prefix
}

// Targets renders the Migration of a fleet for each cluster. It fails for the first faulty cluster,
// and for ranges that two clusters would share.
func (f *Fleet) Targets() ([]*ClusterTarget, error) {
	body, err := os.ReadFile(f.Spec.Migration)
	if err != nil {
		return nil, &spec.Error{Field: "spec.migration", Problem: oneLine(err), Hint: "name a file from the folder of the Fleet"}
	}
	return f.targets(spec.Source{Name: filepath.Base(f.Spec.Migration), Body: body, Dir: filepath.Dir(f.Spec.Migration)})
}

func (f *Fleet) targets(s spec.Source) ([]*ClusterTarget, error) {
	body, err := single(s, "Migration")
	if err != nil {
		return nil, spec.About("spec.migration", err)
	}
	base := map[string]any{}
	if err := utiljson.Unmarshal(body, &base); err != nil {
		return nil, &spec.Error{Field: "spec.migration", Problem: "holds no object", Hint: s.Name + " must hold one Migration"}
	}
	var all []*ClusterTarget
	for _, c := range f.Spec.Clusters {
		t, err := f.target(c, base, s.Dir)
		if err != nil {
			return nil, spec.About("cluster "+c.Name, err)
		}
		all = append(all, t)
	}
	if f.Spec.Overlap == OverlapAllow {
		return all, nil
	}
	return all, refuse(overlaps(all))
}

func (f *Fleet) target(c Cluster, base map[string]any, dir string) (*ClusterTarget, error) {
	manifest, err := rendered(base, c.With)
	if err != nil {
		return nil, err
	}
	m, err := spec.Read(spec.Source{Name: "the Migration", Body: manifest, Dir: dir})
	if err != nil {
		return nil, err
	}
	if m.Annotations[v1alpha1.AnnotationCluster] != "" {
		return nil, &spec.Error{
			Field: "metadata.annotations", Problem: v1alpha1.AnnotationCluster + " binds it to one cluster",
			Hint: "remove the annotation from the file: each cluster's Migration is bound when it begins",
		}
	}
	return &ClusterTarget{Cluster: c, Wave: f.WaveOf(c.Name), Manifest: manifest, Dir: dir, Migration: m, Ranges: ranges(&m.Spec)}, nil
}

// rendered is a Migration whose spec has a merge patch merged in.
func rendered(base, with map[string]any) ([]byte, error) {
	own := map[string]any{}
	for key, value := range base {
		own[key] = value
	}
	if len(with) > 0 {
		own["spec"] = merge(own["spec"], with)
	}
	return json.Marshal(own)
}

// merge applies a JSON merge patch (RFC 7386) to a copy.
func merge(into, patch any) any {
	change, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	out := map[string]any{}
	if was, ok := into.(map[string]any); ok {
		for key, value := range was {
			out[key] = value
		}
	}
	for key, value := range change {
		if value == nil {
			delete(out, key)
			continue
		}
		out[key] = merge(out[key], value)
	}
	return out
}

func ranges(m *v1alpha1.MigrationSpec) (all []netip.Prefix) {
	if m.ServiceCIDR != nil {
		all = append(all, spec.Prefixes(m.ServiceCIDR.To)...)
	}
	if m.PodCIDR != nil {
		all = append(all, spec.Prefixes(m.PodCIDR.To)...)
	}
	return all
}

func overlaps(all []*ClusterTarget) (bad field.ErrorList) {
	const hint = "give each cluster ranges of its own by with, or write overlap: Allow if no traffic is ever routed between the clusters"
	for i, t := range all {
		for _, other := range all[:i] {
			for _, mine := range t.Ranges {
				for _, theirs := range other.Ranges {
					if !mine.Overlaps(theirs) {
						continue
					}
					path := fmt.Sprintf("spec.clusters[%d].with", i)
					if mine == theirs {
						bad = append(bad, spec.Wrongf(path, hint, "cluster %s gets %s, and so does cluster %s", t.Name, mine, other.Name))
						continue
					}
					bad = append(bad,
						spec.Wrongf(path, hint, "cluster %s gets %s, which overlaps %s of cluster %s", t.Name, mine, theirs, other.Name))
				}
			}
		}
	}
	return bad
}

// Takes names the ranges that a cluster gets, or the job if there are none.
func (t *ClusterTarget) Takes() string {
	if len(t.Ranges) == 0 {
		return t.Migration.Spec.Type()
	}
	var texts []string
	for _, r := range t.Ranges {
		texts = append(texts, r.String())
	}
	return strings.Join(texts, ", ")
}
