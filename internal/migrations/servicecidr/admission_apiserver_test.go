//go:build apiserver && long

package servicecidr

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	admissionreviewv1 "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/admission"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/servicecidr/checks"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
)

// TestRefusalsAreFoundBeforeTheFirstWrite: what policies, webhooks and quotas would refuse in the
// middle of a move is found before anything is written, with the object, the field and who refuses
// it. As the control the same move goes on without looking, and stops halfway.
func TestRefusalsAreFoundBeforeTheFirstWrite(t *testing.T) {
	writes := rule("", "services", admissionv1.Create, admissionv1.Update)
	for name, tt := range map[string]struct {
		kind   func(*corev1.Service)
		refuse func(*fixture)
		want   []string
		// halfway says how far the control gets.
		halfway func(*fixture, *corev1.Service) bool
	}{
		"a policy against ExternalName": {
			refuse: func(f *fixture) {
				f.refused(asExternalName("cart"), func() {
					f.policy("no-external-names", "object.spec.type != 'ExternalName'", rule("", "services", admissionv1.Update))
				})
			},
			want:    []string{"RP1701", "Service shop/cart", "spec.type ExternalName", "ValidatingAdmissionPolicy no-external-names"},
			halfway: (*fixture).hasBridge,
		},
		"a policy against new NodePorts": {
			kind: nodePort,
			refuse: func(f *fixture) {
				f.refused(func(ctx context.Context) (*admission.Refusal, error) {
					svc := plainService("shop", "another", "")
					svc.Spec.Type = corev1.ServiceTypeNodePort
					return admission.Create(ctx, server, svc)
				}, func() {
					f.policy("no-new-node-ports",
						"object.spec.type != 'NodePort' || (oldObject != null && oldObject.spec.type == 'NodePort')", writes)
				})
			},
			want:    []string{"RP1701", "Service shop/cart", "spec.type NodePort", "ValidatingAdmissionPolicy no-new-node-ports"},
			halfway: (*fixture).recorded, // the trial of arrivals is refused before the hop
		},
		"a webhook against ExternalName": {
			refuse: func(f *fixture) {
				f.refused(asExternalName("cart"), func() {
					f.webhook("types.example.com", func(svc *corev1.Service) error {
						if svc.Spec.Type == corev1.ServiceTypeExternalName {
							return errors.New("no aliases here")
						}
						return nil
					})
				})
			},
			want:    []string{"RP1701", "Service shop/cart", "spec.type ExternalName", "webhook types.example.com", "no aliases here"},
			halfway: (*fixture).hasBridge,
		},
		"a policy against ServiceCIDRs": {
			refuse: func(f *fixture) {
				f.refused(func(ctx context.Context) (*admission.Refusal, error) {
					return admission.Create(ctx, server, serviceRange("another", "172.20.0.0/16"))
				}, func() { f.policy("no-ranges", "false", rule(networking, "servicecidrs", admissionv1.Create)) })
			},
			want:    []string{"RP1703", "ServiceCIDR m", "spec.cidrs 172.24.0.0/16", "ValidatingAdmissionPolicy no-ranges"},
			halfway: (*fixture).recorded,
		},
		"a policy against IPAddresses": {
			refuse: func(f *fixture) {
				f.refused(func(ctx context.Context) (*admission.Refusal, error) {
					e := &services.Entry{Service: plainService("shop", "cart", "")}
					return admission.Create(ctx, server, e.Reservation("m", netip.MustParseAddr("172.24.200.1")).Build())
				}, func() {
					f.policy("no-addresses", "!has(object.metadata.labels) || !('"+v1alpha1.LabelRole+"' in object.metadata.labels)",
						rule(networking, "ipaddresses", admissionv1.Create))
				})
			},
			want:    []string{"RP1703", "IPAddress 172.24.3.7", "ValidatingAdmissionPolicy no-addresses"},
			halfway: (*fixture).recorded,
		},
		"a quota for one more": {
			refuse:  func(f *fixture) { f.quota("small", "count/services", 2, 3) },
			want:    []string{"RP1702", "resourcequota shop/small allows 3 count/services", "it needs 4"},
			halfway: (*fixture).recorded,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			kind := tt.kind
			if kind == nil {
				kind = func(*corev1.Service) {}
			}
			cart, pay := f.service("cart", at("10.96.3.7"), kind), f.service("pay", at("10.96.3.9"), kind)
			tt.refuse(f)
			_, err := f.job.Apply(t.Context(), f.runner)
			var blocked *findings.BlockedError
			if !errors.As(err, &blocked) {
				t.Fatalf("apply ended with %v", err)
			}
			for _, text := range tt.want {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%q is not in: %v", text, err)
				}
			}
			for _, was := range []*corev1.Service{cart, pay} {
				if is := f.get(was.Name); is.ResourceVersion != was.ResourceVersion {
					t.Errorf("%s was written", was.Name)
				}
			}
			f.nothingLeft()
			if f.recorded(cart) {
				t.Error("the migration was recorded")
			}
			if err := f.unchecked(); err == nil || !tt.halfway(f, cart) {
				t.Errorf("control: without looking the move ended with %v, and not halfway", err)
			}
		})
	}
}

