package agentset

import (
	"context"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

const (
	// reportsPolicy is the name of the policy that holds agents to the reports of their own nodes,
	// and of its binding.
	reportsPolicy = "replumb-agent-reports"
	// reportsProber is the field manager of dry runs that ask whether it is enforced: it refuses
	// what they would write.
	reportsProber = reportsPolicy + "-probe"
)

// The node and the pod of a request, in CEL: the API server takes them from the token, which it has
// signed (ServiceAccountTokenPodNodeInfo in k8s.io/kubernetes pkg/serviceaccount/claims.go; since
// 1.32), so the token of one agent is of no use on another node.
const (
	celNode = `request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][0].orValue('')`
	celPod  = `request.userInfo.?extra[?'authentication.kubernetes.io/pod-uid'][0].orValue('')`

	celStatus = `has(request.subResource) && request.subResource == 'status'`
	celProbed = `has(request.options) && has(request.options.fieldManager) && request.options.fieldManager == '` + reportsProber + `'`
)

// policy makes the policy and its binding.
//
// Unlike a freeze it refuses on errors (failurePolicy Fail): it concerns replumb's reports alone,
// and an unjudged report must not pass for proof.
func (s objects) policy([]string) ([]client.Object, error) {
	const api = "admissionregistration.k8s.io/v1"
	fail, named := admissionv1.Fail, s.meta("", reportsPolicy, v1alpha1.RoleAgent)
	return []client.Object{
		&admissionv1.ValidatingAdmissionPolicy{
			TypeMeta: metav1.TypeMeta{APIVersion: api, Kind: "ValidatingAdmissionPolicy"}, ObjectMeta: named,
			Spec: admissionv1.ValidatingAdmissionPolicySpec{
				FailurePolicy: &fail, MatchConstraints: reportsOfNodes(), Variables: reportVariables(), Validations: s.reportRules(),
				MatchConditions: []admissionv1.MatchCondition{{
					Name: "agents", Expression: fmt.Sprintf(
						"request.userInfo.username in ['%s', '%s'] || %s", userOf(v1alpha1.FromHost), userOf(v1alpha1.FromPod), celProbed,
					),
				}},
			},
		},
		&admissionv1.ValidatingAdmissionPolicyBinding{
			TypeMeta: metav1.TypeMeta{APIVersion: api, Kind: "ValidatingAdmissionPolicyBinding"}, ObjectMeta: named,
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: reportsPolicy, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			},
		},
	}, nil
}

func reportsOfNodes() *admissionv1.MatchResources {
	return &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
		RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
			Rule: admissionv1.Rule{
				APIGroups: []string{
					v1alpha1.GroupVersion.Group,
				},
				APIVersions: []string{"*"},
				Resources:   []string{"nodereports", "nodereports/status"},
			},
		},
	}}}
}

func reportVariables() []admissionv1.Variable {
	status := func(name, of, field string) admissionv1.Variable {
		return admissionv1.Variable{Name: name, Expression: fmt.Sprintf(
			"%s == null ? [] : %s.?status.?%s.orValue([]).filter(e, e.origin != variables.origin)", of, of, field,
		)}
	}
	return []admissionv1.Variable{
		{Name: "node", Expression: celNode},
		{Name: "pod", Expression: celPod},
		{Name: "origin", Expression: fmt.Sprintf("request.userInfo.username == '%s' ? 'Host' : 'Pod'", userOf(v1alpha1.FromHost))},
		{Name: "about", Expression: "!(" + celStatus + ")"},
		status("agents", "object", "agents"), status("agentsBefore", "oldObject", "agents"),
		status("probes", "object", "probes"), status("probesBefore", "oldObject", "probes"),
	}
}

// reportRules hold an agent to the report of its node, to the name of its pod and to its own part
// of the report. It cannot keep a report from being removed.
func (s objects) reportRules() []admissionv1.Validation {
	forbidden := metav1.StatusReasonForbidden
	rule := func(message, expression string) admissionv1.Validation {
		return admissionv1.Validation{Expression: expression, Message: message, Reason: &forbidden}
	}
	same := func(now, before string) string {
		return fmt.Sprintf("size(%[1]s) == size(%[2]s) && %[1]s.all(e, e in %[2]s)", now, before)
	}
	kept := func(field, nothing string) string {
		return fmt.Sprintf("object.?status.?%[1]s.orValue(%[2]s) == oldObject.?status.?%[1]s.orValue(%[2]s)", field, nothing)
	}
	const own = "object.?status.?%s.orValue([]).all(e, e.origin != variables.origin || e.instance == variables.pod)"
	return []admissionv1.Validation{
		rule(
			"an agent writes the NodeReport of its own node, and no other",
			"variables.node != '' && object.metadata.name == variables.node",
		),
		rule("an agent reports of the migration that it watches", "!variables.about || object.metadata.?labels[?'"+
			v1alpha1.LabelMigration+"'].orValue('') == '"+s.Migration+"'"),
		rule(
			"an agent cannot keep a NodeReport from being removed",
			"!has(object.metadata.finalizers) && !has(object.metadata.ownerReferences)",
		),
		rule("an agent reports in the name of its own pod", "variables.about || variables.pod != '' && "+
			fmt.Sprintf(own, "agents")+" && "+fmt.Sprintf(own, "probes")+
			" && (variables.origin != 'Host' || object.?status.?connects.?instance.orValue(variables.pod) == variables.pod)"),
		rule("an agent leaves what the other agent of its node reports", "variables.about || "+
			same("variables.agents", "variables.agentsBefore")+" && "+same("variables.probes", "variables.probesBefore")),
		rule(
			"an agent in the network of pods does not report what only the node can see",
			"variables.about || variables.origin == 'Host' || "+
				kept("barriers", "[]")+" && "+kept("connects", "{}")+" && "+kept("clients", "[]")+" && "+kept("moreClients", "0")+
				" && "+kept("forgottenClients", "0")+" && "+kept("watched", "{}")+" && "+kept("apiServers", "[]"),
		),
	}
}

// policyStep is done when the policy is enforced, and not when it is written: API servers take
// policies up within a second or two.
func (s *Set) policyStep() engine.Step {
	step := s.apply("agents/policy", "Restrict each agent to the report of its own node", objects{s}.policy)
	step.Effect = func(ctx context.Context) error {
		enforced, err := s.enforced(ctx)
		if err == nil && !enforced {
			return engine.NotYet("the API server does not enforce validatingadmissionpolicy %s yet", reportsPolicy)
		}
		return err
	}
	return step.Step()
}

// enforced asks the API server, by a dry run, whether it refuses a report that no agent may write.
func (s *Set) enforced(ctx context.Context) (bool, error) {
	r := &v1alpha1.NodeReport{ObjectMeta: metav1.ObjectMeta{Name: reportsProber}}
	err := s.Cluster.Create(ctx, r, client.DryRunAll, client.FieldOwner(reportsProber))
	switch {
	case err == nil || apierrors.IsAlreadyExists(err):
		return false, nil
	case apierrors.IsNotFound(err) || meta.IsNoMatchError(err): // of an API server that is behind, and has not heard of NodeReports
		return false, nil
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy '"+reportsPolicy+"'"):
		return true, nil
	}
	return false, fmt.Errorf("asking whether policy %s is enforced: %w", reportsPolicy, err)
}
