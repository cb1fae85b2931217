package freeze

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

const (
	// GuardName is the name of the policy, and of its binding, that keeps addresses from others.
	GuardName = "replumb-guard"

	guardProber = "replumb-guard-probe"
)

// The guard in CEL. Admission sees allocated addresses (Store.create and Store.Update in
// k8s.io/apiserver pkg/registry/generic/registry/store.go: BeginCreate and BeginUpdate come before
// validation); refused ones are given back.
const (
	celHad = `request.operation == 'UPDATE' && has(oldObject.spec.clusterIPs) ? oldObject.spec.clusterIPs : []`

	celFresh = `has(object.spec.clusterIPs) ? object.spec.clusterIPs.filter(a, !(a in variables.had)) : []`

	// celReserves is true of reservations: only replumb makes Services in its namespace.
	celReserves = `object.metadata.namespace == '` + v1alpha1.SystemNamespace + `' && has(object.metadata.labels) &&
'` + v1alpha1.LabelRole + `' in object.metadata.labels && object.metadata.labels['` + v1alpha1.LabelRole + `'] == '` + v1alpha1.RoleHold + `'`
)

// Owned is an address and its only Service (namespace/name), or none.
type Owned struct {
	Address netip.Addr
	Owner   string
}

// AddressGuard keeps addresses for their Services while API servers change their range one after
// another, and nothing else reserves them.
//
// It fails closed (failurePolicy Fail), since correctness depends on it, unlike on a freeze. A
// starting API server has its policies before it answers (WaitForReady in k8s.io/apiserver
// pkg/admission/plugin/policy/generic/plugin.go).
type AddressGuard struct {
	Client    client.Client
	Migration string
	Owned     []Owned
	// For says in the names of its steps what it is for.
	For string
}

var (
	_ engine.Undoer    = (*AddressGuard)(nil)
	_ engine.Previewer = (*AddressGuard)(nil)
)

func (g *AddressGuard) Policy() (*admissionv1.ValidatingAdmissionPolicy, *admissionv1.ValidatingAdmissionPolicyBinding) {
	return policyOf(GuardName, g.Migration, g.spec()), bindingOf(GuardName, g.Migration)
}

func (g *AddressGuard) spec() admissionv1.ValidatingAdmissionPolicySpec {
	fail, forbidden := admissionv1.Fail, metav1.StatusReasonForbidden
	match := services()
	match.ObjectSelector = &metav1.LabelSelector{}
	match.ResourceRules[0].Operations = []admissionv1.OperationType{admissionv1.Create, admissionv1.Update}
	lists, kept := g.lists(), []string{celManager + ` == '` + guardProber + `'`}
	for _, l := range lists {
		kept = append(kept, fmt.Sprintf("variables.fresh.exists(a, a in variables.%[1]s && variables.%[1]s[a] != variables.name)", l.Name))
	}
	return admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: match,
		FailurePolicy:    &fail,
		Variables: slices.Concat([]admissionv1.Variable{
			{Name: "name", Expression: `object.metadata.namespace + '/' + object.metadata.name`},
			{Name: "had", Expression: celHad},
			{Name: "fresh", Expression: celFresh},
			{Name: "reserves", Expression: celReserves},
		}, lists),
		Validations: []admissionv1.Validation{{
			Expression: "variables.reserves || !(" + strings.Join(kept, " || ") + ")", Reason: &forbidden,
			Message: "the address is reserved; see: replumb status",
			MessageExpression: quote("migration "+g.Migration+" keeps ") + ` + variables.fresh.join(', ') +
' for the Service that had it; try again, and another address is chosen, or leave clusterIP out of the manifest'`,
		}},
	}
}

func (g *AddressGuard) lists() []admissionv1.Variable {
	all := slices.Clone(g.Owned)
	slices.SortFunc(all, func(a, b Owned) int { return a.Address.Compare(b.Address) })
	all = slices.CompactFunc(all, func(a, b Owned) bool { return a.Address == b.Address })
	var lists []admissionv1.Variable
	for some := range slices.Chunk(all, keysPerList) {
		entries := make([]string, len(some))
		for i, o := range some {
			entries[i] = quote(o.Address.String()) + ": " + quote(o.Owner)
		}
		lists = append(lists, admissionv1.Variable{
			Name: fmt.Sprintf("%s%d", listed, len(lists)), Expression: "{" + strings.Join(entries, ", ") + "}",
		})
	}
	return lists
}

func (g *AddressGuard) ID() string { return "guard/" + g.For }

// Role implements engine.Cast: what it keeps is replumb's own.
func (*AddressGuard) Role() engine.StepRole { return engine.RoleOwn }

func (g *AddressGuard) Title() string {
	return fmt.Sprintf("Keep %d addresses from other Services while API servers get their range", len(g.Owned))
}

func (g *AddressGuard) State(ctx context.Context) (engine.State, error) {
	return stateOf(ctx, g.Client, GuardName, func(ctx context.Context) (bool, error) {
		return hasSpec(ctx, g.Client, GuardName, g.spec())
	}, g.enforced)
}

func (g *AddressGuard) Do(ctx context.Context) error {
	policy, binding := g.Policy()
	return ensureBoth(ctx, g.Client, policy, binding, nil)
}

func (g *AddressGuard) enforced(ctx context.Context) (bool, error) {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, GenerateName: "guarded-"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1, Protocol: corev1.ProtocolTCP}}},
	}
	err := g.Client.Create(ctx, svc, client.DryRunAll, client.FieldOwner(guardProber))
	if err != nil && !denied(err, GuardName) {
		return false, fmt.Errorf("asking whether policy %s is enforced: %w", GuardName, err)
	}
	return err != nil, nil
}

func (g *AddressGuard) Verify(ctx context.Context) error {
	enforced, err := g.enforced(ctx)
	return proof(GuardName, enforced, err)
}

func (g *AddressGuard) Preview() ([]engine.Change, error) {
	return creations(g.Policy()), nil
}

func (g *AddressGuard) Undo() engine.Step {
	return &engine.Observed[parts]{
		Name: "tidy/guard/" + g.For, About: "Keep addresses by reservations alone", As: engine.RoleOwn,
		Look: func(ctx context.Context) (engine.State, parts, error) {
			found, err := present(ctx, g.Client, GuardName)
			switch {
			case errors.As(err, new(*ForeignError)):
				return engine.Blocked, found, err
			case err != nil:
				return engine.Unknown, found, err
			case found.policy || found.binding:
				return engine.Pending, found, nil
			}
			return engine.Done, found, nil
		},
		Write: func(ctx context.Context, _ parts) error { return remove(ctx, g.Client, GuardName) },
		Proof: func(ctx context.Context) error {
			found, err := present(ctx, g.Client, GuardName)
			if err == nil && (found.policy || found.binding) {
				return engine.NotYet("validatingadmissionpolicy %s is not removed", GuardName)
			}
			return err
		},
		Changes: func() ([]engine.Change, error) {
			return []engine.Change{
				{Verb: "delete", Object: "ValidatingAdmissionPolicyBinding " + GuardName},
				{Verb: "delete", Object: "ValidatingAdmissionPolicy " + GuardName},
			}, nil
		},
	}
}

// GuardPossible is Possible for a guard.
func GuardPossible(ctx context.Context, c client.Client, migration string) error {
	policy, binding := (&AddressGuard{Migration: migration}).Policy()
	for _, o := range []client.Object{policy, binding} {
		if err := tryCreate(ctx, c, o); err != nil {
			return err
		}
	}
	_, err := present(ctx, c, GuardName)
	return unavailable(err)
}
