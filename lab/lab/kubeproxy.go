package lab

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"path/filepath"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/lab/image"
)

//go:embed kubeproxy.yaml
var kubeProxyTemplate string

// kubeProxyImage is that of kube-proxy, for labs that have it in pods. It has the programs by which rules are written, as others have.
func kubeProxyImage(b binaries) (image.Image, error) {
	i := image.Image{Ref: imageRef("kube-proxy"), Binary: filepath.Join(b.kubernetes, "kube-proxy"), Name: "kube-proxy", Path: systemPath}
	return i, addFirewall(&i)
}

// installProxies gives the cluster kube-proxy's ServiceAccount, configuration and DaemonSet, as kubeadm does.
func (l Addons) installProxies(ctx context.Context, clusterCIDRs string) error {
	manifests, err := l.proxyManifests(clusterCIDRs)
	if err != nil {
		return err
	}
	return until(ctx, "kube-proxy's objects", func(ctx context.Context) error {
		_, err := l.kubectl(ctx, bytes.NewReader(manifests), "apply", "--server-side", "-f", "-")
		return err
	})
}

func (l Addons) proxyManifests(clusterCIDRs string) ([]byte, error) {
	config := proxyConfig(l.Topology, "", l.Topology.Nodes[0])
	config.ClientConnection.Kubeconfig = "/var/lib/kube-proxy/kubeconfig.conf"
	if config.ClusterCIDR != "" {
		config.ClusterCIDR = clusterCIDRs
	}
	text, err := yaml.Marshal(config)
	if err != nil {
		return nil, err
	}
	return rendered("kubeproxy.yaml", kubeProxyTemplate, map[string]any{
		"Config": string(text), "Server": l.Balancers().server(), "Image": imageRef("kube-proxy"),
	})
}

// restartProxyPods gives the kube-proxies of a lab that has them in pods other ranges of pods, one for each family, and returns when those that
// know of them are ready everywhere. Rules stay in place meanwhile.
func (l Workers) restartProxyPods(ctx context.Context, clusterCIDRs []netip.Prefix) error {
	if err := l.Addons().installProxies(ctx, commas(clusterCIDRs)); err != nil {
		return err
	}
	if _, err := l.Addons().kubectl(ctx, nil, "-n", metav1.NamespaceSystem, "rollout", "restart", "daemonset/kube-proxy"); err != nil {
		return err
	}
	return until(ctx, "kube-proxy on every node", func(ctx context.Context) error {
		ds, err := l.Client().AppsV1().DaemonSets(metav1.NamespaceSystem).Get(ctx, "kube-proxy", metav1.GetOptions{})
		if err == nil && !rolledOut(ds) {
			err = fmt.Errorf("%d of %d pods are ready", ds.Status.NumberAvailable, ds.Status.DesiredNumberScheduled)
		}
		return err
	})
}

// rolledOut tells whether every node has the pod of a DaemonSet that it is to have.
func rolledOut(ds *appsv1.DaemonSet) bool {
	s := ds.Status
	return s.ObservedGeneration == ds.Generation && s.UpdatedNumberScheduled == s.DesiredNumberScheduled &&
		s.NumberAvailable == s.DesiredNumberScheduled
}
