//go:build long

package hostile

import (
	"context"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/kube/cluster"
)

// The users of these tests: one has the roles of Services to view, to operate and to have agents run, the other those to view.
const mover, reader = "mover", "reader"

// grant makes and binds what replumb prints.
func (s *scene) grant(args ...string) {
	s.Helper()
	o := s.replumb(append([]string{"rbac", "services"}, args...)...)
	s.expect(o, 0)
	everything, err := s.Any()
	s.must(err)
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(o.stdout), 4096)
	for {
		u := &unstructured.Unstructured{}
		if decoder.Decode(&u.Object) != nil {
			return
		}
		if u.Object == nil {
			continue
		}
		s.eventually(func() error { return client.IgnoreAlreadyExists(everything.Create(s.Context(), u.DeepCopy())) })
		s.Cleanup(func() {
			if kind := u.GetKind(); kind != "Namespace" {
				_ = everything.Delete(context.Background(), u)
			}
		})
	}
}

// bystanders are objects that replumb has nothing to do with.
func (s *scene) bystanders() {
	s.Helper()
	name := metav1.ObjectMeta{Name: "bystander"}
	lease := metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kube-controller-manager"}
	auth := metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "aws-auth"}
	for _, o := range []client.Object{
		&rbacv1.ClusterRoleBinding{ObjectMeta: name, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"}},
		&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: name, Spec: admissionv1.ValidatingAdmissionPolicySpec{
			Validations: []admissionv1.Validation{{Expression: "true"}},
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule:       admissionv1.Rule{APIGroups: []string{"example.com"}, APIVersions: []string{"v1"}, Resources: []string{"things"}},
				},
			}}},
		}},
		&coordinationv1.Lease{ObjectMeta: lease},
		&corev1.ConfigMap{ObjectMeta: auth},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: otherSpace, Name: "bystander"}},
	} {
		s.must(client.IgnoreAlreadyExists(s.admin.Create(s.Context(), o)))
		s.Cleanup(func() { _ = s.admin.Delete(context.Background(), o) })
	}
}

// privilegedPod has the run of its node.
func privilegedPod() corev1.PodSpec {
	return corev1.PodSpec{HostPID: true, Containers: []corev1.Container{{
		Name: "c", Image: "evil", SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)},
	}}}
}

// trespass is a request that an operator has no business to make. Those that change something are dry runs: authorization is the same.
type trespass struct {
	name string
	do   func(ctx context.Context, c client.Client) error
}

