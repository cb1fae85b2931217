package component

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// All returns the components of a lab in the order they are built.
func All() []Component {
	return append([]Component{
		kubernetes("kubernetes", 230*time.Second),
		{Name: "coredns", Module: "github.com/coredns/coredns", Packages: []string{"."}, Cold: 12 * time.Second},
		{
			Name: "cni", Module: "github.com/containernetworking/plugins",
			Packages: []string{
				"github.com/containernetworking/plugins/plugins/ipam/host-local",
				"github.com/containernetworking/plugins/plugins/main/bridge",
				"github.com/containernetworking/plugins/plugins/main/loopback",
				"github.com/containernetworking/plugins/plugins/main/ptp",
				"github.com/containernetworking/plugins/plugins/meta/portmap",
			},
			Cold: 4 * time.Second,
		},
		{
			Name: "containerd", Module: "github.com/containerd/containerd/v2",
			Packages: []string{
				"github.com/containerd/containerd/v2/cmd/containerd",
				"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
				"github.com/containerd/containerd/v2/cmd/ctr",
			},
			Tags: []string{"no_btrfs", "no_devmapper", "no_zfs", "no_tracing"}, Cold: 36 * time.Second,
		},
		{
			Name: "calico", Module: "github.com/projectcalico/calico", Packages: []string{"."},
			Aliases: []string{"calico-ipam", "calico-felix", "calico-allocate-tunnel-addrs"},
			Assets:  "libcalico-go/config/crd", Cold: 90 * time.Second,
		},
		{ // all that API servers without nodes need of Calico
			Name: "calico-crds", From: "calico", Module: "github.com/projectcalico/calico", OnDemand: true,
			Assets: "libcalico-go/config/crd", Cold: 30 * time.Second,
		},
		{
			Name: "registry", Module: "github.com/distribution/distribution/v3",
			Packages: []string{"github.com/distribution/distribution/v3/cmd/registry"}, Cold: 60 * time.Second,
		},
		{
			Name: "certmanager", Module: "github.com/cert-manager/cert-manager", Packages: []string{"."},
			Assets: "deploy/crds", Cold: 60 * time.Second,
		},
		flux("source-controller", 150*time.Second),
		flux("kustomize-controller", 90*time.Second),
		{
			Name: "traefik", Module: "github.com/traefik/traefik/v3", Packages: []string{"github.com/traefik/traefik/v3/cmd/traefik"},
			Assets: "integration/fixtures/k8s", Cold: 150 * time.Second,
		},
		{
			Name: "metrics-server", Module: "sigs.k8s.io/metrics-server",
			Packages: []string{"sigs.k8s.io/metrics-server/cmd/metrics-server"}, Cold: 60 * time.Second,
		},
		{
			Name: "metallb", Module: "go.universe.tf/metallb",
			Packages: []string{"go.universe.tf/metallb/controller", "go.universe.tf/metallb/speaker"},
			Assets:   "config/crd/bases", Cold: 60 * time.Second,
		},
		{
			Name:   "argo-rollouts",
			Module: "github.com/argoproj/argo-rollouts",
			Packages: []string{
				"github.com/argoproj/argo-rollouts/cmd/rollouts-controller",
			},
			Assets: "manifests/crds",
			Cold:   90 * time.Second,
		},
		{Name: "flannel", Module: "github.com/flannel-io/flannel", Packages: []string{"."}, Cold: 60 * time.Second},
		kubernetesTests(),
		kubeadm(),
		cilium(),
		onDemand(kubernetes("kubernetes-v1.33", 240*time.Second)),
		onDemand(kubernetes("kubernetes-v1.31", 180*time.Second)),
	}, clusterAPI()...)
}

// kubernetesTests are Kubernetes' own tests, and what they run in pods.
func kubernetesTests() Component {
	return Component{
		Name: "e2e", Module: "k8s.io/kubernetes", OnDemand: true, Tests: []string{"k8s.io/kubernetes/test/e2e"},
		Packages: []string{
			"github.com/onsi/ginkgo/v2/ginkgo", "k8s.io/kubernetes/test/images/agnhost",
			"k8s.io/kubernetes/test/images/regression-issue-74839",
		},
		Assets:  "test/images/agnhost/porter", // for its certificate
		LDFlags: kubernetesVersionFlags, Cold: 180 * time.Second,
	}
}

