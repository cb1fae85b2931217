package inventory

import (
	"context"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/serviceranges"
)

// Snapshot is the state of the cluster for plans and checks, and does not change once it is loaded.
type Snapshot struct {
	Version      *version.Info
	Ranges       serviceranges.RangeAPI
	ServiceCIDRs []networkingv1.ServiceCIDR
	IPAddresses  []networkingv1.IPAddress
	Services     []corev1.Service
	Nodes        []corev1.Node
	// Ending are the namespaces under deletion, in which nothing can be created.
	Ending          map[string]bool
	NamespaceLabels map[string]map[string]string
	// Meshed is the name of the mesh by namespace.
	Meshed   map[string]string
	Kubelets map[string]KubeletAnswer
	// ClusterIPOwners are field managers, other than replumb, that own a Service's clusterIP.
	ClusterIPOwners map[types.NamespacedName][]FieldOwner
}

// FieldOwner is a field manager that owns a field.
type FieldOwner struct {
	Manager string
	// Applies is true for server-side apply, which sets the field again.
	Applies bool
}

// Load reads a Snapshot.
func Load(ctx context.Context, c *cluster.Cluster) (*Snapshot, error) {
	v, err := c.ServerVersion(ctx)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Version: v}
	if s.Ranges, err = c.Ranges(ctx); err != nil {
		return nil, err
	}
	if s.ServiceCIDRs, err = cluster.List[networkingv1.ServiceCIDR](ctx, c, &networkingv1.ServiceCIDRList{}); err != nil {
		return nil, err
	}
	if s.IPAddresses, err = cluster.List[networkingv1.IPAddress](ctx, c, &networkingv1.IPAddressList{}); err != nil {
		return nil, err
	}
	if err := cluster.EachPage(ctx, c, &corev1.ServiceList{}, cluster.PageSize, func(o client.Object) {
		s.TakeService(o.(*corev1.Service))
	}); err != nil {
		return nil, err
	}
	if s.Nodes, err = cluster.List[corev1.Node](ctx, c, &corev1.NodeList{}); err != nil {
		return nil, err
	}
	if err := s.loadNamespaces(ctx, c); err != nil {
		return nil, err
	}
	s.Kubelets = Kubelets(ctx, c, s.Nodes)
	return s, nil
}

func (s *Snapshot) loadNamespaces(ctx context.Context, c *cluster.Cluster) error {
	all, err := cluster.List[corev1.Namespace](ctx, c, &corev1.NamespaceList{})
	if err != nil {
		return err
	}
	s.Ending, s.NamespaceLabels, s.Meshed = map[string]bool{}, map[string]map[string]string{}, map[string]string{}
	for i := range all {
		s.TakeNamespace(&all[i])
	}
	return nil
}

func (s *Snapshot) TakeNamespace(ns *corev1.Namespace) {
	s.NamespaceLabels[ns.Name] = ns.Labels
	if mesh := meshOf(ns); mesh != "" {
		s.Meshed[ns.Name] = mesh
	}
	if !ns.DeletionTimestamp.IsZero() {
		s.Ending[ns.Name] = true
	}
}

// TakeService keeps of managedFields only the owners of clusterIP.
func (s *Snapshot) TakeService(svc *corev1.Service) {
	if owners := clusterIPOwners(svc); len(owners) > 0 {
		if s.ClusterIPOwners == nil {
			s.ClusterIPOwners = map[types.NamespacedName][]FieldOwner{}
		}
		s.ClusterIPOwners[client.ObjectKeyFromObject(svc)] = owners
	}
	svc.SetManagedFields(nil)
	s.Services = append(s.Services, *svc)
}

func clusterIPOwners(svc *corev1.Service) []FieldOwner {
	var all []FieldOwner
	for _, entry := range svc.ManagedFields {
		if entry.Manager == v1alpha1.FieldManager || entry.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		if _, owns := fields.Spec["f:clusterIP"]; owns {
			all = append(all, FieldOwner{Manager: entry.Manager, Applies: entry.Operation == metav1.ManagedFieldsOperationApply})
		}
	}
	return all
}

// Service is nil if the Snapshot has none.
func (s *Snapshot) Service(key types.NamespacedName) *corev1.Service {
	for i := range s.Services {
		if s.Services[i].Namespace == key.Namespace && s.Services[i].Name == key.Name {
			return &s.Services[i]
		}
	}
	return nil
}

// NodeReady reports whether condition Ready is true.
func NodeReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// InternalIP is the first of several, or empty.
func InternalIP(n *corev1.Node) string {
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return a.Address
		}
	}
	return ""
}
