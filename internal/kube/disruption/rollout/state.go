package rollout

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// pageSize of lists, as kubectl has it.
const pageSize = 500

// State is what runs in the cluster and who owns it, without what plans don't need.
type State struct {
	Pods         []corev1.Pod
	ReplicaSets  []metav1.PartialObjectMetadata
	Deployments  []appsv1.Deployment
	StatefulSets []appsv1.StatefulSet
	DaemonSets   []appsv1.DaemonSet
	Budgets      []policyv1.PodDisruptionBudget
	Away         map[string]bool
	// DataPlanes are the DaemonSets that may program Services or routes on nodes.
	DataPlanes map[types.UID]bool
	// takenBack says of workloads who undid their restart.
	takenBack map[types.UID]string
}

// Load reads the State of the whole cluster, page by page, and keeps only what matters of each pod.
func Load(ctx context.Context, c client.Client) (*State, error) {
	s := &State{Away: map[string]bool{}, DataPlanes: map[types.UID]bool{}}
	err := each(ctx, c, &corev1.PodList{}, func(p *corev1.Pod) { s.Pods = append(s.Pods, slimPod(p)) })
	if err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	err = each(ctx, c, replicaSetList(), func(r *metav1.PartialObjectMetadata) {
		r.ObjectMeta = slimMeta(&r.ObjectMeta)
		s.ReplicaSets = append(s.ReplicaSets, *r)
	})
	if err != nil {
		return nil, fmt.Errorf("listing replicasets: %w", err)
	}
	err = each(ctx, c, &appsv1.DeploymentList{}, func(d *appsv1.Deployment) {
		d.ObjectMeta, d.Spec.Template = slimMeta(&d.ObjectMeta), slimTemplate(&d.Spec.Template)
		s.Deployments = append(s.Deployments, *d)
	})
	if err != nil {
		return nil, fmt.Errorf("listing deployments: %w", err)
	}
	err = each(ctx, c, &appsv1.StatefulSetList{}, func(d *appsv1.StatefulSet) {
		d.ObjectMeta, d.Spec.Template, d.Spec.VolumeClaimTemplates = slimMeta(&d.ObjectMeta), slimTemplate(&d.Spec.Template), nil
		s.StatefulSets = append(s.StatefulSets, *d)
	})
	if err != nil {
		return nil, fmt.Errorf("listing statefulsets: %w", err)
	}
	err = each(ctx, c, &appsv1.DaemonSetList{}, func(d *appsv1.DaemonSet) {
		if programsNode(&d.Spec.Template.Spec) {
			s.DataPlanes[d.UID] = true
		}
		d.ObjectMeta, d.Spec.Template = slimMeta(&d.ObjectMeta), slimTemplate(&d.Spec.Template)
		s.DaemonSets = append(s.DaemonSets, *d)
	})
	if err != nil {
		return nil, fmt.Errorf("listing daemonsets: %w", err)
	}
	err = each(ctx, c, &policyv1.PodDisruptionBudgetList{}, func(b *policyv1.PodDisruptionBudget) {
		b.ObjectMeta = slimMeta(&b.ObjectMeta)
		s.Budgets = append(s.Budgets, *b)
	})
	if err != nil {
		return nil, fmt.Errorf("listing poddisruptionbudgets: %w", err)
	}
	if err := each(ctx, c, &corev1.NodeList{}, func(n *corev1.Node) { s.Away[n.Name] = away(n) }); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	return s, nil
}

func replicaSetList() *metav1.PartialObjectMetadataList {
	l := &metav1.PartialObjectMetadataList{}
	l.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("ReplicaSetList"))
	return l
}

func each[T any](ctx context.Context, c client.Client, empty client.ObjectList, take func(*T), opts ...client.ListOption) error {
	token := ""
	for {
		list := empty.DeepCopyObject().(client.ObjectList) // items of the page before are kept, and must stay as they are
		page := append([]client.ListOption{client.Limit(pageSize), client.Continue(token)}, opts...)
		if err := c.List(ctx, list, page...); err != nil {
			return err
		}
		items, err := meta.ExtractList(list)
		if err != nil {
			return err
		}
		for _, item := range items {
			take(any(item).(*T))
		}
		if token = list.GetContinue(); token == "" {
			return nil
		}
	}
}

