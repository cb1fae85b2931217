package podcidr

import (
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

func checkOldPools(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Survey.Moves {
		m := &in.Survey.Moves[i]
		switch {
		case m.Old == nil && m.New == nil:
			out = append(out, findings.Failed("", "there is no pool of %s", m.From))
		case m.Old != nil && !m.Old.ForPods():
			out = append(out, findings.Failed("IPPool "+m.Old.Name, "pool %s is not for pods (allowedUses)", m.Old.Name))
		}
	}
	return out
}

func checkNewPools(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Survey.Moves {
		if n := in.Survey.Moves[i].New; n != nil && (n.Spec.Disabled || !n.ForPods()) {
			out = append(out, findings.Failed("IPPool "+n.Name, "pool %s of target %s gives no addresses to pods", n.Name, n.CIDR))
		}
	}
	return out
}

// checkPins looks at the templates of workloads, at namespaces, and at Calico's own configuration of the CNI plugin.
func checkPins(in Input) []findings.Result {
	var out []findings.Result
	goes := func(text string) bool {
		return slices.ContainsFunc(in.Survey.Moves, func(m Move) bool {
			return m.Old != nil && (strings.Contains(text, `"`+m.Old.Name+`"`) || strings.Contains(text, m.From.String()))
		})
	}
	pinned := func(object string, annotations map[string]string) {
		if text := annotations[connectivity.PoolsAnnotation]; text != "" && goes(text) {
			out = append(out, findings.Failed(object, "%s pins pods to a pool that goes: %s", object, connectivity.PoolsAnnotation))
		}
		for _, key := range []string{"cni.projectcalico.org/ipAddrs", "cni.projectcalico.org/ipAddrsNoIpam"} {
			if annotations[key] != "" {
				out = append(out, findings.Failed(object, "%s gives pods addresses of its own: %s", object, key))
			}
		}
	}
	w := in.Survey.Workloads
	for i := range w.Deployments {
		pinned(object("Deployment", &w.Deployments[i]), w.Deployments[i].Spec.Template.Annotations)
	}
	for i := range w.StatefulSets {
		pinned(object("StatefulSet", &w.StatefulSets[i]), w.StatefulSets[i].Spec.Template.Annotations)
	}
	for i := range w.DaemonSets {
		pinned(object("DaemonSet", &w.DaemonSets[i]), w.DaemonSets[i].Spec.Template.Annotations)
	}
	for name, annotations := range in.Survey.Namespaces {
		pinned("Namespace "+name, annotations)
	}
	out = append(out, in.pinnedConfigs(goes)...)
	slices.SortFunc(out, func(a, b findings.Result) int { return strings.Compare(a.Message, b.Message) })
	return out
}

// pinnedConfigs are CNI configurations that name a pool that goes.
func (in Input) pinnedConfigs(goes func(text string) bool) []findings.Result {
	var out []findings.Result
	for name, data := range in.Survey.Configs {
		for _, text := range data {
			if strings.Contains(text, "ipv4_pools") && goes(text) {
				what := "the CNI configuration in ConfigMap %s pins pods to a pool that goes: ipv4_pools"
				out = append(out, findings.Failed("ConfigMap "+name, what, name))
			}
		}
	}
	return out
}

func object(kind string, o client.Object) string {
	return kind + " " + o.GetNamespace() + "/" + o.GetName()
}

// checkProxyRange follows getLocalDetectors in k8s.io/kubernetes cmd/kube-proxy/app/server_linux.go.

func checkReservable(in Input) []findings.Result {
	if !in.Survey.Unreservable || !in.Survey.holds() {
		return nil
	}
	return []findings.Result{findings.Failed("", "this Calico has no IPReservations")}
}
