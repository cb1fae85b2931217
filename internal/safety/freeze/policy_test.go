//go:build apiserver && long

package freeze

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/testing/apitest"
)

const otherPorts = `{"spec":{"ports":[{"port":81}]}}`

// tried is what the API server says to a change that is only tried.
func tried(t *testing.T, c client.Client, svc *corev1.Service) error {
	t.Helper()
	return c.Patch(t.Context(), svc.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(otherPorts)), client.DryRunAll)
}

// strict is a freeze that denies when an expression cannot be evaluated: what passes it was meant
// to.
func strict(t *testing.T) *apitest.Server {
	t.Helper()
	s := free(t)
	policy, binding := Policy("shop")
	fail := admissionv1.Fail
	policy.Spec.FailurePolicy = &fail
	for _, o := range []client.Object{policy, binding} {
		if err := s.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the freeze is enforced", func() bool {
		enforced, err := Prove(t.Context(), s)
		return err == nil && enforced
	})
	return s
}

func TestWhoMayChangeWhat(t *testing.T) {
	s := strict(t)
	as := func(user string, groups ...string) client.Client {
		config := rest.CopyConfig(s.Config)
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:masters")}
		c, err := cluster.Connect(config)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	inFlight := map[string]string{v1alpha1.LabelMigration: "shop"}
	glass := map[string]string{v1alpha1.LabelBreakGlass: "true"}
	for name, test := range map[string]struct {
		annotations, labels map[string]string
		as                  client.Client
		manager             string
		patch               string // empty: delete
		denied              bool
	}{
		"spec":                          {annotations: inFlight, patch: otherPorts, denied: true},
		"spec without a manager":        {annotations: inFlight, manager: " ", patch: otherPorts, denied: true},
		"deletion":                      {annotations: inFlight, denied: true},
		"annotation taken away":         {annotations: inFlight, patch: `{"metadata":{"annotations":null}}`, denied: true},
		"annotation changed":            {annotations: inFlight, patch: `{"metadata":{"annotations":{"replumb.dev/migration":"x"}}}`, denied: true},
		"annotation added":              {annotations: inFlight, patch: `{"metadata":{"annotations":{"replumb.dev/tier":"x"}}}`, denied: true},
		"other metadata":                {annotations: inFlight, patch: `{"metadata":{"labels":{"a":"b"},"annotations":{"a":"b"}}}`},
		"replumb":                       {annotations: inFlight, manager: v1alpha1.FieldManager, patch: otherPorts},
		"deletion in replumb's name":    {annotations: inFlight, manager: v1alpha1.FieldManager, denied: true},
		"not in flight":                 {patch: otherPorts},
		"deletion of one not in flight": {},
		"annotation of one not in flight": {
			patch: `{"metadata":{"annotations":{"replumb.dev/tier":"x"}}}`, annotations: map[string]string{"a": "b"},
		},
		"glass broken":                  {annotations: inFlight, labels: glass, patch: otherPorts},
		"glass broken with the change":  {annotations: inFlight, patch: `{"metadata":{"labels":{"replumb.dev/break-glass":"x"}},"spec":{"ports":[{"port":81}]}}`},
		"glass broken before a removal": {annotations: inFlight, labels: glass},
		"what replumb made":             {annotations: inFlight, labels: map[string]string{v1alpha1.LabelRole: v1alpha1.RoleBridge}},
		"namespace controller": {
			annotations: inFlight, as: as("system:serviceaccount:kube-system:namespace-controller", "system:serviceaccounts:kube-system"),
		},
		"controller manager": {annotations: inFlight, as: as("system:kube-controller-manager"), patch: otherPorts},
		"API server":         {annotations: inFlight, as: as("system:apiserver"), patch: otherPorts},
		"garbage collector": {
			annotations: inFlight,
			as:          as("system:serviceaccount:kube-system:generic-garbage-collector", "system:serviceaccounts:kube-system"),
		},
		"an installer in kube-system": {
			annotations: inFlight, as: as("system:serviceaccount:kube-system:helm-traefik", "system:serviceaccounts:kube-system"), denied: true,
		},
		"an addon manager in kube-system": {
			annotations: inFlight, as: as("system:serviceaccount:kube-system:addon-manager", "system:serviceaccounts:kube-system"),
			patch: otherPorts, denied: true,
		},
		"other controllers": {
			annotations: inFlight, as: as("system:serviceaccount:argo:argo", "system:serviceaccounts:argo"), patch: otherPorts, denied: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			svc := service(t, s, "cart", test.annotations, test.labels)
			var c client.Client = s
			if test.as != nil {
				c = test.as
			}
			manager := test.manager
			if manager == "" {
				manager = "kubectl-edit"
			}
			var err error
			if test.patch == "" {
				err = c.Delete(t.Context(), svc.DeepCopy())
			} else {
				err = patch(t, c, svc, test.patch, strings.TrimSpace(manager))
			}
			if denied(err, Name) != test.denied || (err != nil && !test.denied) {
				t.Errorf("got %v, want denied: %v", err, test.denied)
			}
		})
	}
}

