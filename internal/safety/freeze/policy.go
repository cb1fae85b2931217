// Package freeze protects Services in flight by a ValidatingAdmissionPolicy.
package freeze

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
)

const (
	// Name of the policy and of its binding.
	Name = "replumb-freeze"

	// prober is the field manager of probing dry runs: whatever they change counts as in flight.
	prober = "replumb-freeze-probe"
)

// The conditions under which a request is looked at, in CEL. All must hold.
const (
	// celManager is the field manager, also of patches, which reach admission as updates
	// (patchToUpdateOptions in k8s.io/apiserver pkg/endpoints/handlers/patch.go). Deletions have
	// none: replumb never deletes a user's Service.
	celManager = `(has(request.options) && request.options != null && has(request.options.fieldManager)
  ? request.options.fieldManager : '')`

	celChanges = `request.operation == 'DELETE' || object.spec != oldObject.spec || ` + celNotes

	// The control plane goes on, to delete namespaces and repair the Service kubernetes: API
	// server, controller manager, and with --use-service-account-credentials the controllers that
	// write Services or delete (buildControllerRoles in k8s.io/kubernetes
	// plugin/pkg/auth/authorizer/rbac/bootstrappolicy/controller_policy.go). Other ServiceAccounts
	// of kube-system are addons' and installers'.
	celOutsider = celManager + ` == '` + prober + `' || !(request.userInfo.username in [
  'system:apiserver', 'system:kube-controller-manager',
  'system:serviceaccount:kube-system:generic-garbage-collector', 'system:serviceaccount:kube-system:namespace-controller',
  'system:serviceaccount:kube-system:service-controller'])`

	// celNotAsking is false of dry runs that ask for another policy (KeepType.inForce): kubernetes
	// may have moved.
	celNotAsking = `!request.dryRun || ` + celManager + ` != '` + keepTypeProber + `'`

	celGlass = `!(has(oldObject.metadata.labels) && '` + v1alpha1.LabelBreakGlass + `' in oldObject.metadata.labels) &&
!(request.operation != 'DELETE' && has(object.metadata.labels) && '` + v1alpha1.LabelBreakGlass + `' in object.metadata.labels)`

	// celArrived is true with what patch B writes and patch A removes. An owner who writes that
	// loosens the freeze of that Service alone.
	celArrived = `has(oldObject.metadata.annotations) && '` + v1alpha1.AnnotationMovedAt + `' in oldObject.metadata.annotations &&
oldObject.spec.?type.orValue('') != 'ExternalName'`

	celMarked = `has(oldObject.metadata.annotations) && '` + v1alpha1.LabelMigration + `' in oldObject.metadata.annotations`

	celMessage = `(variables.hopping
  ? 'migration ' + variables.migration + ' is moving service ' + variables.name +
    ': its spec, its replumb.dev annotations and the service itself stay as they are until it has arrived'
  : 'migration ' + variables.migration + ' has moved service ' + variables.name + ', and it or a bridge answers at its other address: ` +
		`its type, addresses, families, externalIPs, loadBalancerClass and replumb.dev annotations stay as they are, and its ` +
		`internalTrafficPolicy must not become Local, until replumb finish or rollback ' + variables.migration) +
'; to change it all the same: kubectl label service -n ' + oldObject.metadata.namespace + ' ' +
oldObject.metadata.name + ' ` + v1alpha1.LabelBreakGlass + `=true; to lift the freeze from all: replumb unfreeze'`
)

const celNotes = `(has(object.metadata.annotations) ? object.metadata.annotations : {}).exists(k, k.startsWith('replumb.dev/') &&
  (!has(oldObject.metadata.annotations) || !(k in oldObject.metadata.annotations) ||
    oldObject.metadata.annotations[k] != object.metadata.annotations[k])) ||
(has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {}).exists(k, k.startsWith('replumb.dev/') &&
  (!has(object.metadata.annotations) || !(k in object.metadata.annotations)))`

// breaking are fields of a Service that its bridge cannot follow: one of the addresses would stop
// answering, or could not be left.
func breaking() []string {
	return []string{
		"type", "clusterIP", "clusterIPs", "externalName", "ipFamilies", "ipFamilyPolicy", "externalIPs", "loadBalancerClass",
	}
}

// breaks is true of a change that breaks the overlap of an arrived Service. Deletion is fine: its
// bridge and hold become orphans.
func breaks() string {
	all := []string{
		"object.spec.?internalTrafficPolicy != oldObject.spec.?internalTrafficPolicy && " +
			"object.spec.?internalTrafficPolicy.orValue('') == 'Local'",
		celNotes,
	}
	for _, field := range breaking() {
		all = append(all, "object.spec.?"+field+" != oldObject.spec.?"+field)
	}
	return "request.operation != 'DELETE' && (" + strings.Join(all, " || ") + ")"
}

const (
	// listed begins the names of the variables that list Services.
	listed = "listed"
	// keysPerList stays below CEL's 100,000 characters (defaultExpressionSizeCodePointLimit in
	// cel-go parser/options.go): a key has at most 130.
	keysPerList = 500
)

