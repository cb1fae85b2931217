package checks

import (
	"errors"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/controlplane"
	"github.com/replumb/replumb/internal/kube/etcdrelay"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// Storage is what was found where API servers keep the Services that move by etcd.
type Storage struct {
	Err     error
	Refused map[types.NamespacedName]error
}

// The versions of Kubernetes whose storage of Services package stored is written for.
const (
	firstStored = "1.31"
	lastStored  = "1.36"
)

func storeChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1720", Severity: findings.Blocking, Run: checkStore,
			Claim: "etcd is reachable, and stores the Services of strategy etcd as expected",
			Why: "such a Service is changed in etcd itself. replumb does that only where the object in etcd is " +
				"provably the one that the API server answers with (UID, revision and addresses), unencrypted, and in " +
				"a known encoding. With source: Kubeadm apply looks through its pod before the first Service moves",
			Fix: "name the etcd of these API servers and a client certificate of it in spec.serviceCIDR.etcd, or set source: Kubeadm there, where kubeadm " +
				"made the control planes; or move the Services by another strategy: " +
				"kubectl annotate service -n NAMESPACE NAME replumb.dev/strategy=pin",
		},
		{
			Code: "RP1721", Severity: findings.Blocking, Run: checkStoredVersion,
			Claim: "the API servers' storage of Services is known (Kubernetes " + firstStored + " to " + lastStored + ")",
			Why:   "how API servers keep Services is no API, and may change with a version",
			Fix:   "set spec.serviceCIDR.strategies to Pin or Hop, or use a release of replumb that knows the version",
		},
		{
			Code: "RP1722", Severity: findings.Warning, Run: checkInternalLocal,
			Claim: "Services with internalTrafficPolicy Local keep their addresses",
			Why: "its bridge leads clients of the old address to endpoints of all nodes, until finish; at the new address the policy holds all the time. " +
				"Where the endpoint of another node gives other answers, such as an agent's of the node, that matters",
			Fix: "restart what calls it by the old address soon after the move, or pin it: kubectl annotate service -n NAMESPACE NAME replumb.dev/strategy=pin",
		},
		{
			Code: "RP1723", Severity: findings.Blocking, Run: checkThroughKubeadm,
			Claim: "with etcd.source: Kubeadm, API servers reach the etcd of their own node as kubeadm makes it",
			Why: "replumb runs a pod on a control plane, as root there and with the certificate of its API server as a client of etcd, which stays there. It connects " +
				"to the etcd at that node's own loopback address, and knows no other",
			Fix: "in spec.serviceCIDR.etcd, name endpoints and a client certificate instead of source: Kubeadm, or bring the flags in " +
				"/etc/kubernetes/manifests/kube-apiserver.yaml into the form that kubeadm writes",
		},
	}
}

func checkStore(in Input) (out []findings.Result) {
	switch {
	case len(ServicesMovedByEtcd(in.Inventory)) == 0:
		return findings.Skip("no Service moves by strategy Etcd")
	case in.ThroughKubeadm():
		return findings.Skip("apply looks through its pod on a control plane, before the first Service moves")
	}
	if in.Storage.Err != nil {
		return []findings.Result{findings.Failed("spec.serviceCIDR.etcd", "%s", advised(in.Storage.Err))}
	}
	keys := slices.SortedFunc(
		maps.Keys(in.Storage.Refused),
		func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) },
	)
	for _, key := range keys {
		out = append(out, findings.Failed("Service "+key.String(), "%s", advised(in.Storage.Refused[key])))
	}
	return out
}

// ThroughKubeadm is whether etcd is reached through a pod on a control plane.
func (in Input) ThroughKubeadm() bool {
	return in.spec().Store != nil && in.spec().Store.Source == v1alpha1.SourceKubeadm
}

func checkThroughKubeadm(in Input) []findings.Result {
	if !in.ThroughKubeadm() || len(ServicesMovedByEtcd(in.Inventory)) == 0 {
		return findings.Skip("no Service moves through the etcd of control planes that kubeadm made")
	}
	out, servers := in.unread("pods"), 0
	for i := range in.Found().ControlPlane.Programs {
		p := &in.Found().ControlPlane.Programs[i]
		if p.Component != controlplane.APIServer {
			continue
		}
		servers++
		if unusual := etcdrelay.Unusual(p.Flag, in.spec().Store.Prefix); unusual != "" {
			out = append(out, findings.Failed("Node "+p.Node, "node %s, /etc/kubernetes/manifests/kube-apiserver.yaml: the API server runs with %s", p.Node, unusual))
		}
	}
	if servers == 0 && len(out) == 0 {
		out = append(out, findings.Failed("", "no API server is seen that a kubelet runs from a file"))
	}
	if in.GateImage == "" {
		out = append(out, findings.Failed("", "neither spec.image nor this build names an image for the pod"))
	}
	return out
}

func advised(err error) string {
	var by fault.Adviser
	if errors.As(err, &by) && by.Advice() != "" {
		return err.Error() + ": " + by.Advice()
	}
	return err.Error()
}

func checkStoredVersion(in Input) []findings.Result {
	if len(ServicesMovedByEtcd(in.Inventory)) == 0 {
		return findings.Skip("no Service moves by strategy Etcd")
	}
	says := in.Snapshot.Version.GitVersion
	have, err := version.ParseGeneric(says)
	if err != nil {
		return []findings.Result{findings.NotKnown("", "the API server says that it is of version %q", says)}
	}
	minor := version.MajorMinor(have.Major(), have.Minor())
	if minor.LessThan(version.MustParseGeneric(firstStored)) || minor.GreaterThan(version.MustParseGeneric(lastStored)) {
		return []findings.Result{findings.Failed("", "the API server is of version %s", says)}
	}
	return nil
}

func checkInternalLocal(in Input) (out []findings.Result) {
	for _, e := range in.Inventory.Pending() {
		if services.InternalLocal(e.Service) {
			out = append(out, failedService(e, "has internalTrafficPolicy Local"))
		}
	}
	return out
}

// ServicesMovedByEtcd are the Services that move, or return, by etcd.
func ServicesMovedByEtcd(s *services.Inventory) (all []*corev1.Service) {
	for _, e := range s.All() {
		if e.Strategy == v1alpha1.StrategyOfEtcd && !e.CannotReturn() {
			all = append(all, e.Service)
		}
	}
	return all
}