// overlap are changes of a Service that has moved, by what they would break.
func overlap() map[string]struct {
	patch  string // empty: delete
	denied bool
} {
	return map[string]struct {
		patch  string
		denied bool
	}{
		"Argo Rollouts switches to another ReplicaSet": {
			patch: `{"metadata":{"annotations":{"argo-rollouts.argoproj.io/managed-by-rollouts":"cart"}},` +
				`"spec":{"selector":{"rollouts-pod-template-hash":"7bf84f9696"}}}`,
		},
		"failover to another pod of a StatefulSet": {patch: `{"spec":{"selector":{"statefulset.kubernetes.io/pod-name":"mysql-1"}}}`},
		"selector taken away":                      {patch: `{"spec":{"selector":null}}`},
		"port":                                     {patch: otherPorts},
		"port added":                               {patch: `{"spec":{"ports":[{"name":"a","port":80},{"name":"b","port":81}]}}`},
		"session affinity":                         {patch: `{"spec":{"sessionAffinity":"ClientIP"}}`},
		"distribution": {
			patch: `{"spec":{"trafficDistribution":"PreferClose","publishNotReadyAddresses":true}}`,
		},
		"other metadata": {patch: `{"metadata":{"labels":{"a":"b"},"annotations":{"a":"b"}}}`},
		"deletion":       {},
		"type":           {patch: `{"spec":{"type":"NodePort"}}`, denied: true},
		"load balancer": {
			patch:  `{"spec":{"type":"LoadBalancer","loadBalancerClass":"example.com/lb"}}`,
			denied: true,
		},
		"ExternalName": {
			patch: `{"spec":{"type":"ExternalName","externalName":"example.com","clusterIP":null,"clusterIPs":null,` +
				`"ipFamilies":null,"ipFamilyPolicy":null,"internalTrafficPolicy":null}}`,
			denied: true,
		},
		"families":                 {patch: `{"spec":{"ipFamilyPolicy":"PreferDualStack"}}`, denied: true},
		"externalIPs":              {patch: `{"spec":{"externalIPs":["192.0.2.7"]}}`, denied: true},
		"local traffic policy":     {patch: `{"spec":{"internalTrafficPolicy":"Local"}}`, denied: true},
		"replumb's annotation":     {patch: `{"metadata":{"annotations":{"replumb.dev/migration":null}}}`, denied: true},
		"one more of replumb":      {patch: `{"metadata":{"annotations":{"replumb.dev/strategy":"pin"}}}`, denied: true},
		"selector and externalIPs": {patch: `{"spec":{"selector":{"app":"b"},"externalIPs":["192.0.2.7"]}}`, denied: true},
		"selector and an annotation": {
			patch:  `{"metadata":{"annotations":{"replumb.dev/migration":"x"}},"spec":{"selector":{"a":"b"}}}`,
			denied: true,
		},
	}
}

// TestArrivedServicesMayChange but for what would break the overlap. While they are in flight all
// of it is refused, which is the control.
func TestArrivedServicesMayChange(t *testing.T) {
	s := strict(t)
	arrived := service(
		t,
		s,
		"cart",
		map[string]string{v1alpha1.LabelMigration: "shop", v1alpha1.AnnotationMovedAt: "2026-01-01T00:00:00Z"},
		nil,
	)
	hopping := marked(t, s, "pay")
	do := func(svc *corev1.Service, body string) error {
		if body == "" {
			return s.Delete(t.Context(), svc.DeepCopy(), client.DryRunAll)
		}
		patch := client.RawPatch(types.MergePatchType, []byte(body))
		return s.Patch(t.Context(), svc.DeepCopy(), patch, client.DryRunAll, client.FieldOwner("rollouts-controller"))
	}
	for name, change := range overlap() {
		t.Run(name, func(t *testing.T) {
			err := do(arrived, change.patch)
			if denied(err, Name) != change.denied || err != nil && !change.denied {
				t.Errorf("arrived: got %v, want denied: %v", err, change.denied)
			}
			if change.denied && !strings.Contains(fmt.Sprint(err), "migration shop has moved service shop/cart, and it or a bridge answers") {
				t.Errorf("it says %v", err)
			}
			if name != "other metadata" && !denied(do(hopping, change.patch), Name) {
				t.Error("in flight: not refused")
			}
		})
	}
	if err := Mark(t.Context(), s, "shop", []types.NamespacedName{client.ObjectKeyFromObject(arrived)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one that is about to go back is in flight", func() bool { return denied(tried(t, s, arrived), Name) })
	if err := do(arrived, ""); !denied(err, Name) || !strings.Contains(err.Error(), "is moving service shop/cart") {
		t.Errorf("deletion of one that is about to go back: %v", err)
	}
}

func TestStatusAndUpdates(t *testing.T) {
	s, _ := frozen(t)
	svc := marked(t, s, "cart")
	svc.Status.LoadBalancer.Ingress = nil
	svc.Status.Conditions = []metav1.Condition{
		{Type: "Seen", Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.Now()},
	}
	if err := s.Status().Update(t.Context(), svc); err != nil {
		t.Errorf("status: %v", err)
	}
	svc.Labels = map[string]string{"a": "b"}
	if err := s.Update(t.Context(), svc, client.FieldOwner("kubectl-edit")); err != nil {
		t.Errorf("metadata: %v", err)
	}
	svc.Spec.Ports[0].Port = 81
	if err := s.Update(t.Context(), svc.DeepCopy(), client.FieldOwner("kubectl-edit")); !denied(err, Name) {
		t.Errorf("spec by others: %v", err)
	}
	if err := s.Update(t.Context(), svc, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		t.Errorf("spec by replumb: %v", err)
	}
}

func TestMessage(t *testing.T) {
	s, _ := frozen(t)
	marked(t, s, "cart")
	cmd := exec.CommandContext(t.Context(), filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"),
		"--kubeconfig", s.Kubeconfig, "delete", "service", "-n", "shop", "cart")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatal("kubectl deleted it")
	}
	for _, part := range []string{
		"migration shop is moving service shop/cart", "until it has arrived",
		"kubectl label service -n shop cart replumb.dev/break-glass=true", "replumb unfreeze",
	} {
		if !strings.Contains(string(out), part) {
			t.Errorf("kubectl says %q, without %q", out, part)
		}
	}
}
