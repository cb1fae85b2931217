package lab

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"text/template"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/replumb/replumb/lab/machine"
)

// CNI is what gives pods their network.
type CNI string

// The networks a lab can have.
const (
	// HostLocal gives each node the range in its podCIDR, and machines routes to one another's.
	HostLocal CNI = "host-local"
	// Calico with its own address management, VXLAN between the nodes, and Felix, which enforces NetworkPolicies.
	Calico CNI = "calico"
	// CalicoCrossSubnet is Calico that encapsulates only between nodes of different subnets, of which a lab has but one.
	CalicoCrossSubnet CNI = "calico-cross-subnet"
	// Flannel gives each node the range in its podCIDR, with VXLAN between the nodes and a bridge on each. It runs in pods.
	Flannel CNI = "flannel"
	// Cilium with its own address management, VXLAN between the nodes, and NetworkPolicies. It runs in pods, and takes kube-proxy's place in a lab
	// of NoProxy.
	Cilium CNI = "cilium"
)

func allCNIs() []CNI { return []CNI{HostLocal, Calico, CalicoCrossSubnet, Flannel, Cilium} }

// needs reports whether a lab with that network needs a component of that name. One with flannel can be given Calico.
func (c CNI) needs(component string) bool {
	switch component {
	case "calico":
		return c.isCalico() || c == Flannel
	case "flannel":
		return c == Flannel
	case ciliumComponent:
		return c == Cilium
	default:
		return true
	}
}

// besides are the networks that the cluster of a lab with this one can be made to be given.
func (c CNI) besides() []CNI {
	switch c {
	case Flannel:
		return []CNI{Cilium}
	case HostLocal:
		return []CNI{Calico, Cilium}
	}
	return nil
}

func (c CNI) isCalico() bool { return c == Calico || c == CalicoCrossSubnet }

const (
	calicoUser       = "calico-node"
	calicoKubeconfig = "/etc/cni/net.d/calico-kubeconfig"
	calicoConfigPath = "/etc/cni/net.d/10-calico.conflist"
)

// calicoPrograms are what calico-node runs on a node: Felix, and what gives the node addresses for its tunnels.
func calicoPrograms(b binaries, node string) []machine.Program {
	store := []string{"DATASTORE_TYPE=kubernetes", "KUBECONFIG=" + calicoKubeconfig, "NODENAME=" + node}
	return []machine.Program{
		{Name: "calico-felix", Argv: []string{filepath.Join(b.calico, "calico-felix")}, Env: append([]string{
			"FELIX_DATASTORETYPE=kubernetes", "FELIX_FELIXHOSTNAME=" + node, "FELIX_LOGSEVERITYSCREEN=Warning",
			"FELIX_LOGFILEPATH=none", "FELIX_LOGSEVERITYSYS=none", "FELIX_IPTABLESBACKEND=nft", "FELIX_BPFENABLED=false",
			"FELIX_IPV6SUPPORT=false", "FELIX_DEFAULTENDPOINTTOHOSTACTION=ACCEPT", "FELIX_USAGEREPORTINGENABLED=false",
			// On a machine with bpftool it would look for programs of its BPF dataplane, for which this build has no system calls.
			"FELIX_DebugSkipCTLBCleanup=true",
		}, store...)},
		{Name: "calico-tunnels", Argv: []string{filepath.Join(b.calico, "calico-allocate-tunnel-addrs")}, Env: store},
	}
}

// calicoConfig is the CNI configuration, as Calico's manifest has it.
func calicoConfig() ([]byte, error) {
	type object = map[string]any
	return json.MarshalIndent(object{
		"cniVersion": "0.3.1",
		"name":       "k8s-pod-network",
		"plugins": []object{
			{
				"type": "calico", "log_level": "info", "datastore_type": "kubernetes", "nodename_file_optional": true,
				"ipam":       object{"type": "calico-ipam"},
				"policy":     object{"type": "k8s"},
				"kubernetes": object{"kubeconfig": calicoKubeconfig},
			},
			{"type": "portmap", "snat": true, "capabilities": object{"portMappings": true}},
		},
	}, "", "  ")
}

//go:embed calico.yaml
var calicoTemplate string

// installCalico gives the cluster Calico's definitions, rights and first pool, and nodes what calico-node writes on them
// when it starts: their address. Then the CNI configuration makes the nodes ready.
func (l Addons) installCalico(ctx context.Context, client kubernetes.Interface) error {
	if _, err := l.kubectl(ctx, nil, "apply", "--server-side", "-f", filepath.Join(l.Binaries.calico, "crd")); err != nil {
		return fmt.Errorf("installing Calico's definitions: %w", err)
	}
	t, err := template.New("calico.yaml").Parse(calicoTemplate)
	if err != nil {
		return err
	}
	mode := "Always"
	if l.Topology.CNI == CalicoCrossSubnet {
		mode = "CrossSubnet"
	}
	var manifests bytes.Buffer
	if err := t.Execute(&manifests, map[string]any{"User": calicoUser, "PodCIDR": l.Topology.PodCIDR, "VXLANMode": mode}); err != nil {
		return err
	}
	err = until(ctx, "Calico's resources", func(ctx context.Context) error {
		_, err := l.kubectl(ctx, bytes.NewReader(manifests.Bytes()), "apply", "--server-side", "-f", "-")
		return err
	})
	if err != nil {
		return err
	}
	for _, m := range l.with(Worker) {
		if err := l.calicoNode(ctx, client, m.Name, l.Fabrics().networkOf(m).in(m.Address)); err != nil {
			return err
		}
	}
	return nil
}

func (l Addons) calicoNode(ctx context.Context, client kubernetes.Interface, name string, addr netip.Prefix) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": map[string]string{"projectcalico.org/IPv4Address": addr.String()},
	}})
	if err != nil {
		return err
	}
	err = until(ctx, "node "+name, func(ctx context.Context) error {
		_, err := client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	if err != nil {
		return err
	}
	config, err := calicoConfig()
	if err != nil {
		return err
	}
	node, err := l.Machine(name)
	if err != nil {
		return err
	}
	for _, p := range calicoPrograms(l.Binaries, name) {
		if err := node.Run(ctx, p); err != nil {
			return err
		}
	}
	return node.WriteFile(ctx, calicoConfigPath, config)
}