// unchecked applies without looking at what checks find.
func (f *fixture) unchecked() error {
	p, err := f.job.Examine(f.Context())
	f.must(err)
	p.Findings = nil
	plan, _ := p.Apply().Certain()
	return f.runner.Run(f.Context(), plan)
}

func (f *fixture) hasBridge(svc *corev1.Service) bool {
	key := client.ObjectKey{Namespace: svc.Namespace, Name: bridge.Name(svc.Name, svc.UID)}
	return server.Get(f.Context(), key, &corev1.Service{}) == nil
}

func (f *fixture) half(svc *corev1.Service) bool {
	return f.get(svc.Name).Spec.Type == corev1.ServiceTypeExternalName
}

func (f *fixture) recorded(*corev1.Service) bool {
	m, err := migration.Get(f.Context(), server, "m")
	f.must(err)
	return m != nil
}

func rule(group, resource string, verbs ...admissionv1.OperationType) admissionv1.RuleWithOperations {
	return admissionv1.RuleWithOperations{
		Operations: verbs, Rule: admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{resource}},
	}
}

// policy refuses what an expression is not true of, outside of replumb's own namespace.
func (f *fixture) policy(name, expression string, about admissionv1.RuleWithOperations, namespaces ...string) {
	f.Helper()
	within := metav1.LabelSelectorRequirement{
		Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: []string{v1alpha1.SystemNamespace},
	}
	if len(namespaces) > 0 {
		within.Operator, within.Values = metav1.LabelSelectorOpIn, namespaces
	}
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{within}},
				ResourceRules:     []admissionv1.NamedRuleWithOperations{{RuleWithOperations: about}},
			},
			Validations: []admissionv1.Validation{{Expression: expression, Message: "not in this cluster"}},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}
	f.temporary(policy)
	f.temporary(binding)
}

// temporary makes an object for the time of the test.
func (f *fixture) temporary(o client.Object) {
	f.Helper()
	f.must(server.Create(f.Context(), o))
	f.Cleanup(func() {
		if err := client.IgnoreNotFound(server.Delete(context.Background(), o)); err != nil {
			f.Error(err)
		}
	})
}

// trying is a dry run.
type trying func(context.Context) (*admission.Refusal, error)

// asExternalName tries what patch A does.
func asExternalName(name string) trying {
	return func(ctx context.Context) (*admission.Refusal, error) {
		patch := client.RawPatch(
			types.MergePatchType,
			[]byte(`{"spec":{"type":"ExternalName","externalName":"example.com","clusterIP":null}}`),
		)
		return admission.Patch(ctx, server, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}, patch)
	}
}

// refused makes what refuses something, and waits until the API server has heard of it, and at the
// end until it has forgotten it.
func (f *fixture) refused(try trying, make func()) {
	f.Helper()
	until := func(ctx context.Context, want bool) error {
		var last error
		err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			refused, err := try(ctx)
			last = err
			return err == nil && (refused != nil) == want, nil
		})
		return errors.Join(err, last)
	}
	f.Cleanup(func() { _ = until(context.Background(), false) }) // what it tries may be gone
	make()
	f.must(until(f.Context(), true))
}

// quota says that so many are used, of so many: no controller is here that counts.
func (f *fixture) quota(name string, what corev1.ResourceName, used, hard int64) {
	f.Helper()
	limit := corev1.ResourceList{what: *resource.NewQuantity(hard, resource.DecimalSI)}
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.ResourceQuotaSpec{Hard: limit}}
	f.temporary(q)
	q.Status = corev1.ResourceQuotaStatus{Hard: limit, Used: corev1.ResourceList{what: *resource.NewQuantity(used, resource.DecimalSI)}}
	f.must(server.Status().Update(f.Context(), q))
}

