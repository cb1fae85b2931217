package inplace

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
	"github.com/replumb/replumb/internal/migrations/cni/manifests"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
	"github.com/replumb/replumb/internal/network/podnetwork"
)

// Checks are about a cluster that serves, and has both networks for a while.
func Checks() []findings.Check[switchover.Input] {
	return slices.Concat(
		findings.Group("Networks", findings.Check[switchover.Input]{
			Code: "RP5107", Severity: findings.Blocking, Run: inPlace(checkBeside),
			Claim: "the new network can run beside the old one",
			Why:   "with mode InPlace both are on every node: what they share, one takes from the other",
			Fix:   "give the new one a range and a UDP port of its own, and the manifests of its vendor; or replace the network of a drained cluster (mode: Drained)",
		}),
		findings.Group("Workloads",
			findings.Check[switchover.Input]{
				Code: "RP5307", Severity: findings.Warning, Run: inPlace(checkStays),
				Claim: "every pod leaves its node by itself",
				Why:   "with mode InPlace a node waits until pods without an owner and those of Jobs have ended, and gives up in the end",
				Fix: "delete pods without an owner when their node is to go, or set spec.cni.inPlace.barePods: Evict (they do not come back); wait for " +
					"Jobs, or set spec.cni.inPlace.jobWait",
			},
			findings.Check[switchover.Input]{
				Code: "RP5308", Severity: findings.Warning, Run: inPlace(checkSingles),
				Claim: "every workload has another pod while one moves",
				Why:   "with mode InPlace a node is emptied: a StatefulSet with one pod, or a Deployment that ends its pods first, does not answer meanwhile",
				Fix:   "scale it, give it a rolling update with maxUnavailable 0, or do it in a window when it may pause",
			},
			findings.Check[switchover.Input]{
				Code: "RP5309", Severity: findings.Blocking, Run: inPlace(checkHidden),
				Claim: "every NetworkPolicy sees the pods that it names while both networks run",
				Why: "between another network and Cilium, packets carry the address of a node: a policy of the old network refuses pods that it lets in, " +
					"and Cilium enforces none before finish",
				Fix: "delete the policies for the time of the switch and keep their files, or replace the network of a drained cluster",
			},
			spare.Check("RP5311", switchover.Field+".prepare", func(in switchover.Input) *spare.Found {
				if s, ok := in.Strategy.(oneByOne); ok {
					return s.InPlace().Spares
				}
				return nil
			}),
		),
	)
}

// oneByOne are the strategies that switch nodes one by one.
type oneByOne interface{ InPlace() *Strategy }

// inPlace is a check that has nothing to say of other strategies.
func inPlace(check func(*Strategy) []findings.Result) func(switchover.Input) []findings.Result {
	return func(in switchover.Input) []findings.Result {
		if s, ok := in.Strategy.(oneByOne); ok {
			return check(s.InPlace())
		}
		return findings.Skip("spec.cni.mode is not InPlace")
	}
}

func checkBeside(s *Strategy) []findings.Result {
	if s.Manifests == nil {
		return findings.Skip(switchover.NoManifests)
	}
	var out []findings.Result
	if _, err := s.staged(false); err != nil {
		out = append(out, findings.Failed("", "%v", err))
	}
	for _, to := range s.Target() {
		for _, from := range s.Ranges {
			if to.Overlaps(from) {
				out = append(out, findings.Failed("", "the range of the new network %s overlaps that of the old one %s", to, from))
			}
		}
	}
	was, will := vxlanPort(s.From(), s.Old), vxlanPort(s.Spec.To, s.Manifests.Objects)
	if was != 0 && was == will {
		out = append(out, findings.Failed("", "both networks have their tunnels at UDP port %d", was))
	}
	out = append(out, s.checkCilium()...)
	for _, name := range s.Spec.InPlace.First {
		if !slices.Contains(s.NodeNames(), name) {
			out = append(out, findings.Failed("Node "+name, "spec.cni.inPlace.first names node %s, which does not exist", name))
		}
	}
	return out
}

// ProxySettings is what Cilium's configuration has to say of kube-proxy, and why.
type ProxySettings struct{ Want, Why string }

// checkCilium finds what of Cilium's configuration has not been seen to work beside another
// network.
func (s *Strategy) checkCilium() []findings.Result {
	if s.Spec.To != v1alpha1.Cilium {
		return nil
	}
	o := s.Manifests.CiliumConfig()
	if o == nil {
		return []findings.Result{findings.Failed("", "the manifests have no ConfigMap %s", podnetwork.CiliumConfig)}
	}
	const beside = "beside another network"
	var out []findings.Result
	for _, rule := range []struct{ key, want, usual, why string }{
		{"ipam", "cluster-pool", "cluster-pool", beside},
		{"routing-mode", "tunnel", "tunnel", beside},
		{"tunnel-protocol", "vxlan", "vxlan", beside},
		{podnetwork.ReplacesProxyKey, s.ProxyReplacement.Want, "false", s.ProxyReplacement.Why},
		{"enable-bpf-masquerade", "false", "false", beside},
		{"enable-ipv4-masquerade", "true", "true", beside},
	} {
		if have := cmp.Or(s.Manifests.CiliumSetting(rule.key), rule.usual); have != rule.want {
			out = append(out, findings.Failed(manifests.KeyOf(o).String(), "%s sets %s to %q, and %s it must be %q",
				manifests.KeyOf(o), rule.key, have, rule.why, rule.want))
		}
	}
	return out
}

