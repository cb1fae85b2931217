package migrationtest

import (
	"context"
	_ "embed" // definitions
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/safety/freeze"
	"github.com/replumb/replumb/internal/testing/apitest"
)

// definitions of Argo CD and Flux, with the fields that matter here.
//
//go:embed gitops.yaml
var definitions string

// GitOps has a cluster know Argo CD and Flux until the test ends, and returns a client that knows
// them.
func GitOps(t testing.TB, s *apitest.Server) client.Client {
	t.Helper()
	c, err := s.Any()
	if err != nil {
		t.Fatal(err)
	}
	for doc := range strings.SplitSeq(definitions, "---\n") {
		o := decoded(t, doc)
		if o.Object == nil {
			continue
		}
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			err := wait.PollUntilContextTimeout(context.Background(), 20*time.Millisecond, Patience, true,
				func(ctx context.Context) (bool, error) { return apierrors.IsNotFound(c.Delete(ctx, o)), nil })
			if err != nil {
				t.Errorf("%s stays: %v", o.GetName(), err)
			}
		})
	}
	return c
}

func decoded(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

// synced are objects of Argo CD and Flux: those that their controllers reconcile, said in each way,
// and those that their owners have suspended or sync by hand.
const synced = `
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {namespace: argocd, name: automated, annotations: {note: theirs}}
spec: {syncPolicy: {automated: {prune: true, selfHeal: true}, syncOptions: [a]}}
---
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {namespace: argocd, name: bare}
spec: {syncPolicy: {automated: {}}}
---
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {namespace: argocd, name: by-hand}
spec: {project: a}
---
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {namespace: argocd, name: own}
spec: {syncPolicy: {automated: {enabled: false, prune: true}}}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {namespace: flux-system, name: apps}
spec: {path: a}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {namespace: flux-system, name: said}
spec: {path: b, suspend: false}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {namespace: flux-system, name: own}
spec: {path: c, suspend: true}
---
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {namespace: shop, name: cart, labels: {app: cart}}
spec: {interval: 1m}
`

// Others are those who deploy while a migration goes on, by hand and by Argo CD and Flux.
type Others struct {
	*Stage
	server *apitest.Server
	all    client.Client
	// tenant is an administrator who is not replumb.
	tenant, system *cluster.Cluster
	synced         []*unstructured.Unstructured
}

// Others makes what they have. When the test ends, nothing is frozen any more.
func (s *Stage) Others(server *apitest.Server) *Others {
	s.Helper()
	o := &Others{Stage: s, server: server, all: GitOps(s, server)}
	for _, ns := range []string{"argocd", "flux-system", Namespace} {
		server.Namespace(s, ns)
	}
	o.tenant = o.as("tenant", "tenants")
	o.system = o.as("system:serviceaccount:kube-system:network-operator", "system:serviceaccounts", "system:serviceaccounts:kube-system")
	for doc := range strings.SplitSeq(synced, "---\n") {
		o.synced = append(o.synced, o.taken(decoded(s, doc)))
	}
	s.Cleanup(func() {
		if err := engine.Drive(context.Background(), (&freeze.Deploys{Client: server}).Undo()); err != nil {
			s.Error(err)
		}
	})
	return o
}

// taken makes an object of a kind that the API server serves soon.
func (o *Others) taken(of *unstructured.Unstructured) *unstructured.Unstructured {
	o.Helper()
	var one *unstructured.Unstructured
	var last error
	err := wait.PollUntilContextTimeout(o.Context(), 50*time.Millisecond, 2*Patience, true, func(ctx context.Context) (bool, error) {
		one = of.DeepCopy()
		if err := o.all.Create(ctx, one); ctx.Err() == nil {
			last = err
		}
		return last == nil, nil
	})
	if err != nil {
		o.Fatalf("%s %s is not taken: %v", of.GetKind(), of.GetName(), last)
	}
	return one
}

// as is a cluster as an administrator of a name sees it.
func (o *Others) as(name string, groups ...string) *cluster.Cluster {
	o.Helper()
	config := rest.CopyConfig(o.server.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: append(groups, "system:masters", "system:authenticated")}
	c, err := cluster.Connect(config)
	o.Must(err)
	return c
}

// theirs are an object of each of some kinds that others deploy, which are not there.
func theirs() []client.Object {
	labels := map[string]string{"app": "theirs"}
	meta := func() metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: Namespace, Name: "theirs", Labels: labels}
	}
	t := Template("theirs")
	job := t
	job.Spec.RestartPolicy = corev1.RestartPolicyNever
	return []client.Object{
		&appsv1.Deployment{ObjectMeta: meta(), Spec: appsv1.DeploymentSpec{Selector: Selector("theirs"), Template: t}},
		&appsv1.DaemonSet{ObjectMeta: meta(), Spec: appsv1.DaemonSetSpec{Selector: Selector("theirs"), Template: t}},
		&appsv1.StatefulSet{ObjectMeta: meta(), Spec: appsv1.StatefulSetSpec{Selector: Selector("theirs"), Template: t}},
		&corev1.Service{ObjectMeta: meta(), Spec: corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}}},
		&batchv1.CronJob{ObjectMeta: meta(), Spec: batchv1.CronJobSpec{
			Schedule: "0 0 1 1 *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: job}},
		}},
	}
}