// webhook judges Services outside of replumb's own namespace, over HTTPS. It fails closed.
func (f *fixture) webhook(name string, judge func(*corev1.Service) error) {
	f.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review, svc := admissionreviewv1.AdmissionReview{}, &corev1.Service{}
		if json.NewDecoder(r.Body).Decode(&review) != nil || json.Unmarshal(review.Request.Object.Raw, svc) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		answer := &admissionreviewv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		switch err := judge(svc); {
		case errors.Is(err, errDead):
			w.WriteHeader(http.StatusBadGateway)
			return
		case err != nil:
			answer.Allowed, answer.Result = false, &metav1.Status{Message: err.Error(), Code: http.StatusForbidden}
		}
		review.Response = answer
		_ = json.NewEncoder(w).Encode(review)
	}))
	f.Cleanup(s.Close)
	url, none, closed := s.URL, admissionv1.SideEffectClassNone, admissionv1.Fail
	f.temporary(&admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: name, AdmissionReviewVersions: []string{"v1"}, SideEffects: &none, FailurePolicy: &closed,
			ClientConfig: admissionv1.WebhookClientConfig{
				URL: &url, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}),
			},
			NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
				Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: []string{v1alpha1.SystemNamespace},
			}}},
			Rules: []admissionv1.RuleWithOperations{rule("", "services", admissionv1.Create, admissionv1.Update)},
		}},
	})
}

// errDead is said by a webhook that cannot be reached.
var errDead = errors.New("dead")

// TestDeadWebhook: what an uninstalled controller has left refuses every new Service. That is one
// finding beside all others, and nobody waits for it.
func TestDeadWebhook(t *testing.T) {
	f := setup(t)
	f.service("cart", at("10.96.3.7"))
	f.refused(func(ctx context.Context) (*admission.Refusal, error) {
		return admission.Create(ctx, server, plainService("shop", "another", ""))
	}, func() { f.webhook("leftover.example.com", func(*corev1.Service) error { return errDead }) })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // a trial alone would be repeated for 30 s
	defer cancel()
	p, err := f.job.Examine(ctx)
	f.must(err)
	var said []string
	for _, found := range p.Findings.Blocking() {
		said = append(said, found.Code+" "+found.Message)
	}
	for _, text := range []string{"RP1004 ", "webhook leftover.example.com"} {
		if !strings.Contains(strings.Join(said, "\n"), text) {
			t.Errorf("no %q in %q", text, said)
		}
	}
}

// TestFormOfBridgesIsPerNamespace: a namespace that refuses load balancers has the other form, and
// all others keep theirs.
func TestFormOfBridgesIsPerNamespace(t *testing.T) {
	f := setup(t)
	server.Namespace(t, "strict")
	cart := f.service("cart", at("10.96.3.7"))
	till := plainService("strict", "till", "10.96.3.8")
	f.must(server.Create(t.Context(), till))
	f.refused(func(ctx context.Context) (*admission.Refusal, error) {
		lb := plainService("strict", "lb", "")
		lb.Spec.Type = corev1.ServiceTypeLoadBalancer
		return admission.Create(ctx, server, lb)
	}, func() {
		f.policy("no-load-balancers", "object.spec.type != 'LoadBalancer'", rule("", "services", admissionv1.Create), "strict")
	})
	p, err := f.job.Examine(t.Context())
	f.must(err)
	p.Forms, p.Form = nil, v1alpha1.BridgeLoadBalancer
	plan, _ := p.Apply().Certain()
	if err := f.runner.Run(t.Context(), plan); err == nil || !strings.Contains(err.Error(), "no-load-balancers") {
		t.Fatalf("control: with one form for all, the move ended with %v", err)
	}
	f.must(f.rollback())
	f.apply()
	for _, svc := range []*corev1.Service{cart, till} {
		b := &corev1.Service{}
		f.must(server.Get(t.Context(), client.ObjectKey{Namespace: svc.Namespace, Name: bridge.Name(svc.Name, svc.UID)}, b))
		if want := map[string]v1alpha1.BridgeForm{"shop": v1alpha1.BridgeLoadBalancer, "strict": v1alpha1.BridgeExternalIPs}[svc.Namespace]; bridge.FormOf(
			b,
		) != want {
			t.Errorf("the bridge of %s has the form %s, want %s", svc.Name, bridge.FormOf(b), want)
		}
	}
}