// Policy makes the policy, with nothing listed, and its binding, with every default set.
//
// A Service is in flight while it has its hop's annotation, or is listed (see Mark) between bridge
// and hop. While listed or half-hopped all of its spec is frozen; once arrived, what its bridge
// cannot follow. replumb's own objects are exempt.
//
// replumb is recognized by the field manager, which is no proof: the freeze guards against
// colleagues and controllers who do not know.
//
// It fails open (failurePolicy Ignore): a broken expression would else lock everyone out of every
// Service. Correctness does not depend on it, since each write of replumb carries the
// resourceVersion.
//
// The list is in the policy and not in a parameter ConfigMap, because the API server stops watching
// ConfigMaps for good with the last such policy (calculatePolicyData and
// ensureParamsForPolicyLocked in k8s.io/apiserver
// pkg/admission/plugin/policy/generic/policy_source.go): a later freeze would never see its list.
func Policy(migration string) (*admissionv1.ValidatingAdmissionPolicy, *admissionv1.ValidatingAdmissionPolicyBinding) {
	return policyOf(Name, migration, policySpec(migration, nil)), bindingOf(Name, migration)
}

func policyOf(name, migration string, spec admissionv1.ValidatingAdmissionPolicySpec) *admissionv1.ValidatingAdmissionPolicy {
	return &admissionv1.ValidatingAdmissionPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "ValidatingAdmissionPolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels(migration)},
		Spec:       spec,
	}
}

func bindingOf(name, migration string) *admissionv1.ValidatingAdmissionPolicyBinding {
	return &admissionv1.ValidatingAdmissionPolicyBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "ValidatingAdmissionPolicyBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels(migration)},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}
}

func policySpec(migration string, lists []admissionv1.Variable) admissionv1.ValidatingAdmissionPolicySpec {
	ignore, forbidden := admissionv1.Ignore, metav1.StatusReasonForbidden
	hopping := []string{"variables.probe", "(variables.marked && !variables.arrived)"}
	for _, l := range lists {
		hopping = append(hopping, "variables."+l.Name)
	}
	return admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: services(),
		FailurePolicy:    &ignore,
		MatchConditions: []admissionv1.MatchCondition{
			{Name: "changes", Expression: celChanges},
			{Name: "not-replumb", Expression: celManager + ` != '` + v1alpha1.FieldManager + `'`},
			{Name: "not-asking", Expression: celNotAsking},
			{Name: "not-the-control-plane", Expression: celOutsider},
			{Name: "glass-not-broken", Expression: celGlass},
		},
		Variables: slices.Concat([]admissionv1.Variable{
			{Name: "marked", Expression: celMarked},
			{Name: "arrived", Expression: celArrived},
			{Name: "probe", Expression: celManager + ` == '` + prober + `'`},
			{Name: "name", Expression: `oldObject.metadata.namespace + '/' + oldObject.metadata.name`},
			{
				Name: "migration", Expression: `variables.marked ? oldObject.metadata.annotations['` + v1alpha1.LabelMigration + `'] : ` +
					quote(migration),
			},
		}, lists, []admissionv1.Variable{
			{Name: "hopping", Expression: strings.Join(hopping, " || ")},
			{Name: "breaks", Expression: breaks()},
		}),
		Validations: []admissionv1.Validation{{
			Expression: "!(variables.hopping || (variables.marked && variables.breaks))", MessageExpression: celMessage, Reason: &forbidden,
			Message: "the service is in flight; see: replumb status",
		}},
	}
}

func listsOf(keys []types.NamespacedName) []admissionv1.Variable {
	keys = slices.Clone(keys)
	slices.SortFunc(keys, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	var lists []admissionv1.Variable
	for some := range slices.Chunk(slices.Compact(keys), keysPerList) {
		names := make([]string, len(some))
		for i, k := range some {
			names[i] = quote(k.String())
		}
		lists = append(lists, admissionv1.Variable{
			Name: fmt.Sprintf("%s%d", listed, len(lists)), Expression: "variables.name in [" + strings.Join(names, ", ") + "]",
		})
	}
	return lists
}

func lists(policy *admissionv1.ValidatingAdmissionPolicy) []admissionv1.Variable {
	return slices.DeleteFunc(slices.Clone(policy.Spec.Variables), func(v admissionv1.Variable) bool {
		return !strings.HasPrefix(v.Name, listed)
	})
}

func quote(s string) string {
	body, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("a string has no JSON: %v", err))
	}
	return string(body)
}

func services() *admissionv1.MatchResources {
	equivalent, namespaced := admissionv1.Equivalent, admissionv1.NamespacedScope
	return &admissionv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{},
		ObjectSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: v1alpha1.LabelRole, Operator: metav1.LabelSelectorOpDoesNotExist},
		}},
		MatchPolicy: &equivalent,
		ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Update, admissionv1.Delete},
			Rule: admissionv1.Rule{
				APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"services"}, Scope: &namespaced,
			},
		}}},
	}
}

func labels(migration string) map[string]string {
	return map[string]string{v1alpha1.LabelMigration: migration, v1alpha1.LabelRole: v1alpha1.RoleFreeze}
}
