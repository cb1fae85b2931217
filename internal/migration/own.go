package migration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/admission"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/workload"
)

// standIn is where objects are tried as long as replumb's namespace is not there. It is under
// policies of the whole cluster, from which namespaces of the system are often exempt.
const standIn = metav1.NamespaceDefault

// Own is what a migration makes in replumb's namespace.
type Own struct {
	Objects []client.Object
	// Privileged says that Pod Security has to let pods in that reach into their node.
	Privileged bool
}

// OwnTrial is what the API server has answered to dry runs of all that.
type OwnTrial struct {
	// In is the namespace that they were tried in.
	In      string
	Refused []OwnRefused
	// Untried are objects that nothing is known of, with the reason. Denied are those that the
	// user may not try.
	Untried, Denied []string
}

// OwnRefused is an object of replumb's own that is refused.
type OwnRefused struct {
	Object string
	By     *admission.Refusal
}

// OwnChecks are about what replumb makes in its namespace, for all kinds.
func OwnChecks() []findings.Check[OwnTrial] {
	return findings.Group(namespaces, []findings.Check[OwnTrial]{
		{
			Code: "RP0112", Severity: findings.Blocking, Run: ownRefused(v1alpha1.SystemNamespace),
			Claim: "admission accepts what replumb runs in namespace " + v1alpha1.SystemNamespace,
			Why: "agents, canaries and whatever else a migration runs are made after its record, and before anything of others is changed: " +
				"where they are refused, apply ends there",
			Fix: "exempt namespace " + v1alpha1.SystemNamespace + " from the policy or webhook that is named, or have it let the object through. " +
				"A webhook that cannot be called refuses every write: repair it, or delete its configuration",
		},
		{
			Code: "RP0113", Severity: findings.Warning, Run: ownRefused(standIn),
			Claim: "admission accepts what replumb runs, as far as that shows before its namespace is there",
			Why: "objects for " + v1alpha1.SystemNamespace + " are tried in namespace " + standIn + " meanwhile. Policies that go by namespaces or their " +
				"labels may treat the two differently",
			Fix: "kubectl create namespace " + v1alpha1.SystemNamespace + ", and run check again: it tries there then",
		},
	}...)
}

func ownRefused(namespace string) func(OwnTrial) []findings.Result {
	return func(t OwnTrial) (out []findings.Result) {
		if t.In != namespace {
			return nil
		}
		for _, r := range t.Refused {
			out = append(out, findings.Failed(r.Object, "%s is refused in namespace %s: %v", r.Object, namespace, r.By))
		}
		for _, why := range t.Untried {
			out = append(out, findings.NotKnown("", "not tried: %s", why))
		}
		if namespace == standIn && len(t.Denied) > 0 {
			out = append(out, findings.NotKnown("", "not tried, since the user may not create them in namespace %s: %s",
				namespace, lists.FirstN(t.Denied, 5)))
		}
		return out
	}
}

// ownTrier makes the trials.
type ownTrier struct {
	*cluster.Cluster
	tells func(error) bool
	own   Own
	found OwnTrial
	err   error
}

// TryOwn asks by dry runs whether replumb may make what is its own, as it makes it. The rights
// check tells users who may not.
func (s *Subject) TryOwn(ctx context.Context, c *cluster.Cluster, own Own) (findings.Findings, error) {
	if s.Migration.Spec.Desired == v1alpha1.DesiredRolledBack { // the way back is not refused before it begins
		return nil, nil
	}
	ns := &corev1.Namespace{}
	err := c.Get(ctx, client.ObjectKey{Name: v1alpha1.SystemNamespace}, ns)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("namespace %s: %w", v1alpha1.SystemNamespace, err)
	}
	t := &ownTrier{Cluster: c, tells: s.Tells, own: own, found: OwnTrial{In: standIn}}
	if err == nil && ns.DeletionTimestamp.IsZero() {
		t.found.In = v1alpha1.SystemNamespace
		if s.May("patch", "", "namespaces") {
			t.privilege(ctx, ns)
		}
	}
	if err := errors.Join(t.all(ctx), t.err); err != nil {
		return nil, err
	}
	return findings.Run(OwnChecks(), t.found), nil
}

// privilege tries the labels of Pod Security.
func (t *ownTrier) privilege(ctx context.Context, ns *corev1.Namespace) {
	if !t.own.Privileged || asSet(ns) {
		return
	}
	was := ns.DeepCopy()
	ns.Labels = maps.Clone(was.Labels)
	for key, value := range podSecurity() {
		metav1.SetMetaDataLabel(&ns.ObjectMeta, key, value)
	}
	refused, err := admission.Patch(ctx, t.Cluster, ns, client.MergeFrom(was))
	t.answered("Namespace "+ns.Name+" with labels of Pod Security", refused, err)
}

