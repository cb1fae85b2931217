package checks

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migrations/servicecidr/hop"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/migrations/servicecidr/trials"
	"github.com/replumb/replumb/internal/network/bridge"
)

func admissionChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1701", Severity: findings.Blocking, Run: checkHops,
			Claim: "admission lets every Service change its type, and change it back",
			Why: "a Service is of type ExternalName for a moment in its hop: where that is refused the move stops in the middle, and where the way back " +
				"is refused the Service is left without an address",
			Fix: "exempt who runs replumb from the policy or webhook while the migration lasts, or let the Services keep their addresses: " +
				"kubectl annotate service -n NAMESPACE NAME replumb.dev/strategy=pin",
		},
		{
			Code: "RP1702", Severity: findings.Blocking, Run: checkQuotas,
			Claim: "quotas have room for the bridges of all Services that move",
			Why:   "each Service has a bridge beside it until finish; where a quota is used up, the move stops, and others cannot create Services",
			Fix:   "raise the quota until finish: kubectl edit resourcequota -n NAMESPACE NAME; or grant the right to list resourcequotas",
		},
		{
			Code: "RP1703", Severity: findings.Blocking, Run: checkRangesAdmitted,
			Claim: "admission accepts the Service ranges and reserved addresses that the migration adds",
			Why:   "policies that keep others from adding Service ranges are common; what they refuse would stop the migration after it has begun",
			Fix:   "exempt who runs replumb from the policy or webhook, for servicecidrs and ipaddresses, while the migration lasts",
		},
		{
			Code: "RP1704", Severity: findings.Blocking, Run: checkHealthPorts,
			Claim: "there are free node ports for the health checks of all bridges",
			Why:   "each bridge of the form LoadBalancer takes one until finish; without one the move stops, and others get none",
			Fix: "move fewer Services at a time, in several migrations; enlarge --service-node-port-range of all API servers; or set " +
				"spec.serviceCIDR.bridge: ExternalIPs",
		},
		{
			Code: "RP1705", Severity: findings.Warning, Run: checkCalled,
			Claim: "API servers call only Services that keep their address",
			Why: "API servers call webhooks and aggregated APIs by the type of their Service. In the milliseconds in which it is of type ExternalName it leads " +
				"them to its old address, at which its bridge answers; cluster DNS has no answer for its name meanwhile. Such a Service moves by " +
				"itself, as the last of its tier",
			Fix: "nothing, if API servers alone call it; where pods call it by name, give it a window of its own, or pin it: " +
				"kubectl annotate service -n NAMESPACE NAME replumb.dev/strategy=pin",
		},
		{
			Code: "RP1706", Severity: findings.Blocking, Run: checkJudges,
			Claim: "webhooks that judge the writes of a hop are behind Services that stay",
			Why: "in the middle of its own hop the webhook is asked at its bridge alone. Where API servers do not reach that, it fails closed, and refuses the " +
				"second half of the hop and everything else: the Service stays without an address",
			Fix: "exempt the webhook's own namespace from it (namespaceSelector), or its own Service (objectSelector), and ipaddresses from its rules; " +
				"or pin the Service: kubectl annotate service -n NAMESPACE NAME replumb.dev/strategy=pin",
		},
		{
			Code: "RP1707", Severity: findings.Blocking, Run: checkUnanswered,
			Claim: "the API server answers all that check asks",
			Why:   "where it answers with an error nothing is known, while the outcome of other checks stands; the move would meet with the same error",
			Fix:   "repair what the message names, most often a webhook or an API service that does not answer, and run check again",
		},
	}
}

func checkUnanswered(in Input) (out []findings.Result) {
	for _, err := range in.Unanswered {
		out = append(out, findings.NotKnown("", "not known: %v", err))
	}
	return out
}

// unbridged are the entries that are yet to get a bridge.
func unbridged(s *services.Inventory) []*services.Entry {
	return slices.DeleteFunc(s.Unbridged(), (*services.Entry).Exchanges)
}

// OverlapFacts are what the forms of overlap depend on.
func (in Input) OverlapFacts() services.OverlapFacts {
	return services.OverlapFacts{
		Cilium:    slices.ContainsFunc(in.Found().CiliumModes, inventory.CiliumMode.Replaces),
		Published: in.Found().Published,
		Refused:   map[string]error{},
	}
}

