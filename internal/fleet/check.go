package fleet

import (
	"fmt"
	"regexp"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/spec"
)

const (
	// mostParallel is how many clusters of a wave may migrate at the same time.
	mostParallel = 64
	// longestSoak, and longestCall of the health action.
	longestSoak = 30 * 24 * time.Hour
	longestCall = 6 * time.Hour
)

func (f *Fleet) check() (all field.ErrorList) {
	if !named(f.Name) {
		all = append(all, badName("metadata.name", f.Name))
	}
	if f.Spec.Migration == "" {
		all = append(all, spec.Wrong("spec.migration", "is empty", "name the file with the Migration, from the folder of this file"))
	}
	switch f.Spec.Overlap {
	case "", OverlapRefuse, OverlapAllow:
	default:
		all = append(all, spec.Wrongf("spec.overlap", "use one of Refuse, Allow", "%q is not known", f.Spec.Overlap))
	}
	all = append(all, checkClusters(f.Spec.Clusters)...)
	all = append(all, f.checkWaves()...)
	return append(all, checkHealth(f.Spec.Health)...)
}

func named(text string) bool {
	return regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$`).MatchString(text)
}

func badName(path, name string) *field.Error {
	return spec.Wrongf(path, "use small letters, digits, - and ., at most 63", "%q is not a name", name)
}

func checkClusters(clusters []Cluster) (all field.ErrorList) {
	if len(clusters) == 0 {
		all = append(all, spec.Wrong("spec.clusters", "is empty", "list the clusters, each with name and context"))
	}
	seen, reached := map[string]bool{}, map[[2]string]string{}
	for i, c := range clusters {
		path := fmt.Sprintf("spec.clusters[%d]", i)
		if !named(c.Name) {
			all = append(all, badName(path+".name", c.Name))
		}
		if seen[c.Name] {
			all = append(all, spec.Wrongf(path+".name", "give each cluster a name of its own", "%q is another cluster's too", c.Name))
		}
		seen[c.Name] = true
		if c.Context == "" {
			all = append(all, spec.Wrong(path+".context", "is empty", "name the context of the kubeconfig that leads to the cluster"))
			continue
		}
		key := [2]string{c.Kubeconfig, c.Context}
		if other, ok := reached[key]; ok {
			all = append(all, spec.Wrongf(path+".context", "list each cluster once", "%q is that of cluster %s too", c.Context, other))
		}
		reached[key] = c.Name
	}
	return all
}

func (f *Fleet) checkWaves() (all field.ErrorList) {
	if len(f.Spec.Waves) == 0 {
		all = append(all, spec.Wrong("spec.waves", "is empty", "list the waves in their order, each with name and clusters"))
	}
	waves, in := map[string]bool{}, map[string]string{}
	for i := range f.Spec.Waves {
		w, path := &f.Spec.Waves[i], fmt.Sprintf("spec.waves[%d]", i)
		if !named(w.Name) {
			all = append(all, badName(path+".name", w.Name))
		}
		if waves[w.Name] {
			all = append(all, spec.Wrongf(path+".name", "give each wave a name of its own", "%q is another wave's too", w.Name))
		}
		waves[w.Name] = true
		all = append(all, w.check(path)...)
		for j, name := range w.Clusters {
			at := fmt.Sprintf("%s.clusters[%d]", path, j)
			switch other, ok := in[name]; {
			case f.cluster(name) == nil:
				all = append(all, spec.Wrongf(at, "name one of those in spec.clusters", "there is no cluster %q", name))
			case ok:
				all = append(all, spec.Wrongf(at, "name each cluster in one wave", "cluster %q is in wave %s already", name, other))
			default:
				in[name] = w.Name
			}
		}
	}
	for i, c := range f.Spec.Clusters {
		if _, ok := in[c.Name]; !ok && named(c.Name) {
			all = append(all,
				spec.Wrongf(fmt.Sprintf("spec.clusters[%d]", i), "name it in one, or remove it", "cluster %q is in no wave", c.Name))
		}
	}
	return all
}

func (w *Wave) check(path string) (all field.ErrorList) {
	if len(w.Clusters) == 0 {
		all = append(all, spec.Wrong(path+".clusters", "is empty", "name clusters of spec.clusters, or remove the wave"))
	}
	if w.Parallel < 0 || w.Parallel > mostParallel {
		all = append(all, spec.Wrongf(path+".parallel", "leave it out for 1", "%d is not within 1 and %d", w.Parallel, mostParallel))
	}
	w.Parallel = max(w.Parallel, 1)
	if w.Soak == "" {
		return all
	}
	var err error
	if w.soak, err = time.ParseDuration(w.Soak); err != nil || w.soak < 0 || w.soak > longestSoak {
		all = append(all, spec.Wrongf(path+".soak", "write a duration of at most 720h, such as 30m", "%q is not a duration", w.Soak))
	}
	return all
}

func checkHealth(a *v1alpha1.Action) (all field.ErrorList) {
	if a == nil {
		return nil
	}
	if (a.Exec == nil) == (a.HTTP == nil) {
		all = append(all, spec.Wrong("spec.health", "needs exactly one of exec and http", "write exec: {command: [./healthy.sh]}"))
	}
	if a.Exec != nil && (len(a.Exec.Command) == 0 || a.Exec.Command[0] == "") {
		all = append(all, spec.Wrong("spec.health.exec.command", "is empty", "write the program and its arguments as a list"))
	}
	if a.HTTP != nil && (a.HTTP.URL == "") == (a.HTTP.URLFromEnv == "") {
		all = append(all, spec.Wrong("spec.health.http", "needs exactly one of url and urlFromEnv", "write url: https://..."))
	}
	if t := a.Timeout; t != nil && (t.Duration <= 0 || t.Duration > longestCall) {
		all = append(all, spec.Wrongf("spec.health.timeout", "write a duration of at most 6h, such as 5m", "%s is not one", t.Duration))
	}
	return all
}
