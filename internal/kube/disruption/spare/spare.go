// Package spare gives Deployments that must not pause one more pod while a migration disturbs pods:
// cluster DNS, admission webhooks and those that an operator names.
package spare

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/inventory"
)

// enough is how many pods can do without another one.
const enough = 3

// Spec is what a Migration says of it.
type Spec struct {
	Migration   string
	Mode        v1alpha1.PrepareMode
	Deployments []types.NamespacedName
}

// Inputs is what a look at a cluster has found.
type Inputs struct {
	Deployments []appsv1.Deployment
	// Services are the cluster's DNS, and those behind admission webhooks.
	Services []corev1.Service
	Scalers  []autoscalingv2.HorizontalPodAutoscaler
	// Unseen says what could not be read, and so is not known.
	Unseen []string
	Nodes  []corev1.Node
}

// Found is what is to be done about it.
type Found struct {
	Spec Spec
	// Critical get one more pod, or have it by this migration already, in order of their names.
	Critical []types.NamespacedName
	// Scaled are those of Critical that have it already.
	Scaled []types.NamespacedName
	Alone  []Alone
	Unseen []string
}

// Alone is a Deployment that would get one more pod, and why it does not.
type Alone struct {
	types.NamespacedName

	Why string
}

// Has reports whether a Deployment gets one more pod. Of nothing found none does.
func (f *Found) Has(key types.NamespacedName) bool {
	return f != nil && slices.Contains(f.Critical, key)
}

// Load reads a cluster. Deployments and nodes must be readable; the rest is noted as unseen.
func Load(ctx context.Context, c *cluster.Cluster, s Spec) (*Found, error) {
	if s.Mode != v1alpha1.PrepareScale {
		return &Found{Spec: s}, nil
	}
	scene := Inputs{}
	var err error
	if scene.Services, err = critical(ctx, c, &scene); err != nil {
		return nil, err
	}
	if scene.Deployments, err = cluster.List[appsv1.Deployment](ctx, c, &appsv1.DeploymentList{}); err != nil {
		return nil, err
	}
	if scene.Nodes, err = cluster.List[corev1.Node](ctx, c, &corev1.NodeList{}); err != nil {
		return nil, err
	}
	scalers := &autoscalingv2.HorizontalPodAutoscalerList{}
	if err := scene.may("horizontalpodautoscalers", c.List(ctx, scalers)); err != nil {
		return nil, err
	}
	scene.Scalers = scalers.Items
	return Find(s, scene), nil
}

