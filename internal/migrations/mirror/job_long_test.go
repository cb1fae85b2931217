//go:build apiserver && programs && long

package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/dnsrecords"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

func TestThereAndHome(t *testing.T) {
	f := setup(t)
	p, err := f.job.Look(t.Context())
	f.must(err)
	migrationtest.Shows(t, p.Apply())
	f.must(f.run(0, f.apply))
	f.leads(targetAt, time.Second)
	f.runsIn(f.target, f.source)
	st := f.status()
	if st.Phase != v1alpha1.PhaseMoved || st.Mirror.Serving != v1alpha1.ServingTarget || st.Counts.Moved != 2 || st.LastError != "" {
		t.Errorf("status after apply: %+v", st)
	}
	if seen, err := f.job.Glance(t.Context()); err != nil || seen.Copies == 0 || seen.Copies != st.Mirror.Copies {
		t.Errorf("status counts %d copies: %v", seen.Copies, err)
	}
	web := get(f, f.target, &appsv1.Deployment{}, "web")
	if image := web.Spec.Template.Spec.Containers[0].Image; image != "mirror.example.com/web:1" || web.Labels[v1alpha1.LabelMirror] != "m" {
		t.Errorf("the copy has image %s and labels %v", image, web.Labels)
	}
	if string(get(f, f.target, &corev1.Secret{}, "token").Data["token"]) != "s3cr3t" {
		t.Error("the Secret is another")
	}
	// The source refuses deployments.
	source := get(f, f.source, &appsv1.Deployment{}, "web")
	source.Spec.Replicas = ptr.To[int32](5)
	if err := f.source.Update(t.Context(), source, client.FieldOwner("helm")); !apierrors.IsForbidden(err) {
		t.Errorf("a deployment to the source: %v", err)
	}
	// From now on the target has a life of its own.
	settings := get(f, f.target, &corev1.ConfigMap{}, "settings")
	settings.Data["a"] = "its own"
	f.must(f.target.Update(t.Context(), settings))
	f.must(f.run(0, f.apply))
	if got := get(f, f.target, &corev1.ConfigMap{}, "settings").Data["a"]; got != "its own" {
		t.Errorf("a second apply wrote to the target: %s", got)
	}
	p, err = f.job.Look(t.Context())
	f.must(err)
	migrationtest.Shows(t, p.Rollback())
	migrationtest.Shows(t, p.Finish())
	f.must(f.run(0, f.finish))
	f.leads(sourceAt, 3*time.Second)
	f.runsIn(f.source, f.target)
	if st := f.status(); st.Phase != v1alpha1.PhaseFinished || st.Mirror.Serving != v1alpha1.ServingSource {
		t.Errorf("status after finish: %+v", st)
	}
	if !slices.ContainsFunc(f.events, func(e engine.Event) bool {
		return e.Step == "takedown" && strings.Contains(e.Note, "kubectl delete namespace shop")
	}) {
		t.Error("what may be taken down is not listed")
	}
	source = get(f, f.source, &appsv1.Deployment{}, "web")
	source.Spec.Replicas = ptr.To[int32](3)
	f.must(f.source.Update(t.Context(), source, client.FieldOwner("helm"))) // the freeze is over
	err = f.source.Get(t.Context(), client.ObjectKey{Name: v1alpha1.SystemNamespace}, &corev1.Namespace{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the namespace is left: %v", err)
	}
	f.must(f.run(0, f.finish)) // a second time changes nothing
}

// TestNetworkStaysHere: a mirror of all namespaces leaves the network of the source where it is,
// says so, and names every object that it copies. Before, the DaemonSet was among what was copied,
// as the control is.
func TestNetworkStaysHere(t *testing.T) {
	f := setup(t, func(m *v1alpha1.Migration) { m.Spec.Mirror.Copy.Namespaces = v1alpha1.NameFilter{} })
	f.source.Namespace(t, "kube-flannel")
	set := func(namespace, name, image string) *appsv1.DaemonSet {
		labels := map[string]string{"app": name}
		return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{ServiceAccountName: "flannel", Containers: []corev1.Container{{Name: "c", Image: image}}},
			},
		}}
	}
	for _, o := range []client.Object{
		set("kube-flannel", "kube-flannel-ds", "ghcr.io/flannel-io/flannel:v0.28.4"), set("shop", "log", "log:1"),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-flannel", Name: "flannel"}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "lay-flannel"}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "lay-flannel"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "lay-flannel"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "kube-flannel", Name: "flannel"}},
		},
	} {
		f.must(f.source.Create(t.Context(), o))
		t.Cleanup(func() { _ = f.source.Delete(context.Background(), o) })
	}
	p, err := f.job.Look(t.Context())
	f.must(err)
	var copied []string
	for _, c := range p.Inventory.Objects.Counts {
		for _, ref := range c.Refs {
			copied = append(copied, ref.String())
		}
	}
	all := strings.Join(copied, "\n")
	if strings.Contains(all, "flannel") || !strings.Contains(all, "daemonsets.apps shop/log") {
		t.Errorf("it would copy\n%s", all)
	}
	said := slices.ContainsFunc(p.Findings, func(x findings.Finding) bool {
		return x.Code == "RP4108" && strings.Contains(x.Message, "flannel (DaemonSet kube-flannel/kube-flannel-ds), namespace kube-flannel")
	})
	if !said {
		t.Errorf("the check does not say so: %v", p.Findings)
	}
	var shown []string
	for _, s := range p.Apply().Steps() {
		changes, err := engine.Preview(s)
		f.must(err)
		for _, c := range changes {
			shown = append(shown, c.Object)
		}
	}
	for _, want := range copied {
		if !slices.Contains(shown, want+" in the target") {
			t.Errorf("the plan does not show %s", want)
		}
	}
}

