package agentset

import (
	"context"
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration/incluster"
)

// removeStep takes the agents away: their pods first, as they would report again what is removed before they have gone.
type removeStep struct{ set *Set }

var _ engine.Previewer = (*removeStep)(nil)

func (*removeStep) ID() string    { return "tidy/agents" }
func (*removeStep) Title() string { return "Remove the agents" }

func (s *removeStep) State(ctx context.Context) (engine.State, error) {
	left, err := s.left(ctx)
	switch {
	case err != nil:
		return engine.Unknown, err
	case left == "":
		return engine.Done, nil
	}
	return engine.Pending, nil
}

func (s *removeStep) Do(ctx context.Context) error {
	sets, err := s.set.sets(ctx)
	if err != nil {
		return err
	}
	for i := range sets {
		if err := s.remove(ctx, &sets[i], client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
			return err
		}
	}
	if err := s.unanswered(ctx); err != nil {
		return err
	}
	if err := s.end(ctx); err != nil {
		return err
	}
	if err := s.unbridged(ctx); err != nil {
		return err
	}
	rest, err := s.rest(ctx)
	if err != nil {
		return err
	}
	for _, o := range rest {
		if err := s.remove(ctx, o); err != nil {
			return err
		}
	}
	ours := client.MatchingLabels{v1alpha1.LabelMigration: s.set.Migration}
	if err := s.set.Cluster.DeleteAllOf(ctx, &v1alpha1.NodeReport{}, ours); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing nodereports: %w", err)
	}
	return nil
}

// end waits until the pods have gone. The kubelet of a node that is not ready cannot say so, nor does anything wait for what runs there:
// without its account an agent does nothing.
func (s *removeStep) end(ctx context.Context) error {
	pods, err := s.set.everyPod(ctx)
	if err != nil || len(pods) == 0 {
		return err
	}
	ready, err := incluster.ReadyNodes(ctx, s.set.Cluster)
	if err != nil {
		return err
	}
	var waiting *corev1.Pod
	for i := range pods {
		p := &pods[i]
		if ready[p.Spec.NodeName] || p.DeletionTimestamp.IsZero() {
			waiting = p
			continue
		}
		if err := s.remove(ctx, p, client.GracePeriodSeconds(0)); err != nil {
			return err
		}
	}
	if waiting != nil {
		return engine.NotYet("pod %s on node %s is still there", waiting.Name, waiting.Spec.NodeName)
	}
	return nil
}

// unanswered takes away what is called from nodes without an endpoint. Where Services do not move there is none, and no right to look.
func (s *removeStep) unanswered(ctx context.Context) error {
	d, err := s.set.deployment(ctx)
	if err != nil || d == nil {
		return err
	}
	return s.remove(ctx, d, client.PropagationPolicy(metav1.DeletePropagationBackground))
}

// unbridged fails as long as one of the Services has a bridge, which would be left without whom it stands in for.
func (s *removeStep) unbridged(ctx context.Context) error {
	all := &corev1.ServiceList{}
	if err := s.set.Cluster.List(ctx, all, s.set.ours(v1alpha1.RoleBridge)); err != nil {
		return fmt.Errorf("looking for bridges: %w", err)
	}
	for i := range all.Items {
		if of := all.Items[i].Annotations[v1alpha1.AnnotationService]; of == Service || of == Single {
			return engine.NotYet("bridge %s of Service %s/%s is still there", all.Items[i].Name, v1alpha1.SystemNamespace, of)
		}
	}
	return nil
}

