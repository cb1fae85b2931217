//go:build apiserver && long

package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/testing/crash"
)

// TestWideBridgeIsNarrowedByTheNextApply: a run was killed before it narrowed the bridge.
func TestWideBridgeIsNarrowedByTheNextApply(t *testing.T) {
	f := setup(t)
	was := f.service("cart", at("10.96.3.7"))
	cut := *f.job.Deps.Cluster
	dead := &dying{WithWatch: server.WithWatch}
	cut.WithWatch = dead
	f.on(engine.StepStarted, "narrow/shop/cart", func() { dead.dead = true })
	var err error
	f.through(&cut, func() { _, err = f.job.Apply(t.Context(), f.runner) })
	if !errors.Is(err, crash.ErrKilled) {
		t.Fatalf("got %v", err)
	}
	f.answersAt(was, "10.96.3.7 172.24.3.7")
	f.again()
	f.apply()
	f.checkBridge(was, f.get("cart"), v1alpha1.BridgeLoadBalancer)
	f.must(f.finish())
	f.nothingLeft()
}

// TestStaleBridgeIsNotNarrowed: a process that was stopped with the write in hand wakes up when
// another has widened the bridge for the way back. At the address that the Service leaves nothing
// would answer.
func TestStaleBridgeIsNotNarrowed(t *testing.T) {
	for _, form := range []v1alpha1.BridgeForm{v1alpha1.BridgeLoadBalancer, v1alpha1.BridgeExternalIPs} {
		t.Run(string(form), func(t *testing.T) {
			f := setup(t, func(m *v1alpha1.Migration) { m.Spec.ServiceCIDR.Bridge = form })
			was := f.service("cart", at("10.96.3.7"))
			f.apply()
			b := &bridge.Bridge{
				Migration: f.job.Spec.Name, Service: f.get("cart"),
				Old: netip.MustParseAddr("10.96.3.7"), New: netip.MustParseAddr("172.24.3.7"),
			}
			write := func(have *corev1.Service, answers bridge.Answers) error {
				b.Answers = answers
				return b.Announce(t.Context(), server, have)
			}
			have, err := b.Read(t.Context(), server)
			f.must(err)
			f.must(write(have, bridge.Both))
			stale := have.DeepCopy()
			f.must(write(have, bridge.OldOnly))
			f.must(write(have, bridge.Both))
			if err := write(stale, bridge.OldOnly); !apierrors.IsConflict(err) {
				t.Errorf("got %v", err)
			}
			f.answersAt(was, "10.96.3.7 172.24.3.7")
			f.must(write(have, bridge.OldOnly)) // what has just been read may be written
			f.answersAt(was, "10.96.3.7")
		})
	}
}

// dying is a client of a process that is killed at some moment.
type dying struct {
	client.WithWatch
	dead bool
}

func (d *dying) Status() client.SubResourceWriter {
	if d.dead {
		return dead{d.WithWatch.Status()}
	}
	return d.WithWatch.Status()
}

type dead struct{ client.SubResourceWriter }

func (dead) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return crash.ErrKilled
}

// TestBridgeIsWidenedOnlyWithTheEndpointsOfItsService: at the new address half of all requests
// would go where the bridge leads.
func TestBridgeIsWidenedOnlyWithTheEndpointsOfItsService(t *testing.T) {
	f := setup(t)
	was := f.service("cart", at("10.96.3.7"))
	f.apply()
	f.ready("cart", "10.244.0.5")
	f.again()
	f.on(engine.StepStarted, "bridge/", func() { f.runner.Deadline = 2 * time.Second }) // of that step alone
	if err := f.rollback(); err == nil || !strings.Contains(err.Error(), "ready endpoints") {
		t.Errorf("got %v", err)
	}
	f.answersAt(was, "10.96.3.7")
	f.ready(bridge.Name("cart", was.UID), "10.244.0.5")
	f.runner.Deadline = 10 * time.Second
	f.must(f.rollback())
	f.rolledBack(was)
}

// ready gives a Service an endpoint, as the controller of EndpointSlices would.
func (f *fixture) ready(service, address string) {
	f.Helper()
	s := f.slice(service, address)
	s.Labels[discoveryv1.LabelManagedBy] = "endpointslice-controller.k8s.io"
	f.must(server.Update(f.Context(), s))
}

// TestRollbackThatAdmissionForbids: a bridge in the form of externalIPs cannot take its other
// address on again. Nothing is written.
func TestRollbackThatAdmissionForbids(t *testing.T) {
	f := setup(t, func(m *v1alpha1.Migration) { m.Spec.ServiceCIDR.Bridge = v1alpha1.BridgeExternalIPs })
	was := f.service("cart", at("10.96.3.7"))
	f.apply()
	allow := f.forbidNewExternalIPs()
	before := f.versions()
	m := f.again()
	err := f.rollback()
	var no *NoReturnError
	if !errors.As(err, &no) || no.ExitCode() != 3 || !strings.Contains(err.Error(), "no new externalIPs") ||
		!strings.Contains(err.Error(), "shop/"+bridge.Name("cart", was.UID)) {
		t.Fatalf("got %v", err)
	}
	if after := f.versions(); !slices.Equal(before, after) || f.again().ResourceVersion != m.ResourceVersion {
		t.Errorf("Services were %v, are %v; the Migration was\n%+v\nis\n%+v", before, after, m, f.again())
	}
	allow()
	f.must(f.rollback())
	f.rolledBack(was)
}

