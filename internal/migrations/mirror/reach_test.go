//go:build apiserver && programs && long

package mirror

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
	"github.com/replumb/replumb/internal/testing/migrationtest"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// reaching is a mirror whose target has two nodes, from which a database is called.
func reaching(t *testing.T) *fixture {
	t.Helper()
	f := setup(t, func(m *v1alpha1.Migration) {
		m.Spec.Image, m.Spec.Proof.Agents = "replumb", v1alpha1.AgentsDisabled
		m.Spec.Mirror.Canary = v1alpha1.PodCanarySpec{Targets: []string{"192.0.2.10:5432", "db.example.test:3306"}}
	})
	fleet := &fakekubelet.Fleet{Client: f.target}
	f.must(client.IgnoreAlreadyExists(fleet.Node(t.Context(), "b", netip.MustParseAddr("192.0.2.2"))))
	t.Cleanup(func() {
		_ = f.target.Delete(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}})
	})
	return f
}

// nothingLeft fails the test if canaries, or their namespace, are left in the target.
func (f *fixture) nothingLeft() {
	f.Helper()
	pods := &corev1.PodList{}
	f.must(f.target.List(f.Context(), pods, client.HasLabels{connectivity.Label}))
	for _, p := range pods.Items {
		if p.DeletionTimestamp.IsZero() {
			f.Errorf("canary %s is left", p.Name)
		}
	}
	ns := &corev1.Namespace{}
	err := f.target.Get(f.Context(), client.ObjectKey{Name: v1alpha1.SystemNamespace}, ns)
	if !apierrors.IsNotFound(err) && ns.DeletionTimestamp.IsZero() {
		f.Errorf("the namespace is left: %v", err)
	}
}

// TestTargetsAreTriedFromTheMirror: what pods of a node of the target do not reach ends the run
// before anything is done to names, with the node and the target in the error. Once it is reached,
// the same command carries on.
func TestTargetsAreTriedFromTheMirror(t *testing.T) {
	f := reaching(t)
	p, err := f.job.Look(t.Context())
	f.must(err)
	migrationtest.Shows(t, p.Apply())
	f.cut = "b"
	err = f.run(0, f.apply)
	var unreached *UnreachedError
	if !errors.As(err, &unreached) || len(unreached.From) != 1 {
		t.Fatalf("got %v", err)
	}
	if !strings.Contains(err.Error(), "from node b: 192.0.2.10:5432 does not answer") ||
		!strings.Contains(fault.Advice(err), "security groups") {
		t.Errorf("it says %v; hint: %s", err, fault.Advice(err))
	}
	if !slices.Contains(f.asked, "--reach=192.0.2.10:5432,db.example.test:3306") {
		t.Errorf("canaries were told %v", f.asked)
	}
	f.leads(sourceAt, 3*time.Second) // not even for less time
	if st := f.status(); st.Mirror.Serving != v1alpha1.ServingSource {
		t.Errorf("%s serves", st.Mirror.Serving)
	}
	f.nothingLeft()

	f.cut = ""
	f.must(f.run(0, f.apply))
	f.leads(targetAt, time.Second)
	f.nothingLeft()
	f.asked = nil
	f.must(f.run(0, f.apply)) // the target serves: there is nothing to try out
	if f.asked != nil {
		t.Error("canaries ran after names had been switched")
	}
	f.must(f.run(0, f.finish))
	f.leads(sourceAt, 3*time.Second)
}

// TestNamespaceOfOthersInTheTarget stays, as do pods in it that are no canaries of this mirror.
func TestNamespaceOfOthersInTheTarget(t *testing.T) {
	f := reaching(t)
	f.target.Namespace(t, v1alpha1.SystemNamespace)
	other := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v1alpha1.SystemNamespace,
			Name:      "other",
			Labels:    map[string]string{connectivity.Label: roleReach, v1alpha1.LabelMigration: "other"},
		},
		Spec: corev1.PodSpec{NodeName: "a", Containers: []corev1.Container{{Name: "c", Image: "c"}}},
	}
	f.must(f.target.Create(t.Context(), other))
	f.must(f.run(0, f.apply))
	ns := &corev1.Namespace{}
	f.must(f.target.Get(t.Context(), client.ObjectKey{Name: v1alpha1.SystemNamespace}, ns))
	if !ns.DeletionTimestamp.IsZero() {
		t.Error("the namespace is being deleted, with what others keep there")
	}
	if err := f.target.Get(t.Context(), client.ObjectKeyFromObject(other), other); err != nil || !other.DeletionTimestamp.IsZero() {
		t.Errorf("a pod of others is gone: %v", err)
	}
	f.must(f.run(0, f.rollback))
}

// TestFreezeKindsAreServed: a kind that the source does not serve, or not in namespaces, is a
// finding; the others are in the policy.
func TestFreezeKindsAreServed(t *testing.T) {
	f := setup(t, func(m *v1alpha1.Migration) {
		m.Spec.Mirror.FreezeKinds = []string{
			"poddisruptionbudgets.policy",
			"kafka.kafka.strimzi.io",
			"clusterroles.rbac.authorization.k8s.io",
		}
	})
	p, err := f.job.Look(t.Context())
	f.must(err)
	for kind, found := range map[string]bool{
		"poddisruptionbudgets.policy": false, "kafka.kafka.strimzi.io": true, "clusterroles.rbac.authorization.k8s.io": true,
	} {
		if got := migrationtest.Says(p.Findings, "RP4008", "the source serves no "+kind+" in namespaces"); got != found {
			t.Errorf("%s is found missing: %v, want %v", kind, got, found)
		}
	}
	policy, _ := p.freezer().Policy()
	if !slices.ContainsFunc(policy.Spec.MatchConstraints.ResourceRules, func(r admissionv1.NamedRuleWithOperations) bool {
		return slices.Equal(r.APIGroups, []string{"policy"}) && slices.Equal(r.Resources, []string{"poddisruptionbudgets"})
	}) {
		t.Errorf("the policy is about %+v", policy.Spec.MatchConstraints.ResourceRules)
	}
}
