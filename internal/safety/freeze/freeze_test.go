//go:build apiserver && long

package freeze

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/testing/apitest"
)

var lazy = &apitest.Lazy{Range: "10.96.0.0/16"}

func TestMain(m *testing.M) { os.Exit(lazy.Main(m)) }

func run(t *testing.T, step engine.Step) {
	t.Helper()
	plan := &engine.Plan{Phases: []engine.Phase{{Name: "p", Groups: []engine.Group{{Parallel: 1, Steps: []engine.Step{step}}}}}}
	if err := (&engine.Runner{Sink: func(engine.Event) {}}).Run(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	if state, err := step.State(t.Context()); state != engine.Done || err != nil {
		t.Fatalf("after %s: %v, %v", step.ID(), state, err)
	}
}

// frozen is a cluster with a freeze of the migration shop. It stays for the next test: the API
// server takes up policies, and lets them go, only every second.
func frozen(t *testing.T) (*apitest.Server, *Step) {
	t.Helper()
	s := lazy.Get(t)
	s.Namespace(t, "shop")
	step := &Step{Client: s, Migration: "shop"}
	run(t, step)
	return s, step
}

// free is a cluster without a freeze.
func free(t *testing.T) *apitest.Server {
	t.Helper()
	s := lazy.Get(t)
	s.Namespace(t, "shop")
	run(t, (&Step{Client: s}).Undo())
	return s
}

func service(t *testing.T, s *apitest.Server, name string, annotations, labels map[string]string) *corev1.Service {
	t.Helper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Annotations: annotations, Labels: labels},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if err := s.Create(t.Context(), svc); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		glass := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"replumb.dev/break-glass":"true"}}}`))
		_ = s.Patch(ctx, svc.DeepCopy(), glass)
		_ = s.Delete(ctx, svc)
	})
	return svc
}

func marked(t *testing.T, s *apitest.Server, name string) *corev1.Service {
	t.Helper()
	return service(t, s, name, map[string]string{v1alpha1.LabelMigration: "shop"}, nil)
}

func patch(t *testing.T, c client.Client, svc *corev1.Service, body string, manager string) error {
	t.Helper()
	return c.Patch(t.Context(), svc.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(body)), client.FieldOwner(manager))
}

// eventually waits for the API server to take up what was written.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) { return holds(), nil })
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func TestMark(t *testing.T) {
	s, _ := frozen(t)
	cart, pay := service(t, s, "cart", nil, nil), service(t, s, "pay", nil, nil)
	key := func(svc *corev1.Service) []types.NamespacedName {
		return []types.NamespacedName{client.ObjectKeyFromObject(svc)}
	}
	for _, step := range []struct {
		mark        []types.NamespacedName
		frozen, not *corev1.Service
	}{{key(cart), cart, pay}, {key(pay), pay, cart}} {
		for range 2 {
			if err := Mark(t.Context(), s, "shop", step.mark); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, step.frozen.Name+" is frozen", func() bool { return denied(tried(t, s, step.frozen), Name) })
		if err := tried(t, s, step.not); err != nil {
			t.Errorf("%s is not listed: %v", step.not.Name, err)
		}
	}
	if err := Clear(t.Context(), s, "shop"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "cleared", func() bool { return tried(t, s, pay) == nil })
	have := &admissionv1.ValidatingAdmissionPolicy{}
	if err := s.Get(t.Context(), types.NamespacedName{Name: Name}, have); err != nil || len(lists(have)) > 0 {
		t.Errorf("listed after clear: %v, %v", lists(have), err)
	}
}

// As many as can be in flight at once, with the longest names there are, and more.
func TestMarkMany(t *testing.T) {
	s, _ := frozen(t)
	svc := service(t, s, "zz", nil, nil)
	keys := []types.NamespacedName{client.ObjectKeyFromObject(svc)}
	for i := range 2000 {
		keys = append(keys, types.NamespacedName{Namespace: strings.Repeat("a", 63), Name: fmt.Sprintf("a%062d", i)})
	}
	if err := Mark(t.Context(), s, "shop", keys); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the last is frozen", func() bool { return denied(tried(t, s, svc), Name) })
}

func TestListSurvivesEnsure(t *testing.T) {
	s, step := frozen(t)
	if err := Mark(t.Context(), s, "shop", []types.NamespacedName{{Namespace: "shop", Name: "cart"}}); err != nil {
		t.Fatal(err)
	}
	versions := func() (all []string) {
		for _, o := range objects(Name) {
			if err := s.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
				t.Fatal(err)
			}
			all = append(all, o.GetResourceVersion())
		}
		return all
	}
	before := versions()
	if err := step.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := versions(); strings.Join(before, " ") != strings.Join(after, " ") {
		t.Errorf("a second time wrote: %v, %v", before, after)
	}
	// Another migration takes over what an earlier one left.
	next := &Step{Client: s, Migration: "next"}
	if state, err := next.State(t.Context()); state != engine.Pending || err != nil {
		t.Errorf("state of another migration: %v, %v", state, err)
	}
	run(t, next)
	have := &admissionv1.ValidatingAdmissionPolicy{}
	if err := s.Get(t.Context(), types.NamespacedName{Name: Name}, have); err != nil || len(lists(have)) != 1 {
		t.Errorf("the next migration lists %v, %v", lists(have), err)
	}
}

func TestUndoFrees(t *testing.T) {
	s, step := frozen(t)
	if active, err := active(t.Context(), s); err != nil || !active {
		t.Errorf("active: %v, %v", active, err)
	}
	svc := marked(t, s, "cart")
	if err := patch(t, s, svc, otherPorts, "kubectl-edit"); !denied(err, Name) {
		t.Fatal(err)
	}
	lift := step.Undo()
	if state, err := lift.State(t.Context()); state != engine.Pending || err != nil {
		t.Errorf("before: %v, %v", state, err)
	}
	run(t, lift)
	if err := patch(t, s, svc, otherPorts, "kubectl-edit"); err != nil {
		t.Error(err)
	}
	if active, err := active(t.Context(), s); err != nil || active {
		t.Errorf("active: %v, %v", active, err)
	}
	for _, o := range objects(Name) {
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(o), o); client.IgnoreNotFound(err) != nil || err == nil {
			t.Errorf("%s: %v", describe(s, o), err)
		}
	}
	for range 2 { // nothing to lift, nothing to list in
		if err := errors.Join(
			remove(t.Context(), s, Name),
			Mark(t.Context(), s, "shop", []types.NamespacedName{{Namespace: "a", Name: "b"}}),
		); err != nil {
			t.Error(err)
		}
	}
	if err := step.Verify(t.Context()); !engine.Retryable(err) {
		t.Errorf("verified without a policy: %v", err)
	}
}

// rights are what a freeze needs.
func rights() []rbacv1.PolicyRule {
	rule := func(group, verbs string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: strings.Fields(verbs)}
	}
	return []rbacv1.PolicyRule{
		rule("admissionregistration.k8s.io", "get create update delete",
			"validatingadmissionpolicies", "validatingadmissionpolicybindings"),
		rule("", "patch", "services"),
	}
}

func TestRightsSuffice(t *testing.T) {
	s := free(t)
	clients, err := kubernetes.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "freezer"}, Rules: rights()}
	if _, err := clients.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	to := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "freezer"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "freezer"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "freezer"}},
	}
	if _, err := clients.RbacV1().ClusterRoleBindings().Create(t.Context(), to, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(s.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "freezer"}
	c, err := cluster.Connect(config)
	if err != nil {
		t.Fatal(err)
	}
	limited := &Step{Client: c, Migration: "shop"}
	var possible error
	eventually(t, "the rights are known", func() bool { possible = Possible(t.Context(), c, "shop"); return possible == nil })
	run(t, limited)
	if err := Mark(t.Context(), c, "shop", []types.NamespacedName{{Namespace: "shop", Name: "cart"}}); err != nil {
		t.Error(err)
	}
	run(t, limited.Undo())
}

// A freeze works again after one was lifted and the API server has noticed.
func TestFrozenAgain(t *testing.T) {
	s, step := frozen(t)
	svc := service(t, s, "cart", nil, nil)
	run(t, step.Undo())
	if err := tried(t, s, svc); err != nil {
		t.Error(err)
	}
	run(t, step)
	if err := Mark(t.Context(), s, "shop", []types.NamespacedName{client.ObjectKeyFromObject(svc)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "frozen", func() bool { return denied(tried(t, s, svc), Name) })
}

func TestForeignPolicyIsLeftAlone(t *testing.T) {
	s := free(t)
	policy, _ := Policy("shop")
	policy.Labels = nil
	if err := s.Create(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Delete(context.Background(), policy) })
	step := &Step{Client: s, Migration: "shop"}
	state, err := step.State(t.Context())
	var foreign *ForeignError
	if state != engine.Blocked || !errors.As(err, &foreign) {
		t.Errorf("state: %v, %v", state, err)
	}
	_, activeErr := active(t.Context(), s)
	for what, err := range map[string]error{
		"possible": Possible(t.Context(), s, "shop"), "do": step.Do(t.Context()), "remove": remove(t.Context(), s, Name), "active": activeErr,
	} {
		if !errors.As(err, &foreign) || !strings.Contains(err.Error(), "validatingadmissionpolicy replumb-freeze") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := s.Get(t.Context(), client.ObjectKey{Name: Name}, policy); err != nil {
		t.Error(err)
	}
}

func TestPossible(t *testing.T) {
	s, _ := frozen(t)
	if err := Possible(t.Context(), s, "shop"); err != nil {
		t.Errorf("there already: %v", err)
	}
	run(t, (&Step{Client: s, Migration: "shop"}).Undo())
	if err := Possible(t.Context(), s, "shop"); err != nil {
		t.Errorf("not there: %v", err)
	}
	config := rest.CopyConfig(s.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "stranger"}
	c, err := cluster.Connect(config)
	if err != nil {
		t.Fatal(err)
	}
	var unavailable *UnavailableError
	if err := Possible(t.Context(), c, "shop"); !errors.As(err, &unavailable) {
		t.Errorf("without rights: %v", err)
	}
}

// active reports whether Services in flight are frozen: replumb's policy and its binding are there.
func active(ctx context.Context, c client.Client) (bool, error) {
	found, err := present(ctx, c, Name)
	return found.policy && found.binding, err
}
