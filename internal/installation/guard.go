package installation

import (
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// guard refuses definitions of an older build: kubectl and Helm do not compare revisions of
// schemas, and all Migrations would lose the fields that the older one lacks.
func guard(Options) ([]client.Object, error) {
	var names []string
	for _, d := range definitions() {
		crd, err := d.CRD()
		if err != nil {
			return nil, err
		}
		names = append(names, crd.Name)
	}
	typed := func(kind string) metav1.TypeMeta {
		return metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: kind}
	}
	meta := metav1.ObjectMeta{Name: Guard, Labels: labels()}
	return []client.Object{
		&admissionv1.ValidatingAdmissionPolicy{
			TypeMeta: typed("ValidatingAdmissionPolicy"), ObjectMeta: meta,
			Spec: admissionv1.ValidatingAdmissionPolicySpec{
				FailurePolicy: ptr.To(admissionv1.Fail),
				MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
					ResourceNames: names,
					RuleWithOperations: admissionv1.RuleWithOperations{
						Operations: []admissionv1.OperationType{admissionv1.Update},
						Rule: admissionv1.Rule{
							APIGroups: []string{"apiextensions.k8s.io"}, APIVersions: []string{"*"},
							Resources: []string{"customresourcedefinitions"},
						},
					},
				}}},
				Variables: []admissionv1.Variable{
					{Name: "have", Expression: revisionOf("oldObject")}, {Name: "given", Expression: revisionOf("object")},
				},
				Validations: []admissionv1.Validation{{
					Expression: "variables.given >= variables.have",
					MessageExpression: "'customresourcedefinition ' + object.metadata.name + ' has schema revision '" +
						" + string(variables.have) + ', and this is revision ' + string(variables.given) + ', which would take fields away from all objects:" +
						" use the version of replumb that installed it, or a later one'",
					Reason: ptr.To(metav1.StatusReasonInvalid),
				}},
			},
		},
		&admissionv1.ValidatingAdmissionPolicyBinding{
			TypeMeta: typed("ValidatingAdmissionPolicyBinding"), ObjectMeta: meta,
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: Guard, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			},
		},
	}, nil
}

// revisionOf is the CEL expression for the revision of a definition. One without the annotation is
// from before they were counted.
func revisionOf(object string) string {
	return fmt.Sprintf(
		"has(%[1]s.metadata.annotations) && '%[2]s' in %[1]s.metadata.annotations ? int(%[1]s.metadata.annotations['%[2]s']) : 0",
		object, v1alpha1.AnnotationSchemaRevision,
	)
}