// all tries objects, and a pod of each template: controllers make pods, and report a refusal late.
func (t *ownTrier) all(ctx context.Context) error {
	tries := make([]client.Object, 0, 2*len(t.own.Objects))
	for _, o := range t.own.Objects {
		pod := podOf(o)
		if tries = append(tries, o); pod != nil {
			tries = append(tries, pod)
		}
		if pod == nil || t.found.In != v1alpha1.SystemNamespace { // else it is applied, as the run will do
			unname(o)
		}
	}
	var rights []access.Right
	for _, o := range tries {
		o.SetNamespace(t.found.In)
		rights = append(rights, rightsFor(o)...)
	}
	answers, err := t.Access(ctx, rights)
	if err != nil {
		return err
	}
	denied := map[access.Right]bool{}
	for _, a := range answers {
		denied[a.Right] = !a.Allowed
	}
	for _, o := range tries {
		may := true
		for _, r := range rightsFor(o) {
			may = may && !denied[r]
		}
		if may {
			t.try(ctx, o)
		} else {
			t.found.Denied = append(t.found.Denied, nameOf(o))
		}
	}
	return nil
}

// unname keeps a trial from what others have under that name.
func unname(o client.Object) {
	if o.GetName() != "" {
		o.SetGenerateName(o.GetName() + "-")
		o.SetName("")
	}
}

// rightsFor are those that a trial takes. The authorizer sees the names of objects that are
// applied.
func rightsFor(o client.Object) (all []access.Right) {
	group, resource := "", "services"
	switch o.(type) {
	case *appsv1.DaemonSet:
		group, resource = "apps", "daemonsets"
	case *appsv1.Deployment:
		group, resource = "apps", "deployments"
	case *corev1.Pod:
		resource = "pods"
	}
	verbs := "create"
	if o.GetName() != "" {
		verbs = "create patch"
	}
	all = access.In(o.GetNamespace(), access.Grant(group, resource, "", verbs)...)
	for i := range all {
		all[i].Name = o.GetName()
	}
	return all
}

func nameOf(o client.Object) string {
	return o.GetObjectKind().GroupVersionKind().Kind + " " + strings.TrimSuffix(cmp.Or(o.GetName(), o.GetGenerateName()), "-")
}

func (t *ownTrier) try(ctx context.Context, o client.Object) {
	name := nameOf(o)
	if o.GetName() == "" {
		refused, err := admission.Create(ctx, t.Cluster, o)
		t.answered(name, refused, err)
		return
	}
	written, err := workload.Written(o)
	if err == nil {
		err = workload.Try(ctx, t.Cluster, written[0])
	}
	if refused := admission.Of(err); refused != nil {
		t.answered(name, refused, nil)
		return
	}
	t.answered(name, nil, err)
}

// answered passes over a lack of rights, and what differs in replumb's namespace: Pod Security lets
// its pods in, and it has no quota but its own.
func (t *ownTrier) answered(object string, refused *admission.Refusal, err error) {
	switch {
	case apierrors.IsForbidden(err) || refused == nil && err == nil:
	case err != nil && !t.tells(err):
		t.err = cmp.Or(t.err, err)
	case err != nil:
		t.found.Untried = append(t.found.Untried, fmt.Sprintf("%s: %v", object, err))
	case t.own.Privileged && strings.Contains(refused.Error(), "violates PodSecurity"):
	case apierrors.IsInvalid(refused.Err) && refused.By == admission.Unnamed: // no address is free at the moment, or the like
	case refused.Quota && t.found.In != v1alpha1.SystemNamespace:
	default:
		t.found.Refused = append(t.found.Refused, OwnRefused{Object: object, By: refused})
	}
}

// podOf is a pod as the controller of a workload makes it; nil for others. Its account is yet to be
// made, and admission looks for it.
func podOf(o client.Object) *corev1.Pod {
	var of *corev1.PodTemplateSpec
	switch w := o.(type) {
	case *appsv1.DaemonSet:
		of = &w.Spec.Template
	case *appsv1.Deployment:
		of = &w.Spec.Template
	default:
		return nil
	}
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: o.GetName() + "-", Labels: of.Labels, Annotations: of.Annotations},
		Spec:       *of.Spec.DeepCopy(),
	}
	pod.Spec.ServiceAccountName = ""
	return pod
}
