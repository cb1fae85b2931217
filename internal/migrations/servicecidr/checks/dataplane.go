package checks

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// proveIt is how people find out, and report, what replumb does not know of a data plane.
const proveIt = "try it on a Service that matters little: pin all others (replumb.dev/strategy=pin), annotate that one replumb.dev/strategy=hop " +
	"and apply. A bridge is proven when pods on nodes without an endpoint of it, in namespaces with your egress policies, get answers " +
	"at its old and its new address, keep open connections, and calls by name lose nothing meanwhile. Then annotate so each Service " +
	"that may move (kubectl annotate service -n NAMESPACE NAME replumb.dev/strategy=hop) and pin those that may not"

func dataPlaneChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1210", Severity: findings.Blocking, Run: checkCilium,
			Claim: "Services behind a Cilium beside kube-proxy move only before 1.19, and only if annotated",
			Why: "also with kube-proxy-replacement off, Cilium translates what pods send to Services and judges their egress before kube-proxy does. " +
				"From 1.19 on it also serves the addresses of load balancers and externalIPs, which bridges have, and drops what pods send there: with " +
				"1.20.2 up to 58% of requests to old addresses were lost; an annotation does not change that",
			Fix: "from Cilium 1.19 on leave the Services where they are (spec.serviceCIDR.mode: Extend adds a range for new ones), or pin them " +
				"(replumb.dev/strategy=pin). Before, " + proveIt,
		},
		{
			Code: "RP1211", Severity: findings.Blocking, Run: checkOVS,
			Claim: "Services behind Antrea or Kube-OVN beside kube-proxy move only if annotated replumb.dev/strategy=hop",
			Why: "Open vSwitch translates what pods send to Services before kube-proxy does, load balancers' addresses among them, or judges it by " +
				"the address that it was sent to; what it makes of a bridge is not tried",
			Fix: proveIt,
		},
		{
			Code: "RP1212", Severity: findings.Blocking, Run: checkAWS,
			Claim: "Services behind AWS's network policy agent move only if annotated replumb.dev/strategy=hop",
			Why: "the agent of the VPC CNI judges at the pod's interface, before kube-proxy translates. It knows the " +
				"ClusterIPs of the Services that a policy selects, but not the addresses of bridges, so it may refuse " +
				"old addresses to a namespace with an egress policy",
			Fix: proveIt,
		},
		{
			Code: "RP1213", Severity: findings.Blocking, Run: checkMeshes,
			Claim: "Services with TCP ports behind a service mesh move only if annotated replumb.dev/strategy=hop",
			Why: "proxies of a mesh know Services by their ClusterIPs. When a Service gets another, they may close what is open at the old one, and " +
				"send what still comes for it past the mesh: without its identity, which strict policies refuse, and without its routes",
			Fix: proveIt,
		},
	}
}

func (in Input) waiting() []*services.Entry {
	return slices.DeleteFunc(slices.Clone(in.Inventory.Moves), func(e *services.Entry) bool { return e.Position != services.Waiting })
}

// untried are Services without the user's word that an untried data plane is no obstacle.
func (in Input) untried(concerned func(*corev1.Service) bool) []*services.Entry {
	return slices.DeleteFunc(in.waiting(), func(e *services.Entry) bool {
		return e.Service.Annotations[v1alpha1.AnnotationStrategy] == v1alpha1.StrategyHop || !concerned(e.Service)
	})
}

func anyService(*corev1.Service) bool { return true }

// overTCP reports whether proxies of a mesh carry what is sent to a Service: they leave UDP alone.
func overTCP(svc *corev1.Service) bool {
	return slices.ContainsFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool {
		return cmp.Or(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP
	})
}

func wouldMove(all []*services.Entry) string {
	return fmt.Sprintf("%s would move, such as %s", english.Plural(len(all), "Service", ""), all[0].Key())
}

// behind looks for data planes of some kinds. An empty text means that another check is about one.
func (in Input) behind(what func(inventory.DataPlane) string, kinds ...inventory.Plane) []findings.Result {
	all := in.untried(anyService)
	if len(in.waiting()) == 0 {
		return findings.Skip(noPending)
	}
	if len(in.unread("daemonsets", "pods"))+len(in.planes(kinds...)) == 0 {
		return findings.Skip("no such data plane is seen in the cluster")
	}
	if len(all) == 0 {
		return nil
	}
	out := in.unread("daemonsets", "pods")
	for _, p := range in.planes(kinds...) {
		if does := what(p); does != "" {
			out = append(out, beside(p, does, all))
		}
	}
	return out
}

func (in Input) planes(kinds ...inventory.Plane) (out []inventory.DataPlane) {
	for _, p := range in.Found().Planes {
		if slices.Contains(kinds, p.Plane) {
			out = append(out, p)
		}
	}
	return out
}