// Candidates are the forms to try, best first.
func (in Input) Candidates() []v1alpha1.BridgeForm {
	free := 0
	if len(in.Inventory.Moves) <= bridge.LoadBalancerLimit { // of more Services, the number of free ones decides nothing
		free = in.FreeNodePorts()
	}
	return bridge.Candidates(in.spec().Bridge, len(in.Inventory.Moves), free)
}

func (in Input) form(namespace string) (v1alpha1.BridgeForm, bool) {
	return bridge.Choose(in.Candidates(), in.admitted(namespace))
}

func (in Input) admitted(namespace string) map[v1alpha1.BridgeForm]error {
	all := maps.Clone(in.Trials.Forms[namespace])
	if err, tried := all[v1alpha1.BridgeLoadBalancer]; tried && err == nil {
		needs := hop.Charges{corev1.ResourceServicesLoadBalancers: int64(len(in.unbridgedIn(namespace)))}
		if lacks := hop.QuotasLacking(in.Trials.Quotas, namespace, needs); len(lacks) > 0 {
			all[v1alpha1.BridgeLoadBalancer] = lacks[0]
		}
	}
	return all
}

func (in Input) unbridgedIn(namespace string) []*services.Entry {
	return slices.DeleteFunc(unbridged(in.Inventory), func(e *services.Entry) bool { return e.Service.Namespace != namespace })
}

// Forms are the forms of new bridges by namespace, and the one elsewhere.
func (in Input) Forms() (by map[string]v1alpha1.BridgeForm, other v1alpha1.BridgeForm) {
	by, used := map[string]v1alpha1.BridgeForm{}, sets.New[v1alpha1.BridgeForm]()
	for namespace := range in.Trials.Forms {
		if form, ok := in.form(namespace); ok {
			by[namespace] = form
			used.Insert(form)
		}
	}
	all := in.Candidates()
	for _, form := range all {
		if used.Has(form) {
			return by, form
		}
	}
	return by, all[0]
}

func (in Input) namespaces() []string {
	all := sets.New[string]()
	for _, e := range unbridged(in.Inventory) {
		all.Insert(e.Service.Namespace)
	}
	return sets.List(all)
}

type together struct {
	order []string
	by    map[string][]string
}

func (t *together) say(namespace, text string) {
	if t.by == nil {
		t.by = map[string][]string{}
	}
	if t.by[text] == nil {
		t.order = append(t.order, text)
	}
	t.by[text] = append(t.by[text], namespace)
}

func (t *together) results() (out []findings.Result) {
	for _, text := range t.order {
		object, where := "Namespace "+t.by[text][0], "namespace "
		if len(t.by[text]) > 1 {
			object, where = "", "namespaces "
		}
		out = append(out, findings.Failed(object, "%s, in %s", text, where+services.FirstTen(t.by[text])))
	}
	return out
}

func checkBridgeForm(in Input) []findings.Result {
	if len(in.Inventory.Moves) > 0 && in.Trials.Untried != "" {
		return []findings.Result{findings.NotKnown("", "no form of bridge was tried: %s", in.Trials.Untried)}
	}
	if len(in.namespaces()) == 0 {
		return findings.Skip("no bridge is to be made")
	}
	refused, untried := together{}, false
	for _, ns := range in.namespaces() {
		admitted := in.admitted(ns)
		untried = untried || len(admitted) == 0
		if _, ok := in.form(ns); ok || len(admitted) == 0 {
			continue
		}
		for _, form := range in.Candidates() {
			if err := admitted[form]; err != nil {
				refused.say(ns, fmt.Sprintf("a bridge in the form %s is refused: %v", form, err))
			}
		}
	}
	out := refused.results()
	if untried {
		out = append(out, findings.NotKnown("", "bridges were not tried in all namespaces"))
	}
	return out
}

func checkExternalIPs(in Input) []findings.Result {
	if len(in.namespaces()) == 0 {
		return findings.Skip("no bridge is to be made")
	}
	why := together{}
	for _, ns := range in.namespaces() {
		form, ok := in.form(ns)
		if !ok || form != v1alpha1.BridgeExternalIPs {
			continue
		}
		text := "bridges will use externalIPs"
		if err := in.admitted(ns)[v1alpha1.BridgeLoadBalancer]; err != nil {
			text += fmt.Sprintf(", because the form LoadBalancer is refused: %v", err)
		}
		why.say(ns, text)
	}
	return why.results()
}

func checkHops(in Input) []findings.Result {
	if len(in.Inventory.Moves) > 0 && in.Trials.Untried != "" {
		return []findings.Result{findings.NotKnown("", "no Service was tried: %s", in.Trials.Untried)}
	}
	if !slices.ContainsFunc(in.Inventory.Pending(), (*services.Entry).Hops) {
		return findings.Skip("no Service is yet to hop")
	}
	return refusals(in.Trials.Hops)
}