// rests are what there is beside DaemonSets, pods and NodeReports, in the order in which it goes: agents lose their rights before they lose
// what holds them to their own nodes.
func rests() []client.Object {
	const rbac, admission = "rbac.authorization.k8s.io/v1", "admissionregistration.k8s.io/v1"
	var all []client.Object
	for _, name := range []string{Service, Single} {
		all = append(all, &corev1.Service{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
			ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: name},
		})
	}
	for _, who := range [][2]string{{hostAccount, hostAccess}, {podAccount, podAccess}} {
		account, access := who[0], who[1]
		all = append(all, &rbacv1.ClusterRoleBinding{
			TypeMeta: metav1.TypeMeta{APIVersion: rbac, Kind: "ClusterRoleBinding"}, ObjectMeta: metav1.ObjectMeta{Name: access},
		}, &rbacv1.ClusterRole{
			TypeMeta: metav1.TypeMeta{APIVersion: rbac, Kind: "ClusterRole"}, ObjectMeta: metav1.ObjectMeta{Name: access},
		}, &corev1.ServiceAccount{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
			ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: account},
		})
	}
	return append(all, &admissionv1.ValidatingAdmissionPolicyBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: admission, Kind: "ValidatingAdmissionPolicyBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: reportsPolicy},
	}, &admissionv1.ValidatingAdmissionPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: admission, Kind: "ValidatingAdmissionPolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: reportsPolicy},
	})
}

// rest is what is left of that and belongs to this migration.
func (s *removeStep) rest(ctx context.Context) ([]client.Object, error) {
	var all []client.Object
	for _, o := range rests() {
		err := s.set.Cluster.Get(ctx, client.ObjectKeyFromObject(o), o)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("%s: %w", incluster.NameOf(o), err)
		}
		if err == nil && o.GetLabels()[v1alpha1.LabelMigration] == s.set.Migration {
			all = append(all, o)
		}
	}
	return all, nil
}

func (s *removeStep) remove(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	uid := o.GetUID()
	err := s.set.Cluster.Delete(ctx, o, append(opts, client.Preconditions{UID: &uid})...)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing %s: %w", o.GetName(), err)
	}
	return nil
}

// left names something that is still there; nothing if all has gone.
func (s *removeStep) left(ctx context.Context) (string, error) {
	sets, err := s.set.sets(ctx)
	if err != nil {
		return "", err
	}
	pods, err := s.set.everyPod(ctx)
	if err != nil {
		return "", err
	}
	single, err := s.set.deployment(ctx)
	if err != nil {
		return "", err
	}
	rest, err := s.rest(ctx)
	if err != nil {
		return "", err
	}
	reports := &v1alpha1.NodeReportList{}
	ours := client.MatchingLabels{v1alpha1.LabelMigration: s.set.Migration}
	if err := s.set.Cluster.List(ctx, reports, ours); client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("listing nodereports: %w", err)
	}
	switch {
	case len(sets) > 0:
		return "daemonset " + sets[0].Name, nil
	case single != nil:
		return "deployment " + single.Name, nil
	case len(pods) > 0:
		return "pod " + pods[0].Name + " on node " + pods[0].Spec.NodeName, nil
	case len(rest) > 0:
		return incluster.NameOf(rest[0]), nil
	case len(reports.Items) > 0:
		return "nodereport " + reports.Items[0].Name, nil
	}
	return "", nil
}

func (s *removeStep) Verify(ctx context.Context) error {
	left, err := s.left(ctx)
	if err == nil && left != "" {
		return engine.NotYet("%s is still there", left)
	}
	return err
}

func (s *removeStep) Preview() ([]engine.Change, error) {
	var changes []engine.Change
	if s.set.Ends {
		changes = append(changes, engine.Change{Verb: "delete", Object: "Pod " + v1alpha1.SystemNamespace + "/* on nodes that have ended"})
	}
	for _, name := range []string{HostSet, PodSet} {
		changes = append(changes, engine.Change{Verb: "delete", Object: "DaemonSet " + v1alpha1.SystemNamespace + "/" + name})
	}
	if s.set.services() {
		changes = append(changes, engine.Change{Verb: "delete", Object: "Deployment " + v1alpha1.SystemNamespace + "/" + Single})
	}
	for _, o := range rests() {
		changes = append(changes, engine.Change{Verb: "delete", Object: incluster.NameOf(o)})
	}
	return append(changes, engine.Change{Verb: "delete", Object: "NodeReports of the migration"}), nil
}