func beside(p inventory.DataPlane, does string, concerned []*services.Entry) findings.Result {
	return findings.Failed(p.Object, "%s of %s, as %s shows, %s; %s", cmp.Or(p.Version, "an unknown version"), p.Plane, p.Object, does,
		wouldMove(concerned))
}

func checkCilium(in Input) []findings.Result {
	mode := "of no known kube-proxy-replacement"
	for _, m := range in.Found().CiliumModes {
		if m.Replaces() {
			return findings.Skip("Cilium does the work of kube-proxy (RP1201)")
		}
		mode = "with kube-proxy-replacement: " + m.Value
	}
	out := in.behind(func(p inventory.DataPlane) string {
		if servesBalancers(p.Version) {
			return ""
		}
		return mode + ", " + ciliumDoes(p.Version)
	}, inventory.PlaneCilium)
	all := in.waiting()
	if len(all) == 0 {
		return out
	}
	for _, p := range in.planes(inventory.PlaneCilium) {
		if servesBalancers(p.Version) {
			does := mode + ", drops what pods send to the addresses of bridges, whatever Services are annotated with"
			out = append(out, beside(p, does, all))
		}
	}
	return out
}

// servesBalancers tells whether a Cilium is known to serve load balancers' addresses itself
// (cilium/cilium#45252, #48455; TestPastCilium).
func servesBalancers(version string) bool {
	major, minor, known := inventory.Minor(version)
	return known && (major > 1 || minor >= 19)
}

// ciliumDoes follows cilium/cilium#10651, and kubermatic/kubermatic#15939.
func ciliumDoes(version string) string {
	const (
		policy = "judges egress before kube-proxy translates it, by an old address that is no Service's to it"
		owner  = "refuses the second owner of an address, which is the moved Service as long as its bridge has the new one"
		local  = "drops what pods send to the addresses of bridges"
	)
	_, minor, known := inventory.Minor(version)
	switch {
	case !known:
		return strings.Join([]string{policy + " (1.18 and before)", owner + " (1.18)", local + " (1.19 and later)"}, ", ")
	case minor <= 17:
		return policy
	}
	return policy + ", and " + owner
}

func checkOVS(in Input) []findings.Result {
	replaced := slices.ContainsFunc(in.Found().Replacements, func(r inventory.Replacement) bool {
		return strings.HasPrefix(r.By, string(inventory.PlaneAntrea))
	})
	return in.behind(func(p inventory.DataPlane) string {
		if p.Plane == inventory.PlaneAntrea && replaced {
			return "" // RP1201 is about it
		}
		return "handles what pods send before kube-proxy does"
	}, inventory.PlaneAntrea, inventory.PlaneKubeOVN)
}

func checkAWS(in Input) []findings.Result {
	return in.behind(func(inventory.DataPlane) string { return "judges what pods send before kube-proxy translates it" }, inventory.PlaneAWS)
}

func checkMeshes(in Input) []findings.Result {
	all := in.untried(overTCP)
	if len(in.waiting()) == 0 {
		return findings.Skip(noPending)
	}
	if len(all) == 0 {
		return nil
	}
	out := in.unread("pods", "deployments", "daemonsets", "mutatingwebhookconfigurations")
	seen := map[string]inventory.Mesh{}
	for _, m := range in.Found().Meshes {
		seen[m.Name] = *m
	}
	for ns, name := range in.Snapshot.Meshed {
		m := seen[name]
		m.Name = name
		if m.Namespaces = slices.Clone(m.Namespaces); !slices.Contains(m.Namespaces, ns) {
			m.Namespaces = append(m.Namespaces, ns)
		}
		slices.Sort(m.Namespaces)
		seen[name] = m
	}
	if len(out)+len(seen) == 0 {
		return findings.Skip("no service mesh is seen in the cluster")
	}
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		out = append(out, meshResult(seen[name], all))
	}
	return out
}

func meshResult(m inventory.Mesh, all []*services.Entry) findings.Result {
	object, version := "", cmp.Or(strings.Join(m.Versions, ", "), "of unknown version")
	if len(m.Objects) > 0 {
		object = m.Objects[0]
	} else if len(m.Namespaces) > 0 {
		object = "Namespace " + m.Namespaces[0]
	}
	if m.Pods == 0 && len(m.Namespaces) == 0 {
		return findings.NotKnown(
			object,
			"%s %s is there, as %s shows, and which pods it carries cannot be seen; %s",
			m.Name,
			version,
			object,
			wouldMove(all),
		)
	}
	where := english.OxfordWordSeries(firstThree(m.Namespaces), "and")
	if m.Pods == 0 {
		return findings.Failed(object, "%s %s takes in pods of %s, as %s shows; %s", m.Name, version, where, object, wouldMove(all))
	}
	return findings.Failed(object, "%s %s carries what %s of %s send, as %s shows; %s", m.Name, version, english.Plural(m.Pods, "pod", ""),
		where, object, wouldMove(all))
}
