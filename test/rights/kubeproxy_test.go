package rights

import (
	"context"
	"maps"
	"net/netip"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/kube/taskpod"
	"github.com/replumb/replumb/internal/migrations/kubeproxy"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/network/nodepod"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
)

const modeMove = `apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: mode}
spec:
  image: replumb
  kubeProxy: {mode: nftables}
`

const modeManifests = `apiVersion: v1
kind: ConfigMap
metadata: {name: kube-proxy, namespace: kube-system}
data: {config.conf: "kind: KubeProxyConfiguration\nmode: iptables\n"}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-proxy, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: kube-proxy}}
  template:
    metadata: {labels: {k8s-app: kube-proxy}}
    spec:
      hostNetwork: true
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists}]
      containers:
      - name: kube-proxy
        image: kube-proxy:v1.36.3
        command: [kube-proxy, --config=/var/lib/kube-proxy/config.conf]
        volumeMounts: [{name: kube-proxy, mountPath: /var/lib/kube-proxy}]
      volumes: [{name: kube-proxy, configMap: {name: kube-proxy}}]
`

// plainNetwork gives pods one address after another.
type plainNetwork struct {
	mu   sync.Mutex
	last netip.Addr
}

func (n *plainNetwork) Take(context.Context, []calico.Pool, fakekubelet.User) (netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last = n.last.Next()
	return n.last, nil
}

// ByNode implements fakekubelet.ByNode.
func (*plainNetwork) ByNode() {}

func (*plainNetwork) Give(context.Context, string) error { return nil }

// TestKubeProxy: the roles are enough for whole changes of kube-proxy's mode, and all of them is needed.
func TestKubeProxy(t *testing.T) {
	s := empty(t, shared)
	s.play(&plainNetwork{last: netip.MustParseAddr("10.244.0.1")}, func(pod *corev1.Pod) string {
		if pod.Labels[taskpod.Label] != "" { // nodes have what is wanted
			return "{}"
		}
		return message(pod)
	})
	s.manifests(modeManifests)
	for name, address := range map[string]string{"node1": "192.0.2.1", "node2": "192.0.2.2"} {
		s.node(name, address)
	}
	s.start("kube-proxy", modeMove)
	s.expect(3, viewer, []string{"check", "-f", s.file, "-o", "json"},
		"missing permission: create,patch,delete daemonsets.apps in kube-system (role replumb-kube-proxy-operate)")
	s.moves("mode")
	s.movesForGood("mode")
	unused := map[string]string{
		"get validatingadmissionpolicybindings.admissionregistration.k8s.io replumb-freeze-deploys": lifted,
		"patch services in replumb-system": "the Service that agents call moves, where Services do",
		"list events in replumb-system":    "a pod of an agent that does not start",
	}
	maps.Copy(unused, unusedAround())
	maps.Copy(unused, unusedAgents())
	s.audited(kubeproxy.Roles(), unused)
}

const programMove = `apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: mode}
spec:
  image: replumb
  kubeProxy: {mode: nftables, program: {restart: {exec: {command: ["true"]}}}}
`

// TestKubeProxyProgram: the same roles are enough where kube-proxy is a program of nodes.
func TestKubeProxyProgram(t *testing.T) {
	s := empty(t, shared)
	s.play(&plainNetwork{last: netip.MustParseAddr("10.244.0.1")}, func(pod *corev1.Pod) string {
		switch pod.Labels[taskpod.Label] {
		case nodepod.VerbCopyRules:
			return `{"found": ["iptables", "nftables"]}`
		case "":
			return message(pod)
		}
		return "{}"
	})
	for name, address := range map[string]string{"node1": "192.0.2.1", "node2": "192.0.2.2"} {
		s.node(name, address)
	}
	s.start("kube-proxy", programMove)
	s.moves("mode")
	s.movesForGood("mode")
}
