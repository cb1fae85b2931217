package freeze

import (
	"context"
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

const (
	// KeepTypeName is the name of the policy, and of its binding, that keeps the type of Services.
	KeepTypeName = "replumb-keep-type"

	keepTypeProber = "replumb-keep-type-probe"
)

// The conditions under which a write is corrected, in CEL. All must hold.
const (
	celKeepsItself = celManager + ` == '` + keepTypeProber + `' ||
oldObject.spec.?loadBalancerClass.orValue('') == '` + v1alpha1.LoadBalancerClass + `'`

	// Another type than the usual ones is no manifest's default: the freeze refuses it.
	celLosesType = celManager + ` == '` + keepTypeProber + `' ||
(object.spec.?type.orValue('ClusterIP') in ['ClusterIP', 'NodePort', 'LoadBalancer'] &&
  (object.spec.?type.orValue('ClusterIP') != 'LoadBalancer' ||
    object.spec.?loadBalancerClass.orValue('') != '` + v1alpha1.LoadBalancerClass + `'))`

	celType = `Object{spec: Object.spec{
  type: 'LoadBalancer', loadBalancerClass: '` + v1alpha1.LoadBalancerClass + `', allocateLoadBalancerNodePorts: false,
  externalTrafficPolicy: oldObject.spec.?externalTrafficPolicy.orValue('Cluster')}}`
)

// KeepType has Services that keep their other address as that of a load balancer stay of this type
// when what applies manifests says another one: Flux, Helm and kubectl apply go on, and see no
// difference by a dry run. API servers have had such policies by default since Kubernetes 1.36
// (KEP-3962).
//
// It fails open, as the freeze does, which refuses then what this would have corrected.
type KeepType struct {
	Client    client.Client
	Migration string
}

// Policy makes the policy and its binding, with every default set.
func (k KeepType) Policy() (*admissionv1.MutatingAdmissionPolicy, *admissionv1.MutatingAdmissionPolicyBinding) {
	ignore := admissionv1.Ignore
	match := services()
	match.ResourceRules[0].Operations = []admissionv1.OperationType{admissionv1.Update}
	named := metav1.ObjectMeta{Name: KeepTypeName, Labels: labels(k.Migration)}
	policy := &admissionv1.MutatingAdmissionPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "MutatingAdmissionPolicy"},
		ObjectMeta: named,
		Spec: admissionv1.MutatingAdmissionPolicySpec{
			MatchConstraints: match, FailurePolicy: &ignore, ReinvocationPolicy: admissionv1.IfNeededReinvocationPolicy,
			MatchConditions: []admissionv1.MatchCondition{
				{Name: "keeps-itself", Expression: celKeepsItself},
				{Name: "loses-type", Expression: celLosesType},
				{Name: "not-replumb", Expression: celManager + ` != '` + v1alpha1.FieldManager + `'`},
				{Name: "glass-not-broken", Expression: celManager + ` == '` + keepTypeProber + `' || (` + celGlass + `)`},
			},
			Mutations: []admissionv1.Mutation{{
				PatchType:          admissionv1.PatchTypeApplyConfiguration,
				ApplyConfiguration: &admissionv1.ApplyConfiguration{Expression: celType},
			}},
		},
	}
	binding := &admissionv1.MutatingAdmissionPolicyBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "MutatingAdmissionPolicyBinding"},
		ObjectMeta: named,
		Spec:       admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: KeepTypeName},
	}
	return policy, binding
}

