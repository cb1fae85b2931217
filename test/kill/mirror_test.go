package kill

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/safety/lease"
	"github.com/replumb/replumb/internal/testing/apitest"
)

// mirrorPair is a cluster and its mirror. Commands work on the first.
type mirrorPair struct {
	target
	source, copy *podCluster
	dir          string
}

func startPair(t *testing.T) *mirrorPair {
	t.Helper()
	p := &mirrorPair{source: startPods(t), copy: startPods(t), dir: t.TempDir()}
	for _, c := range []*podCluster{p.source, p.copy} {
		must(t, client.IgnoreAlreadyExists(c.Create(t.Context(), pool(oldPool, oldPods))))
	}
	file := filepath.Join(p.dir, "kubeconfig")
	must(t, apitest.Contexts(file, "source", map[string]apitest.Context{
		"source": {Server: p.source.Server}, "mirror": {Server: p.copy.Server},
	}))
	p.target = target(file)
	return p
}

// renew brings both clusters to how they are before a migration: everything in the first, nothing in the second.
func (p *mirrorPair) renew(t *testing.T, _ string) {
	t.Helper()
	ctx := t.Context()
	for _, c := range []*podCluster{p.source, p.copy} {
		for _, o := range []client.Object{
			&admissionv1.ValidatingAdmissionPolicyBinding{}, &admissionv1.ValidatingAdmissionPolicy{},
		} {
			must(t, c.DeleteAllOf(ctx, o, client.HasLabels{v1alpha1.LabelRole}))
		}
		for _, o := range []client.Object{
			&v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "move"}},
			&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.Name}},
		} {
			must(t, client.IgnoreNotFound(c.Delete(ctx, o)))
		}
		// API servers let a freeze go some time after its policy.
		c.eventually(t, func() error { return empty(t, c) })
		must(t, client.IgnoreNotFound(c.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SystemNamespace}})))
	}
	template := func(name string) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}},
			Spec: corev1.PodSpec{
				Containers:                    []corev1.Container{{Name: "c", Image: "c"}},
				TerminationGracePeriodSeconds: ptr.To[int64](1),
			},
		}
	}
	of := func(name string, once string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: shop, Name: name, Annotations: map[string]string{v1alpha1.AnnotationRunOnce: once}}
	}
	job := batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: template("nightly")}}
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	selector := func(name string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	}
	for _, o := range []client.Object{
		&corev1.Secret{ObjectMeta: of("token", "false"), StringData: map[string]string{"token": "s3cr3t"}},
		&appsv1.Deployment{ObjectMeta: of("web", "false"), Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](2), Selector: selector("web"), Template: template("web"),
		}},
		&appsv1.Deployment{ObjectMeta: of("mailer", "true"), Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](1), Selector: selector("mailer"), Template: template("mailer"),
		}},
		&batchv1.CronJob{ObjectMeta: of("nightly", "false"), Spec: batchv1.CronJobSpec{Schedule: "0 3 1 1 *", JobTemplate: job}},
	} {
		must(t, p.source.Create(ctx, o))
	}
}

// empty fails until nothing that is copied is left in the shop.
func empty(t *testing.T, c *podCluster) error {
	t.Helper()
	all := []client.Object{&appsv1.Deployment{}, &batchv1.CronJob{}, &corev1.Secret{}, &appsv1.ReplicaSet{}, &corev1.Pod{}}
	for _, o := range all {
		err := c.DeleteAllOf(t.Context(), o, client.InNamespace(shop), client.PropagationPolicy(metav1.DeletePropagationBackground))
		if err != nil {
			return err
		}
	}
	for _, list := range []client.ObjectList{&appsv1.DeploymentList{}, &batchv1.CronJobList{}, &corev1.SecretList{}, &corev1.PodList{}} {
		must(t, c.List(t.Context(), list, client.InNamespace(shop)))
		if n := meta.LenList(list); n > 0 {
			return fmt.Errorf("%d of %T are still there", n, list)
		}
	}
	return nil
}

// look takes what replumb could have written, or lost, in both clusters.
func (p *mirrorPair) look(t *testing.T) picture {
	t.Helper()
	out := picture{}
	for side, c := range map[string]*podCluster{"source": p.source, "mirror": p.copy} {
		for _, o := range listed(t, c,
			&appsv1.DeploymentList{}, &batchv1.CronJobList{}, &corev1.SecretList{}, &coordinationv1.LeaseList{}, &v1alpha1.MigrationList{},
			&admissionv1.ValidatingAdmissionPolicyList{}, &admissionv1.ValidatingAdmissionPolicyBindingList{}, &corev1.NamespaceList{},
		) {
			if tells(o) {
				continue // there from the first run on
			}
			name := fmt.Sprintf("%s: %T %s/%s", side, o, o.GetNamespace(), o.GetName())
			notes := marks(o.GetAnnotations())
			switch o := o.(type) {
			case *appsv1.Deployment:
				out[name] = fmt.Sprint(*o.Spec.Replicas, o.Labels, notes)
			case *batchv1.CronJob:
				out[name] = fmt.Sprint(ptr.Deref(o.Spec.Suspend, false), o.Labels, notes)
			case *corev1.Secret:
				out[name] = fmt.Sprint(string(o.Data["token"]), o.Labels, notes)
			case *v1alpha1.Migration:
				out[name] = fmt.Sprint(o.Status.Phase, o.Status.Mirror.Serving, o.Status.LastError, o.Status.PointOfNoReturnPassed)
			default:
				out[name] = "is there"
			}
		}
	}
	return out
}

// marks are annotations, but for those that controllers write and those that are made of versions.
func marks(all map[string]string) string {
	var lines []string
	for name, value := range all {
		if strings.HasPrefix(name, "replumb.dev/") && name != v1alpha1.AnnotationCopied {
			lines = append(lines, name+"="+value)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, " ")
}

func (p *mirrorPair) note(t *testing.T, _ string) string {
	t.Helper()
	return described(t, p.dir, "{name: move, annotations: {replumb.dev/singletons: Reviewed}}", `
  mirror:
    target: {context: mirror}
    copy: {namespaces: {include: [%s]}}
`, shop)
}

// mirrors are killed where objects are copied, and where what may run once changes sides.
func mirrors(on ...world) kind {
	return kind{
		worlds: on, variants: []variant{whole("")},
		controls: map[string]string{"apply": "copy/objects", "rollback": "back/handover/sleep", "finish": "back/handover/sleep"},
		stays: func(d string) bool { // copies stay
			return strings.Contains(d, "mirror: ") || strings.Contains(d, "Migration /move")
		},
	}
}
