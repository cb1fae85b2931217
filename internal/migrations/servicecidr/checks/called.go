package checks

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// calls are the entries that move and that API servers call, with the objects that name them.
func (in Input) calls(look func(*services.Entry, inventory.Called)) []findings.Result {
	if len(in.Inventory.Pending()) == 0 {
		return findings.Skip(noPending)
	}
	for _, e := range in.Inventory.Pending() {
		for _, c := range in.Found().Called {
			if c.Service == e.Key() && e.Hops() {
				look(e, c)
			}
		}
	}
	return in.unread("validatingwebhookconfigurations", "mutatingwebhookconfigurations")
}

func checkCalled(in Input) []findings.Result {
	by, order := map[*services.Entry][]string{}, []*services.Entry(nil)
	out := in.calls(func(e *services.Entry, c inventory.Called) {
		if by[e] == nil {
			order = append(order, e)
		}
		if !slices.Contains(by[e], c.By) {
			by[e] = append(by[e], c.By)
		}
	})
	if len(in.Inventory.Pending()) > 0 && in.Live.Inspection != nil {
		out = append(out, in.unread("apiservices", "customresourcedefinitions")...)
	}
	for _, e := range order {
		out = append(out, failedService(e, "is called by API servers, for %s", services.FirstTen(by[e])))
	}
	return out
}

func checkJudges(in Input) []findings.Result {
	var out []findings.Result
	unread := in.calls(func(e *services.Entry, c inventory.Called) {
		asked := in.asked(e, c)
		switch text := fmt.Sprintf("%s fails closed, is asked about %s, and calls service %s, which is to move",
			c.By, strings.Join(asked, " and "), e.Key()); {
		case len(asked) == 0:
		case c.Conditions:
			out = append(out,
				findings.NotKnown("Service "+e.Key().String(), "%s; whether its matchConditions exempt its own Service is not known", text))
		default:
			out = append(out, findings.Failed("Service "+e.Key().String(), "%s", text))
		}
	})
	return append(unread, out...)
}

// asked are the resources a hop writes, or a range it needs, on which API servers call the webhook.
func (in Input) asked(e *services.Entry, c inventory.Called) []string {
	hold := e.Reservation(in.spec().Name, e.New).Build()
	chosen := func(by *metav1.LabelSelector, of map[string]string) bool {
		if by == nil {
			return true
		}
		s, err := metav1.LabelSelectorAsSelector(by)
		return err != nil || s.Matches(labels.Set(of)) // what cannot be read exempts no one
	}
	var all []string
	for _, w := range []struct {
		group, resource string
		verbs           []admissionv1.OperationType
		scope           admissionv1.ScopeType
		chosen          bool
	}{
		{
			"", "services",
			[]admissionv1.OperationType{admissionv1.Update},
			admissionv1.NamespacedScope,
			chosen(c.Namespaces, in.Snapshot.NamespaceLabels[e.Service.Namespace]) && chosen(c.Objects, e.Service.Labels),
		},
		{
			networkingv1.GroupName, "ipaddresses",
			[]admissionv1.OperationType{admissionv1.Create, admissionv1.Delete},
			admissionv1.ClusterScope, chosen(c.Objects, hold.Labels),
		},
		{
			networkingv1.GroupName, "servicecidrs",
			[]admissionv1.OperationType{admissionv1.Create, admissionv1.Delete},
			admissionv1.ClusterScope,
			chosen(c.Objects, ranges.ServiceRange{Migration: in.spec().Name}.Build().Labels),
		},
	} {
		about := func(r admissionv1.RuleWithOperations) bool { return covers(r, w.group, w.resource, w.scope, w.verbs) }
		if w.chosen && slices.ContainsFunc(c.Rules, about) {
			all = append(all, w.resource)
		}
	}
	return all
}

func covers(
	r admissionv1.RuleWithOperations, group, resource string, scope admissionv1.ScopeType, verbs []admissionv1.OperationType,
) bool {
	has := func(all []string, want ...string) bool {
		return slices.ContainsFunc(want, func(w string) bool { return slices.Contains(all, w) })
	}
	verb := slices.ContainsFunc(r.Operations, func(o admissionv1.OperationType) bool {
		return o == admissionv1.OperationAll || slices.Contains(verbs, o)
	})
	within := r.Scope == nil || *r.Scope == admissionv1.AllScopes || *r.Scope == scope
	return verb && within && has(r.APIGroups, group, "*") && has(r.Resources, resource, "*", "*/*")
}
