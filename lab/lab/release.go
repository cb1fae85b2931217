package lab

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/replumb/replumb/lab/component"
)

// release is a version of Kubernetes that labs can run, with what is different in it.
type release struct {
	version string
	// component it is built from, of lab/components.
	component string
}

// releases are those of labs, the one by default first. Before 1.33 Service addresses come from a bitmap, unless Gates and API say otherwise;
// 1.33 keeps the bitmap beside ServiceCIDRs and IPAddresses.
func releases() []release {
	return []release{
		{version: "1.36.3", component: "kubernetes"},
		{version: "1.33.13", component: "kubernetes-v1.33"},
		{version: "1.31.0", component: "kubernetes-v1.31"},
	}
}

// Releases are the versions of Kubernetes that a lab can run, the one by default first.
func Releases() []string {
	var versions []string
	for _, r := range releases() {
		versions = append(versions, r.version)
	}
	return versions
}

// release is the lab's own. Topology.Validate sees to it that there is one; labs of before there was a choice have the default.
func (t Topology) release() release {
	all := releases()
	return all[max(0, slices.IndexFunc(all, func(r release) bool { return r.version == t.Kubernetes }))]
}

// isRelease tells whether a component is a version of Kubernetes.
func isRelease(component string) bool {
	return slices.ContainsFunc(releases(), func(r release) bool { return r.component == component })
}

// runs tells whether a lab runs a component. Of those that are built on demand it is its Kubernetes, Cilium if that is its network of pods, and its installer.
func (t Topology) runs(c component.Component) bool {
	return t.needs(c.Name) && (!c.OnDemand || isRelease(c.Name) || c.Name == ciliumComponent || c.Name == kubeadmComponent || isClusterAPI(c.Name))
}

// validSwitches are what --feature-gates and --runtime-config take: NAME=true,NAME=false.
var validSwitches = regexp.MustCompile(`^[A-Za-z0-9./]+=(true|false)(,[A-Za-z0-9./]+=(true|false))*$`)

func (t Topology) validateRelease() error {
	if !slices.Contains(Releases(), t.Kubernetes) {
		return &InvalidError{
			"kubernetes", fmt.Sprintf("labs do not run Kubernetes %q", t.Kubernetes), "use " + strings.Join(Releases(), ", "),
		}
	}
	for _, s := range []struct{ field, value string }{{"feature-gates", t.FeatureGates}, {"runtime-config", t.RuntimeConfig}} {
		if s.value != "" && !validSwitches.MatchString(s.value) {
			return &InvalidError{
				s.field,
				fmt.Sprintf("%q does not switch anything", s.value),
				"write NAME=true or NAME=false, several with commas",
			}
		}
	}
	return nil
}

// gates are the flags of the API servers and controller managers that switch features.
func (t Topology) gates() []string {
	if t.FeatureGates == "" {
		return nil
	}
	return []string{"--feature-gates=" + t.FeatureGates}
}

// served are the flags of the API servers that switch versions of APIs.
func (t Topology) served() []string {
	if t.RuntimeConfig == "" {
		return nil
	}
	return []string{"--runtime-config=" + t.RuntimeConfig}
}

// kubernetesIn is the folder of the lab's Kubernetes.
func (t Topology) kubernetesIn(dirs map[string]string) string { return dirs[t.release().component] }

// Kubernetes is the version that the lab's programs are of, as their folder names it.
func (l *Lab) Kubernetes() string {
	if l.Topology.Kubernetes != "" {
		return l.Topology.Kubernetes
	}
	name := strings.TrimPrefix(filepath.Base(l.Binaries.kubernetes), l.Topology.release().component+"-")
	return name[:max(0, strings.LastIndex(name, "-"))]
}
