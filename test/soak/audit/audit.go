// Package audit compares every object of a cluster with what its users want (package model) and with what a migration may have made of
// it. It is pure: it looks at a snapshot.
package audit

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/test/soak/model"
)

// Stage is how far a migration has come when nothing of it is under way.
type Stage string

// The stages.
const (
	// Before is when nothing has been migrated since the Mark of the model.
	Before Stage = "before"
	// Overlap is after apply.
	Overlap Stage = "overlap"
	// RolledBack is after rollback.
	RolledBack Stage = "rolled back"
	// Finished is after finish.
	Finished Stage = "finished"
)

// Want is what there should be.
type Want struct {
	Model *model.Cluster
	Stage Stage
	// Old and New are the Service ranges of the migration. Without one, New is not valid.
	Old, New netip.Prefix
	// Was are the addresses that Services had at the Mark of the model, the cluster's own included; none, if there was no Mark.
	Was map[model.Key]string
	// Specs are the pods of Deployments as they were when the cluster was made: no one changes them.
	Specs map[model.Key]corev1.PodSpec
	// Namespaces are those beside the model's: of the cluster, and of those who call.
	Namespaces []string
	// Kept are the ServiceCIDRs that rollbacks have left to Services in them, by name: they are the cluster's own from then on.
	Kept map[string]bool
	// Given is everything that was there before the first migration, by Object.ID.
	Given map[string]bool
}

// Snapshot is what there is.
type Snapshot struct {
	Namespaces   []corev1.Namespace
	Services     []corev1.Service
	Slices       []discoveryv1.EndpointSlice
	Pods         []corev1.Pod
	Deployments  []appsv1.Deployment
	ServiceCIDRs []networkingv1.ServiceCIDR
	Addresses    []networkingv1.IPAddress
	// Everything is every object of every kind that can be listed.
	Everything []Object
}

// Object is what all objects have.
type Object struct {
	// Resource is its plural with its group, such as "services" or "deployments.apps".
	Resource string
	metav1.ObjectMeta
}

// Defect is something that is not as it should be.
type Defect struct{ Object, Problem string }

func (d Defect) String() string { return d.Object + ": " + d.Problem }

// report collects defects.
type report struct {
	Want
	Snapshot
	services map[model.Key]*corev1.Service
	defects  []Defect
}

func (r *report) add(object, format string, args ...any) {
	r.defects = append(r.defects, Defect{object, fmt.Sprintf(format, args...)})
}

// Audit returns all that is not as it should be, in order.
func Audit(want Want, have Snapshot) []Defect {
	r := &report{Want: want, Snapshot: have, services: map[model.Key]*corev1.Service{}}
	for i := range have.Services {
		r.services[keyOf(&have.Services[i])] = &have.Services[i]
	}
	r.auditNamespaces()
	r.auditServices()
	r.auditPlaces()
	r.auditEndpoints()
	r.auditDeployments()
	r.auditRanges()
	r.auditAddresses()
	if want.Stage == Overlap {
		r.auditBridges()
	} else {
		r.auditRemains()
	}
	slices.SortFunc(r.defects, func(a, b Defect) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Problem, b.Problem))
	})
	return slices.Compact(r.defects)
}

func keyOf(o metav1.Object) model.Key {
	return model.Key{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// ours reports whether an object is replumb's, which may be there in the overlap.
func (r *report) ours(o metav1.Object) bool {
	return r.Stage == Overlap && o.GetLabels()[v1alpha1.LabelRole] != ""
}

// now is the range that Services are in.
func (r *report) now() netip.Prefix {
	if r.Stage == Overlap || r.Stage == Finished {
		return r.New
	}
	return r.Old
}

// clusters are the cluster's own Services.
func clusters() []model.Key {
	return []model.Key{{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}, {Namespace: metav1.NamespaceSystem, Name: "kube-dns"}}
}

func (r *report) auditNamespaces() {
	want := map[string]bool{}
	for _, name := range slices.Concat(r.Model.NamespaceNames(), r.Want.Namespaces) {
		want[name] = true
	}
	if r.Stage == Overlap {
		delete(want, v1alpha1.SystemNamespace)
	}
	for _, ns := range r.Snapshot.Namespaces {
		known := want[ns.Name]
		delete(want, ns.Name)
		switch {
		case !known && !mayHave(ns.Name, r.Stage):
			r.add("namespace "+ns.Name, "is left over")
		case known && ns.DeletionTimestamp != nil:
			r.add("namespace "+ns.Name, "is being deleted")
		}
	}
	for name := range want {
		r.add("namespace "+name, "is lost")
	}
}

// mayHave reports whether replumb may have a namespace: its journal outlasts migrations, as documented.
func mayHave(namespace string, s Stage) bool {
	return namespace == v1alpha1.JournalNamespace || (s == Overlap && namespace == v1alpha1.SystemNamespace)
}