// trespasses are, beside the requests, what each would gain. Who had the ClusterRole of Services as it was before there were roles by purpose
// could make all of them but those about Secrets and bare pods; the roles of networks and of mirrors had these as well.
func trespasses() []trespass {
	named := metav1.ObjectMeta{Name: "bystander"}
	label := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"privileged"}}}`))
	in := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name}
	}
	crd := metav1.ObjectMeta{Name: "things.example.com", ResourceVersion: "1"}
	pods := map[string]string{"app": "evil"}
	return []trespass{
		// Who loses their binding is locked out.
		{"delete a foreign ClusterRoleBinding", del(&rbacv1.ClusterRoleBinding{ObjectMeta: named})},
		// The conversion webhook of a definition sees, and makes, all objects of its kind.
		{"change another definition", func(ctx context.Context, c client.Client) error {
			return c.Update(ctx, &apiextensionsv1.CustomResourceDefinition{ObjectMeta: crd}, client.DryRunAll)
		}},
		// Without policies anything goes.
		{"delete another admission policy", del(&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: named})},
		// Without its Lease a controller manager ends.
		{
			"delete the controller manager's lease",
			del(&coordinationv1.Lease{ObjectMeta: in(metav1.NamespaceSystem, "kube-controller-manager")}),
		},
		{"take the controller manager's lease", func(ctx context.Context, c client.Client) error {
			return c.Update(ctx, &coordinationv1.Lease{
				ObjectMeta: in(
					metav1.NamespaceSystem,
					"kube-controller-manager",
				),
				Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("evil")},
			}, client.DryRunAll)
		}},
		// Secrets are tokens.
		{"read a Secret", func(ctx context.Context, c client.Client) error {
			return c.Get(ctx, client.ObjectKey{Namespace: otherSpace, Name: "bystander"}, &corev1.Secret{})
		}},
		{"list Secrets", func(ctx context.Context, c client.Client) error { return c.List(ctx, &corev1.SecretList{}) }},
		// aws-auth says who is an administrator.
		{"change aws-auth", func(ctx context.Context, c client.Client) error {
			return c.Update(ctx, &corev1.ConfigMap{ObjectMeta: in(metav1.NamespaceSystem, "aws-auth")}, client.DryRunAll)
		}},
		{
			"create aws-auth",
			create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, GenerateName: "aws-auth-"}}),
		},
		// A privileged pod is root on its node.
		{"run a privileged pod", create(&corev1.Pod{ObjectMeta: in(metav1.NamespaceSystem, "evil"), Spec: privilegedPod()})},
		{"run privileged pods on every node", create(&appsv1.DaemonSet{
			ObjectMeta: in(metav1.NamespaceSystem, "evil"), Spec: appsv1.DaemonSetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: pods},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pods}, Spec: privilegedPod()},
			},
		})},
		// Pod Security is all that keeps such pods out of it.
		{"label another namespace privileged", patch(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: otherSpace}}, label)},
		{"delete another namespace", del(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: otherSpace}})},
		// Any ServiceAccount will do to be someone.
		{"create a ServiceAccount", create(&corev1.ServiceAccount{ObjectMeta: in(metav1.NamespaceSystem, "evil")})},
		{"create another ClusterRoleBinding", create(&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{
				Name: "evil",
			},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		})},
	}
}

func del(o client.Object) func(context.Context, client.Client) error {
	return func(ctx context.Context, c client.Client) error {
		return c.Delete(ctx, o.DeepCopyObject().(client.Object), client.DryRunAll)
	}
}

func patch(o client.Object, p client.Patch) func(context.Context, client.Client) error {
	return func(ctx context.Context, c client.Client) error {
		return c.Patch(ctx, o.DeepCopyObject().(client.Object), p, client.DryRunAll)
	}
}

func create(o client.Object) func(context.Context, client.Client) error {
	return func(ctx context.Context, c client.Client) error {
		return c.Create(ctx, o.DeepCopyObject().(client.Object), client.DryRunAll)
	}
}

// TestOperatorTrespasses: an operator of Services, or a thief of their credentials, makes requests that no move takes.
func TestOperatorTrespasses(t *testing.T) {
	s := begin(t)
	s.grant("--user", mover, "--for", "view,operate,agents")
	s.bystanders()
	operator := s.operatorOf(mover)
	for _, attack := range trespasses() {
		t.Run(attack.name, func(t *testing.T) {
			if err := attack.do(t.Context(), operator); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), mover) {
				t.Errorf("got %v", err)
			}
			err := attack.do(t.Context(), s.superuser()) // else it proves nothing
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsInvalid(err) {
				t.Errorf("the administrator got %v", err)
			}
		})
	}
	t.Run("run commands on a node", func(t *testing.T) { // get of nodes/proxy is exec in any of its containers
		for _, path := range []string{"/api/v1/nodes/node1/proxy/pods", "/api/v1/nodes/node1/proxy/configz"} {
			if _, err := s.asCluster(mover).GetRaw(t.Context(), path); !apierrors.IsForbidden(err) {
				t.Errorf("got %v", err)
			}
		}
	})
	// The roles are good for what they are for.
	s.write(`apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: ` + migrationName + `}
spec:
  serviceCIDR: {from: [` + oldRange + `], to: [` + newRange + `], drain: 0s, barrier: {mode: Wait, wait: 0s}}
  batch: {settle: 0s}