// checkHidden names policies that would be about nodes instead of pods.
func checkHidden(s *Strategy) []findings.Result {
	if !s.masquerades() || !s.Enforcing() || s.Begun() {
		return findings.Skip("no policy would see nodes in place of pods")
	}
	var out []findings.Result
	for i := range s.Policies.Standard {
		name := s.Policies.Standard[i].Namespace + "/" + s.Policies.Standard[i].Name
		out = append(out, findings.Failed("NetworkPolicy "+name, "NetworkPolicy %s sees nodes in place of pods of %s", name, s.Spec.To))
	}
	return out
}

// vxlanPort is the UDP port of a network's tunnels, as its objects say or by its default: flannel's
// is the kernel's, 8472 (Documentation/backends.md in github.com/flannel-io/flannel), Calico's the
// one of IANA, 4789 (VXLANPort in felix/config), Cilium's 8472 (TunnelPortVXLAN in pkg/defaults). 0
// is not known.
func vxlanPort(network v1alpha1.CNIName, objects []*unstructured.Unstructured) int {
	port := map[v1alpha1.CNIName]int{v1alpha1.Flannel: 8472, v1alpha1.Calico: 4789, v1alpha1.Cilium: 8472}[network]
	for _, o := range objects {
		switch o.GetKind() {
		case "ConfigMap":
			if text, _, _ := unstructured.NestedString(o.Object, "data", "tunnel-port"); o.GetName() == podnetwork.CiliumConfig {
				if n, err := strconv.Atoi(text); err == nil && n != 0 {
					port = n
				}
			}
			text, _, _ := unstructured.NestedString(o.Object, "data", "net-conf.json")
			var config struct{ Backend struct{ Port int } }
			if json.Unmarshal([]byte(text), &config) == nil && config.Backend.Port != 0 {
				port = config.Backend.Port
			}
		case "FelixConfiguration":
			if n, found, err := unstructured.NestedInt64(o.Object, "spec", "vxlanPort"); err == nil && found {
				port = int(n)
			}
		case "DaemonSet":
			if n := felixPort(o); n != 0 {
				port = n
			}
		}
	}
	return port
}

// felixPort is what the environment of calico-node says; 0 if it says nothing.
func felixPort(o *unstructured.Unstructured) int {
	set, err := manifests.As[appsv1.DaemonSet](o)
	if err != nil {
		return 0
	}
	for _, c := range set.Spec.Template.Spec.Containers {
		for _, e := range c.Env {
			if n, err := strconv.Atoi(e.Value); e.Name == "FELIX_VXLANPORT" && err == nil {
				return n
			}
		}
	}
	return 0
}

func checkStays(s *Strategy) []findings.Result {
	var out []findings.Result
	for i := range s.Pods {
		p := &s.Pods[i]
		name := p.Namespace + "/" + p.Name
		switch ref := metav1.GetControllerOfNoCopy(p); {
		case !switchover.Concerned(p) || !hasAddressIn(p, s.Ranges):
		case ref == nil && s.Spec.InPlace.BarePods != v1alpha1.BarePodsEvict:
			out = append(out, findings.Failed("Pod "+name, "pod %s on node %s has no owner, and is waited for", name, p.Spec.NodeName))
		case ref == nil:
			out = append(out, findings.Failed("Pod "+name, "pod %s on node %s has no owner, and does not come back", name, p.Spec.NodeName))
		case ref.Kind == "Job":
			out = append(out, findings.Failed("Pod "+name, "pod %s of Job %s is running on node %s", name, ref.Name, p.Spec.NodeName))
		}
	}
	return out
}

func checkSingles(s *Strategy) []findings.Result {
	var out []findings.Result
	for i := range s.Workloads.Deployments {
		d := &s.Workloads.Deployments[i]
		allAtOnce := d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType
		w := rollout.Workload{Kind: rollout.KindDeployment, UID: d.UID, AllAtOnce: allAtOnce}
		w.Namespace, w.Name = d.Namespace, d.Name
		out = append(out, s.gap(&w)...)
	}
	for i := range s.Workloads.StatefulSets {
		d := &s.Workloads.StatefulSets[i]
		w := rollout.Workload{Kind: rollout.KindStatefulSet, UID: d.UID}
		w.Namespace, w.Name = d.Namespace, d.Name
		out = append(out, s.gap(&w)...)
	}
	return out
}

func (s *Strategy) gap(w *rollout.Workload) []findings.Result {
	serves := slices.ContainsFunc(s.Pods, func(p corev1.Pod) bool {
		return switchover.Concerned(&p) && hasAddressIn(&p, s.Ranges) && switchover.WorkloadOf(&p) == w.Kind+" "+w.Namespace+"/"+w.Name
	})
	gap := s.Workloads.Gap(w)
	if gap == "" || !serves {
		return nil
	}
	return []findings.Result{findings.Failed(w.String(), "%s %s", w, gap)}
}
