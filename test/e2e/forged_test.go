package e2e

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// forger is a tenant with the ClusterRole edit in a namespace of its own, who claims addresses for its pods while a migration runs. Pods on
// every node try the addresses all the time.
type forger struct {
	*testing.T
	l *lab.Lab
	// client is the tenant's.
	client kubernetes.Interface
	// victims are pods that call the addresses outside of the cluster.
	victims *traffic.Watch
}

const forgerNamespace = "forger"

// The addresses outside of the cluster that the tenant claims (RFC 5737), by the Service that claims each.
func forgedAddresses() []traffic.Callee {
	return []traffic.Callee{{Name: "outside", Address: "203.0.113.99"}, {Name: "half", Address: "198.51.100.99"}}
}

// newForger starts the tenant's pods, and the victims, before anything is forged: no address answers yet.
func newForger(t *testing.T, l *lab.Lab) *forger {
	t.Helper()
	f := &forger{T: t, l: l}
	echo := workload.Echo{Namespace: forgerNamespace, Name: forgerNamespace, PartOf: forgerNamespace, Replicas: 1}
	objects := append([]runtime.Object{workload.Namespace(forgerNamespace)}, echo.Objects()...)
	if _, err := start(t.Context(), l, forgerNamespace, objects); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.leave)
	edit := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "edit"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: forgerNamespace}},
	}
	_, err := l.Client().RbacV1().RoleBindings(forgerNamespace).Create(t.Context(), edit, metav1.CreateOptions{})
	must(t, err)
	config := rest.CopyConfig(l.RESTConfig())
	config.Impersonate = rest.ImpersonationConfig{UserName: forgerNamespace}
	if f.client, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	calls := traffic.Calls{Namespace: forgerNamespace, Client: "victim", Targets: map[traffic.Via][]probe.Target{}}
	calls = calls.AndTry(forgedAddresses(), traffic.Rates{Forbidden: 4})
	if f.victims, err = traffic.Start(t.Context(), l.Client(), l.NodeNames(), calls); err != nil {
		t.Fatal(err)
	}
	return f
}

// forge creates the Services that claim addresses: two outside of the cluster, and that of the shop's cart, whose callers notice if
// another server answers. At each of them, replumb would once have put a bridge to the tenant's pods.
func (f *forger) forge(migration, cart string, free [3]string) {
	f.Helper()
	claim := func(name, old, target string) *corev1.Service {
		svc := workload.Echo{Namespace: forgerNamespace, Name: forgerNamespace, PartOf: forgerNamespace}.Service()
		svc.Name, svc.Spec.ClusterIP = name, target
		svc.Annotations = map[string]string{
			v1alpha1.LabelMigration: migration, v1alpha1.AnnotationOldIP: old, v1alpha1.AnnotationTargetIP: target,
		}
		return svc
	}
	outside := forgedAddresses()
	half := claim(outside[1].Name, outside[1].Address, free[1])
	half.Annotations[v1alpha1.AnnotationOriginalSpec] = `{"type":"ClusterIP","ports":[{"name":"http","port":80,"targetPort":"http"}]}`
	half.Spec.Type, half.Spec.ClusterIP, half.Spec.ExternalName = corev1.ServiceTypeExternalName, "", "shop.shop.svc.cluster.local"
	for _, svc := range []*corev1.Service{claim(outside[0].Name, outside[0].Address, free[0]), half, claim("cart", cart, free[2])} {
		if _, err := f.client.CoreV1().Services(forgerNamespace).Create(f.Context(), svc, metav1.CreateOptions{}); err != nil {
			f.Fatalf("the tenant cannot create service %s: %v", svc.Name, err)
		}
	}
}

// requireSilence fails the test if any forged address has ever answered. Its control has an administrator lead one of them to the tenant's
// pods: the victims notice.
func (f *forger) requireSilence() {
	f.Helper()
	tried := span{heard: f.victims.Snapshot()}
	for from, series := range tried.heard {
		stats, err := series.Stats()
		must(f, err)
		if stats.OK > 0 || stats.Sent == 0 {
			f.Errorf("%s answered %d of %d requests", from, stats.OK, stats.Sent)
		}
		f.Logf("%s: %d requests, %d answered", from, stats.Sent, stats.OK)
	}
	led := forgedAddresses()[0]
	services := f.l.Client().CoreV1().Services(forgerNamespace)
	svc, err := services.Get(f.Context(), led.Name, metav1.GetOptions{})
	must(f, err)
	svc.Spec.ExternalIPs = []string{led.Address}
	if _, err := services.Update(f.Context(), svc, metav1.UpdateOptions{}); err != nil {
		f.Fatal(err)
	}
	eventually(f.T, settled, func() error {
		for from, series := range f.victims.Snapshot() {
			if n := len(series); from.Service == led.Name && (n == 0 || series[n-1].OK == 0) {
				return errors.New(from.String() + " still gets no answer")
			}
		}
		return nil
	})
}

// leave takes away the tenant, and the victims with it. It may be called twice.
func (f *forger) leave() {
	f.Helper()
	if f.victims != nil {
		f.victims.Stop()
	}
	removeNamespaces(f.T, f.l, forgerNamespace)
}
