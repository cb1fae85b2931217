package used

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/references"
	"github.com/replumb/replumb/internal/kube/serviceranges"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/network/ranges"
)

const (
	ciliumGroup = "cilium.io"
	ciliumPools = "ciliumpodippools"
)

// readServices reads ServiceCIDRs, or their substitute: see serviceranges.Bitmap.
func (r *reader) readServices(ctx context.Context) error {
	api, err := r.cluster.Ranges(ctx)
	if err != nil {
		return err
	}
	return cluster.Each(ctx, r.cluster, &networkingv1.ServiceCIDRList{}, func(o client.Object) {
		c := o.(*networkingv1.ServiceCIDR)
		for _, text := range c.Spec.CIDRs {
			if api == serviceranges.Bitmap {
				r.add(ranges.Services, text, "the API server", "--service-cluster-ip-range")
				continue
			}
			r.add(ranges.Services, text, "ServiceCIDR "+c.Name, "spec.cidrs")
		}
	})
}

func (r *reader) readNodes(ctx context.Context) error {
	return cluster.Each(ctx, r.cluster, &corev1.NodeList{}, func(o client.Object) { r.takeNode(o.(*corev1.Node)) })
}

func (r *reader) readPools(ctx context.Context) error {
	pools, err := calico.LoadPools(ctx, r.cluster)
	for i := range pools {
		field := "spec.cidr"
		if pools[i].Spec.Disabled {
			field = "spec.cidr (disabled)"
		}
		r.add(ranges.Pods, pools[i].Spec.CIDR, "IPPool "+pools[i].Name, field)
	}
	return err
}

// readCilium reads pools of multi-pool mode; cluster-pool mode has a ConfigMap and Nodes.
func (r *reader) readCilium(ctx context.Context) error {
	body, err := r.cluster.GetRaw(ctx, fmt.Sprintf("/apis/%s/v2alpha1/%s", ciliumGroup, ciliumPools))
	if err != nil {
		return err
	}
	return r.takeCilium(body)
}

func (r *reader) takeCilium(body []byte) error {
	type family struct {
		CIDRs []string `json:"cidrs"`
	}
	var all struct {
		Items []struct {
			Metadata metav1.ObjectMeta `json:"metadata"`
			Spec     struct {
				IPv4 family `json:"ipv4"`
				IPv6 family `json:"ipv6"`
			} `json:"spec"`
		} `json:"items"`
	}
	if err := json.Unmarshal(body, &all); err != nil {
		return fmt.Errorf("reading %s: %w", ciliumPools, err)
	}
	for i := range all.Items {
		pool := &all.Items[i]
		for field, texts := range map[string][]string{"spec.ipv4.cidrs": pool.Spec.IPv4.CIDRs, "spec.ipv6.cidrs": pool.Spec.IPv6.CIDRs} {
			for _, text := range texts {
				r.add(ranges.Pods, text, "CiliumPodIPPool "+pool.Metadata.Name, field)
			}
		}
	}
	return nil
}

// readConfigMaps reads those of kubeadm, kube-proxy, flannel and Cilium in their own namespaces.
func (r *reader) readConfigMaps(ctx context.Context) error {
	for _, namespace := range []string{metav1.NamespaceSystem, "kube-flannel", "cilium"} {
		err := cluster.Each(ctx, r.cluster, &corev1.ConfigMapList{}, func(o client.Object) {
			r.takeConfigMap(o.(*corev1.ConfigMap))
		}, client.InNamespace(namespace))
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) readPods(ctx context.Context) error {
	return cluster.Each(ctx, r.cluster, &corev1.PodList{}, func(o client.Object) { r.takePod(o.(*corev1.Pod)) })
}

func (r *reader) readMigrations(ctx context.Context) error {
	return cluster.Each(ctx, r.cluster, &v1alpha1.MigrationList{}, func(o client.Object) { r.takeMigration(o.(*v1alpha1.Migration)) })
}

func (r *reader) takeMigration(m *v1alpha1.Migration) {
	object := references.Name("Migration", m)
	over := m.Status.Phase == v1alpha1.PhaseRolledBack // nothing goes there any more
	take := func(use ranges.Use, field string, texts []string) {
		if use == ranges.Planned && over {
			return
		}
		for _, text := range texts {
			r.add(use, text, object, field)
		}
	}
	if j := m.Spec.ServiceCIDR; j != nil {
		take(ranges.Network, "spec.serviceCIDR.networks", j.Networks)
		take(ranges.Planned, "spec.serviceCIDR.to", j.To)
	}
	if j := m.Spec.PodCIDR; j != nil {
		take(ranges.Network, "spec.podCIDR.networks", j.Networks)
		take(ranges.Planned, "spec.podCIDR.to", j.To)
	}
}