// versions are those of all Services of the shop.
func (f *fixture) versions() (all []string) {
	f.Helper()
	services := &corev1.ServiceList{}
	f.must(server.List(f.Context(), services, client.InNamespace("shop")))
	for i := range services.Items {
		all = append(all, services.Items[i].Name+" "+services.Items[i].ResourceVersion)
	}
	return all
}

// forbidNewExternalIPs has the API server do what its plugin DenyServiceExternalIPs does, until
// allow is called.
func (f *fixture) forbidNewExternalIPs() (allow func()) {
	f.Helper()
	meta := metav1.ObjectMeta{Name: "no-new-external-ips"}
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
			RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"services"}},
			},
		}}},
		Validations: []admissionv1.Validation{{
			Message: "no new externalIPs",
			Expression: `object.spec.?externalIPs.orValue([]).all(a,
				oldObject != null && a in oldObject.spec.?externalIPs.orValue([]))`,
		}},
	}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: meta.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}}
	trial := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "trial"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}, ExternalIPs: []string{"192.0.2.77"}},
	}
	refused := func() bool {
		return apierrors.IsInvalid(server.Create(context.Background(), trial.DeepCopy(), client.DryRunAll))
	}
	f.must(server.Create(f.Context(), policy))
	f.must(server.Create(f.Context(), binding))
	remove := func() {
		_ = server.Delete(context.Background(), binding)
		_ = server.Delete(context.Background(), policy)
	}
	f.Cleanup(remove)
	allow = func() {
		remove()
		f.eventually("externalIPs are allowed", func() error {
			if refused() {
				return errors.New("not yet")
			}
			return nil
		})
	}
	f.eventually("externalIPs are forbidden", func() error {
		if !refused() {
			return errors.New("not yet")
		}
		return nil
	})
	return allow
}

// TestArrivedServicesChange: between apply and finish a blue-green deployment switches a selector,
// a failover another, and a Service is deleted. In the middle of their batch all of that is
// refused, and to change the type until the end.
func TestArrivedServicesChange(t *testing.T) {
	f := setup(t, func(m *v1alpha1.Migration) { m.Spec.Freeze = v1alpha1.FreezeEnforce })
	f.runner.Deadline = time.Minute
	f.service("cart", at("10.96.3.7"))
	gone := f.service("gone", at("10.96.3.8"))
	blueGreen := `{"spec":{"selector":{"rollouts-pod-template-hash":"7bf84f9696"}}}`
	failover := `{"spec":{"selector":{"statefulset.kubernetes.io/pod-name":"mysql-1"}}}`
	change := func(patch string, opts ...client.PatchOption) error {
		opts = append(opts, client.FieldOwner("rollouts-controller"))
		return server.Patch(t.Context(), f.get("cart"), client.RawPatch(types.MergePatchType, []byte(patch)), opts...)
	}
	refused := func(patch, words string) error {
		err := change(patch, client.DryRunAll)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), words) {
			return fmt.Errorf("%s: %w", patch, errors.Join(errors.New("not refused"), err))
		}
		return nil
	}
	f.on(engine.StepStarted, "narrow/shop/cart", func() {
		for _, patch := range []string{blueGreen, failover} {
			f.eventually("the API server has heard of the batch", func() error { return refused(patch, "is moving service shop/cart") })
		}
		err := server.Delete(t.Context(), gone.DeepCopy(), client.DryRunAll)
		if !apierrors.IsForbidden(err) {
			t.Errorf("deleted in the middle of its batch: %v", err)
		}
	})
	f.apply()
	for _, patch := range []string{blueGreen, failover} {
		f.eventually("the API server has heard that cart may change", func() error { return change(patch) })
		f.must(refused(`{"spec":{"type":"NodePort"}}`, "has moved service shop/cart"))
	}
	f.eventually("the API server has heard that gone may go", func() error { return server.Delete(t.Context(), gone) })
	f.apply()
	is := f.get("cart")
	if b := f.get(bridge.Name(is.Name, is.UID)); b.Spec.Selector["statefulset.kubernetes.io/pod-name"] != "mysql-1" {
		t.Errorf("the bridge selects %v", b.Spec.Selector)
	}
	if owner := f.owner("10.96.3.8"); owner != "" {
		t.Errorf("the old address of what was deleted belongs to %s", owner)
	}
	f.must(f.finish())
	f.nothingLeft()
	f.must(change(`{"spec":{"type":"NodePort"}}`))
}