// TestWebhookBehindItsOwnHop: a webhook that fails closed and is asked about Services blocks the
// move of its own Service. The control moves it all the same: it is left without an address, and
// neither apply nor rollback can give it one.
func TestWebhookBehindItsOwnHop(t *testing.T) {
	f := setup(t)
	hook := f.service("hook", at("10.96.3.7"))
	cart := f.service("cart", at("10.96.3.8"))
	none, closed, second := admissionv1.SideEffectClassNone, admissionv1.Fail, int32(1)
	config := &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "judge"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "judge.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: &none, FailurePolicy: &closed,
			ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "shop", Name: "hook"}},
			Rules:        []admissionv1.RuleWithOperations{rule("", "services", admissionv1.Update)},
			// No one is here who would answer: the check goes by what the configuration says.
			ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"judged": "yes"}}, TimeoutSeconds: &second,
		}},
	}
	f.temporary(config)
	p, err := f.job.Examine(t.Context())
	f.must(err)
	if got := outcome(p, "RP1706"); got != findings.Pass {
		t.Errorf("RP1706 is %s of a webhook that exempts its Service", got)
	}
	if got := outcome(p, "RP1705"); got != findings.Fail {
		t.Errorf("RP1705 is %s", got)
	}
	batches := p.moves(engine.Forward).batches()
	if len(batches) != 2 || batches[1].names()[0] != "shop/hook" || len(batches[0].entries) != 1 {
		t.Errorf("the webhook's Service does not move alone and last: %v", batches)
	}
	f.job.inspection = nil // a new process
	config.Webhooks[0].ObjectSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "judged", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"no"}},
	}}
	f.must(server.Update(t.Context(), config))
	if p, err = f.job.Examine(t.Context()); err == nil && outcome(p, "RP1706") != findings.Fail {
		t.Error("RP1706 does not fire for a webhook that is asked about its own Service")
	}
	f.must(server.Delete(t.Context(), config))

	f.job.inspection = nil
	f.refused(asExternalName("probe"), func() {
		f.service("probe")
		f.webhook("judge.example.com", func(svc *corev1.Service) error {
			if svc.Name == "probe" { // so it is known when the webhook is asked
				return errors.New("heard")
			}
			have := &corev1.Service{}
			if err := server.Get(context.Background(), client.ObjectKeyFromObject(hook), have); err != nil || have.Spec.ClusterIP == "" {
				return errDead // API servers find no address of it
			}
			return nil
		})
	})
	f.must(server.Delete(t.Context(), f.get("probe")))
	if err := f.unchecked(); err == nil || !f.half(hook) {
		t.Errorf("control: the move ended with %v, and the webhook's Service has an address", err)
	}
	if err := f.rollback(); err == nil {
		t.Errorf("control: rollback went through, %s is at %s", cart.Name, f.get("hook").Spec.ClusterIP)
	}
}

func outcome(p *Planner, code string) findings.Outcome {
	for _, f := range p.Findings {
		if f.Code == code {
			return f.Outcome
		}
	}
	return ""
}

// TestNodePortRangeIsTheReal: the API server says how many node ports it has.
func TestNodePortRangeIsTheReal(t *testing.T) {
	f := setup(t)
	f.service("cart", at("10.96.3.7"))
	in := checks.Input{}
	snap, err := inventory.Load(t.Context(), f.job.Deps.Cluster)
	f.must(err)
	in.Snapshot = snap
	in.Inventory, _, err = f.job.inventory(t.Context(), snap)
	f.must(err)
	f.must(f.job.MayLook(t.Context()))
	_, err = f.job.trials(t.Context(), &in)
	f.must(err)
	if n := in.Trials.NodePorts; !n.Seen || n.Size() != bridge.DefaultNodePorts {
		t.Errorf("seen: %v", n)
	}
	if got := in.FreeNodePorts(); got != bridge.DefaultNodePorts {
		t.Errorf("%d are free", got)
	}
	f.service("ports", nodePort)
	in.Snapshot, err = inventory.Load(t.Context(), f.job.Deps.Cluster)
	f.must(err)
	if got := in.FreeNodePorts(); got >= bridge.DefaultNodePorts {
		t.Errorf("%d are free beside a Service with node ports", got)
	}
	var gone networkingv1.ServiceCIDR
	if err := server.Get(t.Context(), client.ObjectKey{Name: "m"}, &gone); !apierrors.IsNotFound(err) {
		t.Errorf("a trial wrote: %v", err)
	}
}