// standing is a Deployment of theirs that is there, with no pods.
func (o *Others) standing() *appsv1.Deployment {
	o.Helper()
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "standing"},
		Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](0), Selector: Selector("standing"), Template: Template("standing")},
	}
	err := o.server.Create(o.Context(), d, client.FieldOwner(v1alpha1.FieldManager)) // not frozen for replumb
	if apierrors.IsAlreadyExists(err) {
		err = o.server.Get(o.Context(), client.ObjectKeyFromObject(d), d)
	}
	o.Must(err)
	return d
}

// deployments are what others would deploy, by what they do; nothing is kept.
func (o *Others) deployments(by *cluster.Cluster) map[string]error {
	o.Helper()
	ctx := o.Context()
	d := o.standing()
	out := map[string]error{
		"delete": by.Delete(ctx, d.DeepCopy(), client.DryRunAll),
		"change": by.Patch(ctx, d.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"paused":true}}`)),
			client.DryRunAll, client.FieldOwner("helm")),
		"apply": by.Patch(ctx, d.DeepCopy(), client.RawPatch(types.StrategicMergePatchType,
			[]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"other"}]}}}}`)), client.DryRunAll),
	}
	for _, one := range theirs() {
		err := by.Create(ctx, one, client.DryRunAll, client.FieldOwner("helm"))
		out["create a "+kindOf(o.server, one)] = err
	}
	return out
}

func kindOf(c client.Client, o client.Object) string {
	gvk, err := c.GroupVersionKindFor(o)
	if err != nil {
		return err.Error()
	}
	return gvk.Kind
}

// work is what goes on whether deployments are frozen or not, by what is done; nothing is kept.
func (o *Others) work() map[string]error {
	o.Helper()
	ctx := o.Context()
	d := o.standing()
	owned := theirs()[3]
	owned.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: "example.com/v1", Kind: "Shop", Name: "shop", UID: "4f5b8a3e-0000-4000-8000-000000000000", Controller: ptr.To(true),
	}})
	t := Template("theirs")
	meta := metav1.ObjectMeta{Namespace: Namespace, Name: "theirs"}
	scaled := d.DeepCopy()
	scaled.Status.ObservedGeneration++
	merge := func(body string, opts ...client.PatchOption) error {
		return o.tenant.Patch(ctx, d.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(body)), append(opts, client.DryRunAll)...)
	}
	out := map[string]error{
		"annotate a deployment": merge(`{"metadata":{"annotations":{"note":"a"}}}`),
		"break the glass": merge(
			`{"metadata":{"labels":{"` + v1alpha1.LabelBreakGlass + `":"true"}},"spec":{"paused":true}}`,
		),
		"change as replumb":             merge(`{"spec":{"paused":true}}`, client.FieldOwner(v1alpha1.FieldManager)),
		"scale a deployment":            o.scale(ctx, d),
		"write a status":                o.tenant.Status().Update(ctx, scaled, client.DryRunAll),
		"create what a controller owns": o.tenant.Create(ctx, owned, client.DryRunAll),
		"create a config map":           o.tenant.Create(ctx, &corev1.ConfigMap{ObjectMeta: meta}, client.DryRunAll),
		"create a pod":                  o.tenant.Create(ctx, &corev1.Pod{ObjectMeta: meta, Spec: t.Spec}, client.DryRunAll),
		"deploy to the system's own":    o.inSystem(ctx),
	}
	maps.Copy(out, o.deployments(o.system))
	return out
}