// Possible asks by dry run whether there can be such a policy; else an UnavailableError.
func (k KeepType) Possible(ctx context.Context) error {
	policy, binding := k.Policy()
	for _, o := range []client.Object{policy, binding} {
		err := tryCreate(ctx, k.Client, o)
		if meta.IsNoMatchError(err) {
			return &UnavailableError{Err: err}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Step has the policy in force.
func (k KeepType) Step() engine.Step {
	return &engine.Write{
		Name: "secure/keep-type", About: "Keep the type of Services that keep their address as a load balancer's", As: engine.RoleOwn,
		Holds: k.inForce,
		Write: k.ensure,
		Changes: func() ([]engine.Change, error) {
			policy, binding := k.Policy()
			return []engine.Change{
				{Verb: "create", Object: "MutatingAdmissionPolicy " + KeepTypeName, Body: policy},
				{Verb: "create", Object: "MutatingAdmissionPolicyBinding " + KeepTypeName, Body: binding},
			}, nil
		},
	}
}

func (k KeepType) ensure(ctx context.Context) error {
	policy, binding := k.Policy()
	err := ensure(ctx, k.Client, policy, &admissionv1.MutatingAdmissionPolicy{}, func(have *admissionv1.MutatingAdmissionPolicy) bool {
		same := equality.Semantic.DeepEqual(have.Spec, policy.Spec)
		have.Spec = policy.Spec
		return same
	})
	if err != nil {
		return unavailable(err)
	}
	err = ensure(ctx, k.Client, binding, &admissionv1.MutatingAdmissionPolicyBinding{},
		func(have *admissionv1.MutatingAdmissionPolicyBinding) bool {
			same := equality.Semantic.DeepEqual(have.Spec, binding.Spec)
			have.Spec = binding.Spec
			return same
		})
	return unavailable(err)
}

// inForce is nil once the answering API server corrects what the prober writes, in a dry run.
func (k KeepType) inForce(ctx context.Context) error {
	for _, o := range k.objects() {
		if err := foreign(ctx, k.Client, o); apierrors.IsNotFound(err) {
			return engine.NotYet("%s is not there", describe(k.Client, o))
		} else if err != nil {
			return err
		}
	}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}}
	// kubernetes may be of that class already, so the write would take it away.
	patch := client.RawPatch(types.MergePatchType, []byte(
		`{"spec":{"type":"ClusterIP","loadBalancerClass":null,"allocateLoadBalancerNodePorts":null,"externalTrafficPolicy":null}}`))
	if err := k.Client.Patch(ctx, svc, patch, client.DryRunAll, client.FieldOwner(keepTypeProber)); err != nil {
		return fmt.Errorf("asking whether mutatingadmissionpolicy %s is in force: %w", KeepTypeName, err)
	}
	if ptr.Deref(svc.Spec.LoadBalancerClass, "") != v1alpha1.LoadBalancerClass {
		return engine.NotYet("the API server does not go by mutatingadmissionpolicy %s yet", KeepTypeName)
	}
	return nil
}

func (k KeepType) objects() []client.Object {
	return []client.Object{
		&admissionv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: KeepTypeName}},
		&admissionv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: KeepTypeName}},
	}
}

// There reports whether a policy of replumb's or its binding is there. Where there are no such
// policies, or the user may not see them, there is none.
func (k KeepType) There(ctx context.Context) (bool, error) {
	for _, o := range k.objects() {
		switch err := k.Client.Get(ctx, client.ObjectKeyFromObject(o), o); {
		case err == nil && o.GetLabels()[v1alpha1.LabelRole] == v1alpha1.RoleFreeze:
			return true, nil
		case err == nil, apierrors.IsNotFound(err), apierrors.IsForbidden(err), meta.IsNoMatchError(err):
		default:
			return false, fmt.Errorf("%s: %w", describe(k.Client, o), err)
		}
	}
	return false, nil
}

// Undo takes the policy away.
func (k KeepType) Undo() engine.Step {
	return &engine.Write{
		Name: "tidy/keep-type", About: "Let the type of Services be changed again", As: engine.RoleOwn,
		Holds: func(ctx context.Context) error {
			there, err := k.There(ctx)
			if err == nil && there {
				return engine.NotYet("mutatingadmissionpolicy %s is still there", KeepTypeName)
			}
			return err
		},
		Write: func(ctx context.Context) error {
			for _, o := range k.objects() {
				if err := client.IgnoreNotFound(k.Client.Delete(ctx, o)); err != nil {
					return fmt.Errorf("%s: %w", describe(k.Client, o), err)
				}
			}
			return nil
		},
		Changes: engine.Shows(
			engine.Change{Verb: "delete", Object: "MutatingAdmissionPolicyBinding " + KeepTypeName},
			engine.Change{Verb: "delete", Object: "MutatingAdmissionPolicy " + KeepTypeName},
		),
	}
}