func slimMeta(m *metav1.ObjectMeta) metav1.ObjectMeta {
	slim := metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, Generation: m.Generation, Labels: m.Labels,
		OwnerReferences: m.OwnerReferences, CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
	}
	if wish, is := m.Annotations[v1alpha1.AnnotationRestart]; is {
		slim.Annotations = map[string]string{v1alpha1.AnnotationRestart: wish}
	}
	return slim
}

func slimTemplate(t *corev1.PodTemplateSpec) corev1.PodTemplateSpec {
	slim := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: t.Labels, Annotations: t.Annotations}}
	slim.Spec.HostNetwork = t.Spec.HostNetwork
	for i := range t.Spec.Containers {
		for _, p := range t.Spec.Containers[i].Ports {
			if p.HostPort != 0 { // no second pod can have it on the same node
				slim.Spec.Containers = append(slim.Spec.Containers, corev1.Container{Ports: []corev1.ContainerPort{p}})
			}
		}
	}
	return slim
}

func slimPod(p *corev1.Pod) corev1.Pod {
	slim := corev1.Pod{
		ObjectMeta: slimMeta(&p.ObjectMeta),
		Spec: corev1.PodSpec{
			NodeName: p.Spec.NodeName, DNSPolicy: p.Spec.DNSPolicy, HostNetwork: p.Spec.HostNetwork,
			EnableServiceLinks: p.Spec.EnableServiceLinks,
		},
		Status: corev1.PodStatus{
			Phase: p.Status.Phase, StartTime: p.Status.StartTime, HostIP: p.Status.HostIP, Conditions: p.Status.Conditions,
			PodIP: p.Status.PodIP, PodIPs: p.Status.PodIPs,
			InitContainerStatuses:      slimStatuses(p.Status.InitContainerStatuses),
			ContainerStatuses:          slimStatuses(p.Status.ContainerStatuses),
			EphemeralContainerStatuses: slimStatuses(p.Status.EphemeralContainerStatuses),
		},
	}
	for i := range p.Spec.Volumes {
		if empty := p.Spec.Volumes[i].EmptyDir; empty != nil { // what lies there is gone with the pod
			slim.Spec.Volumes = append(slim.Spec.Volumes, corev1.Volume{
				Name: p.Spec.Volumes[i].Name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
			})
		}
	}
	if mark, ok := p.Annotations[v1alpha1.AnnotationLeaving]; ok {
		slim.Annotations = map[string]string{v1alpha1.AnnotationLeaving: mark}
	}
	for i := range p.Spec.Containers {
		if c := &p.Spec.Containers[i]; c.ReadinessProbe != nil {
			slim.Spec.Containers = append(slim.Spec.Containers, corev1.Container{Name: c.Name, ReadinessProbe: &corev1.Probe{}})
		}
	}
	if hash, ok := p.Annotations[corev1.MirrorPodAnnotationKey]; ok {
		slim.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: hash}
		slim.Spec.Containers = nil
		for _, c := range p.Spec.Containers {
			slim.Spec.Containers = append(slim.Spec.Containers, corev1.Container{Name: c.Name, Command: c.Command, Args: c.Args})
		}
	}
	if unread := unreadOf(&p.Spec); unread != "" {
		if slim.Annotations == nil {
			slim.Annotations = map[string]string{}
		}
		slim.Annotations[annotationUnread] = unread
	}
	return slim
}

func slimStatuses(all []corev1.ContainerStatus) []corev1.ContainerStatus {
	var slim []corev1.ContainerStatus
	for i := range all {
		slim = append(slim, corev1.ContainerStatus{Name: all[i].Name, State: all[i].State})
	}
	return slim
}
