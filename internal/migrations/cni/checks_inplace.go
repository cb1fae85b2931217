package cni

import (
	"encoding/json"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/network/podnetwork"
)

// checkBeside finds what both networks would share.
func checkBeside(in Input) []findings.Result {
	s := in.Survey
	if !s.Spec.Serving || s.Manifests == nil {
		return nil
	}
	var out []findings.Result
	if _, err := s.parked(false); err != nil {
		out = append(out, findings.Failed("", "%v", err))
	}
	for _, to := range s.target() {
		for _, from := range s.Ranges {
			if to.Overlaps(from) {
				out = append(out, findings.Failed("", "the range of the new network %s overlaps that of the old one %s", to, from))
			}
		}
	}
	was, will := vxlanPort(s.from(), s.Old), vxlanPort(s.Spec.To, s.Manifests.Objects)
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

// checkCilium finds what of Cilium's configuration has not been seen to work beside another network.
func (s *Survey) checkCilium() []findings.Result {
	if s.Spec.To != v1alpha1.Cilium {
		return nil
	}
	o := s.Manifests.cilium()
	if o == nil {
		return []findings.Result{findings.Failed("", "the manifests have no ConfigMap %s", podnetwork.CiliumConfig)}
	}
	var out []findings.Result
	for _, rule := range []struct{ key, want, usual string }{
		{"ipam", "cluster-pool", "cluster-pool"},
		{"routing-mode", "tunnel", "tunnel"},
		{"tunnel-protocol", "vxlan", "vxlan"},
		{podnetwork.ReplacesProxyKey, strconv.FormatBool(s.Spec.ReplaceProxy), "false"},
		{"enable-bpf-masquerade", "false", "false"},
		{"enable-ipv4-masquerade", "true", "true"},
	} {
		have, _, _ := unstructured.NestedString(o.Object, "data", rule.key)
		if have == "" {
			have = rule.usual
		}
		if have != rule.want {
			why := "beside another network"
			if rule.key == podnetwork.ReplacesProxyKey && s.Spec.ReplaceProxy {
				why = "with spec.cni.kubeProxy: Replace"
			}
			out = append(out, findings.Failed(keyOf(o).String(), "%s sets %s to %q, and %s it must be %q",
				keyOf(o), rule.key, have, why, rule.want))
		}
	}
	return out
}

// checkHidden names policies that would be about nodes instead of pods.
func checkHidden(in Input) []findings.Result {
	s := in.Survey
	if !s.Spec.Serving || !s.hides() || !s.enforcing() || s.begun() {
		return nil
	}
	var out []findings.Result
	for i := range s.Policies.Standard {
		name := s.Policies.Standard[i].Namespace + "/" + s.Policies.Standard[i].Name
		out = append(out, findings.Failed("NetworkPolicy "+name, "NetworkPolicy %s sees nodes in place of pods of %s", name, s.Spec.To))
	}
	return out
}

// vxlanPort is the UDP port of a network's tunnels, as its objects say or by its default: flannel's is the kernel's, 8472
// (Documentation/backends.md in github.com/flannel-io/flannel), Calico's the one of IANA, 4789 (VXLANPort in felix/config), Cilium's 8472
// (TunnelPortVXLAN in pkg/defaults). 0 is not known.
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
	set := &appsv1.DaemonSet{}
	if runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, set) != nil {
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

// checkStays names pods that are waited for on their node.
func checkStays(in Input) []findings.Result {
	s := in.Survey
	if !s.Spec.Serving {
		return nil
	}
	var out []findings.Result
	for i := range s.Pods {
		p := &s.Pods[i]
		name := p.Namespace + "/" + p.Name
		switch ref := metav1.GetControllerOfNoCopy(p); {
		case !concerned(p) || !has(p, s.Ranges):
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

// checkSingles names workloads that do not answer for a moment when their pod leaves its node.
func checkSingles(in Input) []findings.Result {
	s := in.Survey
	if !s.Spec.Serving {
		return nil
	}
	var out []findings.Result
	for i := range s.Workloads.Deployments {
		d := &s.Workloads.Deployments[i]
		w := rollout.Workload{
			Kind:      rollout.KindDeployment,
			UID:       d.UID,
			AllAtOnce: d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType,
		}
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

func (s *Survey) gap(w *rollout.Workload) []findings.Result {
	serves := slices.ContainsFunc(s.Pods, func(p corev1.Pod) bool {
		return concerned(&p) && has(&p, s.Ranges) && workloadOf(&p) == w.Kind+" "+w.Namespace+"/"+w.Name
	})
	gap := s.Workloads.Gap(w)
	if gap == "" || !serves {
		return nil
	}
	return []findings.Result{findings.Failed(w.String(), "%s %s", w, gap)}
}
