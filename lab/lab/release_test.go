package lab

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/replumb/replumb/lab/component"
)

func TestReleasesAreWhatTheirComponentsAreBuiltFrom(t *testing.T) {
	for _, r := range releases() {
		mod, err := os.ReadFile("../components/" + r.component + "/go.mod")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(mod), "k8s.io/kubernetes v"+r.version+"\n") {
			t.Errorf("%s is not built from Kubernetes %s", r.component, r.version)
		}
	}
}

func TestLabRunsOneKubernetes(t *testing.T) {
	for _, version := range append(Releases(), "") {
		topology := Topology{Kubernetes: version, CNI: HostLocal}
		var runs []string
		for _, c := range component.All() {
			if topology.runs(c) && (isRelease(c.Name) || c.OnDemand) {
				runs = append(runs, c.Name)
			}
		}
		if want := []string{topology.release().component}; !slices.Equal(runs, want) {
			t.Errorf("%q runs %v, want %v", version, runs, want)
		}
	}
}

// A lab of before there was a choice has no version in its file.
func TestKubernetesOfALab(t *testing.T) {
	old := &Lab{Binaries: binaries{kubernetes: "/cache/kubernetes-1.35.0-2dd4f6117fb7"}}
	if got := old.Kubernetes(); got != "1.35.0" {
		t.Errorf("%q, want 1.35.0", got)
	}
	if got := (&Lab{Topology: Topology{Kubernetes: "1.31.0"}}).Kubernetes(); got != "1.31.0" {
		t.Errorf("%q, want 1.31.0", got)
	}
	if got := (&Lab{}).Kubernetes(); got != "" {
		t.Errorf("%q of a lab without programs", got)
	}
}

func TestGatesOfAControlPlane(t *testing.T) {
	topology := Default()
	topology.FeatureGates, topology.RuntimeConfig = "MultiCIDRServiceAllocator=true", "networking.k8s.io/v1beta1=true"
	l := newLab(topology)
	server := l.ControlPlaneNodes().apiServer(l.with(ControlPlane)[0]).Argv
	manager := controllerManager(topology, "").Argv
	for _, flag := range []string{"--feature-gates=MultiCIDRServiceAllocator=true", "--runtime-config=networking.k8s.io/v1beta1=true"} {
		if !slices.Contains(server, flag) {
			t.Errorf("API server without %s: %v", flag, server)
		}
		if slices.Contains(manager, flag) != strings.HasPrefix(flag, "--feature-gates") {
			t.Errorf("controller manager: %v", manager)
		}
	}
}
