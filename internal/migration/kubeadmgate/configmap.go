package kubeadmgate

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/controlplane"
	"github.com/replumb/replumb/internal/kube/kubeadm"
)

// client is nil, and not a nil pointer in an interface, when there is no cluster.
func (g *Gates) client() client.Client {
	if g.Cluster == nil {
		return nil
	}
	return g.Cluster
}

// ServiceSubnet has upgrades and joining control planes go by other Service ranges.
func (g *Gates) ServiceSubnet(ranges string) engine.Step {
	return g.configuration("serviceSubnet", "networking.serviceSubnet: "+ranges, func(c *kubeadm.Configuration) (string, error) {
		return c.SetServiceSubnet(ranges)
	})
}

// PodSubnet has them go by other ranges of pods.
func (g *Gates) PodSubnet(ranges string) engine.Step {
	return g.configuration("podSubnet", "networking.podSubnet: "+ranges, func(c *kubeadm.Configuration) (string, error) {
		return c.SetPodSubnet(ranges)
	})
}

// AddCertSANs has them name addresses in the certificates of API servers.
func (g *Gates) AddCertSANs(addresses ...netip.Addr) engine.Step {
	return g.configuration("certSANs", fmt.Sprintf("apiServer.certSANs with %v", addresses), func(c *kubeadm.Configuration) (string, error) {
		return c.AddCertSANs(addresses...)
	})
}

// RemoveCertSANs has them name no address of some ranges any more, nor a single one.
func (g *Gates) RemoveCertSANs(within []netip.Prefix, also netip.Addr) engine.Step {
	return g.configuration("certSANs", fmt.Sprintf("apiServer.certSANs without %v and %v", within, also), func(c *kubeadm.Configuration) (string, error) {
		return c.RemoveCertSANs(func(a netip.Addr) bool {
			return a == also || slices.ContainsFunc(within, func(r netip.Prefix) bool { return r.Contains(a) })
		})
	})
}

func (g *Gates) configuration(id, what string, change func(*kubeadm.Configuration) (string, error)) engine.Step {
	return g.configMap(id, controlplane.KubeadmConfig, "ClusterConfiguration", what, func(text string) (string, error) {
		c, err := kubeadm.ReadConfiguration(text)
		if err != nil {
			return "", err
		}
		return change(c)
	})
}

// KubeletDNS has joining nodes name other addresses of cluster DNS.
func (g *Gates) KubeletDNS(from, to []string) engine.Step {
	return g.configMap("kubelet-config", controlplane.KubeletConfig, "kubelet", fmt.Sprintf("clusterDNS: %v", to), func(text string) (string, error) {
		edited, err := kubeadm.SetClusterDNS("ConfigMap kube-system/"+controlplane.KubeletConfig, []byte(text), from, to)
		return string(edited), err
	})
}

// configMap changes one text of a ConfigMap in kube-system, and no other that was written since it
// was read.
func (g *Gates) configMap(id, name, key, what string, change func(string) (string, error)) engine.Step {
	c := g.client()
	look := func(ctx context.Context) (engine.State, *corev1.ConfigMap, error) {
		have := &corev1.ConfigMap{}
		if err := c.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: name}, have); err != nil {
			return 0, nil, fmt.Errorf("configmap kube-system/%s: %w", name, err)
		}
		text, err := change(have.Data[key])
		if err != nil || text == have.Data[key] {
			return engine.Done, have, err
		}
		have.Data[key] = text
		return engine.Pending, have, nil
	}
	return &engine.Observed[*corev1.ConfigMap]{
		Name: "kubeadm/" + id, About: fmt.Sprintf("Have ConfigMap kube-system/%s say %s", name, what), Look: look,
		Write: func(ctx context.Context, edited *corev1.ConfigMap) error {
			return c.Update(ctx, edited, client.FieldOwner(v1alpha1.FieldManager))
		},
		Changes: engine.Shows(engine.Change{Verb: "update", Object: "ConfigMap kube-system/" + name, Body: map[string]any{key: what}}),
	}
}