// scale changes the number of pods as autoscalers do.
func (o *Others) scale(ctx context.Context, d *appsv1.Deployment) error {
	all, err := o.tenant.Any()
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
	u.SetNamespace(d.Namespace)
	u.SetName(d.Name)
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":1}}`))
	return all.SubResource("scale").Patch(ctx, u, patch, client.DryRunAll)
}

// inSystem deploys to replumb's own namespace, which comes and goes.
func (o *Others) inSystem(ctx context.Context) error {
	one := theirs()[0]
	one.SetNamespace(v1alpha1.SystemNamespace)
	err := o.tenant.Create(ctx, one, client.DryRunAll)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Free fails the test unless others may deploy.
func (o *Others) Free() {
	o.Helper()
	for what, err := range o.deployments(o.tenant) {
		if err != nil {
			o.Errorf("others may not %s: %v", what, err)
		}
	}
	o.goesOn()
}

// Frozen fails the test unless whatever others deploy is refused, and everything else goes on.
func (o *Others) Frozen() {
	o.Helper()
	for what, err := range o.deployments(o.tenant) {
		if !freeze.Refused(err) {
			o.Errorf("others may %s: %v", what, err)
		}
	}
	o.goesOn()
}

func (o *Others) goesOn() {
	o.Helper()
	for what, err := range o.work() {
		if err != nil {
			o.Errorf("it does not go on, to %s: %v", what, err)
		}
	}
}

// now is what of an object its owner has written.
func (o *Others) now(of *unstructured.Unstructured) map[string]any {
	o.Helper()
	have := &unstructured.Unstructured{}
	have.SetGroupVersionKind(of.GroupVersionKind())
	o.Must(o.all.Get(o.Context(), client.ObjectKeyFromObject(of), have))
	return written(have)
}

func written(o *unstructured.Unstructured) map[string]any {
	out := o.DeepCopy()
	for _, field := range []string{"resourceVersion", "generation", "managedFields"} {
		unstructured.RemoveNestedField(out.Object, "metadata", field)
	}
	return out.Object
}

// Suspended fails the test unless nothing is reconciled any more, of what was, and the rest is as
// it was.
func (o *Others) Suspended() {
	o.Helper()
	for _, of := range o.synced {
		have := &unstructured.Unstructured{Object: o.now(of)}
		_, automated, _ := unstructured.NestedMap(have.Object, "spec", "syncPolicy", "automated")
		suspended, _, _ := unstructured.NestedBool(have.Object, "spec", "suspend")
		off := suspended || have.GetKind() == "Application" && !automated
		noted := have.GetAnnotations()[v1alpha1.AnnotationSuspended] != ""
		switch theirOwn := slices.Contains([]string{"own", "by-hand"}, of.GetName()); {
		case theirOwn && text(o, have.Object) != text(o, written(of)):
			o.Errorf("%s %s is %s, was %s", of.GetKind(), of.GetName(), text(o, have.Object), text(o, written(of)))
		case !theirOwn && (!off || !noted):
			o.Errorf("%s %s is not suspended: %s", of.GetKind(), of.GetName(), text(o, have.Object))
		}
	}
}

// AsBefore fails the test unless everything is as its owner has made it, and nothing is remembered
// of a suspension.
func (o *Others) AsBefore() {
	o.Helper()
	for _, of := range o.synced {
		if got, want := text(o, o.now(of)), text(o, written(of)); got != want {
			o.Errorf("%s %s is %s, was %s", of.GetKind(), of.GetName(), got, want)
		}
	}
	kept := &corev1.ConfigMapList{}
	o.Must(o.server.List(o.Context(), kept, client.MatchingLabels{v1alpha1.LabelRole: v1alpha1.RoleGitOps}))
	if len(kept.Items) > 0 {
		o.Errorf("what was suspended is remembered: %v", kept.Items[0].Data)
	}
}

func text(t testing.TB, of any) string {
	t.Helper()
	body, err := json.Marshal(of)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