// may notes what the user has no right to read, and passes other errors on.
func (s *Inputs) may(resource string, err error) error {
	if apierrors.IsForbidden(err) {
		if !slices.Contains(s.Unseen, resource) {
			s.Unseen = append(s.Unseen, resource)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking for what must not pause: %w", err)
	}
	return nil
}

func critical(ctx context.Context, c *cluster.Cluster, s *Inputs) ([]corev1.Service, error) {
	keys := []types.NamespacedName{{Namespace: metav1.NamespaceSystem, Name: "kube-dns"}}
	hooks, err := inventory.WebhookServices(ctx, c)
	if err := s.may("admission webhooks", err); err != nil {
		return nil, err
	}
	var all []corev1.Service
	for _, key := range append(keys, hooks...) {
		svc := &corev1.Service{}
		err := c.Get(ctx, key, svc)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err := s.may("services", err); err != nil {
			return nil, err
		}
		all = append(all, *svc)
	}
	return all, nil
}

// Find decides.
func Find(s Spec, scene Inputs) *Found {
	out := &Found{Spec: s}
	if s.Mode != v1alpha1.PrepareScale {
		return out
	}
	out.Unseen = scene.Unseen
	for i := range scene.Deployments {
		d := &scene.Deployments[i]
		key := client.ObjectKeyFromObject(d)
		switch {
		case had(d, s.Migration) != "":
			out.Critical, out.Scaled = append(out.Critical, key), append(out.Scaled, key)
		case !slices.Contains(s.Deployments, key) && (!scene.backs(d) && !answersNames(d) || replicas(d) >= enough || replicas(d) == 0):
		default:
			if why := scene.stays(d); why != "" {
				out.Alone = append(out.Alone, Alone{NamespacedName: key, Why: why})
			} else {
				out.Critical = append(out.Critical, key)
			}
		}
	}
	for _, key := range s.Deployments {
		there := slices.ContainsFunc(scene.Deployments, func(d appsv1.Deployment) bool { return client.ObjectKeyFromObject(&d) == key })
		if !there {
			out.Alone = append(out.Alone, Alone{NamespacedName: key, Why: "it does not exist"})
		}
	}
	slices.SortFunc(out.Critical, compare)
	slices.SortFunc(out.Alone, func(a, b Alone) int { return compare(a.NamespacedName, b.NamespacedName) })
	return out
}

func compare(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }

func (s *Inputs) backs(d *appsv1.Deployment) bool {
	return slices.ContainsFunc(s.Services, func(svc corev1.Service) bool {
		if svc.Namespace != d.Namespace || len(svc.Spec.Selector) == 0 {
			return false
		}
		for k, v := range svc.Spec.Selector {
			if d.Spec.Template.Labels[k] != v {
				return false
			}
		}
		return true
	})
}

// answersNames reports whether a Deployment is CoreDNS as kubeadm knows it (DeployedDNSAddon in
// k8s.io/kubernetes cmd/kubeadm/app/phases/addons/dns), whatever its Service is called: coredns
// with Kubespray, rke2-coredns-rke2-coredns with RKE2.
func answersNames(d *appsv1.Deployment) bool {
	return d.Namespace == metav1.NamespaceSystem && d.Spec.Template.Labels["k8s-app"] == "kube-dns"
}

func (s *Inputs) stays(d *appsv1.Deployment) string {
	if other := d.Annotations[v1alpha1.AnnotationOneMore]; other != "" {
		of, _, _ := strings.Cut(other, "/")
		return "migration " + of + " has given it one more pod"
	}
	if replicas(d) == 0 {
		return "it has no pods"
	}
	if by := s.scaledBy(d); by != "" {
		return by + " decides how many pods it has"
	}
	if n := s.places(d); alone(d) && int(replicas(d)) >= n {
		return fmt.Sprintf("each of its pods takes a node of its own, and %d can take them", n)
	}
	return ""
}

// scaledBy names what owns the number of a Deployment's pods: a HorizontalPodAutoscaler, or a
// cluster-proportional-autoscaler, whose target is in its command line
// (cmd/cluster-proportional-autoscaler/options in
// github.com/kubernetes-sigs/cluster-proportional-autoscaler).
func (s *Inputs) scaledBy(d *appsv1.Deployment) string {
	for i := range s.Scalers {
		h := &s.Scalers[i]
		if t := h.Spec.ScaleTargetRef; h.Namespace == d.Namespace && t.Kind == "Deployment" && t.Name == d.Name {
			return "HorizontalPodAutoscaler " + h.Namespace + "/" + h.Name
		}
	}
	target := "--target=deployment/" + strings.ToLower(d.Name)
	for i := range s.Deployments {
		by := &s.Deployments[i]
		aims := slices.ContainsFunc(by.Spec.Template.Spec.Containers, func(c corev1.Container) bool {
			return slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(a string) bool {
				return slices.Contains(strings.Fields(strings.ToLower(a)), target)
			})
		})
		if by.Namespace == d.Namespace && by.Name != d.Name && aims && replicas(by) > 0 {
			return "Deployment " + by.Namespace + "/" + by.Name + " (a cluster-proportional-autoscaler)"
		}
	}
	return ""
}

func alone(d *appsv1.Deployment) bool {
	spec := &d.Spec.Template.Spec
	ports := slices.ContainsFunc(spec.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.HostPort != 0 || spec.HostNetwork })
	})
	if ports || spec.Affinity == nil || spec.Affinity.PodAntiAffinity == nil {
		return ports
	}
	return slices.ContainsFunc(
		spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
		func(t corev1.PodAffinityTerm) bool {
			selector, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
			return err == nil && t.TopologyKey == corev1.LabelHostname && selector.Matches(labelsOf(d))
		},
	)
}

func (s *Inputs) places(d *appsv1.Deployment) (n int) {
	for i := range s.Nodes {
		node := &s.Nodes[i]
		if node.Spec.Unschedulable || !inventory.NodeReady(node) || !selects(d.Spec.Template.Spec.NodeSelector, node) {
			continue
		}
		refused := slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
			return t.Effect != corev1.TaintEffectPreferNoSchedule && !tolerated(d.Spec.Template.Spec.Tolerations, &t)
		})
		if !refused {
			n++
		}
	}
	return n
}

func selects(selector map[string]string, n *corev1.Node) bool {
	for k, v := range selector {
		if n.Labels[k] != v {
			return false
		}
	}
	return true
}

func tolerated(all []corev1.Toleration, taint *corev1.Taint) bool {
	return slices.ContainsFunc(all, func(t corev1.Toleration) bool {
		if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
			return false
		}
		return t.Operator == corev1.TolerationOpExists || t.Key != "" && t.Value == taint.Value
	})
}

func replicas(d *appsv1.Deployment) int32 { return ptr.Deref(d.Spec.Replicas, 1) }