// TestPlanNamesWhatIsForeseen: names of which the target cannot say yet where they lead are in the
// plan all the same.
func TestPlanNamesWhatIsForeseen(t *testing.T) {
	p := &Planner{Inventory: &Inventory{Awaited: []string{"shop.example.com"}}}
	for _, groups := range [][]engine.Group{p.lower(), p.foreseen("switch", "Switch %s", nil)} {
		if len(groups) != 1 || len(groups[0].Steps) != 1 || !strings.Contains(groups[0].Steps[0].Title(), "shop.example.com") {
			t.Errorf("%+v", groups)
		}
	}
}

func TestThereAndBackAndThere(t *testing.T) {
	f := setup(t)
	f.must(f.run(0, f.apply))
	f.must(f.run(0, f.rollback))
	f.leads(sourceAt, 3*time.Second)
	f.runsIn(f.source, f.target)
	if st := f.status(); st.Phase != v1alpha1.PhaseRolledBack {
		t.Errorf("status after rollback: %+v", st)
	}
	settings := get(f, f.source, &corev1.ConfigMap{}, "settings")
	settings.Data["a"] = "changed meanwhile"
	f.must(f.source.Update(t.Context(), settings))
	f.must(f.run(0, f.apply))
	f.leads(targetAt, time.Second)
	f.runsIn(f.target, f.source)
	if got := get(f, f.target, &corev1.ConfigMap{}, "settings").Data["a"]; got != "changed meanwhile" {
		t.Errorf("the copy was not brought up to date: %s", got)
	}
	f.must(f.run(0, f.finish))
	f.leads(sourceAt, 3*time.Second)
	roles, err := f.job.Roles(t.Context())
	f.must(err)
	f.requests.Took(t, roles, unused(roles))
}

// unused are the rights that no request takes in these tests, with what would.
func unused(roles access.Roles) map[string]string {
	const (
		certificates = "certificates that get names of the mirror, with backups"
		services     = "unfreeze, where a migration of Services froze them"
		another      = "the freeze is another migration's"
	)
	all := map[string]string{
		"create configmaps in replumb-system":                                                          certificates,
		"delete configmaps in replumb-system":                                                          certificates,
		"patch certificates.cert-manager.io":                                                           certificates,
		"patch ingresses.networking.k8s.io":                                                            certificates,
		"patch statefulsets.apps":                                                                      "StatefulSets that must not run twice",
		"get validatingadmissionpolicies.admissionregistration.k8s.io replumb-freeze":                  services,
		"get validatingadmissionpolicybindings.admissionregistration.k8s.io replumb-freeze":            services,
		"delete validatingadmissionpolicies.admissionregistration.k8s.io replumb-freeze":               services,
		"delete validatingadmissionpolicybindings.admissionregistration.k8s.io replumb-freeze":         services,
		"update validatingadmissionpolicies.admissionregistration.k8s.io replumb-freeze-deploys":       another,
		"update validatingadmissionpolicybindings.admissionregistration.k8s.io replumb-freeze-deploys": another,
	}
	for _, r := range roles.Rights() {
		if r.Verb == "get" && r.Name == "" && r.URL == "" {
			all[r.String()] = "an object whose copy was refused is read again, and Secrets that the Migration names"
		}
	}
	return all
}