func checkRangesAdmitted(in Input) []findings.Result { return refusals(in.Trials.Ranges) }

func refusals(all []trials.RefusedWrite) (out []findings.Result) {
	slices.SortFunc(all, func(a, b trials.RefusedWrite) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.What, b.What))
	})
	for _, t := range all {
		out = append(out, findings.Failed(t.Object, "%s %s: %v", t.Object, t.What, t.Refusal))
	}
	return out
}

// needs is the quota that a move takes (serviceEvaluator.Usage in k8s.io/kubernetes
// pkg/quota/v1/evaluator/core/services.go). Bridges have no node ports; the next Service with some
// waits until the quota has counted (hopStep.room).
func (in Input) needs(namespace string) hop.Charges {
	bridges := int64(len(in.unbridgedIn(namespace)))
	all := hop.Charges{
		corev1.ResourceServices: bridges, "count/services": bridges, "count/endpointslices.discovery.k8s.io": bridges,
	}
	if form, ok := in.form(namespace); ok && form == v1alpha1.BridgeLoadBalancer {
		all[corev1.ResourceServicesLoadBalancers] = bridges
	}
	for _, e := range in.Inventory.Pending() {
		if e.Service.Namespace == namespace && e.Overlap.Form == v1alpha1.OverlapLoadBalancer && e.Position == services.Waiting {
			all[corev1.ResourceServicesLoadBalancers]++
		}
		if e.Service.Namespace == namespace && e.HasNodePorts() && e.Hops() {
			all[corev1.ResourceServicesNodePorts] = max(all[corev1.ResourceServicesNodePorts], int64(len(e.Service.Spec.Ports)))
		}
	}
	return all
}

func checkQuotas(in Input) []findings.Result {
	if len(in.Inventory.Pending()) == 0 {
		return findings.Skip(noPending)
	}
	if in.Trials.QuotasErr != nil {
		return []findings.Result{findings.NotKnown("", "the user may not read resourcequotas")}
	}
	all := sets.New[string]()
	for _, e := range in.Inventory.Pending() {
		all.Insert(e.Service.Namespace)
	}
	var out []findings.Result
	for _, ns := range sets.List(all) {
		for _, lack := range hop.QuotasLacking(in.Trials.Quotas, ns, in.needs(ns)) {
			out = append(out, findings.Failed("ResourceQuota "+lack.Quota.String(), "%v", lack))
		}
	}
	return out
}

// spareNodePorts are those that barriers and nudges take for a moment.
const spareNodePorts = 4

// FreeNodePorts is how many node ports others than the migration's bridges leave.
func (in Input) FreeNodePorts() int {
	bridges := sets.New[types.NamespacedName]()
	for _, e := range in.Inventory.All() {
		bridges.Insert(e.BridgeKey())
	}
	used := sets.New[int32]()
	for i := range in.Snapshot.Services {
		svc := &in.Snapshot.Services[i]
		if bridges.Has(client.ObjectKeyFromObject(svc)) {
			continue
		}
		used.Insert(svc.Spec.HealthCheckNodePort)
		for _, p := range svc.Spec.Ports {
			used.Insert(p.NodePort)
		}
	}
	return max(0, in.Trials.NodePorts.Size()-used.Delete(0).Len())
}

func checkHealthPorts(in Input) []findings.Result {
	need, forms := 0, map[string]v1alpha1.BridgeForm{}
	for _, e := range in.Inventory.Moves {
		if e.Exchanges() || e.KeepsItself() && e.Position == services.Moved && e.Bridge == nil {
			continue
		}
		namespace := e.Service.Namespace
		if _, known := forms[namespace]; !known {
			forms[namespace], _ = in.form(namespace)
		}
		form := forms[namespace]
		if e.Bridge != nil {
			form = bridge.FormOf(e.Bridge)
		}
		if form == v1alpha1.BridgeLoadBalancer {
			need++
		}
	}
	if need == 0 {
		return findings.Skip("no bridge is to be of the form LoadBalancer")
	}
	if free := in.FreeNodePorts(); need+spareNodePorts > free {
		return []findings.Result{findings.Failed("", "%s of the form LoadBalancer take as many node ports, and %d of %s are free",
			english.Plural(need, "bridge", ""), free, in.Trials.NodePorts)}
	}
	return nil
}
