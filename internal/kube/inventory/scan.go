package inventory

import (
	"net/netip"
	"sort"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/references"
)

// Scan holds findings in objects that are too many or too large to be kept.
type Scan struct {
	// Kubeadm says that kubeadm has made the control plane.
	Kubeadm      bool
	ControlPlane ControlPlane
	References   []references.Reference
	Proxies      []Proxy
	Replacements []Replacement
	Planes       []DataPlane
	CiliumModes  []CiliumMode
	Meshes       []*Mesh
	NodeLocal    []NodeLocal
	// Abrupt are the ConfigMaps, by namespace, with a Corefile whose servers of cluster names end
	// at once, without lameduck of plugin health.
	Abrupt map[string]string
	// InTarget are pods with an address in the range that the Services move to.
	InTarget []PodAddress
	Stuck    []StuckBudget
	Policies []Policy
	// Called has an entry for each object that names the Service.
	Called []Called
	// IngressClasses are controllers by the name of the class.
	IngressClasses map[string]string
	Routes         []Route
	// Published names, by Service, the workload that publishes its external addresses as its own:
	// in the status of Ingresses, from where DNS records are made.
	Published map[types.NamespacedName]string
	// Pools and Advertisers are complete once Neighbours has run.
	Pools       []Pool
	Advertisers []Advertiser
	// Egress are the namespaces whose NetworkPolicies limit the calls of pods.
	Egress     map[string]bool
	Migrations []v1alpha1.Migration
	// Unread are the resources that the user may not read.
	Unread map[string]bool
	// Unsearched says why custom resources that replumb does not know were not looked through.
	Unsearched map[string]string

	calico bool
	// defined are the versions to ask for by the names of CustomResourceDefinitions.
	defined map[string]string
}

// PodAddress is the address of a Pod, as namespace/name.
type PodAddress struct {
	Pod     string
	Address netip.Addr
}

// StuckBudget is a PodDisruptionBudget, as namespace/name, and its rule that never lets a pod go.
type StuckBudget struct {
	Name string
	Rule string
}

// Policy is a ValidatingAdmissionPolicy that a migration left or keeps.
type Policy struct {
	Name, Migration string
}

// noteUnread drops the error of a resource that is not served or that the user may not read.
func (i *Scan) noteUnread(resource string, err error) error {
	switch {
	case err == nil, apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return nil
	case apierrors.IsForbidden(err):
		i.Unread[resource] = true
		return nil
	}
	return err
}

// HasCalico reports whether the cluster has Calico's definitions.
func (i *Scan) HasCalico() bool { return i.calico }

func (i *Scan) sort() {
	sort.SliceStable(i.References, func(a, b int) bool { return i.References[a].Object < i.References[b].Object })
	sort.SliceStable(i.Proxies, func(a, b int) bool { return i.Proxies[a].Object < i.Proxies[b].Object })
	sort.SliceStable(i.Replacements, func(a, b int) bool { return i.Replacements[a].Object < i.Replacements[b].Object })
	sort.SliceStable(i.ControlPlane.Programs, func(a, b int) bool {
		x, y := &i.ControlPlane.Programs[a], &i.ControlPlane.Programs[b]
		return x.Node+string(x.Component) < y.Node+string(y.Component)
	})
	sort.SliceStable(i.Planes, func(a, b int) bool { return i.Planes[a].Object < i.Planes[b].Object })
	sort.SliceStable(i.CiliumModes, func(a, b int) bool { return i.CiliumModes[a].Object < i.CiliumModes[b].Object })
	sort.SliceStable(i.Meshes, func(a, b int) bool { return i.Meshes[a].Name < i.Meshes[b].Name })
	sort.SliceStable(i.NodeLocal, func(a, b int) bool { return i.NodeLocal[a].Object < i.NodeLocal[b].Object })
	sort.SliceStable(i.Called, func(a, b int) bool {
		return i.Called[a].Service.String()+i.Called[a].By < i.Called[b].Service.String()+i.Called[b].By
	})
	sort.SliceStable(i.Advertisers, func(a, b int) bool { return i.Advertisers[a].Object < i.Advertisers[b].Object })
	sort.SliceStable(i.InTarget, func(a, b int) bool { return i.InTarget[a].Pod < i.InTarget[b].Pod })
	sort.SliceStable(i.Stuck, func(a, b int) bool { return i.Stuck[a].Name < i.Stuck[b].Name })
	sort.SliceStable(i.Policies, func(a, b int) bool { return i.Policies[a].Name < i.Policies[b].Name })
	sort.SliceStable(i.Migrations, func(a, b int) bool { return i.Migrations[a].Name < i.Migrations[b].Name })
}
