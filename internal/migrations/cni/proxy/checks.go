package proxy

import (
	"net/netip"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/keepers"
	"github.com/replumb/replumb/internal/migrations/cni/manifests"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
	"github.com/replumb/replumb/internal/network/daemonset"
	"github.com/replumb/replumb/internal/network/podnetwork"
)

// Checks are those of spec.cni.kubeProxy: Replace.
func Checks() []findings.Check[switchover.Input] {
	return findings.Group("kube-proxy",
		findings.Check[switchover.Input]{
			Code: "RP5108", Severity: findings.Blocking, Run: inProxy(checkAPIServer),
			Claim: "Cilium finds the API server without kube-proxy",
			Why: "the address of the Service kubernetes is one that kube-proxy leads to, and after it Cilium itself: an agent that starts on a node " +
				"with neither reaches no API server",
			Fix: "render the chart with k8sServiceHost and k8sServicePort, an address of the API servers that every node reaches by itself; from Cilium " +
				"1.16 on",
		},
		findings.Check[switchover.Input]{
			Code: "RP5109", Severity: findings.Blocking, Run: inProxy(checkRemovable),
			Claim: "kube-proxy can be taken off nodes, and nothing brings it back",
			Why: "for a moment kube-proxy and Cilium both serve Services on the node; mode ipvs binds addresses of Services to the node, which replumb " +
				"does not take off",
			Fix: "change kube-proxy to mode iptables or nftables first; take its DaemonSet out of the hands that hold it, without deleting it",
		},
		findings.Check[switchover.Input]{
			Code: "RP5110", Severity: findings.Warning, Run: inProxy(checkProcess),
			Claim: "replumb takes kube-proxy off nodes itself",
			Why: "only you can stop a kube-proxy that is a program of the node: apply waits on each node until you have, for as long as spec.cni.gateWait, and rollback " +
				"until you have started it",
			Fix: "have the commands at hand that stop kube-proxy on one node and start it again; see docs/runbooks/cni-in-place.md",
		},
		findings.Check[switchover.Input]{
			Code: "RP5111", Severity: findings.Warning, Run: inProxy(checkOpen),
			Claim: "connections that pods have open to Services stay open",
			Why: "Cilium leads packets of pods one by one as long as kube-proxy is there, and afterwards their sockets as they connect: a connection " +
				"that was open before is led nowhere, and ends. Meshes in pods need it too",
			Fix: "render the chart with socketLB.hostNamespaceOnly=true; or replace kube-proxy when clients may connect again",
		},
		findings.Check[switchover.Input]{
			Code: "RP5112", Severity: findings.Warning, Run: inProxy(checkHealthz),
			Claim: "load balancers that ask kube-proxy whether a node is well get an answer from Cilium",
			Why:   "with no answer at port 10256 a balancer of a cloud takes a node for ill, and after the last one leads no one anywhere",
			Fix:   "render the chart with kubeProxyReplacementHealthzBindAddr=0.0.0.0:10256, unless no balancer asks there",
		},
		findings.Check[switchover.Input]{
			Code: "RP5113", Severity: findings.Warning, Run: inProxy(checkNodeLocal),
			Claim: "the cluster's DNS is answered on nodes as before",
			Why:   "a NodeLocal DNSCache that has the address of the cluster's DNS is passed by: Cilium leads to that address before packets get there",
			Fix:   "plan for DNS without it, or give Cilium a CiliumLocalRedirectPolicy for it after finish",
		},
	)
}

// inProxy is a check that has nothing to say of other strategies, or without manifests.
func inProxy(check func(*Strategy) []findings.Result) func(switchover.Input) []findings.Result {
	return func(in switchover.Input) []findings.Result {
		switch s, ok := in.Strategy.(*Strategy); {
		case !ok:
			return findings.Skip("spec.cni.kubeProxy is not Replace")
		case s.Manifests == nil:
			return findings.Skip(switchover.NoManifests)
		default:
			return check(s)
		}
	}
}

// apiHost is where programs in pods look for the API server.
const apiHost = "KUBERNETES_SERVICE_HOST"

// namesAPI are the containers of Cilium that ask the API server (templates/cilium-agent and
// cilium-operator of its chart).
func namesAPI() []string { return []string{"config", "cilium-agent", "cilium-operator"} }

