package podmove

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/controlplane"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/kubeadm"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/safety/lease"
)

// installerAnswer is what people confirm where nothing in the cluster shows it.
type installerAnswer string

const (
	// installerReady: what the installer has set on nodes takes new addresses for pods'.
	installerReady installerAnswer = "Ready"
	// installerMoved: the installer's own configuration has the new range.
	installerMoved installerAnswer = "Moved"
)

// BeforeAdd waits until nodes take new addresses for pods': kOps translates sources outside of
// nonMasqueradeCIDR (docs/networking.md in k8s.io/kops).
func (p *Planner) BeforeAdd(switched bool) []engine.Group {
	if switched || p.Origin().Distribution != inventory.KOps {
		return nil
	}
	guide := fmt.Sprintf(`compare kops get cluster -o yaml: spec.nonMasqueradeCIDR has to contain %s and what pods have now.
If it does not, set it (kops edit cluster), then: kops update cluster --yes && kops rolling-update cluster --yes`, strings.Join(Texts(p.Inventory.Spec.To), ","))
	return engine.InOrder(p.installerGate("installer", "Wait until nodes take addresses of the targets for pods'", guide, installerReady))
}

// BeforeFinal waits until the installer does not bring the old range back.
func (p *Planner) BeforeFinal() []engine.Group {
	o, s := p.Origin(), p.Inventory.Spec
	guide := movedGuide(o, strings.Join(Texts(s.To), ","), firstOutside(p.Inventory.Nodes, s.From, Texts(s.To)))
	if guide == "" {
		return nil
	}
	title := fmt.Sprintf("Wait until %s has the new range of pods", o.Distribution)
	return engine.InOrder(p.installerGate("installer-moved", title, guide, installerMoved))
}

func (p *Planner) Origin() inventory.Origin {
	config := p.Inventory.Configs[metav1.NamespaceSystem+"/"+controlplane.KubeadmConfig]
	return inventory.OriginOf(p.Inventory.Nodes, config["ClusterConfiguration"] != "")
}

func (p *Planner) installerGate(id, title, guide string, answer installerAnswer) engine.Step {
	tools, spec, byKubeadm := p.Tools, p.Inventory.Spec, p.Origin().Distribution == inventory.Kubeadm
	return &engine.Gate{
		Wait: engine.Wait{
			Name: "gate/" + id, About: title, Limit: spec.Nodes.GateWait.Duration, Again: true,
			For: lease.Outlasting(func(ctx context.Context) error {
				if byKubeadm {
					return kubeadmMoved(ctx, tools.Cluster, spec)
				}
				m, err := migration.Get(ctx, tools.Cluster, spec.Name)
				if err != nil || migration.Answered(m, v1alpha1.AnnotationInstaller, string(answer)) {
					return err
				}
				return engine.NotYet("what the installer has cannot be seen from here; once it is right, confirm it: "+
					"kubectl annotate migrations.replumb.dev %s --overwrite %s=%s", spec.Name, v1alpha1.AnnotationInstaller, answer)
			}),
		},
		Instructions: func() string { return guide + "\nreplumb goes on by itself." },
	}
}

// movedGuide says where an installer has the range of pods; nothing, if it is not known. left is a
// Node that keeps a range which a controller manager gave it and the network does not go by.
func movedGuide(o inventory.Origin, to, left string) string {
	const why = "with the old range there, an upgrade or a new node brings it back.\n"
	also := func(setting string) string {
		if left == "" {
			return ""
		}
		return "\nand " + setting + ",\nor controller managers do not start with it: " + left
	}
	switch o.Distribution {
	case inventory.Kubeadm:
		capi := ""
		if o.ClusterAPI {
			capi = "\nand in the management cluster: clusterNetwork.pods of the Cluster, and the same in the KubeadmControlPlane"
		}
		return why + "set networking.podSubnet to " + to + " in the ClusterConfiguration" +
			also(`controllerManager: {extraArgs: [{name: allocate-node-cidrs, value: "false"}]} (before v1beta4 extraArgs is a map)`) +
			":\n  kubectl -n kube-system edit configmap kubeadm-config" + capi
	case inventory.KOps:
		return why + "look at kops get cluster -o yaml: no podCIDR, and no setting of the network's addon, names the old range"
	case inventory.K3s, inventory.RKE2:
		return why + "on every server, set in /etc/rancher/k3s/config.yaml (RKE2: /etc/rancher/rke2/config.yaml), for the next restart:\n  cluster-cidr: " + to +
			also(`kube-controller-manager-arg: ["allocate-node-cidrs=false"]`)
	case inventory.Talos:
		return why + "on every control-plane node, set in the machine configuration:\n  cluster: {network: {podSubnets: [" + to + "]}}" +
			also(`cluster: {controllerManager: {extraArgs: {allocate-node-cidrs: "false"}}}`)
	}
	return ""
}

// firstOutside names a Node with a range of those that move, outside of all of these.
func firstOutside(nodes []corev1.Node, from []netip.Prefix, ranges []string) string {
	for i := range nodes {
		for _, text := range nodes[i].Spec.PodCIDRs {
			r, err := netip.ParsePrefix(text)
			moves := slices.ContainsFunc(from, func(p netip.Prefix) bool { return p.Overlaps(r) })
			if err == nil && moves && !slices.ContainsFunc(ranges, func(s string) bool { return covers(s, r) }) {
				return fmt.Sprintf("node %s has %s", nodes[i].Name, r)
			}
		}
	}
	return ""
}

// kubeadmMoved returns nil if kubeadm's configuration has all ranges, or there is none, and what it
// would write starts.
func kubeadmMoved(ctx context.Context, c *cluster.Cluster, spec Spec) error {
	const name = "configmap " + metav1.NamespaceSystem + "/" + controlplane.KubeadmConfig
	config := &corev1.ConfigMap{}
	err := c.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: controlplane.KubeadmConfig}, config)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	has := controlplane.PodSubnet(config)
	if has == "" {
		return nil
	}
	subnets := strings.Split(has, ",")
	for _, r := range spec.To {
		if !slices.ContainsFunc(subnets, func(s string) bool { return covers(s, r) }) {
			return engine.NotYet("networking.podSubnet in %s is %s", name, has)
		}
	}
	nodes, err := Nodes(ctx, c)
	if err != nil {
		return err
	}
	left := firstOutside(nodes, spec.From, subnets)
	if left == "" {
		return nil
	}
	written, err := kubeadm.ReadConfiguration(config.Data["ClusterConfiguration"])
	if err != nil {
		return engine.NotYet("%w", err)
	}
	if allocates, _ := written.Flag(string(controlplane.ControllerManager), "allocate-node-cidrs"); allocates != "false" {
		return engine.NotYet("by %s kubeadm would write a kube-controller-manager with --allocate-node-cidrs=true --cluster-cidr=%s, which does not start: %s",
			name, has, left)
	}
	return nil
}

// Texts are ranges as they are written.
func Texts(all []netip.Prefix) (out []string) {
	for _, r := range all {
		out = append(out, r.String())
	}
	return out
}
