//go:build apiserver && long

package servicecidr

import (
	"context"
	"errors"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/admission"
)

// TestOwnIsTried: what replumb makes in its namespace is tried by check, in that namespace as soon
// as it is there and in another one before, and who refuses it is named. Nothing is written.
func TestOwnIsTried(t *testing.T) {
	for name, tt := range map[string]struct {
		about admissionv1.RuleWithOperations
		says  string
		try   trying
		want  []string
	}{
		"agents in the network of nodes": {
			rule("apps", "daemonsets", admissionv1.Create), "!has(object.spec.template.spec.hostNetwork) || !object.spec.template.spec.hostNetwork",
			func(ctx context.Context) (*admission.Refusal, error) {
				of := map[string]string{"app": "x"}
				pod := corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Name: "x", Image: "x"}}}
				return admission.Create(ctx, server, &appsv1.DaemonSet{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x"},
					Spec: appsv1.DaemonSetSpec{
						Selector: &metav1.LabelSelector{MatchLabels: of},
						Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: of}, Spec: pod},
					},
				})
			},
			[]string{"DaemonSet agent"},
		},
		"the image": {
			rule("", "pods", admissionv1.Create), "object.spec.containers.all(c, !c.image.startsWith('example.com/'))",
			func(ctx context.Context) (*admission.Refusal, error) {
				return admission.Create(ctx, server, &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x"},
					Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "example.com/x"}}},
				})
			},
			[]string{"Pod agent", "Pod probe", "Pod single", "Pod overlap"},
		},
		"the canary": {
			rule("", "services", admissionv1.Create), "!object.metadata.?labels[?'replumb.dev/role'].orValue('').startsWith('canary')",
			func(ctx context.Context) (*admission.Refusal, error) {
				svc := plainService("default", "x", "")
				svc.Labels = map[string]string{v1alpha1.LabelRole: v1alpha1.RoleCanary}
				return admission.Create(ctx, server, svc)
			},
			[]string{"Service canary"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t, func(m *v1alpha1.Migration) { m.Spec.Image = "example.com/replumb:v1" })
			f.service("cart", at("10.96.3.7"))
			f.quiet("RP0112", "RP0113")
			f.refused(tt.try, func() { f.policy("strict", tt.says, tt.about, "default", v1alpha1.SystemNamespace) })
			f.tells("RP0113", tt.want)
			server.Namespace(t, v1alpha1.SystemNamespace)
			f.tells("RP0112", tt.want)
			f.quiet("RP0113")
			left := &corev1.PodList{}
			if f.must(server.List(t.Context(), left)); len(left.Items) > 0 {
				t.Errorf("a trial has left %v", left.Items)
			}
		})
	}
}

// TestPodSecurityIsTried: labels that let agents in are refused, and that is found before.
func TestPodSecurityIsTried(t *testing.T) {
	f := setup(t, func(m *v1alpha1.Migration) { m.Spec.Image = "example.com/replumb:v1" })
	server.Namespace(t, v1alpha1.SystemNamespace)
	f.quiet("RP0112")
	strict := &corev1.Namespace{}
	strict.Name, strict.Labels = "x", map[string]string{"pod-security.kubernetes.io/enforce": "privileged"}
	f.refused(func(ctx context.Context) (*admission.Refusal, error) {
		return admission.Create(ctx, server, strict.DeepCopy())
	}, func() {
		f.policy("no-privileges", "object.metadata.?labels[?'pod-security.kubernetes.io/enforce'].orValue('') != 'privileged'",
			rule("", "namespaces", admissionv1.Create, admissionv1.Update), "x", v1alpha1.SystemNamespace)
	})
	f.tells("RP0112", []string{"Namespace replumb-system"})
}

func (f *fixture) found(code string) (all findings.Findings) {
	f.Helper()
	p, err := f.job.Examine(f.Context())
	f.must(err)
	for _, one := range p.Findings {
		if one.Code == code && one.Outcome != findings.Pass {
			all = append(all, one)
		}
	}
	return all
}

func (f *fixture) quiet(codes ...string) {
	f.Helper()
	for _, code := range codes {
		if all := f.found(code); len(all) > 0 {
			f.Errorf("without a reason: %v", all)
		}
	}
}

func (f *fixture) tells(code string, want []string) {
	f.Helper()
	all := f.found(code)
	if len(all) != len(want) {
		f.Errorf("%s: %v, want %q", code, all, want)
	}
	for i := range min(len(all), len(want)) {
		if !strings.HasPrefix(all[i].Message, want[i]) || !strings.Contains(all[i].Message, "ValidatingAdmissionPolicy") {
			f.Errorf("%s: %s", want[i], all[i].Message)
		}
	}
}

// brokenTrials answers dry runs of patches with an error that is no refusal.
type brokenTrials struct{ client.WithWatch }

func (b brokenTrials) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	if (&client.PatchOptions{}).ApplyOptions(opts).DryRun != nil {
		return apierrors.NewInternalError(errors.New("out of order"))
	}
	return b.WithWatch.Patch(ctx, o, p, opts...)
}

// TestUnansweredIsOneFinding: an error in the place of an answer takes no other finding away, and
// keeps the move from beginning.
func TestUnansweredIsOneFinding(t *testing.T) {
	f := setup(t)
	f.service("cart", at("10.96.3.7"))
	whole := f.job.Deps.Cluster
	broken := *whole
	broken.WithWatch = brokenTrials{whole.WithWatch}
	f.job.Deps.Cluster = &broken
	all := f.found("RP1707")
	if len(all) != 1 || all[0].Outcome != findings.Unknown || !strings.Contains(all[0].Message, "out of order") {
		t.Errorf("found %v", all)
	}
	if _, err := f.job.Apply(t.Context(), f.runner); !errors.As(err, new(*findings.BlockedError)) {
		t.Errorf("apply ended with %v", err)
	}
}