// TestCutOff ends runs after single steps, and runs the same command again.
func TestCutOff(t *testing.T) {
	f := setup(t)
	again := func(do func(context.Context, *engine.Runner) error, steps ...string) {
		t.Helper()
		for _, step := range steps {
			f.killAt = step
			if err := f.run(0, do); !errors.Is(err, engine.ErrInterrupted) {
				t.Fatalf("cut off after %s: %v", step, err)
			}
		}
		f.must(f.run(0, do))
	}
	again(f.apply, "freeze/deploys", "copy/objects", "redirect/begin", "record/blog.sub.example.test/A/narrow", "handover/sleep")
	f.leads(targetAt, time.Second)
	f.runsIn(f.target, f.source)
	again(f.finish, "return/begin", "back/record/shop.sub.example.test/A/narrow", "back/handover/serving", "final")
	f.leads(sourceAt, 3*time.Second)
	f.runsIn(f.source, f.target)
}

// TestNameThatIsNotServed sees that a record stays where it was when the target does not answer for
// its name.
func TestNameThatIsNotServed(t *testing.T) {
	f := setup(t, func(m *v1alpha1.Migration) { m.Spec.Mirror.Redirect.Parallel = 1 })
	f.ill = "shop"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f.restart()
	asked := 0
	r := &engine.Runner{Deadline: time.Minute, Sink: func(e engine.Event) {
		if e.Kind == engine.StepWaiting && strings.HasPrefix(e.Step, "probe/shop") ||
			e.Kind == engine.StepRetried && strings.HasPrefix(e.Step, "probe/shop") {
			if asked++; asked == 1 {
				cancel()
			}
		}
	}}
	if err := f.apply(ctx, r); !errors.Is(err, engine.ErrInterrupted) {
		t.Fatalf("got %v", err)
	}
	if st := f.status(); st.Mirror.Serving != v1alpha1.ServingBoth {
		t.Errorf("serving is %s", st.Mirror.Serving)
	}
	asking := &dnsrecords.Client{Port: f.dns.Port}
	at := func(name string) string {
		a := asking.Ask(
			t.Context(),
			[]dnsrecords.NameServer{{Name: "primary", Addr: f.dns.Primary}},
			name+".sub.example.test.",
			v1alpha1.RecordA,
		)
		return fmt.Sprint(a[0].Set.Values)
	}
	if at("blog") != "["+targetAt+"]" || at("shop") != "["+sourceAt+"]" {
		t.Errorf("blog leads to %s, shop to %s", at("blog"), at("shop"))
	}
	f.must(f.run(0, f.rollback)) // half of the names have moved
	f.leads(sourceAt, 3*time.Second)
	f.runsIn(f.source, f.target)
}

// TestTroubleIsNamed makes findings of what is in the way, and changes nothing.
func TestTroubleIsNamed(t *testing.T) {
	f := setup(t)
	f.target.Namespace(t, "shop")
	f.must(f.target.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "settings"}, Data: map[string]string{"whose": "not ours"},
	}))
	err := f.run(0, f.apply)
	var blocked *findings.BlockedError
	if !errors.As(err, &blocked) || !slices.ContainsFunc(blocked.Findings, func(c findings.Finding) bool { return c.Code == "RP4101" }) {
		t.Fatalf("got %v", err)
	}
	if got := get(f, f.target, &corev1.ConfigMap{}, "settings"); got.Data["whose"] != "not ours" || len(got.Labels) > 0 {
		t.Errorf("it was changed: %+v", got)
	}
	f.leads(sourceAt, 3*time.Second)
	m, err := migration.Get(t.Context(), f.source, "m")
	if err != nil || m != nil {
		t.Errorf("a migration was recorded: %v, %v", m, err)
	}
}
