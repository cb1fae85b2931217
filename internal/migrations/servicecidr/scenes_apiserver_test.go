//go:build apiserver

package servicecidr

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
)

func (f *fixture) eventually(what string, try func() error) {
	f.Helper()
	plan := single1(&untilStep{what: what, try: try})
	f.must((&engine.Runner{Deadline: time.Minute}).Run(f.Context(), plan))
}

// untilStep waits for what others bring about.
type untilStep struct {
	what string
	try  func() error
}

func (s *untilStep) ID() string                                  { return "until" }
func (s *untilStep) Title() string                               { return "Wait for " + s.what }
func (s *untilStep) State(context.Context) (engine.State, error) { return engine.Pending, nil }
func (s *untilStep) Do(context.Context) error                    { return nil }
func (s *untilStep) Verify(context.Context) error {
	if err := s.try(); err != nil {
		return engine.NotYet("%s: %w", s.what, err)
	}
	return nil
}

func (f *fixture) finish() error   { return f.job.Finish(f.Context(), f.runner) }
func (f *fixture) rollback() error { return f.job.Rollback(f.Context(), f.runner) }

// again is what a new process with the same command begins with: the Migration as the cluster has
// it.
func (f *fixture) again() *v1alpha1.Migration {
	f.Helper()
	m, err := migration.Get(f.Context(), server, "m")
	f.must(err)
	if m != nil {
		f.job.Migration = m
	}
	return m
}

// rolledBack fails if a rollback left anything other than what was there before apply.
func (f *fixture) rolledBack(was *corev1.Service) {
	f.Helper()
	is := f.get(was.Name)
	if !equality.Semantic.DeepEqual(was.Spec, is.Spec) || len(is.Annotations) > 0 {
		f.Errorf("rolled back to %+v with %v", is.Spec, is.Annotations)
	}
	f.nothingLeft()
	err := server.Get(f.Context(), client.ObjectKey{Name: "m"}, &networkingv1.ServiceCIDR{})
	if !apierrors.IsNotFound(err) {
		f.Errorf("the target range is left: %v", err)
	}
	if phase := f.again().Status.Phase; phase != v1alpha1.PhaseRolledBack {
		f.Errorf("phase %s", phase)
	}
}

// oldRange is a range that is not the API server's default one, so that it can be retired here.
const oldRange = "172.31.0.0/16"

// office is a cluster with a second range and one Service of each kind in it, but for those with
// node ports: they take a second each.
func office(t *testing.T) (*fixture, []*corev1.Service) {
	t.Helper()
	f := setup(t, func(m *v1alpha1.Migration) { m.Spec.ServiceCIDR.From = []string{oldRange} })
	f.openRange("old", oldRange)
	was := []*corev1.Service{
		f.service("cart", at("172.31.3.7")),
		f.service("outside", at("172.31.3.8"), withoutSelector),
		f.service("lb", at("172.31.3.10"), loadBalancer),
		f.service("headless", at("None")),
		f.service("elsewhere", at("10.96.3.7")),
	}
	f.slice("outside", "192.0.2.7")
	f.pod("cart-1", "cart", "10.244.0.4")
	return f, was
}

func withoutSelector(s *corev1.Service) { s.Spec.Selector = nil }

func nodePort(s *corev1.Service) {
	s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyLocal
}

func loadBalancer(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer }

func (f *fixture) openRange(name, cidr string) {
	f.Helper()
	f.must(server.Create(f.Context(), &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{cidr}},
	}))
	f.must(engine.Drive(f.Context(), ranges.ServiceRange{
		Client: f.job.Deps.Client(), Name: name, Cidr: netipPrefix(cidr), Role: v1alpha1.RoleRange,
	}.Add()))
	// The API server hears that the range is ready by its own watch, after those who asked it. Dry
	// runs look at any one range.
	first := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "first-of-" + name},
		Spec: corev1.ServiceSpec{
			ClusterIP: netipPrefix(cidr).Addr().Next().Next().String(), Ports: []corev1.ServicePort{{Port: 9}},
		},
	}
	f.eventually("an address of "+cidr, func() error { return server.Create(f.Context(), first.DeepCopy()) })
	f.must(server.Delete(f.Context(), first))
}

// ranges are the cluster's Service ranges, with a mark on those that belong to a migration or are
// going.
func (f *fixture) ranges() string {
	f.Helper()
	all := &networkingv1.ServiceCIDRList{}
	f.must(server.List(f.Context(), all))
	var out []string
	for i := range all.Items {
		text := strings.Join(all.Items[i].Spec.CIDRs, ",")
		if len(all.Items[i].Labels) > 0 || !all.Items[i].DeletionTimestamp.IsZero() {
			text += "!"
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}