`)
	s.expect(s.replumb("apply", "-f", s.file, "--as", mover), 0)
	s.expect(s.replumb("rollback", migrationName, "--yes", "--as", mover), 0)
}

func (s *scene) operatorOf(user string) client.Client {
	s.Helper()
	config := rest.CopyConfig(s.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user}
	c, err := client.New(config, client.Options{Scheme: s.Scheme(), Mapper: s.RESTMapper()})
	s.must(err)
	return c
}

// superuser is the administrator, with replumb's kinds.
func (s *scene) superuser() client.Client { return s.Cluster }

// asCluster is replumb's own connection as another user.
func (s *scene) asCluster(user string) *cluster.Cluster {
	s.Helper()
	config := rest.CopyConfig(s.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user}
	c, err := cluster.Connect(config)
	s.must(err)
	return c
}

// TestOperatorStays: what a move is made of cannot be kept from who makes it. The file with the roles says so, so that no one binds it to
// whom they would not trust with the cluster.
func TestOperatorStays(t *testing.T) {
	s := begin(t)
	s.grant("--user", mover, "--for", "view,operate")
	operator := s.operatorOf(mover)
	svc := s.service(otherSpace, "cart")
	status := []byte(`{"metadata":{"labels":{"x":"y"}}}`) // no more than a trial
	s.must(operator.Status().Patch(t.Context(), svc, client.RawPatch(types.MergePatchType, status), client.DryRunAll))
	s.must(operator.Patch(t.Context(), s.service(otherSpace, "cart"),
		client.RawPatch(types.MergePatchType, []byte(`{"spec":{"selector":{"app":"evil"}}}`)), client.DryRunAll))
	printed := s.replumb("rbac", "services").stdout
	for _, text := range []string{
		"take over the traffic of every Service", "pods of any image with any ServiceAccount", "administrator of the cluster", "is root on every node",
		"No rule limits which policies are created", "No rule limits which definitions are created", "No rule limits which Leases are created",
	} {
		if !strings.Contains(strings.ReplaceAll(printed, "\n# ", " "), text) {
			t.Errorf("the roles do not say %q", text)
		}
	}
}

// TestReaderWritesNothing: a reader, who was given the role to view, changes something. It would gain what operators have.
func TestReaderWritesNothing(t *testing.T) {
	s := begin(t)
	s.grant("--user", reader, "--for", "view")
	s.bystanders()
	as := s.operatorOf(reader)
	for _, attack := range trespasses() {
		if err := attack.do(t.Context(), as); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", attack.name, err)
		}
	}
	config := rest.CopyConfig(s.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: reader}
	plain := s.connect(config)
	for _, namespace := range []string{"default", "kube-system", "replumb-system", "replumb-journal", otherSpace} {
		review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}
		s.must(plain.Create(t.Context(), review))
		for _, rule := range review.Status.ResourceRules {
			if slices.ContainsFunc(rule.Resources, func(r string) bool { return strings.HasPrefix(r, "selfsubject") }) {
				continue // everyone's
			}
			for _, verb := range rule.Verbs {
				if !slices.Contains([]string{"get", "list", "watch"}, verb) {
					t.Errorf("in %s the reader may %s %v", namespace, verb, rule.Resources)
				}
			}
		}
	}
	// They get to see everything all the same, and what they lack.
	missing := "missing permission: create,patch,delete,watch services (role replumb-services-operate)"
	s.expect(s.replumb("check", "-f", s.file, "--all", "--as", reader), 3, missing, "ok      RP1010")
	s.expect(s.replumb("plan", "-f", s.file, "--as", reader), 3, "Move shop/cart from 172.31.3.7")
	s.expect(s.replumb("apply", "-f", s.file, "--as", reader), 3, missing)
	if ip := s.service(otherSpace, "cart").Spec.ClusterIP; ip != "172.31.3.7" {
		t.Errorf("service cart is at %s", ip)
	}
}