// kubeadm is the installer of Kubernetes' own.
func kubeadm() Component {
	return Component{
		Name: "kubeadm", Module: "k8s.io/kubernetes", Packages: []string{"k8s.io/kubernetes/cmd/kubeadm"}, OnDemand: true,
		LDFlags: kubernetesVersionFlags, Cold: 20 * time.Second,
	}
}

// clusterAPI are Cluster API's controllers, each from its folder, with its definitions and what says of which requests API servers are to ask it. Two
// of the programs have the same name.
func clusterAPI() []Component {
	const module = "sigs.k8s.io/cluster-api"
	var all []Component
	for _, c := range []struct {
		name, folder string
		cold         time.Duration
	}{
		{"cluster-api", "core", 300 * time.Second},
		{"cluster-api-bootstrap", "bootstrap/kubeadm", 60 * time.Second},
		{"cluster-api-control-plane", "controlplane/kubeadm", 60 * time.Second},
	} {
		all = append(all, Component{
			Name: c.name, From: "cluster-api", Module: module, Packages: []string{module + "/" + c.folder}, OnDemand: true,
			LDFlags: clusterAPIVersionFlags, Assets: c.folder + "/config", Cold: c.cold,
		})
	}
	return all
}

// cilium is one component of several programs, each linked by itself with Cilium's libraries compiled once. Assets are the programs of BPF, which
// agents compile.
func cilium() Component {
	return Component{
		Name: "cilium", Module: ciliumModule, OnDemand: true,
		Packages: []string{
			ciliumModule + "/daemon", ciliumModule + "/operator", ciliumModule + "/plugins/cilium-cni", ciliumModule + "/cilium-dbg",
			ciliumModule + "/cilium-health/responder",
		},
		Tags: []string{"osusergo", "ipam_provider_operator"}, LDFlags: ciliumVersionFlags, Assets: "bpf", Cold: 360 * time.Second,
	}
}

// clusterAPIVersionFlags makes the programs report the version they were built from.
func clusterAPIVersionFlags(version string) []string {
	return []string{"-X", "sigs.k8s.io/cluster-api/version.gitVersion=" + version}
}

const ciliumModule = "github.com/cilium/cilium"

// ciliumVersionFlags makes the binaries report the version they were built from. They read three words: behind it stand the revision and its date,
// which a module does not tell.
func ciliumVersionFlags(version string) []string {
	return []string{"-X", "'" + ciliumModule + "/pkg/version.ciliumVersion=" + strings.TrimPrefix(version, "v") + " unknown unknown'"}
}

// kubernetes is one release of Kubernetes with its etcd.
func kubernetes(name string, cold time.Duration) Component {
	return Component{
		Name: name, Module: "k8s.io/kubernetes", Packages: []string{"."},
		Aliases: []string{
			"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl",
		},
		LDFlags: kubernetesVersionFlags, Cold: cold,
	}
}

func onDemand(c Component) Component {
	c.OnDemand = true
	return c
}

// flux is one of Flux' controllers, with its definitions.
func flux(name string, cold time.Duration) Component {
	module := "github.com/fluxcd/" + name
	return Component{Name: name, Module: module, Packages: []string{module}, Assets: "config/crd/bases", Cold: cold}
}

// Named returns the components of these names, in the order they are built; for no name all but those that are built on demand. It fails for
// a name that none has.
func Named(names ...string) ([]Component, error) {
	if len(names) == 0 {
		return slices.DeleteFunc(All(), func(c Component) bool { return c.OnDemand }), nil
	}
	var known []string
	var named []Component
	for _, c := range All() {
		known = append(known, c.Name)
		if slices.Contains(names, c.Name) {
			named = append(named, c)
		}
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("no component is called %q\nhint: there is %s", name, strings.Join(known, ", "))
		}
	}
	return named, nil
}

// kubernetesVersionFlags makes the binaries report the version they were built from; without it the API server says
// v0.0.0 and clients that look at versions misbehave.
func kubernetesVersionFlags(version string) []string {
	const pkg = "k8s.io/component-base/version."
	major, minor, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	return []string{"-X", pkg + "gitVersion=" + version, "-X", pkg + "gitMajor=" + major, "-X", pkg + "gitMinor=" + minor}
}
