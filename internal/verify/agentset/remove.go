package agentset

import (
	"context"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/workload"
)

// remove removes the agents: their pods first, which would report again.
func (s *Set) remove() engine.Step {
	return &engine.Write{
		Name: "tidy/agents", About: "Remove the agents", Write: s.delete,
		Holds: func(ctx context.Context) error {
			left, err := s.left(ctx)
			if err == nil && left != "" {
				return engine.NotYet("%s is still there", left)
			}
			return err
		},
		Changes: func() ([]engine.Change, error) {
			const in = v1alpha1.SystemNamespace + "/"
			objects := []string{"DaemonSet " + in + HostSet, "DaemonSet " + in + PodSet}
			if s.Ends {
				objects = slices.Insert(objects, 0, "Pod "+in+"* on nodes that have ended")
			}
			if s.services() {
				objects = append(objects, "Deployment "+in+Single)
			}
			var changes []engine.Change
			for _, o := range objects {
				changes = append(changes, engine.Change{Verb: "delete", Object: o})
			}
			changes = append(changes, workload.Deleted(rests())...)
			return append(changes, engine.Change{Verb: "delete", Object: "NodeReports of the migration"}), nil
		},
	}
}

func (s *Set) delete(ctx context.Context) error {
	sets, err := s.sets(ctx)
	if err != nil {
		return err
	}
	for i := range sets {
		if err := workload.Delete(ctx, s.Cluster, &sets[i]); err != nil {
			return err
		}
	}
	single, err := s.deployment(ctx)
	if err == nil && single != nil {
		err = workload.Delete(ctx, s.Cluster, single)
	}
	if err != nil {
		return err
	}
	for _, wait := range []func(context.Context) error{s.endPods, s.unbridged} {
		if err := wait(ctx); err != nil {
			return err
		}
	}
	rest, err := s.rest(ctx)
	if err != nil {
		return err
	}
	for _, o := range rest {
		if err := workload.Delete(ctx, s.Cluster, o); err != nil {
			return err
		}
	}
	err = s.Cluster.DeleteAllOf(ctx, &v1alpha1.NodeReport{}, client.MatchingLabels{v1alpha1.LabelMigration: s.Migration})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing nodereports: %w", err)
	}
	return nil
}

// endPods waits until the pods have gone. The kubelet of a node that is not ready cannot say so,
// and its pods are not waited for: an agent does nothing without its account.
func (s *Set) endPods(ctx context.Context) error {
	pods, err := s.everyPod(ctx)
	if err != nil || len(pods) == 0 {
		return err
	}
	ready, err := workload.ReadyNodes(ctx, s.Cluster)
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
		if err := workload.Delete(ctx, s.Cluster, p, client.GracePeriodSeconds(0)); err != nil {
			return err
		}
	}
	if waiting != nil {
		return engine.NotYet("pod %s on node %s is still there", waiting.Name, waiting.Spec.NodeName)
	}
	return nil
}

// unbridged fails as long as one of the Services has a bridge, which would be left without the
// Service that it stands in for.
func (s *Set) unbridged(ctx context.Context) error {
	all := &corev1.ServiceList{}
	if err := s.Cluster.List(ctx, all, s.ours(v1alpha1.RoleBridge)); err != nil {
		return fmt.Errorf("looking for bridges: %w", err)
	}
	for i := range all.Items {
		if of := all.Items[i].Annotations[v1alpha1.AnnotationService]; of == Service || of == Single {
			return engine.NotYet("bridge %s of Service %s/%s is still there", all.Items[i].Name, v1alpha1.SystemNamespace, of)
		}
	}
	return nil
}

// rests are all objects beside DaemonSets, pods and NodeReports, in the order in which they go:
// agents lose their rights before the policy that holds them to their own nodes.
func rests() []client.Object {
	var all []client.Object
	add := func(of schema.GroupVersion, kind, namespace, name string) {
		o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		o.SetGroupVersionKind(of.WithKind(kind))
		all = append(all, o)
	}
	for _, name := range []string{Service, Single} {
		add(corev1.SchemeGroupVersion, "Service", v1alpha1.SystemNamespace, name)
	}
	for _, who := range [][2]string{{hostAccount, hostAccess}, {podAccount, podAccess}} {
		add(rbacv1.SchemeGroupVersion, "ClusterRoleBinding", "", who[1])
		add(rbacv1.SchemeGroupVersion, "ClusterRole", "", who[1])
		add(corev1.SchemeGroupVersion, "ServiceAccount", v1alpha1.SystemNamespace, who[0])
	}
	for _, kind := range []string{"ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"} {
		add(admissionv1.SchemeGroupVersion, kind, "", reportsPolicy)
	}
	return all
}

// rest are those of them that exist and belong to this migration.
func (s *Set) rest(ctx context.Context) ([]client.Object, error) {
	all, err := workload.Left(ctx, s.Cluster, rests())
	return slices.DeleteFunc(all, func(o client.Object) bool {
		return o.GetLabels()[v1alpha1.LabelMigration] != s.Migration
	}), err
}

// left names something that still exists; it is empty once all has gone.
func (s *Set) left(ctx context.Context) (string, error) {
	sets, err := s.sets(ctx)
	if err != nil {
		return "", err
	}
	pods, err := s.everyPod(ctx)
	if err != nil {
		return "", err
	}
	single, err := s.deployment(ctx)
	if err != nil {
		return "", err
	}
	rest, err := s.rest(ctx)
	if err != nil {
		return "", err
	}
	reports := &v1alpha1.NodeReportList{}
	err = s.Cluster.List(ctx, reports, client.MatchingLabels{v1alpha1.LabelMigration: s.Migration})
	if client.IgnoreNotFound(err) != nil {
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
		return workload.NameOf(rest[0]), nil
	case len(reports.Items) > 0:
		return "nodereport " + reports.Items[0].Name, nil
	}
	return "", nil
}