func checkAPIServer(s *Strategy) []findings.Result {
	out := s.oldCilium()
	if s.Manifests.CiliumSetting("k8s-api-server-urls") != "" || s.Manifests.CiliumSetting("k8s-api-server") != "" {
		return out
	}
	for _, o := range s.Manifests.Objects {
		for _, c := range containersOf(o) {
			if !slices.Contains(namesAPI(), c.Name) {
				continue
			}
			if why := s.dependent(&c); why != "" {
				out = append(out, findings.Failed(manifests.KeyOf(o).String(), "container %s of %s %s", c.Name, manifests.KeyOf(o), why))
			}
		}
	}
	return out
}

func containersOf(o *unstructured.Unstructured) []corev1.Container {
	var template corev1.PodTemplateSpec
	switch o.GetKind() {
	case "DaemonSet":
		if ds, err := manifests.As[appsv1.DaemonSet](o); err == nil {
			template = ds.Spec.Template
		}
	case "Deployment":
		if d, err := manifests.As[appsv1.Deployment](o); err == nil {
			template = d.Spec.Template
		}
	}
	return slices.Concat(template.Spec.InitContainers, template.Spec.Containers)
}

func (s *Strategy) dependent(c *corev1.Container) string {
	i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == apiHost })
	if i < 0 || c.Env[i].Value == "" && c.Env[i].ValueFrom == nil {
		return "does not set " + apiHost
	}
	a, err := netip.ParseAddr(c.Env[i].Value)
	if err == nil && slices.ContainsFunc(s.Services, func(r netip.Prefix) bool { return r.Contains(a) }) {
		return "sets " + apiHost + " to " + a.String() + ", which is an address of a Service"
	}
	return ""
}

// Since which version CiliumNodeConfig is as replumb writes it (pkg/k8s/apis/cilium.io/v2 in
// github.com/cilium/cilium).
const nodeConfigMajor, nodeConfigMinor = 1, 16

// oldCilium finds a Cilium that takes no configuration for single nodes. An image without a version
// may be any: its API tells in time.
func (s *Strategy) oldCilium() []findings.Result {
	set := s.Manifests.DaemonSet()
	if set == nil {
		return nil
	}
	for _, c := range set.Spec.Template.Spec.Containers {
		name, _, _ := strings.Cut(c.Image, "@")
		_, tag, _ := strings.Cut(path.Base(name), ":")
		major, minor, ok := inventory.Minor(tag)
		if c.Name == "cilium-agent" && ok && (major < nodeConfigMajor || major == nodeConfigMajor && minor < nodeConfigMinor) {
			return []findings.Result{findings.Failed("", "Cilium %s takes no CiliumNodeConfig of version v2", tag)}
		}
	}
	return nil
}

func checkRemovable(s *Strategy) []findings.Result {
	var out []findings.Result
	for _, p := range s.Proxies {
		if p.Mode == "ipvs" {
			out = append(out, findings.Failed(p.Object, "kube-proxy runs in mode ipvs (%s)", p.Object))
		}
	}
	for i := range s.ProxySets {
		ds := &s.ProxySets[i]
		if by, comesBack := keepers.HeldBy(ds); comesBack {
			out = append(out, findings.Failed(daemonset.Name(ds), "%s is held by %s", daemonset.Name(ds), by))
		}
	}
	return out
}

func checkProcess(s *Strategy) []findings.Result {
	if len(s.toHandOver(engine.Forward)) == 0 {
		return findings.Skip("kube-proxy is off all nodes")
	}
	if len(s.ProxySets) > 0 {
		return nil
	}
	return []findings.Result{findings.Failed("", "no DaemonSet runs kube-proxy")}
}

func checkOpen(s *Strategy) []findings.Result {
	if s.Manifests.CiliumSetting(podnetwork.HostOnlyKey) == "true" {
		return nil
	}
	return []findings.Result{
		findings.Failed("", "ConfigMap %s does not set %s to \"true\"", podnetwork.CiliumConfig, podnetwork.HostOnlyKey),
	}
}

func checkHealthz(s *Strategy) []findings.Result {
	if s.Manifests.CiliumSetting(podnetwork.ProxyHealthKey) != "" {
		return nil
	}
	return []findings.Result{findings.Failed("", "ConfigMap %s does not set %s", podnetwork.CiliumConfig, podnetwork.ProxyHealthKey)}
}

func checkNodeLocal(s *Strategy) []findings.Result {
	var out []findings.Result
	for _, n := range s.NodeLocal {
		out = append(out, findings.Failed(n.Object, "%s listens on %v", n.Object, n.Addresses))
	}
	return out
}
